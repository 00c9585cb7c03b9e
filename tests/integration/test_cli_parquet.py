"""The command line on Parquet files that are read in chunks."""

import builtins
import json
import re

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest
from commands import mistake, run, write
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGPRegressor, load
from gpflow_cool.cli import streams
from gpflow_cool.cli.console import Training

FIT = ["--targets", "heat,cold", "--exclude", "id", "--inducing", "9"]


def make_frame(num_rows=60):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(num_rows, 2)) * [1.0, 20.0]
    Y = np.column_stack([np.sin(X[:, 0]), 100.0 + X[:, 1] / 20])
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame[["heat", "cold"]] = Y + 0.1 * rng.normal(size=Y.shape)
    return frame.assign(id=[f"s{n}" for n in range(num_rows)])


FRAME = make_frame()


def write_parts(folder, second=None):
    """Two files; the second may have other columns."""
    files = [folder / "p0.parquet", folder / "p1.parquet"]
    FRAME[:25].to_parquet(files[0])
    (FRAME[25:] if second is None else second).to_parquet(files[1])
    return files


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two files, and a model that was fitted to them."""
    folder = tmp_path_factory.mktemp("parquet")
    files = write_parts(folder)
    result = run("fit", *files, *FIT, "--out", folder / "model", "--json")
    assert result.exit_code == 0, result.output
    assert "60 rows of 2 files are read in chunks, and seen through 9" in result.stderr
    (folder / "said.json").write_text(result.stdout)
    return folder


@pytest.mark.slow
def test_the_model_is_the_estimators_on_the_same_files(place):
    said = json.loads((place / "said.json").read_text())
    assert said["rows"] == 60 and said["inducing_points"] == 9
    assert said["inputs"] == ["a", "b"] and said["targets"] == ["heat", "cold"]
    schema = ds.dataset(sorted(place.glob("*.parquet"))).schema
    names = ["a", "b", "heat", "cold"]
    dataset = ds.dataset(sorted(place.glob("*.parquet"))).replace_schema(
        type(schema).empty_table(schema).select(names).schema
    )
    expected = CoolMTGPRegressor("se", ard=False, inducing=9).fit(dataset, ["heat", "cold"])
    loaded = load(place / "model")
    assert_allclose(loaded.predict(FRAME[["a", "b"]]), expected.predict(FRAME[["a", "b"]]))


@pytest.mark.slow
def test_the_saved_model_predicts_and_reports(place, tmp_path):
    FRAME[["b", "a"]][:5].to_parquet(tmp_path / "new.parquet")
    out = tmp_path / "p.parquet"
    result = run("predict", place / "model", tmp_path / "new.parquet", "--out", out)
    assert result.exit_code == 0, result.output
    mean, std = load(place / "model").predict(FRAME[["a", "b"]][:5], return_std=True)
    got = pd.read_parquet(out)
    assert_allclose(got[["heat", "cold"]], mean, rtol=1e-9)
    assert_allclose(got[["heat_std", "cold_std"]], std, rtol=1e-9)
    page = tmp_path / "page.html"
    assert run("report", place / "model", "--out", page).exit_code == 0
    assert "cold" in page.read_text()


def given(**options):
    """Options of `fit`, as they are by default."""
    plain = dict.fromkeys(Training._fields) | {"targets": ["heat", "cold"], "exclude": ["id"]}
    plain |= {"missing_inputs": "refuse", "transform": "none", "large": False, "quiet": False}
    return Training(**{**plain, **options})


def values(stream):
    return stream.dataset.to_table().to_pandas()[["a", "b", "heat", "cold"]]


def test_a_folder_or_one_long_file_is_a_stream_too(place, tmp_path, monkeypatch, capsys):
    stream = streams.training_stream([place], given())
    assert_allclose(values(stream), FRAME.drop(columns="id"))
    FRAME.to_parquet(tmp_path / "one.parquet")
    monkeypatch.setattr(streams, "STREAM_ROWS", 60)
    assert streams.training_stream([tmp_path / "one.parquet"], given()) is None
    monkeypatch.setattr(streams, "STREAM_ROWS", 59)
    stream = streams.training_stream([tmp_path / "one.parquet"], given())
    assert_allclose(values(stream), FRAME.drop(columns="id"))
    streams.note_stream(stream, 300, quiet=False)
    said = capsys.readouterr().err
    assert "60 rows of one file are read in chunks" in said
    assert "or --large to read them into memory" in said


@pytest.mark.parametrize(
    "options",
    [{"exclude": None}, {"large": True}, {"transform": {"heat": "log"}}, {"categorical": ["a"]}],
)
def test_one_file_is_read_into_memory_where_it_must_be(tmp_path, monkeypatch, options):
    FRAME.to_parquet(tmp_path / "one.parquet")
    monkeypatch.setattr(streams, "STREAM_ROWS", 59)
    assert streams.training_stream([tmp_path / "one.parquet"], given(**options)) is None


@pytest.mark.parametrize(
    "second, options, message",
    [
        (FRAME[["a", "heat", "cold"]], [], "p1.parquet has no column 'b', but .*p0.parquet has"),
        (FRAME.assign(b="wet"), [], "'b' of .*p1.parquet holds .*string, but a stream must hold"),
        (None, ["--transform", "log"], "--transform is for one file, .* Join them"),
        (None, ["--large"], "--large is for one file"),
        (None, ["--exclude", "a"], "'id' of .*p0.parquet holds .*string.*--exclude"),
        (None, ["--targets", "warm"], "p0.parquet has no column 'warm'. It has: a, b, heat"),
        (
            FRAME[25:].assign(b=np.where(np.arange(35) == 7, np.nan, 1.0)),
            [],
            "p1.parquet, row 8, column 'b': the cell is empty. A stream has no gaps",
        ),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, second, options, message):
    files = write_parts(tmp_path, second)
    assert_said(message, "fit", *files, *FIT, "--quiet", "--out", tmp_path / "model", *options)
    assert not (tmp_path / "model").exists()


def assert_said(message, *arguments):
    line = mistake(*arguments)
    assert re.search(message, line), line


def test_integers_and_decimals_of_a_column_go_together(tmp_path):
    files = write_parts(tmp_path, FRAME[25:].assign(a=np.arange(35)))
    expected = np.concatenate([FRAME.a[:25], np.arange(35)])
    for order in (files, files[::-1]):
        found = values(streams.training_stream(order, given()))
        assert_allclose(np.sort(found.a), np.sort(expected))


def test_other_places_are_refused(tmp_path):
    rest = [*FIT, "--out", tmp_path / "model"]
    files = write_parts(tmp_path)
    text = write(tmp_path / "data.csv", "a,heat\n1,2\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert_said("data.csv is not a Parquet file: several files", "fit", files[0], text, *rest)
    assert_said("empty holds no Parquet file", "fit", empty, *rest)
    assert_said(
        "nowhere.parquet is not there", "fit", tmp_path / "nowhere.parquet", files[0], *rest
    )
    damaged = write(tmp_path / "bad.parquet", "text")
    assert_said("bad.parquet is not a Parquet file, or is damaged", "fit", files[0], damaged, *rest)


def test_without_pyarrow_the_line_says_what_to_install(tmp_path, monkeypatch):
    files = write_parts(tmp_path)
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("pyarrow"):
            raise ImportError("No module named 'pyarrow'")
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    line = mistake("fit", *files, *FIT, "--out", tmp_path / "model")
    assert "p0.parquet needs pyarrow" in line and "pip install 'gpflow_cool[table]'" in line
