"""The command line tells what it does not know, and what it kept when it was interrupted."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from commands import mistake, run, write

from gpflow_cool.callbacks import CallbackList
from gpflow_cool.cli.wording import printable
from gpflow_cool.table.estimator import CoolMTGPRegressor


def frame(*targets, num_rows=16):
    """A table with one input and smooth targets."""
    rng = np.random.default_rng(2)
    x = np.linspace(0.0, 6.0, num_rows)
    columns = {
        name: np.sin(x + t) + 0.1 * rng.normal(size=num_rows) for t, name in enumerate(targets)
    }
    return pd.DataFrame({"x": x, **columns})


def saved(folder, *targets):
    table = frame(*targets)
    CoolMTGPRegressor("se", ard=False).fit(table[["x"]], table[list(targets)]).save(folder)
    return folder


# Columns that would be written twice -------------------------------------------------------------


CLASH = (
    "Two columns of predictions would be called 'a_std': the deviation of 'a' and the target"
    " 'a_std'. Rename a target in the table"
)


def test_no_column_of_predictions_is_written_twice(tmp_path):
    new = write(tmp_path / "new.csv", "x\n1\n2\n")
    out = ["--out", tmp_path / "p.csv"]
    model = saved(tmp_path / "std", "a", "a_std")
    assert f"{CLASH}, and fit again.\n" in mistake("predict", model, new, *out)
    model = saved(tmp_path / "cov", "a", "a_b", "b_c", "c")
    line = mistake("predict", model, new, *out, "--cov")
    assert (
        "would be called 'cov_a_b_c': the covariance of 'a' and 'b_c' and the covariance of 'a_b'"
        " and 'c'. Leave out --cov, or rename a target in the table, and fit again.\n" in line
    )
    line = mistake("predict", model, new, *out, "--quantiles", "0.05,0.05")
    assert line.endswith(": --quantiles asks twice for the 5% quantile of 'a': ask once.\n")
    assert not (tmp_path / "p.csv").exists()
    assert run("predict", model, new, *out).exit_code == 0
    names = ["a", "a_std", "a_b", "a_b_std", "b_c", "b_c_std", "c", "c_std"]
    assert list(pd.read_csv(tmp_path / "p.csv")) == names


def test_names_that_would_clash_are_refused_before_training(tmp_path):
    frame("a", "a_std").to_csv(tmp_path / "data.csv", index=False)
    arguments = [tmp_path / "data.csv", "--targets", "a,a_std", "--out"]
    assert mistake("fit", *arguments, tmp_path / "model").endswith(f"{CLASH}.\n")
    table = frame("a", "a_std")
    table.loc[2, "a"] = np.nan
    table.to_csv(tmp_path / "gaps.csv", index=False)
    line = mistake("impute", tmp_path / "gaps.csv", *arguments[1:], tmp_path / "p.csv")
    assert "has a column 'a_std', where a standard deviation would go" in line


# Ctrl-C ------------------------------------------------------------------------------------------

SLOW = """
import os, signal, sys
from gpflow_cool.callbacks import CallbackList
step_end, count = CallbackList.step_end, 0

def interrupt(self, number, logs):
    global count
    count += 1
    if count == {step}:
        os.kill(os.getpid(), signal.SIGINT)
    return step_end(self, number, logs)

