"""Studies that are interrupted, fail or are refused: rows are kept, and the command goes on."""

import errno
import shutil
from contextlib import redirect_stdout
from io import StringIO

import pytest
from tables import read

from gpflow_cool import CoolMTGP, studies
from gpflow_cool.studies import StudyError, methods, partition, records
from gpflow_cool.studies.__main__ import main

# Interrupted and resumed ---------------------------------------------------------------------


def without_times(path):
    drop = ("seconds", "fit_seconds", "predict_seconds", "averaging_seconds")
    return [{k: v for k, v in row.items() if k not in drop} for row in read(path)]


def run_edm(out, data, **options):
    common = {"quick": True, "data": data, "sets": "edm", "kernels": "linear", "splits": 3}
    common["methods"] = "cool-hierarchical"
    return studies.run("real", out=out, **(common | options))


def test_interrupted_and_resumed_gives_the_same_file(tmp_path, data, monkeypatch, capsys):
    whole = run_edm(tmp_path / "whole", data)
    train, calls = methods.train, []

    def interrupted(model, steps=None):
        calls.append(model)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(model, steps)

    monkeypatch.setattr(methods, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_edm(tmp_path / "parts", data)
    path = tmp_path / "parts" / "real_quick.csv"
    assert len(read(path)) == 2
    with path.open("a") as file:
        file.write("edm,linear,cool-h")  # a line that was cut off
    resumed = run_edm(tmp_path / "parts", data)
    assert len(calls) == 3 + 1  # two of three were there
    assert "1 of 3 units to do, 2 are there already" in capsys.readouterr().out
    assert without_times(resumed.csv) == without_times(whole.csv)
    run_edm(tmp_path / "parts", data)
    assert len(calls) == 4
    run_edm(tmp_path / "parts", data, seed=9, splits=1)  # other settings: not there yet
    assert len(calls) == 5


def test_pieces_add_up_in_one_table(tmp_path, data):
    run_edm(tmp_path, data, methods="independent", splits=1)
    result = run_edm(tmp_path, data, methods=["cool-hierarchical"], splits=1)
    assert {row["method"] for row in result.rows} == {"independent", "cool-hierarchical"}


def test_ctrl_c_in_training_ends_the_study(data, tmp_path, monkeypatch):
    def stopped(model, *args, **kwargs):
        model.stop_training = True  # what `fit` does at the first Ctrl-C

    monkeypatch.setattr(CoolMTGP, "fit", stopped)
    options = ["--quick", "--out", str(tmp_path), "--data", str(data), "--sets", "edm"]
    with redirect_stdout(StringIO()) as printed:
        assert main(["real", *options]) == 130
    assert "the same command goes on" in printed.getvalue()
    assert read(tmp_path / "real_quick.csv") == []


def test_a_unit_that_fails_is_told_and_tried_again(tmp_path, data, monkeypatch, capsys):
    train = methods.train

    def failing(model, steps=None):
        if isinstance(model, CoolMTGP):
            raise ValueError("cannot\nbe done")
        return train(model, steps)

    monkeypatch.setattr(methods, "train", failing)
    options = {"splits": 1, "methods": "cool-hierarchical,independent"}
    result = run_edm(tmp_path, data, **options)
    assert [row["method"] for row in result.rows] == ["independent"]
    assert "cool-hierarchical 0 failed: ValueError: cannot" in capsys.readouterr().out
    with pytest.raises(StudyError, match="Every one of 1 units failed.*cannot"):
        run_edm(tmp_path, data, **options)
    monkeypatch.setattr(methods, "train", train)
    assert len(run_edm(tmp_path, data, **options).rows) == 2


# Refused -------------------------------------------------------------------------------------


def damaged(data, tmp_path, name, change):
    """A copy of the data folder in which one file has been changed."""
    folder = tmp_path / "mulan"
    shutil.copytree(data, folder)
    path = folder / f"{name}.arff"
    path.write_text(change(path.read_text()))
    return folder


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text.rstrip()[:-30], r"edm.arff, line 3\d: \d values.*leave it out"),
        (
            lambda text: text.replace("@data\n", "@data\n?,1,1,1,1,1\n"),
            "row 1 .*'c0'.*leave it out",
        ),
        (lambda text: text.split("@data")[0], "ends before @data.*leave it out"),
    ],
)
def test_damaged_file_is_refused_and_results_are_kept(data, tmp_path, change, message):
    out = tmp_path / "out"
    before = run_edm(out, data, splits=1).csv.read_text()
    folder = damaged(data, tmp_path, "edm", change)
    with pytest.raises(StudyError, match=message):
        run_edm(out, folder)
    assert (out / "real_quick.csv").read_text() == before


def test_sets_that_are_not_there_are_named(data, tmp_path, capsys):
    with pytest.raises(StudyError, match="andro: no such .arff file"):
        studies.run("real", data=data, out=tmp_path, sets="edm,andro")
    partition.load_sets(None, data)
    assert "Left out" in (printed := capsys.readouterr().out)
    assert "andro" in printed and "scm1d" in printed and "edm" not in printed
    with pytest.raises(StudyError, match="None of the ten sets"):
        studies.run("real", data=tmp_path, out=tmp_path)


def test_folder_that_cannot_be_written(tmp_path, data):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="Cannot write to the folder.*file.*--out"):
        run_edm(tmp_path / "file", data)
    with redirect_stdout(StringIO()) as printed:
        assert main(["variance", "--quick", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "Error: Cannot write to the folder" in printed.getvalue()


def test_full_disk_keeps_the_rows_before(tmp_path, data, monkeypatch):
    train, calls = methods.train, []

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    def train_then_fill(model, steps=None):
        calls.append(model)
        if len(calls) == 2:
            monkeypatch.setattr(records.os, "fsync", no_space)
        return train(model, steps)

    monkeypatch.setattr(methods, "train", train_then_fill)
    with pytest.raises(StudyError, match="No space left on device. The 1 rows before are kept"):
        run_edm(tmp_path, data)
    monkeypatch.undo()
    assert read(tmp_path / "real_quick.csv")[0]["status"] == "ok"


def test_file_of_another_layout_is_not_touched(tmp_path, data):
    path = tmp_path / "real_quick.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(StudyError, match="its header is not that of this study"):
        run_edm(tmp_path, data)
    assert path.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("reel", {}, "'reel' is not a study. Choose one of synthetic"),
        ("real", {"draws": 3}, "'real' has no option draws: it has .*splits"),
        ("real", {"methods": "cool"}, "methods='cool' is not known. Choose from cool-hier"),
        ("real", {"sets": "edm,mnist"}, "sets='mnist' is not known"),
        ("variance", {"seed": -1}, "seed=-1 must be"),
        ("runtime", {"sizes": [5, 100]}, "scm20d has 60 rows"),
    ],
)
def test_options_that_do_not_exist(tmp_path, data, name, options, message):
    with pytest.raises(StudyError, match=message):
        studies.run(name, out=tmp_path, data=data, **options)
    assert list(tmp_path.iterdir()) == []
