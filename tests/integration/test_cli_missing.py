"""The command line on tables with empty cells of targets, and each mistake's line."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from commands import mistake, run, write
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.loading import load
from gpflow_cool.report.sections import report_page
from gpflow_cool.table.summary import leave_one_out_scores

TARGETS = ["heat", "cold"]


def make_frame():
    """24 rows, of which some lack one target, and row 4 lacks both."""
    rng = np.random.default_rng(8)
    x = np.sort(rng.uniform(0, 6, 24))
    F = np.sin(x)[:, None] * [1.0, 50.0] + 0.1 * rng.normal(size=[24, 2]) * [1, 50]
    frame = pd.DataFrame(np.column_stack([x, F]), columns=["x", *TARGETS])
    frame.loc[[1, 4, 9], "heat"] = np.nan
    frame.loc[[4, 7, 13, 20], "cold"] = np.nan
    return frame.assign(site=[f"s{n}" for n in range(24)])


FRAME = make_frame()
MISSING = FRAME[TARGETS].isna().to_numpy()
ARGUMENTS = ["--targets", "heat,cold", "--inputs", "x"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table with empty cells, and a model that the command fitted to it."""
    folder = tmp_path_factory.mktemp("missing")
    FRAME.to_csv(folder / "data.csv", index=False)
    result = run("fit", folder / "data.csv", *ARGUMENTS, "--out", folder / "model", "--json")
    assert result.exit_code == 0, result.output
    line = "Empty cells of 24 rows, taken as missing: 3 of heat, 4 of cold.\n"
    assert line in result.stderr
    (folder / "said.json").write_text(result.stdout)
    return folder


def check_completed(got, place):
    """The table as it was, with what the fitted model fills in."""
    assert list(got) == ["x", *TARGETS, "site", "heat_std", "cold_std"]
    assert list(got["site"]) == list(FRAME["site"])
    filled, std = got[TARGETS].to_numpy(), got[["heat_std", "cold_std"]].to_numpy()
    assert_allclose(filled[~MISSING], FRAME[TARGETS].to_numpy()[~MISSING], rtol=1e-15)
    assert_array_equal(std > 0, MISSING)
    expected = load(place / "model").impute(FRAME[TARGETS])
    assert_allclose(filled, expected.completed, rtol=1e-4)
    assert_allclose(std, expected.std, rtol=1e-3)


def test_impute_writes_the_completed_table(place, tmp_path):
    out = tmp_path / "completed.csv"
    result = run("impute", place / "data.csv", *ARGUMENTS, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["filled"] == {"heat": 3, "cold": 4} and found["rows"] == 24
    got = pd.read_csv(out)
    check_completed(got, place)
    assert list(got) == found["columns"]


def test_impute_leaves_cells_as_they_are(tmp_path):
    """Also those of inputs, whole numbers, and of columns that are neither."""
    x = ["1", "2.50", "3", " 4", "5e0", "6", "7", "8"]
    y = ["10", "21", "", "40", "52", "0060", "", "80.0"]
    rows = [",".join(cells) for cells in zip(x, y, "abcdefgh", strict=True)]
    data = write(tmp_path / "data.csv", "\n".join(["x,y,z", *rows]))
    out = tmp_path / "out.csv"
    arguments = ["--targets", "y", "--inputs", "x", "--kernel", "linear", "--quiet", "--out", out]
    assert run("impute", data, *arguments).exit_code == 0
    head, *lines = out.read_text().splitlines()
    assert head == "x,y,z,y_std"
    for before, after in zip(rows, lines, strict=True):
        *same, std = after.split(",")
        if ",," not in before:
            assert ",".join(same) == before and float(std) == 0.0
        else:
            assert before == ",".join([same[0], "", same[2]])
            mean = same[1]
            assert 20.0 < float(mean) < 80.0 and 0.1 < float(std) < 20.0
            assert len(std.replace(".", "")) <= 6  # four digits of the smallest one
            assert len(mean.partition(".")[2]) <= len(std.partition(".")[2]) + 1


def test_impute_to_parquet_is_silent_and_replaces(place, tmp_path):
    out = write(tmp_path / "completed.parquet", "old")
    arguments = ["impute", place / "data.csv", *ARGUMENTS, "--out", out]
    assert "exists already" in mistake(*arguments)
    assert run(*arguments, "--force", "--quiet").output == ""
    check_completed(pd.read_parquet(out), place)


def test_fit_tells_scores_of_what_is_known(place):
    found = json.loads((place / "said.json").read_text())
    assert found["missing"] == {"heat": 3, "cold": 4}
    model = load(place / "model")
    rows, (_, Y) = model.leave_one_out_, model.training_data()
    errors = np.sqrt(np.nanmean((np.asarray(rows.mean) - Y) ** 2, axis=0))
    inside = np.nanmean(
        np.where(np.isnan(Y), np.nan, np.abs(rows.mean - Y) <= 2 * rows.std), axis=0
    )
    for t, score in enumerate(found["leave_one_out"]["targets"]):
        assert score["target"] == TARGETS[t]
        assert score["rmse"] == pytest.approx(errors[t])
        assert score["coverage"] == pytest.approx(inside[t])
    density = rows.log_density[~np.isnan(Y).all(axis=1)]
    assert found["leave_one_out"]["joint_nlpd"] == pytest.approx(-density.mean())


def test_report_of_a_table_with_gaps(place):
    model = load(place / "model")
    page = report_page(model, "holes")
    assert "<b>7</b><span>cells of targets missing</span>" in page
    assert "nan" not in re.sub("<script.*?</script>", "", page, flags=re.DOTALL).lower()
    assert f"{leave_one_out_scores(model)['targets'][0]['rmse']:.4g}" in page


MISTAKES = {
    "never": ("a,b\n1,\n2,\n3,\n", [], "every cell of target 'b' is empty. There is nothing to"),
    "input": ("a,b\n1,2\n,\n3,4\n", [], "row 2 (line 3), column 'a': the cell is empty"),
    "infinite": ("a,b\n1,2\n2,inf\n3,\n", [], "row 2 (line 3), column 'b': the number is infinite"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("command", ["fit", "impute"])
def test_mistakes(tmp_path, name, command):
    text, options, message = MISTAKES[name]
    data = write(tmp_path / "data.csv", text)
    arguments = [command, data, "--targets", "b", *options, "--out", tmp_path / "out.csv"]
    assert message in mistake(*arguments)


def test_nothing_to_fill_in_and_names_that_are_taken(tmp_path):
    arguments = ["--targets", "b", "--out", tmp_path / "out.csv"]
    full = write(tmp_path / "full.csv", "a,b\n1,2\n2,3\n")
    assert "no empty cell in b: there is nothing to fill in" in mistake("impute", full, *arguments)
    taken = write(tmp_path / "taken.csv", "a,b,b_std\n1,2,0\n2,,0\n3,4,0\n")
    line = mistake("impute", taken, *arguments)
    assert "has a column 'b_std', where a standard deviation would go: rename it" in line
    data = write(tmp_path / "data.csv", "a,b\n1,2\n2,\n3,4\n")
    line = mistake("impute", data, "--targets", "b", "--out", tmp_path / "out.txt")
    assert "ends in .csv or .parquet" in line
