"""The comparison with other packages: a smoke run of what is installed; what rows add up to."""

import json
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import methods, problems, worker
from benchmarks.peers.bars import bars
from benchmarks.peers.fitted import in_chunks
from benchmarks.peers.methods import Method
from benchmarks.peers.report import write_page
from benchmarks.peers.runner import (
    NOT_INSTALLED,
    OK,
    TOO_LONG,
    Results,
    measure,
    run,
    save_data,
    scores,
    stages,
)
from benchmarks.peers.summary import summarise

ROOT = Path(__file__).parents[2]
CHOSEN = ("cool-hierarchical", "sklearn-independent", "gpytorch-full-50")
"""One of each package: every process imports its own, which takes seconds."""


def row(method, problem="N800-T16", split=0, threads=1, **values):
    numbers = {"cold": 2.0, "warm": 1.0, "predict": 0.1, "memory": 1e8, "parameters": 3}
    scores = {"rmse": 0.5, "nlpd": 1.0, "status": OK}
    key = {"problem": problem, "method": method, "split": split, "threads": threads}
    return {**key, **numbers, **scores, **values}


def test_smoke_measures_what_is_installed_and_names_what_is_not(tmp_path, monkeypatch):
    out = tmp_path / "peers.json"
    options = ["--smoke", "--out", str(out), "--methods", ",".join(CHOSEN)]
    monkeypatch.setattr(sys, "argv", ["benchmarks.peers", *options])
    monkeypatch.chdir(ROOT)  # the workers find the benchmarks from there
    runpy.run_module("benchmarks.peers", run_name="__main__")  # spares a process its imports
    rows = {row["method"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == list(CHOSEN)
    for name, found in rows.items():
        if not methods.BY_NAME[name].installed():
            assert found["status"] == NOT_INSTALLED
            continue
        assert found["status"] == OK
        assert found["predict"] > 0.0
        assert min(found["cold"], found["warm"], found["memory"]) > 0.0
        assert 0.5 < found["rmse"] < 1.2  # 30 rows say little: about as good as the mean
        assert 0.5 < found["nlpd"] < 2.0
    assert rows["cool-hierarchical"]["parameters"] == 7  # b, sigma2, a lengthscale
    assert rows["sklearn-independent"]["parameters"] == 9


def test_absent_package_is_a_row(tmp_path):
    absent = Method("absent", "no_such_package", "nowhere.fit")
    results = Results(tmp_path / "peers.json")
    options = {"splits": 1, "threads": [2, 1], "limit": 5, "data": None, "force": False}
    run(results, problems.SMOKE, [absent], **options)
    assert [row["status"] for row in results.rows] == [NOT_INSTALLED]


def test_results_survive_and_replace(tmp_path):
    path = tmp_path / "peers.json"
    Results(path).put(row("cool-hierarchical", warm=1.0))
    Results(path).put(row("gpytorch-full-50"))
    Results(path).put(row("cool-hierarchical", warm=2.0))
    again = Results(path)
    assert [row["method"] for row in again.rows] == ["gpytorch-full-50", "cool-hierarchical"]
    assert again.find(method="cool-hierarchical")["warm"] == 2.0
    assert again.find(method="botorch") is None


def test_summary_takes_the_faster_threads_and_the_mean_of_splits():
    rows = [
        row("botorch", "enb", threads=1, warm=3.0, memory=7.0, predict=0.05),
        row("botorch", "enb", threads=2, warm=2.0, memory=9.0),
        row("botorch", "enb", split=1, threads=2, warm=1.0, nlpd=2.0),
        row("botorch", "enb", split=2, threads=2, status="failed: no"),
    ]
    found = summarise(rows)["enb", "botorch"]
    assert (found.warm, found.memory, found.predict) == (2.0, 9.0, 0.05)
    assert found.threads == "1 2 1"
    assert (found.nlpd, found.splits, found.failures) == (1.5, 2, 1)


@pytest.mark.parametrize("seconds, holds", [(2.9, False), (3.1, True)])
def test_fit_bar_is_a_ratio_to_the_fastest_peer_with_correlated_noise(seconds, holds):
    rows = [
        row("cool-hierarchical"),
        row("gpytorch-full-50", warm=seconds),
        row("gpytorch-full-200", warm=0.1, status="failed: no"),
        row("gpytorch-iid-50", warm=1.5),
    ]
    claims = {bar.claim: bar for bar in bars(summarise(rows))}
    correlated = claims["warm fit, 3 times faster than peers with correlated noise"]
    assert correlated.measured == f"{seconds:.2f} (gpytorch-full-50)"
    assert correlated.holds == holds
    coupled = claims["warm fit, not slower than peers that couple tasks"]
    assert (coupled.measured, coupled.holds) == ("1.50 (gpytorch-iid-50)", True)


def test_a_peer_that_is_too_slow_counts_with_what_it_took():
    key = {"problem": "N100-T16", "split": 0, "threads": 1, "limit": 300, "status": TOO_LONG}
    rows = [
        row("cool-hierarchical", "N100-T16"),
        {**key, "method": "gpflow-coregion"},  # stopped in its first fit
        row("cool-hierarchical"),
        {**row("gpytorch-full-50", warm=4.0, status=TOO_LONG), "limit": 300},  # in its prediction
        row("cool-hierarchical", "enb"),
        {**row("gpytorch-full-50", "enb", nlpd=0.5, status=TOO_LONG), "limit": 300},
    ]
    claims = {(bar.claim, bar.problem): bar for bar in bars(summarise(rows))}
    bar = claims["cold fit, 20 times faster than GPR with Coregion", "N100-T16"]
    assert (bar.measured, bar.holds) == ("150.00 (gpflow-coregion)", True)
    bar = claims["warm fit, 3 times faster than peers with correlated noise", "N800-T16"]
    assert (bar.measured, bar.holds) == ("4.00 (gpytorch-full-50)", True)
    bar = claims["joint NLPD within 0.02", "enb"]
    assert (bar.measured, bar.holds) == ("+0.500 nats (gpytorch-full-50, splits: 1)", False)


def test_predictions_of_the_default_estimator_have_bars_and_its_time_has_none():
    rows = [
        row("cool-auto", "enb", nlpd=1.03, rmse=0.505, warm=100.0),
        row("gpflow-independent", "enb", nlpd=1.0, rmse=0.5, warm=1.0),
    ]
    found = {(bar.claim, bar.method): bar.holds for bar in bars(summarise(rows))}
    expected = {"joint NLPD within 0.02": False, "RMSE within 2%": True}
    assert found == {(claim, "cool-auto"): holds for claim, holds in expected.items()}


def test_other_bars():
    rows = [
        row("cool-hierarchical", "enb", nlpd=1.03, rmse=0.505),
        row("botorch", "enb", nlpd=1.0, rmse=0.5, predict=0.05),
        row("cool-hierarchical", "N800-T16", warm=1.0),
        row("cool-hierarchical", "N800-T32", warm=1.4),
        row("cool-hierarchical", "N2000-T64", memory=1e9),
        row("botorch", "N2000-T64", memory=6e8),
    ]
    found = {(bar.claim, bar.problem): bar for bar in bars(summarise(rows))}
    measured = {
        ("joint NLPD within 0.02", "enb"): ("+0.030 nats (botorch, splits: 1)", False),
        ("RMSE within 2%", "enb"): ("+1.0% (botorch, splits: 1)", True),
        ("joint prediction faster than every peer", "enb"): ("0.50 (botorch)", False),
        ("warm fit costs at most 1.3 times", "N800-T16 to N800-T32"): ("1.40", False),
        ("memory below 1.5 GB", "N2000-T64"): ("1.00 GB", True),
        ("no peer below half of our memory", "N2000-T64"): ("0.60 (botorch)", True),
    }
    for key, expected in measured.items():
        assert (found[key].measured, found[key].holds) == expected


def test_quality_is_compared_on_the_splits_that_both_have():
    rows = [row("cool-averaged", "enb", split=split, nlpd=1.0 + split) for split in range(3)]
    rows += [
        row("sklearn-independent", "enb", split=0, nlpd=0.9),
        row("sklearn-independent", "enb", split=2, nlpd=2.9),
        row("botorch", "enb", split=1, nlpd=1.95),
    ]
    found = {bar.claim: bar for bar in bars(summarise(rows))}
    bar = found["joint NLPD within 0.02"]
    assert bar.method == "cool-averaged"
    assert (bar.measured, bar.holds) == ("+0.100 nats (sklearn-independent, splits: 2)", False)


def test_times_are_of_the_first_split_and_large_tables_have_nothing_but_times():
    enb, large, small = (problems.BY_NAME[name] for name in ("enb", "N800-T16", "N400-T16"))
    assert stages(enb, 0) == stages(small, 0) == "warm,score,predict"
    assert (stages(enb, 1), stages(large, 0)) == ("score", "warm")


def test_what_takes_too_long_tells_its_memory(tmp_path):
    part = problems.synthetic(2500, 1, 0)
    save_data(tmp_path, part, ard=False)
    slow = methods.BY_NAME["sklearn-independent"]  # it imports no TensorFlow
    found = measure(slow, 1, tmp_path, part, limit=2, stages="warm")
    assert found["status"] == TOO_LONG
    assert found["memory"] > 8 * 1250**2  # a quarter of its covariance


@pytest.fixture
def alarm():
    """The signal by which a worker gives up has its old handler afterwards."""
    handler = signal.getsignal(signal.SIGALRM)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


def test_each_input_may_have_a_lengthscale(tmp_path, alarm, capsys):
    """The worker in this process, which has imported TensorFlow."""
    part = problems.synthetic(20, 2, 0)
    save_data(tmp_path, part, ard=True)
    files = [str(tmp_path / name) for name in ("data.npz", "predictions.npz")]
    worker.measure("cool-averaged", *files, limit=600, stages="score")
    assert json.loads(capsys.readouterr().out)["parameters"] == 2 * 2 + problems.INPUTS
    found = scores(part, tmp_path / "predictions.npz")
    assert 0.0 < found["rmse"] < 2.0 and np.isfinite(found["nlpd"])


def test_page_has_bars_rows_and_picture(tmp_path):
    results = Results(tmp_path / "peers.json")
    for method, warm in (("cool-hierarchical", 1.0), ("gpytorch-full-50", 2.0)):
        for problem in ("N400-T16", "N800-T16"):
            results.put(row(method, problem, warm=warm))
    results.put({**row("botorch"), "status": NOT_INSTALLED})
    write_page(results, tmp_path / "page.md", "A note.")
    page = (tmp_path / "page.md").read_text()
    assert "A note." in page and results.machine in page
    assert "Held: 6 of 10 for `cool-hierarchical`" in page and "**falls short**: 2.00" in page
    assert "| cool-hierarchical | 2 | 1 | 0.1 | 100 | 0.500 | 1.000 | 3 | 0 of 1 | 1 1 1 |" in page
    assert "| botorch: not installed |" in page
    assert (tmp_path / "images/benchmarks.png").stat().st_size > 10_000


def test_chunks_keep_the_covariance_of_each_row(rng):
    X, T = rng.normal(size=[1500, 2]), 3
    root = rng.normal(size=[T, T])
    C = root @ root.T

    def predict(X):
        K = X @ X.T
        return X[:, :1] * np.ones(T), np.einsum("mn,tu->mtnu", K, C)

    mean, cov = in_chunks(predict, X, T)
    np.testing.assert_allclose(mean[:, 2], X[:, 0])
    np.testing.assert_allclose(cov, np.sum(X**2, axis=1)[:, None, None] * C)


def test_tables_of_the_default_estimator(tmp_path, capsys, monkeypatch):
    from benchmarks import default_estimator as benchmark

    def line(method, split, rmse, nlpd, **more):
        key = {"what": "splits", "set": "edm", "split": split, "method": method}
        scores = {"rmse": rmse, "nlpd": nlpd, "worst_row": -3.0, "worst_residual": 4.0}
        return json.dumps({**key, **scores, "seconds": 1.0, **more})

    lines = [line("se", k, 0.8, 0.5) for k in range(2)]
    lines += [line("default", 0, 0.7, 0.2, chosen="se, a lengthscale per input")]
    lines += [line("default", 1, 0.5, 0.4, chosen="rq"), line("trees", 0, 0.65, 0.0)]
    out = tmp_path / "lines.jsonl"
    out.write_text("\n".join(lines) + "\n")
    monkeypatch.delenv("GPFLOW_COOL_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["benchmark", "splits", "folds", "--out", str(out)])
    benchmark.main()
    text = capsys.readouterr().out
    row = "| edm | 2 | 0.500 | 0.300 | 0.800 | 0.600 | 0.650 | -3.0 | -3.0 | 4.0 | 1.0 | 1.0 |"
    assert f"{row} se 1, rq 1 (1 with one lengthscale) |" in text
    assert "NLPD: mean change -0.200, lower on 1 of 1" in text
    assert "RMSE: mean change -25.0%, largest rise -25.0%; at or below extra trees on 1" in text
    assert "folds: nothing measured" in text
    assert benchmark.likeness("se", "matern52") == 0.5 and benchmark.likeness("se", "rq") == 0.0
