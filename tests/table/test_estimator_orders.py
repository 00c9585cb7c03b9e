"""The estimator averages over orders of the targets."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from two_units import X_NEW, X, Y

from gpflow_cool.loading import load
from gpflow_cool.models import CoolMTGP
from gpflow_cool.table.estimator import CoolMTGPRegressor


def four_targets():
    """Targets whose covariances depend on their order."""
    rng = np.random.default_rng(2)
    return np.column_stack([Y, Y[:, 0] * Y[:, 1] / 100, np.sin(X[:, 1])]) + rng.normal(size=[24, 4])


def with_gaps(targets):
    """Targets of which some are missing."""
    return np.where((np.arange(24)[:, None] + np.arange(4)) % 9 == 0, np.nan, targets)


def chain_of(regressor, targets=None):
    """The trained chain behind an estimator."""
    targets = four_targets() if targets is None else targets
    chain = clone(regressor).set_params(orders=1).fit(X[:, :2], targets)
    assert isinstance(chain.model_, CoolMTGP)
    return chain


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["se", "linear"])
@pytest.mark.parametrize("random_state, seed", [(None, 0), (np.int64(5), 5)])
def test_covariances_are_averaged_over_orders(kernel, random_state, seed):
    regressor = CoolMTGPRegressor(kernel, ard=False, orders=5, random_state=random_state)
    regressor.fit(X[:, :2], four_targets())
    chain = chain_of(regressor)
    expected = chain.model_.average_over_orders(5, seed=seed)
    for name in ("task_covariance", "noise_covariance"):
        S = getattr(regressor.model_, name)().numpy()
        assert_allclose(S, getattr(expected, name)(), rtol=1e-4, atol=1e-5)
        assert np.max(np.abs(S - getattr(chain.model_, name)().numpy())) > 1e-3
    history = regressor.history_, chain.history_
    assert_allclose(*(h.history["loss"][-1] for h in history), rtol=1e-6)


@pytest.mark.slow
def test_missing_targets_are_predicted_from_averaged_covariances():
    targets = with_gaps(four_targets())
    regressor = CoolMTGPRegressor("se", ard=False, orders=3).fit(X[:, :2], targets)
    chain = chain_of(regressor, targets)
    expected = chain.model_.average_over_orders(3, seed=0)
    ratios = np.asarray(expected.noise_covariance() / chain.model_.noise_covariance())
    assert_allclose(regressor.noise_covariance_ / chain.noise_covariance_, ratios, rtol=1e-6)
    assert np.max(np.abs(ratios - 1.0)) > 1e-3
    known = ~np.isnan(targets)
    completed, std, _ = regressor.impute(targets)
    assert_allclose(completed[known], targets[known])
    imputed = expected.impute()
    scale = np.sqrt(regressor.noise_covariance_[0, 0] / expected.noise_covariance()[0, 0])
    assert_allclose(std[0, 0], scale * np.sqrt(imputed.cov[0, 0, 0]), rtol=1e-6)


@pytest.mark.slow
def test_a_generator_decides_the_orders():
    regressor = CoolMTGPRegressor("se", ard=False, orders=2, random_state=np.random.RandomState(3))
    regressor.fit(X[:, :2], four_targets())
    seed = int(np.random.RandomState(3).randint(2**31))
    expected = chain_of(CoolMTGPRegressor("se", ard=False)).model_.average_over_orders(2, seed=seed)
    got = regressor.model_.noise_covariance()
    assert_allclose(got, expected.noise_covariance(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["one target", "inducing points"])
def test_where_there_is_no_average_it_is_the_chain(case):
    targets = Y[:, :1] if case == "one target" else Y
    settings = {"inducing": 6 if case == "inducing points" else None, "random_state": 1}
    regressor, chain = (
        CoolMTGPRegressor("se", ard=False, orders=orders, **settings).fit(X[:, :1], targets)
        for orders in (8, 1)
    )
    assert_allclose(regressor.model_.b, chain.model_.b, rtol=1e-4)
    assert_allclose(regressor.model_.sigma2, chain.model_.sigma2, rtol=1e-4)
    assert_allclose(regressor.predict(X_NEW[:, :1]), chain.predict(X_NEW[:, :1]), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("orders", [1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_orders_are_saved(orders, dtype, tmp_path):
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        regressor = CoolMTGPRegressor("se", ard=False, orders=orders).fit(X, four_targets())
        regressor.save(tmp_path / "model")
        again = load(tmp_path / "model")
    assert regressor.model_.dtype == again.model_.dtype == dtype
    assert again.orders == orders and type(again.model_) is type(regressor.model_)
    for one, other in zip(
        again.predict(X_NEW, return_std=True, return_cov=True),
        regressor.predict(X_NEW, return_std=True, return_cov=True),
        strict=True,
    ):
        assert_array_equal(one, other)
    for one, other in zip(again.leave_one_out_, regressor.leave_one_out_, strict=True):
        assert_array_equal(one, other)
