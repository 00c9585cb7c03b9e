"""The command line on real files: what it writes against the estimator, and each mistake's line."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import PLAIN, mistake, run, write
from numpy.testing import assert_allclose

from gpflow_cool import studies
from gpflow_cool.loading import load
from gpflow_cool.metrics import rmse
from gpflow_cool.table.estimator import CoolMTGPRegressor

COMMAND = Path(sys.executable).with_name("gpflow-cool")
TARGETS = ["heat", "cold, inside"]


def make_frame(num_rows=20):
    rng = np.random.default_rng(8)
    x, y = rng.uniform(0, 6, [2, num_rows])
    F = np.stack([np.sin(x), np.sin(x) + 0.2 * y], axis=1) + 0.1 * rng.normal(size=[num_rows, 2])
    return pd.DataFrame(np.column_stack([x, y, F * [1, 50]]), columns=["x", "y", *TARGETS])


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def place(tmp_path_factory, frame):
    """A folder with a table, and a model that the command fitted to it."""
    folder = tmp_path_factory.mktemp("cli")
    frame.rename(columns={TARGETS[1]: "cold"}).to_csv(folder / "data.csv", index=False)
    new = frame[["y", "x"]][:3].assign(cold=[60.0, np.nan, 40.0])
    new.to_csv(folder / "new.csv", index=False)
    result = run("fit", folder / "data.csv", "--targets", "heat,cold", "--out", folder / "model")
    assert result.exit_code == 0, result.output
    (folder / "said.txt").write_text(result.stdout)
    return folder


def installed(*arguments, **options):
    """The command that was installed, in a process of its own."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options
    )


