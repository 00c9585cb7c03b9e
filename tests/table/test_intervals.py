"""Intervals and regions by leave-one-out: quantiles, widths, units, and how often they hold."""

import numpy as np
import pandas as pd
import pytest

from gpflow_cool import CoolMTGPRegressor
from gpflow_cool.table.intervals import mahalanobis, raised_quantile


@pytest.fixture(scope="module")
def data():
    """Heavy tails: the normal distribution's intervals would be wrong."""
    rng = np.random.default_rng(2)
    X = rng.uniform(0, 6, size=[400, 1])
    noise = rng.standard_t(2.5, size=[400, 2]) * [0.1, 3.0]
    return X, np.hstack([np.sin(X), 100 + 20 * np.cos(X)]) + noise


@pytest.fixture(scope="module")
def regressor(data):
    X, Y = data
    return CoolMTGPRegressor("se", ard=False, orders=1).fit(X[:80], Y[:80])


def test_quantile_is_an_order_statistic():
    values = np.random.default_rng(0).permutation(np.arange(1.0, 20.0))
    assert raised_quantile(values, 0.9) == 18.0  # the 18th of 19, rank (19 + 1) * 0.9
    assert raised_quantile(values, 0.5) == 10.0
    assert raised_quantile(values, 0.91) == 19.0
    with pytest.raises(
        ValueError, match="level=0.99 needs at least 99 rows, of which 19 are known"
    ):
        raised_quantile(values, 0.99)
    for level in (0.0, 1.0, -0.5, 90, None, "0.9", [0.9]):
        with pytest.raises(ValueError, match="is a probability"):
            raised_quantile(values, level)


def test_distances_against_inverses():
    rng = np.random.default_rng(1)
    A = rng.normal(size=[5, 3, 3])
    cov, r = A @ A.transpose(0, 2, 1) + np.eye(3), rng.normal(size=[5, 3])
    expected = [np.sqrt(e @ np.linalg.inv(S) @ e) for e, S in zip(r, cov, strict=True)]
    np.testing.assert_allclose(mahalanobis(r, cov), expected)


def test_width_is_the_quantile_of_the_rows_left_out(regressor, data):
    X, Y = data
    rows = regressor.leave_one_out_
    z = np.abs(Y[:80] - rows.mean) / rows.std
    mean, std = regressor.predict(X[80:84], return_std=True)
    lower, upper = regressor.predict_interval(X[80:84], 0.8)
    width = np.sort(z, axis=0)[64]  # rank ceil(81 * 0.8) = 65
    np.testing.assert_allclose(upper, mean + width * std, rtol=1e-6)
    np.testing.assert_allclose(lower, mean - width * std, rtol=1e-6)
    lower, upper = regressor.predict_interval(X[80:84], 0.8, joint=True)
    both = np.sort(z.max(axis=1))[64]
    np.testing.assert_allclose(upper - lower, 2 * both * std, rtol=1e-6)


@pytest.mark.slow
def test_inducing_points_count_all_rows_and_not_the_sample_that_is_shown(data, monkeypatch):
    monkeypatch.setattr("gpflow_cool.models.sparse.SHOWN_ROWS", 20)
    X, Y = data[0][:30], data[1][:30]
    regressor = CoolMTGPRegressor("se", ard=False, orders=1, inducing=6).fit(X, Y)
    assert len(regressor.model_.data[1]) == 20
    rows = regressor.leave_one_out_
    z = np.abs(Y - rows.mean) / rows.std
    std = regressor.predict(X[:4], return_std=True)[1]
    lower, upper = regressor.predict_interval(X[:4], 0.8)
    rank = 25  # ceil(31 * 0.8)
    width = np.sort(z, axis=0)[rank - 1]
    np.testing.assert_allclose(upper - lower, 2 * width * std, rtol=1e-6)
    solved = np.linalg.solve(rows.cov, (Y - rows.mean)[..., None])[..., 0]
    distances = np.sqrt(np.sum((Y - rows.mean) * solved, axis=1))
    expected = np.sort(distances)[rank - 1]
    np.testing.assert_allclose(regressor.region_distance(0.8), expected, rtol=1e-6)


def test_new_rows_are_inside_as_often_as_promised(regressor, data):
    """The frequency of 320 rows, whose standard error is 0.027 at 80 training rows and 320 new."""
    X, Y = data[0][80:], data[1][80:]
    lower, upper = regressor.predict_interval(X, 0.8)
    inside = (lower <= Y) & (upper >= Y)
    assert np.all(np.abs(inside.mean(axis=0) - 0.8) < 0.14)
    mean, std = regressor.predict(X, return_std=True)
    normal = np.abs(Y - mean) < 1.2816 * std
    assert np.all(normal.mean(axis=0) > inside.mean(axis=0))  # heavy tails: too wide at 80 %
    lower, upper = regressor.predict_interval(X, 0.8, joint=True)
    assert abs(np.mean(np.all((lower <= Y) & (upper >= Y), axis=1)) - 0.8) < 0.14


def test_region_holds_new_rows_as_often_as_promised(regressor, data):
    X, Y = data[0][80:], data[1][80:]
    mean, cov = regressor.predict(X, return_cov=True)
    inside = mahalanobis(Y - mean, cov) <= regressor.region_distance(0.8)
    assert abs(inside.mean() - 0.8) < 0.14


@pytest.mark.slow
def test_frames_and_transforms(data):
    X = pd.DataFrame(data[0][:40], columns=["x"])
    rain = np.exp(np.sin(data[0][:40, 0])) * np.exp(0.1 * data[1][:40, 0])
    Y = pd.DataFrame({"rain": rain})
    fitted = CoolMTGPRegressor("se", ard=False, target_transform="log").fit(X, Y)
    logs = CoolMTGPRegressor("se", ard=False).fit(X, np.log(Y))
    ends, by_hand = fitted.predict_interval(X[:5], 0.7), logs.predict_interval(X[:5], 0.7)
    for end, expected in zip(ends, by_hand, strict=True):
        assert list(end.columns) == ["rain"] and list(end.index) == list(range(5))
        np.testing.assert_allclose(end, np.exp(expected), rtol=1e-4)


@pytest.mark.slow
def test_missing_targets():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, size=[24, 1])
    Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * rng.normal(size=[24, 2])
    Y[::4, 0] = np.nan
    regressor = CoolMTGPRegressor("se", ard=False, random_state=0).fit(X, Y)
    lower, upper = regressor.predict_interval(X, 0.8)
    assert np.all(lower < upper)
    z = np.abs(Y - np.asarray(regressor.leave_one_out_.mean)) / regressor.leave_one_out_.std
    largest = z[~np.isnan(Y).any(axis=1)].max(axis=1)  # of the 18 complete rows
    width = np.sort(largest)[14]  # rank ceil(19 * 0.75)
    joint = regressor.predict_interval(X, 0.75, joint=True)
    _, std = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(joint[1] - joint[0], 2 * width * std, rtol=1e-5)
    with pytest.raises(ValueError, match="Targets are missing"):
        regressor.region_distance()


def test_what_has_no_logarithm(data):
    X, rain = data[0][:30], np.exp(0.1 * data[1][:30])
    regressor = CoolMTGPRegressor("se", ard=False, target_transform="log").fit(X, rain)
    density = regressor.log_density(X[:2], [[0.0, 1.0], [1.0, np.nan]])
    assert density[0] == -np.inf and np.isfinite(density[1])
    with pytest.raises(ValueError, match="has no logarithm"):
        regressor.predict_given(X[:2], [[0.0, 1.0], [1.0, np.nan]])
