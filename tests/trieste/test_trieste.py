"""Our models in Trieste: its interfaces, joint samplers, and loops. Runs where Trieste is."""

import copy
import doctest

import gpflow
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
from problems import assert_close, assert_moments
from trieste.acquisition.function import (
    BatchMonteCarloExpectedHypervolumeImprovement,
    ExpectedHypervolumeImprovement,
    Fantasizer,
)
from trieste.acquisition.rule import EfficientGlobalOptimization
from trieste.ask_tell_optimization import AskTellOptimizer
from trieste.bayesian_optimizer import BayesianOptimizer
from trieste.data import Dataset
from trieste.models import interfaces
from trieste.objectives.utils import mk_observer
from trieste.space import Box
from two_outputs import SIGMA, data, exact, kernel

import gpflow_cool.trieste.model
from gpflow_cool import CoolMTGP
from gpflow_cool.grid import grid_inputs
from gpflow_cool.trieste import MultitaskRegression


@pytest.fixture
def X(rng):
    return rng.uniform(size=(3, 2))


@pytest.mark.parametrize(
    "interface",
    [
        interfaces.TrainableProbabilisticModel,
        interfaces.SupportsPredictJoint,
        interfaces.SupportsPredictY,
        interfaces.SupportsGetKernel,
        interfaces.SupportsGetMeanFunction,
        interfaces.SupportsGetObservationNoise,
        interfaces.SupportsGetInternalData,
        interfaces.FastUpdateModel,
        interfaces.HasTrajectorySampler,
        interfaces.HasReparamSampler,
    ],
)
def test_interfaces(rng, interface):
    assert isinstance(MultitaskRegression(exact(*data(rng))), interface)


def test_predictions_are_those_of_the_model(rng, X):
    rows = data(rng)
    model, expected = MultitaskRegression(exact(*rows)), exact(*rows)
    for batch in (X, np.stack([X, X + 0.1])):
        for actual, wanted in [
            (model.predict(batch), expected.predict_f(batch)),
            (model.predict_joint(batch), expected.predict_f(batch, full_cov=True)),
            (model.predict_y(batch), expected.predict_y(batch)),
        ]:
            assert_close(actual[0], wanted[0])
            assert_close(actual[1], wanted[1])
    assert_close(model.get_observation_noise(), np.diag(SIGMA))
    assert model.get_kernel() is model.model.kernel
    assert_close(model.get_mean_function()(X), np.full((3, 1), 0.3))
    assert_close(model.get_internal_data().observations, rows[1])


def test_update_is_seen_by_compiled_functions(rng, X):
    rows, more = data(rng), data(rng, 11)
    model = MultitaskRegression(exact(*rows))
    predict = tf.function(model.predict)
    assert_close(predict(tf.constant(X))[0], exact(*rows).predict_f(X)[0])
    model.update(Dataset(*map(tf.constant, more)))
    for actual, wanted in zip(predict(tf.constant(X)), exact(*more).predict_f(X), strict=True):
        assert_close(actual, wanted)
    assert_close(model.get_internal_data().query_points, more[0])


def test_rows_on_a_grid_are_replaced_by_others(rng, X):
    on_grid, more = grid_inputs(np.linspace(0, 1, 20), np.linspace(0, 1, 16)), data(rng, 321)
    inner = CoolMTGP((on_grid, rng.normal(size=(320, 2))), kernel())
    assert inner.is_on_grid
    model = MultitaskRegression(inner)
    model.update(Dataset(*map(tf.constant, more)))
    expected = CoolMTGP(more, kernel(), b=inner.b, sigma2=inner.sigma2, engine="spectral")
    for actual, wanted in zip(model.predict(X), expected.predict_f(X), strict=True):
        assert_close(actual, wanted, 1e-8)
    asked = CoolMTGP((on_grid, rng.normal(size=(320, 2))), kernel(), engine="grid")
    with pytest.raises(ValueError, match='as they do in Trieste, use engine="auto"'):
        MultitaskRegression(asked)


