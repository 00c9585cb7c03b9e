"""Grids with missing rows and targets: the same numbers as from the whole kernel matrix."""

import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import SquaredExponential as SE
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP
from gpflow_cool.grid import complete_grid, grid_inputs
from gpflow_cool.joint.sampling import draw_completions


def assert_same(found, expected, rtol=1e-6, atol=1e-7):
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert_allclose(one, other, rtol=rtol, atol=atol)


def gappy_data(rng, num_rows=6, num_columns=5, num_tasks=2):
    """A fifth of the rows, and some targets besides."""
    X = grid_inputs(np.linspace(0, 1, num_rows), np.linspace(0, 2, num_columns))
    Y = np.sin(4 * X[:, :1] + X[:, 1:]) * [1.0, -0.7] + 0.1 * rng.normal(size=(len(X), num_tasks))
    Y[::7, 0] = np.nan
    order = rng.permutation(len(X))[: 4 * len(X) // 5]
    X, Y = complete_grid(X[order], Y[order])
    order = rng.permutation(len(X))
    return X[order], Y[order]


@pytest.fixture(name="pair", scope="module", params=[(6, 5), (15, 10)], ids=["30", "150"])
def _pair(request):
    data = gappy_data(np.random.default_rng(5), *request.param)
    engines = ("grid", "spectral")
    return [CoolMTGP(data, SE(lengthscales=[0.4, 0.9]), engine=engine) for engine in engines]


@pytest.fixture(name="solver", params=["dense", "conjugate gradients"])
def _solver(request, monkeypatch):
    if request.param != "dense":
        monkeypatch.setattr("gpflow_cool.joint.missing.MAX_DENSE", 0)


def test_predictions_given_what_was_observed(rng, solver, pair):
    model, dense = pair
    assert model.is_on_grid
    assert not dense.is_on_grid
    Xnew = rng.uniform(0, 2, size=(3, 2))
    assert_same(model.predict_y(Xnew, True, True), dense.predict_y(Xnew, True, True))
    assert_same(model.predict_f(Xnew), dense.predict_f(Xnew))
    assert_same(model.posterior().predict_f(Xnew), dense.predict_f(Xnew))


def test_imputation_and_rows_left_out(solver, pair):
    model, dense = pair
    assert_same(model.impute(), dense.impute())
    assert_same(model.leave_one_out(), dense.leave_one_out())
    assert_same(model.log_marginal_likelihood(), dense.log_marginal_likelihood())


def test_imputation_by_draws(pair, monkeypatch):
    model, dense = pair
    exact = dense.impute()
    monkeypatch.setattr("gpflow_cool.models.in_memory.MAX_IMPUTATION", 0)
    found = model.impute()
    assert_same(found.Y, exact.Y)
    missing = ~model.observed
    assert_allclose(found.std[missing], exact.std[missing], rtol=0.2)
    assert np.all(found.std[~missing] == 0.0)
    ratios = (found.std / exact.std)[missing]
    assert abs(np.mean(ratios) - 1.0) < 0.04


def test_draws_of_missing_targets(rng, solver, pair):
    numbers = rng.normal(size=(2, 4, *pair[0].observed.shape))
    found, expected = (
        draw_completions(model.observed_system(), model.centred_targets(), *numbers)
        for model in pair
    )
    assert_same(found, expected)


def test_objective_is_the_mean_over_completions(rng, pair):
    drawn = rng.normal(size=(4, *pair[0].observed.shape))
    losses = []
    for model in pair:
        model.completions.assign(np.where(model.observed, model.data[1], drawn))
        model._warned_of_loop = True
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        losses.append([loss, *tape.gradient(loss, model.trainable_variables)])
    assert_same(*losses, rtol=1e-9)
    assert_same(pair[0].multitask_parameters(), pair[1].multitask_parameters())


@pytest.mark.slow
def test_fit_comes_close_to_that_of_the_whole_matrix(rng):
    data = gappy_data(rng)
    models = [
        CoolMTGP(data, SE(lengthscales=0.5), engine=engine) for engine in ("grid", "spectral")
    ]
    for model in models:
        model.fit(seed=0, verbose=0)
    found, expected = (model.log_marginal_likelihood() for model in models)
    assert found > expected - 1.0
    truth = np.sin(4 * data[0][:, :1] + data[0][:, 1:]) * [1.0, -0.7]
    missing = ~models[0].observed
    found, expected = (
        np.sqrt(np.mean(np.square((model.impute().Y - truth)[missing]))) for model in models
    )
    assert found < 1.1 * expected