CallbackList.step_end = interrupt
"""
"""A Ctrl-C after some step of training."""

MAIN = """
from gpflow_cool.cli.commands import main
main(sys.argv[1:], prog_name="gpflow-cool")
"""


def last_line(exit_code, stdout, stderr):
    """Of standard error; a command that is interrupted ends with 130 and tells no result."""
    assert exit_code == 130, stderr
    assert stdout == ""
    return stderr.splitlines()[-1]


def interrupted(monkeypatch, step, *arguments):
    """What a command says at last, in this process."""
    monkeypatch.setattr(CallbackList, "step_end", CallbackList.step_end)  # to be restored
    exec(SLOW.format(step=step), {})
    result = run(*arguments, "--kernel", "auto")
    return last_line(result.exit_code, result.stdout, result.stderr)


def interrupted_process(step, *arguments):
    """The same in a process of its own."""
    command = [sys.executable, "-c", SLOW.format(step=step) + MAIN, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return last_line(result.returncode, result.stdout, result.stderr)


@pytest.mark.parametrize("command, step", [("fit", 2), ("impute", 10)])
def test_an_interrupted_fit_writes_nothing(tmp_path, monkeypatch, command, step):
    """Also where first guesses of missing targets are made, which takes the first steps."""
    table = frame("a", "b")
    table.loc[3, "a"] = np.nan
    table.to_csv(tmp_path / "data.csv", index=False)
    arguments = [tmp_path / "data.csv", "--targets", "a,b", "--out", tmp_path / "out.csv"]
    if command == "fit":
        line = interrupted_process(step, command, *arguments)
    else:
        line = interrupted(monkeypatch, step, command, *arguments)
    assert line == "gpflow-cool: stopped by Ctrl-C: nothing was written."
    assert os.listdir(tmp_path) == ["data.csv"]


def test_an_interrupted_evaluation_tells_no_score(tmp_path, monkeypatch):
    frame("a", "b").to_csv(tmp_path / "data.csv", index=False)
    arguments = [tmp_path / "data.csv", "--targets", "a,b", "--folds", 2]
    line = interrupted(monkeypatch, 25, "evaluate", *arguments)
    assert line == "gpflow-cool: stopped by Ctrl-C: nothing was written, and no score is told."


def test_an_interrupt_after_the_model_was_written_says_so(tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    frame("a").to_csv(tmp_path / "data.csv", index=False)
    monkeypatch.setattr("gpflow_cool.table.summary.fit_summary", interrupt)
    out = tmp_path / "model"
    result = run("fit", tmp_path / "data.csv", "--targets", "a", "--out", out, "--quiet")
    assert result.exit_code == 130
    assert result.stderr == f"gpflow-cool: stopped by Ctrl-C: the model was written to {out}.\n"
    assert (out / "model.json").exists()


# What the data cannot tell -----------------------------------------------------------------------


def test_rows_far_from_all_training_rows_are_counted(tmp_path):
    model = saved(tmp_path / "model", "a", "b")
    new = write(tmp_path / "new.csv", "x\n1\n2000\n-3000\n")
    arguments = ["predict", model, new, "--out", tmp_path / "p.csv", "--force"]
    result = run(*arguments)
    assert result.stderr.startswith("2 of 3 rows are far from all training rows: ")
    assert json.loads(run(*arguments, "--json").stdout)["far_rows"] == 2
    assert run(*arguments, "--quiet").output == ""
    near = write(tmp_path / "near.csv", "x\n1\n2\n")
    assert run("predict", model, near, *arguments[3:]).stderr == ""


def test_rows_outside_of_the_training_rows_are_counted_whatever_the_kernel(tmp_path):
    table = frame("a")
    table["a"] += 3 * table["x"]
    regressor = CoolMTGPRegressor("se+linear", ard=False)
    regressor.fit(table[["x"]], table[["a"]]).save(tmp_path / "model")
    new = write(tmp_path / "new.csv", "x\n1\n300\n8\n")
    arguments = ["predict", tmp_path / "model", new, "--out", tmp_path / "p.csv", "--json"]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["far_rows"], found["outside_rows"]) == (0, 1)
    line = "1 of 3 rows are outside of the training rows by more than half of a column's range"
    assert result.stderr.startswith(f"{line}: x is 300, in training 0 to 6.")


def test_many_rows_with_an_empty_cell_are_told_at_once(tmp_path):
    table = frame("a", num_rows=5001)
    table.loc[7, "a"] = np.nan
    table.to_csv(tmp_path / "data.csv", index=False)
    arguments = ["fit", tmp_path / "data.csv", "--targets", "a", "--out", tmp_path / "model"]
    line = mistake(*arguments)
    assert "1 of 5001 rows have a missing target, but 300 inducing points need every tar" in line
    assert "Say --large for the exact model, which would take about" in line
    assert "or drop these rows, or fill the cells" in line
    assert "Leave out --inducing" in mistake(*arguments, "--inducing", 50)


def test_a_target_that_never_changes_is_called_constant(tmp_path):
    frame("a").assign(still=7.0).to_csv(tmp_path / "data.csv", index=False)
    arguments = ["fit", tmp_path / "data.csv", "--targets", "a,still", "--out", tmp_path / "m"]
    result = run(*arguments)
    assert "nan" not in result.output
    assert "Target 'still' is 7 in every row: there is nothing to learn" in result.stderr
    row = next(line for line in result.stdout.splitlines() if line.startswith("still "))
    assert row.split()[2] == "constant"
    reason = "still never changes: it has no relative RMSE, and the joint score leaves it out."
    assert result.stdout.count(reason) == 1
    found = json.loads(run(*arguments, "--force", "--json").stdout, parse_constant=pytest.fail)
    assert found["leave_one_out"]["targets"][1]["relative_rmse"] is None
    line = mistake("evaluate", *arguments[1:4], "--quiet")
    assert "Target 'still' never changes, and cannot be scored: leave it out." in line


# Files and terminals -----------------------------------------------------------------------------


def test_a_nominal_column_of_arff_can_be_left_out(tmp_path):
    """Without a word; what a new process would say is looked at in `test_cli_installed`."""
    text = "@relation r\n@attribute x real\n@attribute c {red, blue}\n@attribute a real\n@data\n"
    rows = [f"{x},red,{a}" for x, a in frame("a")[["x", "a"]].to_numpy()]
    data = write(tmp_path / "data.arff", text + "\n".join(rows) + "\n")
    arguments = ["fit", data, "--targets", "a", "--out", tmp_path / "model", "--exclude", "c"]
    result = run(*arguments, "--inputs", "x", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["fit", "impute"])
def test_targets_without_noise_are_told_of_once(tmp_path, command):
    x = np.linspace(0.0, 6.0, 12)
    table = pd.DataFrame({"x": x, "heat": np.sin(x), "cold": np.cos(x)})
    table.loc[3, "cold"] = np.nan if command == "impute" else table.cold[3]
    table.to_csv(tmp_path / "data.csv", index=False)
    out = tmp_path / ("model" if command == "fit" else "completed.csv")
    result = run(command, tmp_path / "data.csv", "--targets", "heat,cold", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output.count("Beware: sigma2 of every task is at its lower bound") == 1
    assert result.output.count("Beware") == 1


def test_doubts_about_the_noise_are_told_again_where_targets_go_together(tmp_path):
    x = np.linspace(0.0, 6.0, 12)
    table = pd.DataFrame({"x": x, "heat": np.sin(x), "cold": np.cos(x)})
    table.to_csv(tmp_path / "data.csv", index=False)
    model, out = tmp_path / "model", tmp_path / "p.csv"
    run("fit", tmp_path / "data.csv", "--targets", "heat,cold", "--out", model, "--quiet")
    predict = ["predict", model, tmp_path / "data.csv", "--out", out, "--force"]
    line = (
        "Beware: the noise of every task is at its lower bound, so that covariances between"
        " targets, and predictions given some of them, may be far too certain.\n"
    )
    assert run(*predict, "--cov").stderr == run(*predict, "--given", "cold").stderr == line
    assert run(*predict).stderr == run(*predict, "--cov", "--quiet").stderr == ""
    assert run("report", model, "--out", tmp_path / "r.html").exit_code == 0
    text = "Beware: sigma2 of every task is at its lower bound: the model passes through all"
    assert (tmp_path / "r.html").read_text().count(text) == 1


def test_names_cannot_steer_the_terminal(tmp_path):
    name = "a\x1b[2J"
    frame(name).to_csv(tmp_path / "data.csv", index=False)
    arguments = ["fit", tmp_path / "data.csv", "--targets", name, "--out", tmp_path / "model"]
    result = run(*arguments)
    assert "\x1b" not in result.output and "targets: a\\x1b[2J\n" in result.stdout
    line = mistake(*arguments[:3], "b\x9b", "--out", tmp_path / "other")
    assert "'b\\x9b'" in line and "a\\x1b[2J" in line and printable("a\tb") == "a\\tb"


def test_no_arguments_show_the_help_as_it_is():
    result = run()
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: gpflow-cool") and result.stderr.count("\n") > 10
