"""The command line on real files: what it writes, against the estimator."""

import json
import os
import re

import numpy as np
import pandas as pd
import pytest
from commands import mistake, run
from numpy.testing import assert_allclose
from tables import TARGETS

from gpflow_cool import studies
from gpflow_cool.loading import load
from gpflow_cool.metrics import rmse
from gpflow_cool.table.estimator import CoolMTGPRegressor


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
        *["--ard", "--learning", "hierarchical", "--restarts", 1, "--seed", 3, "--json"],
        *["--orders", 3, "--no-standardize"],
        *["--tensorboard", tmp_path / "logs", "--out", tmp_path / "m"],
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    model = load(tmp_path / "m")
    settings = {"kernel": "matern32", "ard": True, "learning": "hierarchical", "restarts": 1}
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


def test_missing_folders_are_made_for_every_file(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gaps = pd.read_csv(place / "data.csv")
    gaps.loc[2, "heat"] = np.nan
    gaps.to_csv("gaps.csv", index=False)
    targets = ["--targets", "heat,cold"]
    commands = {
        "predictions/new/p.csv": ["predict", place / "model", place / "new.csv"],
        "tables/new/p.parquet": ["predict", place / "model", place / "new.csv"],
        "completed/new/c.csv": ["impute", "gaps.csv", *targets],
        "pages/new/r.html": ["report", place / "model"],
        "maps/new/m.png": ["map", place / "model", "--cells", 4],
    }
    for out, command in commands.items():
        result = run(*command, "--out", out, "--quiet")
        assert result.exit_code == 0, result.output
        assert os.listdir(os.path.dirname(out)) == [os.path.basename(out)]
    fit = ["fit", place / "data.csv", "--targets", "heat", "--quiet", "--out", "models/new/m"]
    assert run(*fit, "--report", "reports/new/r.html").output == ""
    assert os.listdir("reports/new") == ["r.html"] and os.listdir("models/new") == ["m"]


def test_the_whole_path_of_a_new_file_is_told(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("predict", place / "model", place / "new.csv", "--out", "typo/p.csv")
    assert result.stdout == f"3 rows predicted, written to {tmp_path}/typo/p.csv.\n"
    page = run("report", place / "model", "--out", "typo/r.html")
    assert page.stdout == f"The page was written to {tmp_path}/typo/r.html: open it in a browser.\n"
    drawn = run("map", place / "model", "--cells", 4, "--out", "typo/m.png").stdout
    assert drawn == f"2 targets drawn, written to {tmp_path}/typo/m.png.\n"


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
