"""
Laws that Trieste's own tests ask of models and samplers, as far as they are laws of the interface.

Trieste asks the same of `GaussianProcessRegression` and its samplers. Three of its laws are not
ours. A trajectory is not updated in place: a new one is returned, which the interface allows.
Parameters are not drawn from their priors before training: `fit_options={"restarts": 5}` is the way
here. And encoders of categories are Trieste's own: encode the inputs before they reach the model.
"""

import unittest.mock

import dill
import gpflow
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
from problems import assert_close, assert_moments
from trieste.data import Dataset
from trieste.logging import step_number, tensorboard_writer
from trieste.models import interfaces
from trieste.models.gpflow import GaussianProcessRegression
from two_outputs import SIGMA, C, data, exact

from gpflow_cool.trieste import FunctionSampler, JointReparametrizationSampler, MultitaskRegression


@pytest.fixture
def rows(rng):
    return data(rng)


@pytest.fixture
def model(rows):
    return MultitaskRegression(exact(*rows))


@pytest.fixture
def batches(rng):
    return tf.constant(rng.uniform(size=(3, 4, 2)))


def tensors(*arrays):
    return Dataset(*map(tf.constant, arrays))


# Models -------------------------------------------------------------------------------------------


def test_mean_and_variance_at_a_single_point(model, rows):
    x = np.array([[0.4, 0.6]])
    K, k = (exact(*rows).kernel(*pair).numpy() for pair in ((rows[0],), (rows[0], x)))
    S, cross = np.kron(C, K) + np.kron(SIGMA, np.eye(8)), np.kron(C, k)
    wanted = 0.3 + cross.T @ np.linalg.solve(S, (rows[1] - 0.3).ravel(order="F"))
    cov = 1.2 * C - cross.T @ np.linalg.solve(S, cross)
    mean, variance = model.predict(x)
    assert_close(mean, wanted[None], 1e-8)
    assert_close(variance, np.diag(cov)[None], 1e-8)


def test_observations_have_the_functions_mean_and_more_variance(model, batches):
    mean, variance = model.predict(batches)
    observed, more = model.predict_y(batches)
    npt.assert_array_equal(observed, mean)
    assert_close(more - variance, np.broadcast_to(np.diag(SIGMA), more.shape), 1e-8)
    assert_close(model.get_observation_noise(), np.diag(SIGMA))


def test_joint_predictions_have_the_single_ones_on_their_diagonal(model, batches):
    mean, variance = model.predict(batches)
    joint_mean, covariance = model.predict_joint(batches)
    assert_close(joint_mean, mean, 1e-12)
    assert_close(np.diagonal(covariance, axis1=-2, axis2=-1), np.swapaxes(variance, -1, -2), 1e-9)


def test_covariance_between_points_is_a_block_of_the_joint_one(model, batches):
    second = tf.constant([[0.1, 0.2], [0.8, 0.3]], tf.float64)
    actual = model.covariance_between_points(batches, second)
    assert actual.shape == (3, 2, 4, 2)
    for n, first in enumerate(batches):
        _, covariance = model.predict_joint(tf.concat([first, second], axis=0))
        assert_close(actual[n], covariance[:, :4, 4:], 1e-8)
    with pytest.raises(ValueError, match="only query_points_1 may have leading dimensions"):
        model.covariance_between_points(second, batches)


def test_no_samples(model, batches):
    assert model.sample(batches[0], 0).shape == (0, 4, 2)


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("updated", [False, True])
def test_predictions_follow_data_and_parameters(model, rng, batches, optimized, updated):
    """What is kept for fast predictions is never stale."""
    if updated:
        model.update(tensors(*data(rng, 12)))
    if optimized:
        model._fit_options["steps"] = 2
        model.optimize(model.get_internal_data())
    fresh = model.model.posterior()
    for actual, wanted in zip(model.predict(batches), fresh.predict_f(batches), strict=True):
        assert_close(actual, wanted, 1e-9)


def test_the_model_learns_from_the_data_it_was_given_last(model, rng):
    more = data(rng, 12)
    model.update(tensors(*more))
    internal = model.get_internal_data()
    npt.assert_array_equal(internal.query_points, more[0])
    npt.assert_array_equal(internal.observations, more[1])
    before = float(model.model.training_loss())
    history = model.optimize(internal)
    assert float(model.model.training_loss()) < before
    assert history.history["loss"][0] <= before + 1e-9