def new_process(code, **options):
    """Python code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


# What it does ----------------------------------------------------------------------------------


def test_fit_is_the_estimators(place, frame):
    model = load(place / "model")
    expected = CoolMTGPRegressor("se", ard=False).fit(frame[["x", "y"]], frame[TARGETS])
    assert model.target_names_ == ("heat", "cold") and list(model.feature_names_in_) == ["x", "y"]
    mean = expected.predict(frame[["x", "y"]])
    assert_allclose(model.predict(frame[["x", "y"]]), mean, rtol=1e-5)
    assert model.random_state == 0


def test_fit_tells_what_it_found(place):
    said = (place / "said.txt").read_text()
    assert "20 rows, " in said and "cold " in said and "Written to" in said
    assert "targets: heat, cold\n" in said


def test_fit_with_options_and_json(place, tmp_path):
    result = run(
        *["fit", place / "data.csv", "--targets", "heat", "--inputs", "x", "--kernel", "matern32"],
        *["--ard", "--learning", "approximate", "--restarts", 1, "--seed", 3, "--json"],
        *["--orders", 3, "--no-standardize"],
        *["--tensorboard", tmp_path / "logs", "--out", tmp_path / "m"],
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    model = load(tmp_path / "m")
    settings = {"kernel": "matern32", "ard": True, "learning": "approximate", "restarts": 1}
    settings.update(standardize=False, random_state=3, orders=3)
    assert settings.items() <= model.get_params().items()
    assert found["inputs"] == ["x"] and found["targets"] == ["heat"] and found["rows"] == 20
    assert found["kernel"] == "matern32" and found["kernel_choice"] == ""
    rows = model.leave_one_out_
    _, Y = model.training_data()
    error = found["leave_one_out"]["targets"][0]["rmse"]
    assert error == pytest.approx(rmse(Y, np.asarray(rows.mean).reshape(-1, 1))[0])
    assert list((tmp_path / "logs").rglob("events.out.tfevents.*"))


def test_fit_in_the_targets_own_order(place, frame, tmp_path):
    fit = ["fit", place / "data.csv", "--targets", "heat,cold", "--out", tmp_path / "m", "--quiet"]
    assert run(*fit, "--orders", 1).output == ""
    expected = CoolMTGPRegressor("se", ard=False, orders=1).fit(frame[["x", "y"]], frame[TARGETS])
    chain, averaged = load(tmp_path / "m"), load(place / "model")
    assert_allclose(chain.noise_covariance_, expected.noise_covariance_, rtol=1e-4)
    assert_allclose(chain.model_.b, expected.model_.b, rtol=1e-4)
    assert np.max(np.abs(chain.noise_correlation_ - averaged.noise_correlation_)) > 1e-4


def test_quiet_is_silent_and_force_replaces(place, tmp_path, monkeypatch):
    arguments = ["fit", place / "data.csv", "--targets", "heat", "--kernel", "linear", "--quiet"]
    assert run(*arguments, "--out", tmp_path / "m").output == ""
    with monkeypatch.context() as before:  # told before TensorFlow is loaded
        before.setattr("gpflow_cool.cli.commands.load_tensorflow", None)
        assert "exists already" in mistake(*arguments, "--out", tmp_path / "m")
    assert run(*arguments, "--out", tmp_path / "m", "--force").exit_code == 0
    assert load(tmp_path / "m").kernel == "linear"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_writes_means_deviations_and_covariances(place, tmp_path, ending):
    out = tmp_path / f"out.{ending}"
    arguments = ["predict", place / "model", place / "new.csv", "--out", out, "--cov", "--json"]
    result = run(*arguments, "--digits", 15)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 3
    got = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    model, new = load(place / "model"), pd.read_csv(place / "new.csv")[["x", "y"]]
    mean, std, cov = model.predict(new, return_std=True, return_cov=True)
    assert list(got) == ["heat", "heat_std", "cold", "cold_std", "cov_heat_cold"]
    assert_allclose(got[["heat", "cold"]], mean, rtol=1e-9)
    assert_allclose(got[["heat_std", "cold_std"]], std, rtol=1e-7)
    assert_allclose(got["cov_heat_cold"], cov["cold"].xs("heat", level="task"), rtol=1e-7)
    assert "exists already" in mistake("predict", place / "model", place / "new.csv", "--out", out)


def test_predict_given_and_functions(place, tmp_path):
    arguments = ["predict", place / "model", place / "new.csv", "--out"]
    arguments = ["predict", "--digits", 15, *arguments[1:]]
    assert run(*arguments, tmp_path / "given.csv", "--given", "cold").exit_code == 0
    assert run(*arguments, tmp_path / "functions.csv", "--functions", "--quiet").output == ""
    model, new = load(place / "model"), pd.read_csv(place / "new.csv")
    known = np.column_stack([np.full(3, np.nan), new["cold"]])
    mean, std = model.predict_given(new[["x", "y"]], known, return_std=True)
    given = pd.read_csv(tmp_path / "given.csv")
    assert_allclose(given[["heat", "cold"]], mean, rtol=1e-9)
    assert given["cold"][[0, 2]].tolist() == new["cold"][[0, 2]].tolist()  # to the last digit
    assert_allclose(given[["heat_std", "cold_std"]], std, rtol=1e-6)
    assert run(*arguments, tmp_path / "alike.csv", "--given", "*").exit_code == 0
    assert (tmp_path / "alike.csv").read_text() == (tmp_path / "given.csv").read_text()
    assert given["cold"][0] == 60.0 and given["cold_std"][0] == 0.0 < given["cold_std"][1]
    _, std = model.predict(new[["x", "y"]], return_std=True, include_noise=False)
    functions = pd.read_csv(tmp_path / "functions.csv")
    assert_allclose(functions[["heat_std", "cold_std"]], std, rtol=1e-6)


def test_evaluate_compares(place):
    arguments = ["evaluate", place / "data.csv", "--targets", "heat,cold", "--folds", 2]
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["scores"]) == ["Cool-MTGP", "independent GPs", "Std-MT, rank 2"]
    for name, gain in found["gain_in_joint_nlpd"].items():
        ours, theirs = (found["scores"][n]["joint_nlpd"] for n in ("Cool-MTGP", name))
        assert gain["mean"] == pytest.approx(theirs - ours)
    assert all(0 < score["rmse"]["cold"] < 60 for score in found["scores"].values())


def test_report_is_written(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("report", place / "model")
    assert result.exit_code == 0, result.output
    assert "<h1>model</h1>" in (tmp_path / "model_report.html").read_text()
    assert "exists already" in mistake("report", place / "model")
    assert run("report", place / "model", "--out", "r.html", "--json").stdout.strip() == (
        '{\n "out": "r.html"\n}'
    )
    assert "ends in .html" in mistake("report", place / "model", "--out", "r.pdf")


def test_study_passes_its_options_on(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "gpflow_cool.studies.__main__.run", lambda name, **given: calls.append((name, given))
    )
    out = str(tmp_path / "s")
    result = run("study", "real", "--quick", "--out", out, "--sets", "andro,edm", "--splits", 2)
    assert result.exit_code == 0, result.output
    expected = {"quick": True, "out": out, "seed": 0, "data": None}
    assert calls == [("real", {**expected, "sets": "andro,edm", "splits": 2})]
    for sizes in (["--sizes", 20, 40], ["--sizes", 20, "--sizes", 40]):
        assert run("study", "runtime", "--out", out, *sizes).exit_code == 0
        assert calls[-1] == ("runtime", {**expected, "quick": False, "sizes": [20, 40]})


def test_study_tells_of_mistakes(tmp_path):
    assert "invalid choice: 'fake' (choose from 'synthetic'," in mistake("study", "fake")
    arguments = ["study", "variance", "--out", tmp_path / "s"]
    assert "unrecognized arguments: --sets andro" in mistake(*arguments, "--sets", "andro")
    assert "seed=-1 must be a whole number of at least 0" in mistake(*arguments, "--seed", -1)
    assert "invalid int value: 'x'" in mistake(*arguments, "--seed", "x")
    assert "'0' must be a whole number of at least 1" in mistake(*arguments, "--draws", 0)
    assert os.listdir(tmp_path) == []


def test_study_has_its_own_help():
    result = run("study", "variance", "--help")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("usage: gpflow-cool study variance [-h] [--quick]")


def test_list_of_studies_is_complete_and_needs_no_tensorflow(monkeypatch):
    monkeypatch.setattr("gpflow_cool.cli.commands.load_tensorflow", None)
    result = run("study", "--help")
    assert result.exit_code == 0 and result.stdout == run("study", "-h").stdout
    rows = dict(re.findall(r"^  (\w+) +(.+)$", result.stdout, re.MULTILINE))
    told = {study.name: study.summary for study in studies.results.ALL}
    assert rows == told | {"results": "write a page from the results of the studies"}


def test_other_tables_serve_as_well(place, frame, tmp_path):
    frame.rename(columns={TARGETS[1]: "cold"}).to_parquet(tmp_path / "data.parquet")
    head = "\n".join(f"@attribute {name} numeric" for name in ["x", "y", "heat", "cold"])
    rows = (place / "data.csv").read_text().split("\n", 1)[1]
    (tmp_path / "data.arff").write_text(f"@relation r\n{head}\n@data\n{rows}")
    expected = load(place / "model").predict(frame[["x", "y"]][:2])
    for ending in ("parquet", "arff"):
        data = tmp_path / f"data.{ending}"
        out = tmp_path / ending
        result = run("fit", data, "--targets", "heat,cold", "--out", out, "--quiet")
        assert result.exit_code == 0, result.output
        assert_allclose(load(out).predict(frame[["x", "y"]][:2]), expected, rtol=1e-5)


# Mistakes --------------------------------------------------------------------------------------


GOOD = "a,b,c\n1,2,3\n2,4,7\n3,5,4\n"

MISTAKES = {
    "wrong target": (GOOD, ["--targets", "z"], "has no column 'z'. It has: a, b, c."),
    "wrong pattern": (GOOD, ["--targets", "z*"], "has no column that matches 'z*'."),
    "wrong input": (GOOD, ["--targets", "a", "--inputs", "q"], "has no column 'q'"),
    "twice": (GOOD, ["--targets", "a,a"], "'a' is given twice"),
    "empty name": (GOOD, ["--targets", "a,,b"], "has an empty name between its commas"),
    "both": (GOOD, ["--targets", "a", "--inputs", "a,b"], "'a' is both an input and a target"),
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
    "orders": (GOOD, ["--targets", "a", "--orders", "0"], "0 is not in the range x>=1"),
    "seed": (GOOD, ["--targets", "a", "--seed", "-1"], "-1 is not in the range x>=0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_fit(tmp_path, name):
    text, arguments, message = MISTAKES[name]
    data = write(tmp_path / "data.csv", text)
    assert message in mistake("fit", data, *arguments, "--out", tmp_path / "model")
    assert os.listdir(tmp_path) == ["data.csv"]


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
    assert "has no column 'heat'" in mistake(*arguments, "--given", "heat")
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
    assert "folds=21 is not possible for 20 rows" in mistake(*data, 21)
    assert "1 is not in the range x>=2" in mistake(*data, 1)


def test_large_goes_ahead_and_tells_the_cost(place, tmp_path, monkeypatch):
    monkeypatch.setattr("gpflow_cool.table.costs.MAX_ROWS", 10)
    evaluate = ["evaluate", place / "data.csv", "--targets", "heat"]
    assert "20 rows will take about 0 seconds and 0.0 GB of memory" in mistake(*evaluate)
    arguments = ["fit", place / "data.csv", "--targets", "heat", "--out", tmp_path / "m"]
    result = run(*arguments, "--large")
    assert result.exit_code == 0 and "20 rows: this will take about" in result.stderr
    monkeypatch.setattr("gpflow_cool.table.costs.machine_gigabytes", lambda: 1e-9)
    told = mistake(*arguments, "--large", "--force")
    assert "but this machine has 0 GB. Leave out --large, or use fewer rows." in told


def test_many_rows_are_seen_through_inducing_points(place, tmp_path, monkeypatch):
    monkeypatch.setattr("gpflow_cool.table.costs.MAX_ROWS", 10)
    monkeypatch.setattr("gpflow_cool.table.costs.DEFAULT_POINTS", 7)
    arguments = ["fit", place / "data.csv", "--targets", "heat", "--out", tmp_path / "m"]
    result = run(*arguments)
    assert result.exit_code == 0
    assert "20 rows are more than 10: they are seen through 7 inducing points" in result.stderr
    assert re.search(r"for the exact model, which would take .*memory", result.stderr)
    assert "through 7 inducing points" in result.stdout
    result = run(*arguments, "--force", "--inducing", "5", "--json", "--quiet")
    assert result.exit_code == 0 and result.stderr == ""
    assert json.loads(result.stdout)["inducing_points"] == 5
    result = run(*arguments, "--force", "--kernel", "linear")
    assert result.exit_code == 0 and "inducing" not in result.stdout + result.stderr


# The installed command -------------------------------------------------------------------------


def test_help_needs_no_tensorflow_and_less_than_a_second():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = installed("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0 and result.stderr == ""
    for name in ("fit", "predict", "impute", "evaluate", "report", "demo", "study", "completion"):
        assert name in result.stdout
    # Of the processor's time: the clock's depends on what else the machine does.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_importing_the_package_imports_nothing_that_is_optional():
    """GPflow and TensorFlow import some of it themselves: so much is not ours."""
    code = (
        "import json, sys, time\n"
        "def load(name):\n"
        "    before, started = set(sys.modules), time.process_time()\n"
        "    exec(f'import {name}')\n"
        "    return time.process_time() - started, sorted(set(sys.modules) - before)\n"
        "print(json.dumps([load('gpflow'), load('gpflow_cool'), load('gpflow_cool.models')]))\n"
    )
    result = new_process(code)
    assert result.returncode == 0, result.stderr
    (theirs, _), *ours = json.loads(result.stdout)
    assert sum(seconds for seconds, _ in ours) < 0.1 * theirs
    tops = {name.split(".")[0] for _, names in ours for name in names}
    assert not tops & {"sklearn", "pandas", "matplotlib", "click", "pyarrow"}


def test_many_rows_are_refused_at_once(tmp_path):
    rows = np.random.default_rng(0).normal(size=[10_000, 3])
    pd.DataFrame(rows, columns=["a", "b", "c"]).to_csv(tmp_path / "data.csv", index=False)
    code = (
        "import sys\n"
        "from gpflow_cool.cli.commands import main\n"
        "try:\n"
        "    main(['evaluate', 'data.csv', '--targets', 'a'])\n"
        "finally:\n"
        "    print('tensorflow' in sys.modules)\n"
    )
    result = new_process(code, cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == "False\n", result.stderr
    assert result.stderr.startswith("gpflow-cool: 10000 rows will take about ")
    assert "11.2 GB of memory" in result.stderr and "--large" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_whole_way_without_noise(place, tmp_path):
    arguments = ["--targets", "heat,cold", "--out", "m", *PLAIN]
    fit = installed("fit", place / "data.csv", *arguments, cwd=tmp_path)
    assert (fit.returncode, fit.stderr) == (0, "")
    assert "Written to m." in fit.stdout
    out = tmp_path / "p.csv"
    predict = installed("predict", "m", place / "new.csv", "--out", out, "--json", cwd=tmp_path)
    assert (predict.returncode, predict.stderr) == (0, "")
    mean = load(place / "model").predict(pd.read_csv(place / "new.csv")[["x", "y"]])
    assert_allclose(pd.read_csv(out)[["heat", "cold"]], mean, rtol=1e-4)
    wrong = installed("predict", "m", place / "new.csv", "--out", out, cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stdout == "" and "Traceback" not in wrong.stderr
    assert wrong.stderr == f"gpflow-cool: {out} exists already: choose another name, or --force.\n"


def test_shell_completion(place):
    source = run(env={"_GPFLOW_COOL_COMPLETE": "bash_source"})
    assert "_gpflow_cool_completion" in source.stdout
    words = f"gpflow-cool fit {place / 'data.csv'} --targets heat,c"
    env = {"_GPFLOW_COOL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "4"}
    assert run(env=env).stdout == "plain,heat,cold\n"


def test_the_package_is_the_command_line():
    command = [sys.executable, "-m", "gpflow_cool", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == run("--help").output.replace("main", "gpflow-cool", 1)
