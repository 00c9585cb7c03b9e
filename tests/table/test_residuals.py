"""Heavy tails of residuals are found, and a remedy is named."""

import numpy as np
import pytest
from scipy.stats import kurtosis

from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.residuals import (
    all_are_hopeless,
    heavy_lines,
    heavy_tails,
    poor_lines,
    standardised_rows,
)
from gpflow_cool.table.summary import leave_one_out_scores


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(7)
    X = rng.uniform(0, 6, [40, 1])
    E = rng.normal(size=[40, 2])
    return X, np.hstack([np.exp(np.sin(X) + 1.5 * E[:, :1]), np.cos(X) + 0.5 * E[:, 1:]])


@pytest.fixture(scope="module")
def plain(data):
    return CoolMTGPRegressor("se", ard=False).fit(*data)


def test_a_skewed_target_is_named_with_its_kurtosis(plain, data):
    rows = plain.leave_one_out_
    R = (data[1] - rows.mean) / rows.std
    about_zero = len(R) * np.sum(R**4, axis=0) / np.sum(R**2, axis=0) ** 2 - 3
    found = heavy_tails(plain)
    assert list(found) == ["task_0"] and found["task_0"] == pytest.approx(about_zero[0])
    assert found["task_0"] == pytest.approx(kurtosis(R[:, 0]), rel=0.3)
    (line,) = heavy_lines(found, False)
    assert "task_0 (" in line and "--transform yeo-johnson helps" in line
    assert "--transform" not in heavy_lines(found, True)[0]
    assert "--transform" not in heavy_lines(found, False, streamed=True)[0]


def test_the_remedy_works_and_scores_are_of_the_densities(plain, data):
    X, Y = data
    cured = CoolMTGPRegressor("se", ard=False, target_transform={"task_0": "log"}).fit(X, Y)
    assert heavy_tails(cured) == {}
    by_hand = CoolMTGPRegressor("se", ard=False).fit(X, np.column_stack([np.log(Y[:, 0]), Y[:, 1]]))
    score, other = (leave_one_out_scores(r)["targets"] for r in (cured, by_hand))
    jacobian = np.mean(np.log(Y[:, 0]))
    assert score[0]["nlpd"] == pytest.approx(other[0]["nlpd"] + jacobian, rel=1e-3)
    assert score[0]["coverage"] == other[0]["coverage"]
    assert score[1]["nlpd"] == pytest.approx(other[1]["nlpd"], rel=1e-3)
    assert score[0]["nlpd"] < leave_one_out_scores(plain)["targets"][0]["nlpd"] - 0.5
    rows = standardised_rows(cured)
    assert np.std((rows.Y - rows.mean) / rows.std, axis=0) == pytest.approx(1.0, abs=0.2)


def test_means_that_miss_are_told_where_targets_are_transformed():
    scores = [{"target": name, "relative_rmse": r} for name, r in [("a", 0.9), ("views", 108.0)]]
    (line,) = poor_lines(scores, True)
    assert line.startswith("Means miss by more than the mean of all rows does: views (1.1e+02),")
    assert "Medians and intervals do not suffer (--quantiles 0.05,0.5,0.95)" in line
    assert poor_lines(scores[:1], True) == []


NO_BETTER = "predicted better than by the mean: these inputs tell little about"


@pytest.mark.parametrize(
    "errors, expected",
    [
        ([0.9, 0.98], []),
        ([0.9, 1.2], [f"b is not {NO_BETTER} it."]),
        ([1.0, 0.9, 0.99, np.nan], [f"a, c are not {NO_BETTER} them."]),
        ([1.0, 1.3], [f"No target is {NO_BETTER} them."]),
        ([1.0, np.nan], [f"No target is {NO_BETTER} it."]),
        ([np.nan], []),
    ],
)
def test_targets_of_which_nothing_was_learnt_are_named(errors, expected):
    """A target that never changes has no relative error."""
    scores = [{"target": name, "relative_rmse": r} for name, r in zip("abcd", errors, strict=False)]
    assert poor_lines(scores, False) == expected
    assert all_are_hopeless(scores) is bool(expected and expected[0].startswith("No target"))