@pytest.mark.parametrize("with_data", [False, True])
def test_log_writes_one_summary_of_the_step(model, with_data):
    """A lengthscale and two noises; with data, eight numbers and six histograms more."""
    writer = unittest.mock.MagicMock()
    with (
        unittest.mock.patch("trieste.logging.tf.summary.scalar") as scalar,
        unittest.mock.patch("trieste.logging.tf.summary.histogram") as histogram,
        tensorboard_writer(writer),
        step_number(42),
    ):
        model.log(model.get_internal_data() if with_data else None)
    (call,) = writer.method_calls
    assert call[0] == "as_default" and call[-1]["step"] == 42
    assert (scalar.call_count, histogram.call_count) == ((11, 6) if with_data else (3, 0))
    written = {call.args[0]: call.args[1] for call in scalar.call_args_list}
    assert_close(written["noise variance/task_1"], SIGMA[1, 1])


def test_pickled_models_predict_the_same(model, rng, batches):
    again = dill.loads(dill.dumps(model))
    for actual, wanted in zip(again.predict(batches), model.predict(batches), strict=True):
        assert_close(actual, wanted, 1e-12)
    again.update(tensors(*data(rng, 5)))
    assert len(model.get_internal_data()) == 8


# Predictions given more data ----------------------------------------------------------------------


def test_conditional_predictions_agree_with_each_other(model, rng, batches):
    additional = tensors(rng.uniform(size=(3, 2, 2)), rng.normal(size=(3, 2, 2)))
    x = batches[0]
    mean, variance = model.conditional_predict_f(x, additional)
    joint_mean, covariance = model.conditional_predict_joint(x, additional)
    observed, more = model.conditional_predict_y(x, additional)
    assert_close(joint_mean, mean, 1e-9)
    assert_close(observed, mean, 1e-9)
    assert_close(np.diagonal(covariance, axis1=-2, axis2=-1), np.swapaxes(variance, -1, -2), 1e-8)
    assert_close(more - variance, np.broadcast_to(np.diag(SIGMA), more.shape), 1e-8)
    assert model.conditional_predict_f_sample(x, additional, 7).shape == (3, 7, 4, 2)


def test_conditional_predictions_leave_the_model_alone(model, rng, batches):
    before = model.predict(batches)
    model.conditional_predict_f(batches[0], tensors(*data(rng, 2)))
    npt.assert_array_equal(model.predict(batches)[0], before[0])
    assert len(model.get_internal_data()) == 8


# Stacks -------------------------------------------------------------------------------------------


@pytest.fixture
def stack(model, rows):
    """Both outputs of ours, and one more of GPflow's."""
    third = gpflow.models.GPR((rows[0], rows[1][:, :1]), gpflow.kernels.Matern32())
    parts = (model, 2), (GaussianProcessRegression(third), 1)
    return parts, interfaces.TrainablePredictJointReparamModelStack(*parts)


def test_stacks_join_the_outputs(stack, batches):
    parts, whole = stack
    for name, axis in [("predict", -1), ("predict_joint", -3)]:
        wanted = [getattr(part, name)(batches) for part, _ in parts]
        mean, covariance = getattr(whole, name)(batches)
        assert_close(mean, np.concatenate([one[0] for one in wanted], axis=-1), 1e-12)
        assert_close(covariance, np.concatenate([one[1] for one in wanted], axis=axis), 1e-12)
    assert whole.sample(batches[0], 5).shape == (5, 4, 3)


def test_stacks_give_each_model_its_outputs(stack, rng):
    (ours, _), (theirs, _) = stack[0]
    X, Y = rng.uniform(size=(9, 2)), rng.normal(size=(9, 3))
    stack[1].update(tensors(X, Y))
    npt.assert_array_equal(ours.get_internal_data().observations, Y[:, :2])
    npt.assert_array_equal(theirs.get_internal_data().observations, Y[:, 2:])


def test_stacks_have_no_joint_sampler(stack, model):
    """Trieste would make our sampler for the whole stack, which it cannot draw."""
    with pytest.raises(NotImplementedError):
        stack[1].reparam_sampler(5)
    ours = interfaces.HasReparamSamplerModelStack((model, 2))
    with pytest.raises(NotImplementedError, match="need one MultitaskRegression with all outputs"):
        ours.reparam_sampler(5)


