"""Mistakes at the command line: one line tells each of them, and nothing is written."""

import os
from pathlib import Path

import pytest
from commands import mistake, run, write

from gpflow_cool.cli.console import Training
from gpflow_cool.cli.tables import input_names, target_names
from gpflow_cool.cli.wording import in_options
from gpflow_cool.loading import load
from gpflow_cool.table.files import FileTable

GOOD = "a,b,c\n1,2,3\n2,4,7\n3,5,4\n"

MISTAKES = {
    "wrong target": (GOOD, ["--targets", "z"], "has no column 'z'. It has: a, b, c."),
    "wrong pattern": (GOOD, ["--targets", "z*"], "has no column that matches 'z*'."),
    "wrong input": (GOOD, ["--targets", "a", "--inputs", "q"], "has no column 'q'"),
    **{
        f"misspelt {option}": (
            "width,height,depth\n1,2,3\n2,4,7\n3,5,4\n",
            ["--targets", "width", option, "depht"],
            "has no column 'depht'. Did you mean 'depth'? It has: width, height, depth.",
        )
        for option in ("--inputs", "--exclude", "--categorical")
    },
    "misspelt --targets": (
        "width,height\n1,2\n2,4\n3,5\n",
        ["--targets", "heigth"],
        "has no column 'heigth'. Did you mean 'height'? It has: width, height.",
    ),
    "misspelt --transform": (
        "width,height\n1,2\n2,4\n3,5\n",
        ["--targets", "height", "--transform", "heigth=log"],
        "--transform heigth: the targets are height. Did you mean 'height'?",
    ),
    "twice": (GOOD, ["--targets", "a,a"], "'a' is given twice"),
    "empty name": (GOOD, ["--targets", "a,,b"], "'a,,b' has an empty name: put commas"),
    "no name": (GOOD, ["--targets", ""], "'' has an empty name: put commas between names"),
    "empty column": (
        "a,b\n,1\n,2\n,3\n",
        ["--targets", "b"],
        "Column 'a' is empty in every row: leave it out (--exclude).",
    ),
    "empty column, dropped": (
        "a,b\n,1\n,2\n,3\n",
        ["--targets", "b", "--missing-inputs", "drop"],
        "Column 'a' is empty in every row: leave it out (--exclude).",
    ),
    "money": (
        "a,b\n1,$0.01\n2,$0.02\n",
        ["--targets", "b"],
        "'$0.01' is not a number. Mend the cell, or leave the column out. Write amounts of money",
    ),
    "both": (GOOD, ["--targets", "a", "--inputs", "a,b"], "'a' is both an input and a target"),
    "target excluded": (
        GOOD,
        ["--targets", "a", "--exclude", "a"],
        "Column 'a' is asked for, and excluded (--exclude): choose.",
    ),
    "input excluded": (
        GOOD,
        ["--targets", "a", "--inputs", "b,c", "--exclude", "c"],
        "Column 'c' is asked for, and excluded (--exclude): choose.",
    ),
    "targets excluded": (GOOD, ["--targets", "[ab]", "--exclude", "a,b"], "has no target left"),
    "nothing left": (GOOD, ["--targets", "a,b,c"], "no column left to predict from"),
    "text": (
        "a,b\n1,x\n2,3\n",
        ["--targets", "b"],
        "row 1 (line 2), column 'b': 'x' is not a number",
    ),
    "text input": ("a,b\n1,2\nred,3\n", ["--targets", "b"], "column 'a': 'red' is not a number"),
    "empty cell": ("a,b\n1,2\n,3\n", ["--targets", "b"], "row 2 (line 3), column 'a': the cell is"),
    "header": ("a,b,b\n1,2,3\n2,3,4\n", ["--targets", "a"], "header has 'b' more than once"),
    "one row": ("a,b\n1,2\n", ["--targets", "b"], "has one row: a model needs at least two"),
    "no rows": ("a,b\n", ["--targets", "b"], "has no rows of data"),
    "binary": ("\0\1\2", ["--targets", "b"], "is not a CSV file: it holds no text"),
    "kernel": (GOOD, ["--targets", "a", "--kernel", "rbf"], "'rbf' is not one of 'auto', 'se'"),
    "option": (GOOD, ["--targets", "a", "--fast"], "No such option"),
    "no targets": (GOOD, [], "Missing option '--targets'"),
    "orders": (
        GOOD,
        ["--targets", "a", "--orders", "0"],
        "'0' is not a whole number of at least 1",
    ),
    "seed": (GOOD, ["--targets", "a", "--seed", "-1"], "'-1' is not a whole number of at least 0"),
    "seed of letters": (
        GOOD,
        ["--targets", "a", "--seed", "x"],
        "Invalid value for '--seed': 'x' is not a whole number of at least 0",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_fit(tmp_path, name):
    text, arguments, message = MISTAKES[name]
    data = write(tmp_path / "data.csv", text)
    assert message in mistake("fit", data, *arguments, "--out", tmp_path / "model")
    assert os.listdir(tmp_path) == ["data.csv"]


@pytest.mark.parametrize(
    "targets, inputs, exclude, chosen",
    [
        (["y*"], None, ["y_id"], (["y1", "y2"], ["x1", "x2"])),
        (["y*"], None, ["*_id", "x1"], (["y1", "y2"], ["x2"])),
        (["y1"], ["*"], ["y*", "x2"], (["y1"], ["x1"])),
        (["y_id"], ["x1", "y*"], ["y*"], (["y_id"], ["x1"])),
    ],
)
def test_patterns_leave_out_what_is_excluded(targets, inputs, exclude, chosen):
    names = ["x1", "x2", "y1", "y2", "y_id"]
    table = FileTable(Path("data.csv"), {name: () for name in names}, None)
    plain = dict.fromkeys(Training._fields)
    given = Training(**plain | {"targets": targets, "inputs": inputs, "exclude": exclude})
    found = target_names(table, given)
    assert (found, input_names(table, given, found)) == chosen


def test_places_that_do_not_serve(tmp_path):
    data = write(tmp_path / "data.csv", GOOD)
    arguments = ["fit", data, "--targets", "a", "--out"]
    assert "not a saved model, so that it is" in mistake(*arguments, tmp_path, "--force")
    assert "cannot be written to" in mistake(*arguments, "/proc/model")
    assert "/dev/null is not a folder" in mistake(*arguments, "/dev/null/model")
    assert "is not there" in mistake("fit", tmp_path / "no.csv", "--targets", "a", "--out", "m")
    assert "is not there: pass a folder" in mistake("report", tmp_path / "no")
    assert "holds no saved model" in mistake("report", tmp_path)
    assert "data.csv is a file, not a folder: pass a folder" in mistake("report", data)
    assert os.listdir(tmp_path) == ["data.csv"]


def test_columns_are_checked_before_what_is_there_already(tmp_path, monkeypatch):
    """Else a user would choose another name, or say --force, and be told of the columns then."""
    monkeypatch.setattr("gpflow_cool.cli.commands.load_tensorflow", None)
    data = write(tmp_path / "data.csv", GOOD)
    arguments = ["fit", data, "--out", tmp_path, "--targets"]
    assert "has no column 'z'" in mistake(*arguments, "z")
    assert "is not a saved model, so that it is not replaced" in mistake(*arguments, "a")
    assert os.listdir(tmp_path) == ["data.csv"]


def test_outputs_that_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("gpflow_cool.cli.commands.load_tensorflow", None)  # told before
    data = write(tmp_path / "data.csv", GOOD)
    arguments = ["fit", data, "--targets", "a", "--report", tmp_path / "m.html", "--out"]
    for out in (tmp_path / "m.html", tmp_path / "m.html" / "model"):
        assert "m.html is a file, but --out" in mistake(*arguments, out)
    assert os.listdir(tmp_path) == ["data.csv"]


@pytest.mark.parametrize("options", [[], ["--missing-inputs", "drop"]])
def test_a_completed_table_does_not_replace_what_was_measured(tmp_path, monkeypatch, options):
    monkeypatch.setattr("gpflow_cool.cli.commands.load_tensorflow", None)
    text = "a,b\n1,2\n2,\n3,3\n4,5\n" + ",7\n" * bool(options)
    data = write(tmp_path / "data.csv", text)
    (tmp_path / "link.csv").symlink_to(data)
    for out in (data, tmp_path / "link.csv"):
        result = run("impute", data, "--targets", "b", *options, "--out", out, "--force")
        line = f"{out} is also read by this command, so that it is not replaced, even with --force:"
        assert result.exit_code == 2 and f"{line} choose another name." in result.stderr
    assert data.read_text() == text


def test_help_of_impute_tells_of_names_and_of_data():
    told = " ".join(run("impute", "--help").stdout.split())
    assert (
        "A name that a spreadsheet would take for a formula, as =1+1, gets a ' before it." in told
    )
    assert "DATA itself is not replaced, even with --force" in told


def test_a_full_disk(place, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    fit = ["fit", place / "data.csv", "--targets", "heat", "--kernel", "linear", "--quiet"]
    assert "No space left on device." in mistake(*fit, "--out", tmp_path / "m")
    predict = ["predict", place / "model", place / "new.csv", "--out", tmp_path / "p.csv"]
    assert "No space left on device." in mistake(*predict)
    assert os.listdir(tmp_path) == []


def test_mistakes_in_predict(place, tmp_path):
    arguments = ["predict", place / "model", place / "new.csv", "--out", tmp_path / "p.csv"]
    for unknown in ("z", "z*"):
        line = f"--given {unknown}: the model's targets are heat, cold"
        assert line in mistake(*arguments, "--given", unknown)
    line = "--given haet: the model's targets are heat, cold. Did you mean 'heat'?"
    assert line in mistake(*arguments, "--given", "haet")
    assert "has no column 'heat'" in mistake(*arguments, "--given", "heat")
    assert "'18' is not a whole number from 1 to 17" in mistake(*arguments, "--digits", 18)
    bad = write(tmp_path / "bad.csv", "x\n1\n")
    assert "bad.csv has no column 'y'" in mistake(*arguments[:2], bad, *arguments[3:])
    (tmp_path / "broken").mkdir()
    write(tmp_path / "broken" / "model.json", "{")
    assert "is damaged" in mistake("predict", tmp_path / "broken", *arguments[2:])
    assert sorted(os.listdir(tmp_path)) == ["bad.csv", "broken"]


def test_a_model_that_is_no_estimator(place, tmp_path):
    load(place / "model").model_.save(tmp_path / "m")
    assert "holds a KroneckerMTGP that Python code saved" in mistake("report", tmp_path / "m")


def test_folds(place):
    data = ["evaluate", place / "data.csv", "--targets", "heat", "--folds"]
    assert "--folds 21 is not possible for 20 rows" in mistake(*data, 21)
    assert "'1' is not a whole number of at least 2" in mistake(*data, 1)


def test_options_are_told_as_they_are_typed_here(tmp_path):
    """Messages of the estimator and of training name those of Python."""
    rows = [f"{x},{sign * (1 + x % 3)}" for x in range(12) for sign in (1, -1)]
    data = write(tmp_path / "data.csv", "\n".join(["x,y", *rows]))
    arguments = ["fit", data, "--targets", "y", "--out", tmp_path / "m"]
    said = run(*arguments).stdout
    assert "Other inputs, another kernel or --restarts 5 may show more." in said
    assert mistake(*arguments).endswith("choose another folder, or replace it (--force).\n")
    free = mistake(*arguments, "--force", "--kernel", "auto", "--ard")
    assert "--ard does not go with --kernel auto: free lengthscales overfit" in free
    assert free.endswith("Name a kernel (--kernel se), or leave --ard out.\n")
    data.write_text("x,y\n1,2\n,3\n4,5\n")
    line = mistake(*arguments, "--force")
    assert "inputs: --missing-inputs fill fills them and adds a flag, drop leaves" in line
    failed = "Try other starting values, restarts=5, or a larger sigma2."
    assert in_options(failed) == "Try other starting values, --restarts 5, or a larger sigma2."
    categories = "matter most: restarts=5 0.5, folds=2 0.1"
    assert in_options(categories) == categories


def test_one_group_or_block_cannot_be_held_out(tmp_path):
    rows = "\n".join(f"{x},7,{x * x}" for x in range(8))
    data = write(tmp_path / "data.csv", f"x,site,y\n{rows}\n")
    evaluate = ["evaluate", data, "--targets", "y"]
    nothing = "so that no part of the rows can be held out. Choose others, or leave"
    line = f"--groups site: the column is '7' in every row, {nothing} --groups out.\n"
    assert mistake(*evaluate, "--groups", "site").endswith(line)
    line = f"--blocks x,1: all rows are in one block, {nothing} --blocks out.\n"
    assert mistake(*evaluate, "--blocks", "x,1").endswith(line)
    some = "There are 2 groups, but 5 folds: use fewer folds, or smaller groups."
    assert some in mistake(*evaluate, "--blocks", "x,2")


def test_one_way_of_naming_kernels(place):
    data = ["evaluate", place / "data.csv", "--targets", "heat", "--kernels", "se,linear"]
    message = "--kernels takes the place of --kernel: choose one of the two."
    assert message in mistake(*data, "--kernel", "se")