def test_optimize_trains_and_refreshes(rng, X):
    points = np.linspace(0, 1, 15)[:, None]
    rows = points, np.hstack([np.sin(6 * points), np.cos(6 * points)])
    inner = CoolMTGP(rows, gpflow.kernels.SquaredExponential())
    model = MultitaskRegression(inner, {"steps": 20})
    before = float(inner.training_loss())
    model.optimize(model.get_internal_data())
    assert float(inner.training_loss()) < before - 1.0
    for actual, wanted in zip(model.predict(points), inner.predict_f(points), strict=True):
        assert_close(actual, wanted, 1e-8)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_conditional_predictions_equal_those_of_the_updated_model(rng, X, batch):
    rows = data(rng)
    model = MultitaskRegression(exact(*rows))
    more_X, more_Y = rng.uniform(size=(*batch, 4, 2)), rng.normal(size=(*batch, 4, 2))
    additional = Dataset(tf.constant(more_X), tf.constant(more_Y))
    results = [
        model.conditional_predict_f(X, additional),
        model.conditional_predict_joint(X, additional),
        model.conditional_predict_y(X, additional),
    ]
    last = tuple(size - 1 for size in batch)
    all_rows = np.vstack([rows[0], more_X[last]]), np.vstack([rows[1], more_Y[last]])
    updated = exact(*all_rows)
    expected = [updated.predict_f(X), updated.predict_f(X, full_cov=True), updated.predict_y(X)]
    for actual, wanted in zip(results, expected, strict=True):
        assert actual[0].shape == (*batch, 3, 2)
        assert_close(actual[0][last], wanted[0], 1e-8)
        assert_close(actual[1][last], wanted[1], 1e-8)
    tf.random.set_seed(3)
    draws = model.conditional_predict_f_sample(X, additional, 4000)[last]
    mean, cov = updated.predict_f_full_cov(X)
    assert_moments(np.reshape(draws, (4000, 6)), np.ravel(mean), np.reshape(cov, (6, 6)))


@pytest.mark.parametrize("which", ["sample", "reparam", "trajectory"])
def test_draws_are_joint_over_points_and_outputs(rng, X, which):
    """4,000 draws within five standard errors of the exact covariance, [6, 6]."""
    model = MultitaskRegression(exact(*data(rng)))
    X = X + 0.5  # away from the data, where outputs vary most
    mean, cov = model.model.predict_f_full_cov(X)
    between = np.reshape(cov, (6, 6))[0, 1] / np.sqrt(cov[0, 0, 0, 0] * cov[0, 1, 0, 1])
    assert abs(between) > 0.3  # what independent outputs would miss
    tf.random.set_seed(5)
    if which == "sample":
        draws = model.sample(X, 4000)
    elif which == "reparam":
        draws = model.reparam_sampler(4000).sample(tf.constant(X), jitter=1e-9)
    else:
        parts = []
        for _ in range(4):
            trajectory = model.trajectory_sampler().get_trajectory()
            parts.append(trajectory(np.repeat(X[:, None], 1000, axis=1)))  # [3, 1000, 2]
        draws = np.concatenate(parts, axis=1).transpose(1, 0, 2)
    assert_moments(np.reshape(draws, (4000, 6)), np.ravel(mean), np.reshape(cov, (6, 6)))


def test_reparametrisation_stays_until_it_is_reset(rng, X):
    """Smooth in the points, also in graphs, for batches, and after an update of the model."""
    model = MultitaskRegression(exact(*data(rng)))
    sampler = model.reparam_sampler(3)
    sample = tf.function(sampler.sample)
    first = sample(tf.constant(X)[None])
    assert first.shape == (1, 3, 3, 2)
    npt.assert_array_equal(first, sample(tf.constant(X)[None]))
    assert np.abs(sample(tf.constant(X + 1e-6)[None]) - first).max() < 1e-3
    sampler.reset_sampler()
    assert np.abs(sample(tf.constant(X)[None]) - first).max() > 0.01
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of points"):
        sampler.sample(tf.constant(X[:2])[None])


def test_trajectories_are_consistent(rng):
    model = MultitaskRegression(exact(*data(rng)))
    sampler = model.trajectory_sampler()
    trajectory = sampler.get_trajectory()
    x = rng.uniform(size=(4, 5, 2))
    compiled = tf.function(trajectory)
    values = compiled(tf.constant(x))
    assert_close(trajectory(x[1:2]), values[1:2], 1e-10)
    assert np.abs(sampler.resample_trajectory(trajectory)(x) - values).max() > 0.01
    with pytest.raises(ValueError, match="This trajectory has 5 functions"):
        trajectory(x[:, :2])
    model.update(Dataset(*map(tf.constant, data(rng, 10))))
    new = model.get_internal_data().query_points
    fresh = sampler.update_trajectory(trajectory)(tf.repeat(new[:, None], 500, axis=1))
    mean, variance = model.predict(new)  # 500 functions, within five standard errors
    assert np.all(np.abs(np.mean(fresh, axis=1) - mean) < 5.0 * np.sqrt(variance / 500))


