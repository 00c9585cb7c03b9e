"""What is told of a fitted estimator, computed again by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from tables import NASTY, make_data

from gpflow_cool.report.sections import report_page
from gpflow_cool.table import summary
from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.parameters import (
    deviations,
    kernel_parameters,
    large_signal_sentence,
    lengthscales,
)
from gpflow_cool.table.summary import (
    CAVEAT,
    caveat_lines,
    fit_lines,
    fit_summary,
    known_noise_correlation,
    leave_one_out_scores,
    listed,
    listed_targets,
    observed_and_predicted,
    score_lines,
    strongest_correlation,
    target_scores,
    which_are_listed,
)
from gpflow_cool.training.remarks import duplicate_rows


def test_scores_by_hand(small_regressor):
    X, Y = make_data(2)
    rows, scores = small_regressor.leave_one_out_, leave_one_out_scores(small_regressor)
    mean, std = np.asarray(rows.mean), np.asarray(rows.std)
    for t, score in enumerate(scores["targets"]):
        error = np.sqrt(np.mean((Y[:, t] - mean[:, t]) ** 2))
        assert score["target"] == [NASTY, "b"][t]
        assert_allclose(score["rmse"], error)
        assert_allclose(score["relative_rmse"], error / np.std(Y[:, t]))
        inside = np.mean(np.abs(Y[:, t] - mean[:, t]) <= 2 * std[:, t])
        assert_allclose(score["coverage"], inside)
    assert_allclose(scores["joint_nlpd"], -np.mean(rows.log_density))
    lines = score_lines(scores)
    assert len({len(line) for line in lines}) == 1 and lines[2].startswith("b ")


def test_of_many_targets_the_worst_are_listed(monkeypatch):
    monkeypatch.setattr(summary, "MAX_TARGETS_LISTED", 2)
    errors = [0.3, np.nan, 0.7, 0.1, 0.5]  # a target that never varies has no relative RMSE
    targets = [{"target": str(t), "relative_rmse": error} for t, error in enumerate(errors)]
    rows = listed_targets(targets)
    assert [row["target"] for row in rows] == ["2", "4", "median"]
    assert rows[-1]["relative_rmse"] == 0.4
    assert which_are_listed(targets).startswith(
        "Of 5 targets, the 2 with the largest relative RMSE"
    )
    assert listed_targets(targets[:2]) == targets[:2] and which_are_listed(targets[:2]) == ""


def test_deviations_and_parameters(small_regressor):
    X, Y = make_data(2)
    parts = deviations(small_regressor)
    model, s = small_regressor.model_, Y.std(axis=0)
    assert_allclose(parts["noise"], np.sqrt(np.diag(model.noise_covariance())) * s, rtol=1e-8)
    assert_allclose(parts["signal"], np.sqrt(np.diag(model.task_covariance())) * s, rtol=1e-8)
    assert kernel_parameters(small_regressor) == [("variance", "1 (fixed)")]
    assert np.isinf(lengthscales(small_regressor)[1])
    assert_allclose(observed_and_predicted(small_regressor).Y, Y, rtol=1e-12)


def test_a_signal_much_larger_than_its_target_is_explained(small_regressor):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=[60, 1])
    Y = 100.0 * X + 5.0 * rng.normal(size=[60, 1])
    regressor = CoolMTGPRegressor("matern32", ard=False).fit(X, Y)
    assert deviations(regressor)["signal"][0] > 3 * np.std(Y) and lengthscales(regressor)[0] > 1.0
    sentence = large_signal_sentence(regressor)
    assert sentence.startswith(
        "The signal of task_0 is more than 3 times the deviation of the target itself. This happens"
        " where lengthscales are long: the function varies little between the rows"
    )
    assert sentence in report_page(regressor, "m")
    assert large_signal_sentence(small_regressor) == ""
    assert "more than 3 times" not in report_page(small_regressor, "m")


def test_the_strongest_correlation_is_told():
    R = [[1.0, 0.1, -0.9], [0.1, 1.0, 0.3], [-0.9, 0.3, 1.0]]
    assert strongest_correlation(R, "xyz") == "The strongest is -0.90, between x and z."
    assert (
        strongest_correlation([[1.0]], "x")
        == "There is one target, and so nothing to correlate with."
    )


def test_what_is_not_known_is_not_the_strongest():
    R = [[1.0, np.nan, 0.2], [np.nan, 1.0, 0.1], [0.2, 0.1, 1.0]]
    assert strongest_correlation(R, "xyz") == "The strongest is 0.20, between x and z."
    R = [[1.0, np.nan], [np.nan, 1.0]]
    assert strongest_correlation(R, "xy") == "No row has two targets, and so none is known."


def test_copies_of_rows_are_counted_and_told():
    X, Y = make_data(2)
    assert duplicate_rows(X, Y) == 0
    twice = duplicate_rows(np.vstack([X, X[:3], X[:1]]), np.vstack([Y, Y[:3], Y[:1]]))
    assert twice == 4
    assert duplicate_rows(np.vstack([X, X]), np.vstack([Y, Y + 1.0])) == 0  # repeated inputs alone
    Y[::2, 0] = np.nan
    assert duplicate_rows(np.vstack([X, X[:3]]), np.vstack([Y, Y[:3]])) == 3
    scores = {"caveat": "C.", "duplicate_rows": twice, "constant_targets": [], "targets": []}
    told = caveat_lines(scores)
    assert told[0] == "C." and told[1] == (
        "4 rows are exact copies of another, from which it is predicted too well: this improves the"
        " scores further, and training takes copies for measurements that agree without noise."
        " Remove them, unless they were measured anew."
    )
    assert caveat_lines(scores | {"duplicate_rows": 1})[1].startswith("1 row is an exact copy")
    assert caveat_lines(scores | {"duplicate_rows": 0}) == ["C."]


@pytest.mark.parametrize("transform", [pytest.param("none", marks=pytest.mark.slow), "log"])
def test_targets_that_never_change_do_not_flatter_the_joint_score(transform):
    X, Y = make_data(2)
    still = np.column_stack([Y[:, 0], np.full(len(Y), 7.0), Y[:, 1]])
    still[3, 0] = np.nan if transform == "none" else Y[3, 0]
    if transform == "log":
        still[:, [0, 2]] = np.exp(still[:, [0, 2]] / 10)
    with pytest.warns(UserWarning, match="Targets that never vary: task_1"):
        regressor = CoolMTGPRegressor(
            "se", ard=False, target_transform=transform, random_state=0
        ).fit(X, still)
    scores, rows = leave_one_out_scores(regressor), regressor.leave_one_out_
    density = [
        multivariate_normal(mean[known], cov[np.ix_(known, known)]).logpdf(y[known])
        for y, mean, cov, known in standardised(regressor, still)
    ]
    changed = [0, 2]
    slopes = np.log(regressor._targets.scale[changed])
    if transform == "log":
        slopes = slopes + np.log(still[:, changed])
    jacobian = np.nansum(np.where(np.isnan(still[:, changed]), np.nan, slopes), axis=1)
    assert_allclose(scores["joint_nlpd"], np.mean(jacobian - density), rtol=1e-8)
    assert scores["joint_nlpd"] > -np.mean(rows.log_density) + 1.0
    assert scores["constant_targets"] == ["task_1"]
    assert caveat_lines(scores)[1] == (
        "task_1 never changes: it has no relative RMSE, and the joint score leaves it out."
    )
    assert np.isnan(scores["targets"][1]["relative_rmse"])


@pytest.mark.parametrize("value", [7.0, 0.1])  # the mean of tenths is not a tenth to its last bit
def test_a_target_that_never_changes_has_no_relative_rmse(value):
    still = np.full(15, value)
    score = target_scores(still, still, np.full(15, 0.01))
    assert score["rmse"] < 1e-15 and np.isnan(score["relative_rmse"])
    rows = [{"target": name, **score} for name in ("still", "calm")]
    scores = {"targets": rows, "joint_nlpd": -1.5, "caveat": "C.", "duplicate_rows": 0}
    lines = score_lines(scores)
    assert "nan" not in "".join(lines) and lines[1].split()[2:3] == ["constant"]
    assert len({len(line) for line in lines}) == 1
    told = "still, calm never change: they have no relative RMSE."
    assert caveat_lines(scores | {"constant_targets": []}) == ["C.", told]


def test_the_median_of_targets_that_never_change_is_none(monkeypatch):
    monkeypatch.setattr(summary, "MAX_TARGETS_LISTED", 1)
    rows = listed_targets([{"target": name, "relative_rmse": np.nan} for name in "ab"])
    assert rows[-1]["target"] == "median" and np.isnan(rows[-1]["relative_rmse"])


def standardised(regressor, Y):
    """Standardised targets, moments by leave-one-out, and which targets are known and change."""
    rows, Z = regressor.model_.leave_one_out(), regressor._targets.standardised(Y)
    known = ~np.isnan(Y) & (Y.min(axis=0) != Y.max(axis=0))
    return zip(Z, rows.mean.numpy(), rows.cov.numpy(), known, strict=True)


@pytest.fixture(scope="module")
def apart():
    """Two targets that no row has both of, and a third that all rows have."""
    X, Y = make_data(3)
    Y[::2, 0], Y[1::2, 1] = np.nan, np.nan
    with pytest.warns(UserWarning, match="No row has targets of both"):
        return CoolMTGPRegressor("se", ard=False, random_state=0).fit(X, Y)


@pytest.mark.slow
def test_a_noise_correlation_that_no_row_tells_is_not_told(apart):
    R = known_noise_correlation(apart)
    assert np.isnan(R[0, 1]) and np.isnan(R[1, 0]) and np.isnan(R).sum() == 2
    assert_allclose(R[2], apart.noise_correlation_[2])
    found = fit_summary_of(apart)
    assert found["noise_correlation"][0][1] is None
    assert found["never_measured_together"] == [["task_0", "task_1"]]
    line = "No row has both task_0 and task_1: the data cannot tell how their noises correlate."
    assert line in fit_lines(found) and line in report_page(apart, "m")
    json.dumps(found, allow_nan=False)


def fit_summary_of(regressor):
    """The summary of a fit to a table whose inputs have names."""
    regressor.feature_names_in_ = np.array(["a", "b"], dtype=object)
    try:
        return fit_summary(regressor, Path("model"), 1.0)
    finally:
        del regressor.feature_names_in_


def test_the_caveat_stands_beside_the_scores(small_regressor):
    found = fit_summary(small_regressor, Path("model"), 1.0)
    assert found["leave_one_out"]["caveat"] == CAVEAT and CAVEAT in fit_lines(found)
    assert found["leave_one_out"]["duplicate_rows"] == 0
    assert CAVEAT in report_page(small_regressor, "m")
    assert not any("No row" in line for line in fit_lines(found))
    assert found["constant_inputs"] == {"lamp": "4"}
    assert sum(line.startswith("Input 'lamp' is 4 in every row:") for line in fit_lines(found)) == 1


def test_of_many_names_the_first_are_listed():
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"x{i}" for i in range(12)]) == (
        "x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, ... (12)"
    )


def test_where_nothing_is_predicted_no_input_is_said_to_matter(small_regressor):
    result = fit_summary(small_regressor, Path("model"), 1.0)
    assert any("(part of the variance" in line for line in fit_lines(result))
    for row in result["leave_one_out"]["targets"]:
        row["relative_rmse"] = 1.01
    lines = fit_lines(result)
    assert "matter most: not known, since no target is predicted better than by the mean" in lines
    assert any(line.startswith("No target is predicted better than by the mean") for line in lines)
