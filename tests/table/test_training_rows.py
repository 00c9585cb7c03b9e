"""Rows that arrive after the fit of an estimator."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGPRegressor, KroneckerMTGP


@pytest.fixture
def table(rng):
    X = pd.DataFrame({"a": 5.0 + rng.normal(size=30), "b": 100.0 * rng.normal(size=30)})
    X.index = [f"row {n}" for n in range(30)]
    F = np.column_stack([np.sin(X["a"]), 50.0 + np.cos(X["a"]) + X["b"] / 100.0])
    return X, pd.DataFrame(F + 0.1 * rng.normal(size=F.shape), X.index, ["heat", "cold"])


def test_rows_are_added_at_the_parameters_and_scaling_of_the_fit(table):
    X, Y = table
    regressor = CoolMTGPRegressor(kernel="se", ard=False, orders=2).fit(X[:20], Y[:20])
    centre, scale = X[:20].mean(), X[:20].std(ddof=0)
    middle, size = Y[:20].mean(), Y[:20].std(ddof=0)
    C, Sigma = regressor.task_covariance_, regressor.noise_covariance_
    units = np.outer(size, size)
    exact = KroneckerMTGP.ground_truth(
        (((X - centre) / scale)[:27].to_numpy(), ((Y - middle) / size)[:27].to_numpy()),
        regressor.model_.kernel,
        C.to_numpy() / units,
        Sigma.to_numpy() / units,
    )
    assert regressor.add_rows(X[20:27], Y[20:27]) is regressor
    mean, var = exact.predict_y(((X - centre) / scale)[27:].to_numpy())
    found, std = regressor.predict(X[27:], return_std=True)
    assert_allclose(found, mean * size.to_numpy() + middle.to_numpy(), rtol=1e-6)
    assert_allclose(std, np.sqrt(var) * size.to_numpy(), rtol=1e-6)
    assert_allclose(regressor.noise_covariance_, Sigma, rtol=1e-6)
    assert list(regressor.leave_one_out_.mean.index) == list(X.index[:27])


def test_what_does_not_fit_is_refused_and_changes_nothing(table):
    X, Y = table
    regressor = CoolMTGPRegressor(kernel="se", ard=False, orders=2).fit(X[:20], Y[:20])
    before = regressor.predict(X[27:])
    with pytest.raises(ValueError, match="feature names|columns"):
        regressor.add_rows(X[["a"]][20:], Y[20:])
    with pytest.raises(ValueError, match="rows"):
        regressor.add_rows(X[20:], Y[21:])
    assert_allclose(regressor.predict(X[27:]), before, rtol=0)


def test_a_target_without_a_logarithm_is_named_as_it_was_passed(table):
    X, Y = table
    Y = Y.assign(heat=np.exp(Y["heat"]))
    regressor = CoolMTGPRegressor("se", ard=False, orders=1, target_transform={"heat": "log"})
    regressor.fit(X[:20], Y[:20])
    before = regressor.predict(X[27:])
    new = Y[20:23].assign(heat=[2.0, np.nan, -1.0])
    with pytest.raises(ValueError, match="Target 'heat' is -1 in row 2, and has no logarithm"):
        regressor.add_rows(X[20:23], new)
    assert_allclose(regressor.predict(X[27:]), before, rtol=0)
