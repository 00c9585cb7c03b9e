"""The estimator keeps the chain that it has trained, and the exact model that it is refined to."""

import copy

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from two_units import X_NEW, X, Y

from gpflow_cool.loading import load
from gpflow_cool.models import CoolMTGP, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.table.estimator import CoolMTGPRegressor


def four_targets():
    """Targets whose covariances depend on their order."""
    rng = np.random.default_rng(2)
    return np.column_stack([Y, Y[:, 0] * Y[:, 1] / 100, np.sin(X[:, 1])]) + rng.normal(size=[24, 4])


def with_gaps(targets):
    """Targets of which some are missing."""
    return np.where((np.arange(24)[:, None] + np.arange(4)) % 9 == 0, np.nan, targets)


@pytest.mark.parametrize("gaps", [False, True])
def test_the_model_is_the_chain_refined(gaps):
    targets = with_gaps(four_targets()) if gaps else four_targets()
    regressor = CoolMTGPRegressor("se", ard=False, orders=3).fit(X[:, :2], targets)
    chain = regressor.chain_
    assert type(chain) is CoolMTGP and type(regressor.model_) is KroneckerMTGP
    assert chain.learning == "approximate" and chain.weight_prior == "scaled"
    refined = chain.refine()
    for name in ("task_covariance", "noise_covariance"):
        S = np.asarray(getattr(refined, name)())
        assert_allclose(getattr(regressor.model_, name)(), S, rtol=1e-8, atol=1e-10)
        assert np.max(np.abs(S - getattr(chain, name)())) > 1e-3
        scale = np.outer(*2 * [regressor._targets.scaling.scale])
        assert_allclose(getattr(regressor, f"{name}_"), scale * S, rtol=1e-8, atol=1e-10)
    if gaps:
        completed, std, _ = regressor.impute(targets)
        imputed = refined.impute()
        scaling = regressor._targets.scaling
        assert_allclose(completed, imputed.Y * scaling.scale + scaling.centre, rtol=1e-8)
        variances = np.diagonal(imputed.cov, axis1=1, axis2=2)
        assert_allclose(std, scaling.scale * np.sqrt(variances), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", ["one order", "one target", "inducing points"])
def test_where_nothing_is_refined_the_model_is_the_chain(case):
    settings = {"one order": {"orders": 1}, "inducing points": {"inducing": 6}}.get(case, {})
    targets = Y[:, :1] if case == "one target" else Y
    regressor = CoolMTGPRegressor("se", ard=False, **settings).fit(X[:, :1], targets)
    assert regressor.model_ is regressor.chain_
    kind = SparseCoolMTGP if case == "inducing points" else CoolMTGP
    assert type(regressor.chain_) is kind


@pytest.mark.parametrize("orders, dtype", [(1, np.float64), (3, np.float64), (3, np.float32)])
def test_chain_and_model_are_saved_and_copied(orders, dtype, tmp_path):
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        regressor = CoolMTGPRegressor("se", ard=False, orders=orders)
        regressor.fit(X, with_gaps(four_targets()))
        regressor.save(tmp_path / "model")
        found = load(tmp_path / "model"), copy.deepcopy(regressor)
        for again in found:
            assert again.orders == orders and again.model_.dtype == dtype
            assert (again.model_ is again.chain_) == (orders == 1)
            for name in ("b", "sigma2", "weight_variance"):
                ours, theirs = (getattr(r.chain_, name) for r in (regressor, again))
                assert_array_equal(ours.numpy(), theirs.numpy())
            assert_array_equal(again.chain_.task_covariance(), regressor.chain_.task_covariance())
            for one, other in zip(
                again.predict(X_NEW, return_std=True, return_cov=True),
                regressor.predict(X_NEW, return_std=True, return_cov=True),
                strict=True,
            ):
                assert_array_equal(one, other)
            assert_array_equal(
                again.leave_one_out_.log_density, regressor.leave_one_out_.log_density
            )


def test_rows_that_are_added_are_in_chain_and_model():
    regressor = CoolMTGPRegressor("se", ard=False).fit(X[:20, :2], Y[:20])
    regressor.add_rows(X[20:, :2], Y[20:])
    assert regressor.chain_.num_rows == regressor.model_.num_rows == 24
    for ours, theirs in zip(regressor.chain_.data, regressor.model_.data, strict=True):
        assert_array_equal(ours, theirs)
