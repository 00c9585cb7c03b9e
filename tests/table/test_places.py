"""Probabilities of exceeding limits, in the user's units and names."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from tables import NASTY, make_data

from gpflow_cool.table.estimator import CoolMTGPRegressor

ROWS = pd.DataFrame({"depth": [-1.0, 0.2, 2.5], "lamp": 4.0}, index=["p", "q", "r"])


@pytest.mark.parametrize("noise", [True, False])
def test_one_target_has_the_normal_distribution(small_regressor, noise):
    mean, std = small_regressor.predict(ROWS, return_std=True, include_noise=noise)
    for t, name in enumerate([NASTY, "b"]):
        limit = float(mean.iloc[1, t]) + 1.0
        p, error = small_regressor.probability(
            ROWS, {name: limit}, include_noise=noise, return_error=True
        )
        expected = norm.sf(limit, mean.iloc[:, t], std.iloc[:, t])
        assert_allclose(p, expected, rtol=0, atol=1e-9)
        assert list(p.index) == ["p", "q", "r"] and (error == 0).all()


def test_each_target_on_its_own(small_regressor):
    mean, std = small_regressor.predict(ROWS, return_std=True)
    limits = np.asarray(mean)[1] + [1.0, -0.5]
    p = small_regressor.probability(ROWS, limits, "each")
    assert list(p.columns) == [NASTY, "b"]
    assert_allclose(p, norm.sf(limits, mean, std), atol=1e-9)
    assert np.isnan(small_regressor.probability(ROWS, {"b": 1.0}, "each")[NASTY]).all()


@pytest.mark.slow
def test_several_are_within_three_standard_errors_of_a_million_draws(small_regressor):
    rng = np.random.default_rng(0)
    mean, cov = small_regressor.predict(ROWS, return_cov=True)
    limits = np.asarray(mean)[1] + [1.0, -0.5]
    for which, hits in [("any", np.any), ("all", np.all)]:
        found = small_regressor.probability(ROWS, limits, which, return_error=True)
        for m, row in enumerate(ROWS.index):
            draws = rng.multivariate_normal(mean.loc[row], cov.loc[row], size=1_000_000)
            share = hits(draws > limits, axis=1).mean()
            p, error = (part.iloc[m] for part in found)
            assert abs(share - p) < 3 * np.hypot(np.sqrt(p * (1 - p) / 1e6), error) + 1e-6


def test_one_target_as_a_vector():
    X, Y = make_data(1)
    regressor = CoolMTGPRegressor("se", ard=False).fit(X, Y[:, 0])
    mean, std = regressor.predict(X, return_std=True)
    assert_allclose(regressor.probability(X, 3.0), norm.sf(3.0, mean, std), atol=1e-9)


def test_mistakes_are_told(small_regressor):
    with pytest.raises(ValueError, match="limits names 'c', which is not a target. The targets"):
        small_regressor.probability(ROWS, {"c": 1.0})
    with pytest.raises(ValueError, match=r"limits names 'B', .*, b\. Did you mean 'b'\?"):
        small_regressor.probability(ROWS, {"B": 1.0})
    with pytest.raises(ValueError, match=r"limits has shape \(1,\), but there are 2 tasks"):
        small_regressor.probability(ROWS, 1.0)
    with pytest.raises(ValueError, match="limits is NaN for every task, but one limit"):
        small_regressor.probability(ROWS, {})
    for limits in (None, {"b": "high"}):
        with pytest.raises(ValueError, match="limits cannot be read as numbers"):
            small_regressor.probability(ROWS, limits)
    with pytest.raises(ValueError, match="which='none' is not known. Choose one of: 'any', 'all',"):
        small_regressor.probability(ROWS, [1.0, 2.0], "none")