# Reparametrisation --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -2])
def test_sample_size_must_be_positive(model, size):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        model.reparam_sampler(size)


def test_bad_points_and_jitter_are_refused(model, batches):
    sampler = model.reparam_sampler(3)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        sampler.sample(batches, jitter=-1e-6)
    for shape in ([], [2], [2, 3], [0, 2]):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            sampler.sample(tf.zeros(shape, tf.float64))


def test_draws_of_batches_have_the_joint_moments(model, batches):
    """4,000 draws of four points and two outputs within five standard errors, in each batch."""
    tf.random.set_seed(2)
    draws = model.reparam_sampler(4000).sample(batches, jitter=1e-9)
    for part, x in zip(draws, batches, strict=True):
        mean, cov = model.model.predict_f_full_cov(x)
        assert_moments(np.reshape(part, (4000, 8)), np.ravel(mean), np.reshape(cov, (8, 8)))


@pytest.mark.parametrize("compiler", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_draws_are_continuous_and_repeatable(model, batches, compiler):
    sample = compiler(model.reparam_sampler(20).sample)
    first = sample(batches)
    npt.assert_array_equal(sample(batches), first)
    npt.assert_allclose(sample(batches + 1e-9), first, atol=1e-6)


def test_other_leading_dimensions_have_the_same_draws(model, batches):
    sampler = model.reparam_sampler(20)
    first = sampler.sample(batches)
    assert_close(sampler.sample(batches[:1])[0], first[0], 1e-9)
    assert_close(sampler.sample(batches[None])[0], first, 1e-9)


def test_other_samplers_and_resets_have_other_draws(model, batches):
    sampler, other = (model.reparam_sampler(20) for _ in range(2))
    assert not sampler._initialized
    first = sampler.sample(batches)
    assert sampler._initialized
    assert np.abs(other.sample(batches) - first).min() > 1e-9
    sampler.reset_sampler()
    assert not sampler._initialized
    assert np.abs(sampler.sample(batches) - first).min() > 1e-9


def test_draws_follow_an_updated_model(model, rng, batches):
    """The same random numbers, given the new data."""
    sampler = model.reparam_sampler(2000)
    sampler.sample(batches)
    model.update(tensors(*data(rng, 12)))
    draws = sampler.sample(batches, jitter=1e-9)
    mean, variance = model.predict(batches)
    error = np.abs(np.mean(draws, axis=1) - mean)
    assert np.all(error < 5.0 * np.sqrt(variance / 2000.0))


def test_samplers_say_what_they_are(model):
    sampler = model.reparam_sampler(20)
    assert isinstance(sampler, JointReparametrizationSampler)
    assert repr(sampler) == f"JointReparametrizationSampler(20, {model!r})"
    assert isinstance(model.trajectory_sampler(), FunctionSampler)
    assert repr(model.trajectory_sampler()) == f"FunctionSampler({model!r})"


# Trajectories -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5])
def test_trajectories_differ_between_functions_samplers_and_resamples(model, count):
    x = tf.repeat(tf.random.uniform([6, 1, 2], dtype=tf.float64), count, axis=1)
    sampler = model.trajectory_sampler()
    trajectory = sampler.get_trajectory()
    values = trajectory(x).numpy()
    assert values.shape == (6, count, 2)
    npt.assert_allclose(trajectory(x), values)
    if count > 1:
        assert np.abs(values[:, 0] - values[:, 1]).max() > 0.01
    for other in (sampler.get_trajectory(), model.trajectory_sampler().get_trajectory()):
        assert np.abs(other(x) - values).max() > 0.01
    assert np.abs(sampler.resample_trajectory(trajectory)(x) - values).max() > 0.01


def test_trajectories_see_only_active_columns(rows):
    kernel = gpflow.kernels.SquaredExponential(active_dims=[1])
    inner = exact(*rows)
    inner.kernel = kernel
    trajectory = MultitaskRegression(inner).trajectory_sampler().get_trajectory()
    x = np.random.default_rng(0).uniform(size=(5, 1, 2))
    moved = x + np.array([3.0, 0.0])
    assert_close(trajectory(moved), trajectory(x), 1e-9)
    assert np.abs(trajectory(moved[..., ::-1]) - trajectory(x)).max() > 0.01