def test_copies_are_independent(rng, X):
    """The optimizer keeps a copy of the model for every step."""
    rows = data(rng)
    model = MultitaskRegression(exact(*rows))
    copied = copy.deepcopy(model)
    before = model.predict(X)[0]
    model.update(Dataset(*map(tf.constant, data(rng, 5))))
    assert_close(copied.predict(X)[0], before, 1e-12)
    assert np.abs(model.predict(X)[0] - before).max() > 0.01


def two_objectives(X):
    """Two bowls with different centres, and noise that both share."""
    f = tf.stack([tf.reduce_sum((X - c) ** 2, axis=1) for c in (0.25, 0.75)], axis=1)
    noise = tf.random.stateless_normal([tf.shape(X)[0], 1], (7, 8), dtype=tf.float64)
    return f + 0.02 * noise


@pytest.mark.parametrize(
    "rule",
    [
        EfficientGlobalOptimization(ExpectedHypervolumeImprovement()),
        EfficientGlobalOptimization(
            BatchMonteCarloExpectedHypervolumeImprovement(32), num_query_points=2
        ),
        EfficientGlobalOptimization(
            Fantasizer(ExpectedHypervolumeImprovement()), num_query_points=2
        ),
    ],
    ids=["EHVI", "batch EHVI", "fantasizer"],
)
def test_loops_improve_the_front(rule):
    space = Box([0.0, 0.0], [1.0, 1.0])
    observer = mk_observer(two_objectives)
    start = observer(space.sample(6, seed=3))
    inner = CoolMTGP(
        (start.query_points, start.observations), gpflow.kernels.Matern52(lengthscales=0.5)
    )
    model = MultitaskRegression(inner, {"steps": 10})
    result = BayesianOptimizer(observer, space).optimize(3, start, model, rule)
    dataset = result.try_get_final_dataset()
    assert len(dataset) == 6 + 3 * rule._num_query_points
    new = dataset.observations[6:].numpy()
    front = start.observations.numpy()
    improved = ~np.any(np.all(front[None] <= new[:, None], axis=-1), axis=-1)
    assert improved.any()


def test_ask_and_tell(rng, X):
    """Observations made elsewhere reach the model, and a record of the state stands by itself."""
    space, points = Box([0.0, 0.0], [1.0, 1.0]), tf.constant(rng.uniform(size=(6, 2)))
    start = Dataset(points, two_objectives(points))
    model = MultitaskRegression(CoolMTGP(start.astuple(), kernel()), {"steps": 5})
    rule = EfficientGlobalOptimization(ExpectedHypervolumeImprovement())
    loop = AskTellOptimizer(space, start, model, rule)
    again = AskTellOptimizer.from_record(loop.to_record(), space, rule)
    before = again.model.predict(X)[0]
    assert_close(before, loop.model.predict(X)[0], 1e-12)
    asked = loop.ask()
    assert asked[0] in space
    loop.tell(Dataset(asked, two_objectives(asked)))
    npt.assert_array_equal(loop.model.get_internal_data().query_points[6:], asked)
    assert_close(again.model.predict(X)[0], before, 1e-12)
    assert np.abs(loop.model.predict(X)[0] - before).max() > 1e-4


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda X, Y: gpflow.models.GPR((X, Y), kernel()), "CoolMTGP or KroneckerMTGP is needed"),
        (lambda X, Y: exact(X, np.where(Y == Y[0, 0], np.nan, Y)), "must be complete"),
    ],
)
def test_models_that_do_not_fit_are_refused(rng, make, message):
    with pytest.raises(ValueError, match=message):
        MultitaskRegression(make(*data(rng)))


def test_bad_data_are_refused(rng):
    X, Y = data(rng)
    model = MultitaskRegression(exact(X, Y))
    for bad, message in [
        ((X[:, :1], Y), "query points have 1 columns"),
        ((X, Y[:, :1]), "observations have 1 columns"),
        ((X, Y * np.nan), "observations have entries that are not finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.update(Dataset(*map(tf.constant, bad)))


def test_examples():
    for module in (gpflow_cool.trieste.model, gpflow_cool.trieste.samplers):
        assert doctest.testmod(module).failed == 0
