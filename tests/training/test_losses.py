"""The losses that optimisers minimise: values, gradients, and when b and sigma2 are solved for."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels, mean_functions, set_trainable
from gpflow.inducing_variables import InducingPoints
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS, assert_close, perturb, smooth_data

from gpflow_cool import CoolMTGP, SparseCoolMTGP, linalg
from gpflow_cool.training.losses import can_profile, loss_of
from gpflow_cool.training.vector import ParameterVector

SE = kernels.SquaredExponential
GRID_ERROR = 5e-3
"""Nats by which a loss that is interpolated between ratios may differ from the one at its b and
sigma2."""


def by_differences(loss, vector, step=0.01):
    """Gradient of a loss by differences, with b and sigma2 solved for at every point."""
    x = vector.numpy()

    def at(moved):
        vector.assign(moved)
        return loss.evaluate().loss

    found = [ref.derivative(lambda h, e=unit: at(x + h * e), step) for unit in np.eye(len(x))]
    vector.assign(x)
    return np.array(found)


# b and sigma2 solved for --------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, T", [(20, 3), (7, 1), (5, 7)])
def test_the_profiled_loss_is_the_dense_one_at_its_b_and_sigma2(rng, N, T, learning):
    X, Y = rng.uniform(0.0, 5.0, size=(N, 1)), rng.normal(size=(N, T))
    Y = Y + 2.0 * np.sin(X + np.arange(T))
    model = CoolMTGP((X, Y), SE(lengthscales=0.8), learning=learning, weight_variance=0.7)
    set_trainable(model.weight_variance, False)
    evaluation = loss_of(model, profile=True).evaluate()
    K = ref.squared_exponential(X, X, 1.0, 0.8)

    def terms(b, sigma2):
        return ref.conditional_log_likelihoods(K, Y, b, sigma2, learning, 0.7)

    b, sigma2 = model.b.numpy(), model.sigma2.numpy()
    best = terms(b, sigma2)
    assert_allclose(evaluation.terms, best, atol=GRID_ERROR)
    assert_close(evaluation.loss, -np.sum(evaluation.terms))
    floor = 1.001e-4 * np.var(Y, axis=0)
    for factor in np.exp([[0.3, 0.0], [-0.3, 0.0], [0.0, 0.3], [0.0, -0.3], [3.0, 3.0], [-9, 1]]):
        other = terms(b * factor[0], np.maximum(sigma2 * factor[1], floor))
        assert np.all(other < best + GRID_ERROR)


def constant_mean():
    return SE(lengthscales=1.1), mean_functions.Constant(np.array([0.2, -0.1]))


def linear_mean():
    mean = mean_functions.Linear(np.array([[0.2, -0.3]] * 2), np.zeros(2))
    set_trainable(mean.b, False)
    return SE(lengthscales=0.9), mean


TRAINED = {
    "isotropic": lambda: (SE(lengthscales=0.8), None),
    "ARD": lambda: (SE(lengthscales=[0.8, 1.1]), None),
    "sum": lambda: (SE(lengthscales=0.8) + kernels.Linear(variance=0.3), None),
    "one variance a column": lambda: (kernels.Linear(variance=[0.4, 1.2]), None),
    "constant mean": constant_mean,
    "linear mean": linear_mean,
}


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("kind", TRAINED)
def test_the_profiled_gradient_equals_differences(rng, kind, learning):
    X, Y = smooth_data(rng, N=15, T=2, D=2)
    Y = Y + X @ [[0.5, -0.2], [0.1, 0.4]]  # something for a linear kernel
    model = CoolMTGP((X, Y), *TRAINED[kind](), learning=learning)
    set_trainable(model.weight_variance, False)
    loss = loss_of(model, profile=True)
    vector = ParameterVector(loss.parameters, logarithms=True)
    gradient = vector.gradient(loss.evaluate().gradients)
    # The grid of ratios moves with the kernel's variance, and with it the interpolation's error.
    assert_allclose(gradient, by_differences(loss, vector), atol=1e-3)
    assert np.max(np.abs(gradient)) > 0.1


def test_the_mean_over_completions_has_the_gradient_of_its_differences(rng):
    X, Y = smooth_data(rng, N=12, T=3)
    holes = np.where(np.arange(36).reshape(12, 3) % 7 == 0, np.nan, Y)
    model = CoolMTGP((X, holes), SE(lengthscales=0.8), mean_functions.Constant(np.zeros(3)))
    set_trainable(model.weight_variance, False)
    model.completions.assign(Y + np.isnan(holes) * rng.normal(size=(4, 12, 3)))
    for profile in (True, False):
        loss = loss_of(model, profile=profile)
        vector = ParameterVector(loss.parameters, logarithms=True)
        gradient = vector.gradient(loss.evaluate().gradients)
        assert_allclose(gradient, by_differences(loss, vector), atol=1e-3)


def gamma(parameter):
    parameter.prior = tfp.distributions.Gamma(np.float64(4.0), np.float64(3.0))


UNSOLVED = {
    "b fixed": lambda model: set_trainable(model.b, False),
    "sigma2 fixed": lambda model: set_trainable(model.sigma2, False),
    "b with a prior": lambda model: gamma(model.b),
    "sigma2 with a prior": lambda model: gamma(model.sigma2),
}


@pytest.mark.parametrize("kind", [*UNSOLVED, "unit"])
def test_where_nothing_is_solved_for_the_loss_is_that_of_the_model(rng, kind):
    prior = "unit" if kind == "unit" else "scaled"
    model = CoolMTGP(smooth_data(rng, N=9), SE(lengthscales=0.8), weight_prior=prior)
    UNSOLVED.get(kind, lambda model: None)(model)
    assert not can_profile(model)
    before = [parameter.numpy() for parameter in model.parameters]
    loss = loss_of(model, profile=True)
    assert len(loss.parameters) == len(model.trainable_parameters)
    evaluation = loss.evaluate()
    with tf.GradientTape() as tape:
        expected = model.training_loss()
    assert_close(evaluation.loss, expected)
    gradients = tape.gradient(expected, model.trainable_variables)
    for actual, gradient in zip(evaluation.gradients, gradients, strict=True):
        assert_close(actual, gradient, rtol=1e-8)
    for parameter, value in zip(model.parameters, before, strict=True):
        assert_array_equal(parameter, value)


def test_priors_of_other_parameters_count_and_b_and_sigma2_are_solved_for(rng):
    plain, model = (CoolMTGP(smooth_data(rng, N=9), SE(lengthscales=0.8)) for _ in range(2))
    model.data = plain.data
    gamma(model.kernel.lengthscales)
    for each in (plain, model):
        set_trainable(each.weight_variance, False)
    losses = [loss_of(m, profile=True) for m in (plain, model)]
    assert can_profile(model)
    difference = losses[1].evaluate().loss - losses[0].evaluate().loss
    priors = [float(m.log_prior_density()) for m in (plain, model)]
    assert_allclose(difference, priors[0] - priors[1], rtol=1e-9)


def test_a_prior_in_single_precision(rng):
    X, Y = smooth_data(rng, N=9)
    gpflow.config.set_default_float(np.float32)
    try:
        model = CoolMTGP((X.astype(np.float32), Y.astype(np.float32)), SE(lengthscales=0.8))
        prior = tfp.distributions.Gamma(np.float32(4.0), np.float32(3.0))
        model.kernel.lengthscales.prior = prior
        loss = loss_of(model, profile=True).evaluate()
        assert_allclose(loss.loss, model.training_loss(), rtol=1e-3)
        assert np.isfinite(loss.gradients[0])
    finally:
        gpflow.config.set_default_float(np.float64)


@pytest.mark.parametrize("start", [1e-3, 1.0, 300.0])
def test_lambda_is_solved_for_wherever_it_starts(rng, start):
    data = smooth_data(rng, N=15)
    model, fixed = (CoolMTGP(data, SE(), weight_variance=start) for _ in "ab")
    solved = loss_of(model, profile=True).evaluate().loss
    set_trainable(fixed.weight_variance, False)
    loss, losses = loss_of(fixed, profile=True), []
    for u in np.linspace(-9.0, 9.0, 181):
        fixed.weight_variance.assign(np.exp(u))
        losses.append(loss.evaluate().loss + 0.5 * (u / 3.0) ** 2)
    prior = 4.5 + np.log(3.0 * np.sqrt(2.0 * np.pi))  # its density at 1, where it is largest
    assert_allclose(solved, min(losses) + prior, atol=1e-3)
    assert_allclose(model.training_loss(), solved, atol=GRID_ERROR)


@pytest.mark.parametrize("lam", [0.1, 30.0])
def test_a_fixed_weight_variance_stays(rng, lam):
    model = CoolMTGP(smooth_data(rng, N=9), SE(), weight_variance=lam)
    set_trainable(model.weight_variance, False)
    loss = loss_of(model, profile=True)
    assert [p is model.kernel.lengthscales for p in loss.parameters] == [True]
    before = model.weight_variance.numpy()
    loss.evaluate()
    assert_array_equal(model.weight_variance, before)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_one_task_is_gpflows_regression(rng, learning):
    X, Y = smooth_data(rng, N=14, T=1)
    model = CoolMTGP((X, Y), SE(lengthscales=0.8), learning=learning, b=1.3, sigma2=0.2)

    def regression():
        b, sigma2 = float(model.b.numpy()[0]), float(model.sigma2.numpy()[0])
        gpr = gpflow.models.GPR((X, Y), SE(b, 0.8), noise_variance=sigma2)
        return float(gpr.training_loss())

    assert_close(model.training_loss(), regression())
    loss = loss_of(model, profile=True).evaluate().loss
    assert_allclose(loss, regression(), atol=GRID_ERROR)
    assert not model.weight_variance.trainable


# Rows in chunks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("prior", ["scaled", "unit"])
def test_inducing_points_at_all_rows_have_the_loss_of_all_rows(rng, prior, learning):
    X, Y = smooth_data(rng, N=11, T=3, D=2)
    mean = mean_functions.Constant(np.array([0.3, 0.0, -0.2]))
    options = {"learning": learning, "weight_prior": prior}
    kernel = kernels.Matern32(lengthscales=[0.8, 1.3])
    models = [
        CoolMTGP((X, Y), kernel, mean, **options),
        SparseCoolMTGP((X, Y), kernel, X, mean, chunk_rows=4, **options),
    ]
    for model in models:
        if prior == "scaled":
            set_trainable(model.weight_variance, False)
    for profile in (True, False):
        memory, chunks = (loss_of(model, profile=profile) for model in models)
        expected, actual = memory.evaluate(), chunks.evaluate()
        assert_allclose(actual.loss, expected.loss, rtol=1e-9, atol=1e-8)
        assert_allclose(actual.terms, expected.terms, rtol=1e-8, atol=1e-8)
        for one, other in zip(actual.gradients, expected.gradients, strict=True):
            assert_close(one, other, rtol=1e-6)
        assert_allclose(models[1].b, models[0].b, rtol=1e-6)


@pytest.mark.parametrize("profile", [True, False])
@pytest.mark.parametrize("chunk_rows", [3, 100])
def test_the_gradient_of_chunks_equals_differences(rng, profile, chunk_rows):
    """With respect to kernel, mean function and inducing points, which move as well."""
    X, Y = smooth_data(rng, N=14, T=2, D=2)
    mean = mean_functions.Linear(np.array([[0.2, -0.3]] * 2), np.zeros(2))
    kernel = SE(lengthscales=1.2) + kernels.Linear(variance=0.3)
    Z = InducingPoints(X[::3] + 0.1)
    model = SparseCoolMTGP((X, Y), kernel, Z, mean, chunk_rows=chunk_rows)
    loss = loss_of(model, profile=profile)
    assert any(p is Z.Z for p in loss.parameters)
    vector = ParameterVector(loss.parameters, logarithms=True)
    gradient = vector.gradient(loss.evaluate().gradients)
    assert_allclose(gradient, by_differences(loss, vector), rtol=1e-5, atol=2e-3)
    assert np.max(np.abs(gradient)) > 0.1


def test_the_loss_of_chunks_is_the_training_loss_of_the_model(rng):
    X, Y = smooth_data(rng, N=14, T=3, D=2)
    model = SparseCoolMTGP((X, Y), SE(), X[::3], chunk_rows=5)
    perturb(model, rng)
    evaluation = loss_of(model, profile=False).evaluate()
    with tf.GradientTape() as tape:
        expected = model.training_loss()
    assert_close(evaluation.loss, expected)
    gradients = tape.gradient(expected, model.trainable_variables)
    for actual, gradient in zip(evaluation.gradients, gradients, strict=True):
        assert_close(actual, gradient, rtol=1e-7)


# Graphs and devices -------------------------------------------------------------------------------


def python_calls(graph):
    """How many operations of a graph call Python, also inside of functions that it calls."""
    definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    return sum(node.op in ("PyFunc", "PyFuncStateless", "EagerPyFunc") for node in nodes)


@pytest.mark.parametrize("profile", [True, False])
def test_a_decomposition_on_the_device_gives_the_same_loss(rng, monkeypatch, profile):
    """As on a GPU, where nothing of size N x N leaves it."""
    X, Y = smooth_data(rng, N=9)
    found = []
    for on_device in (False, True):
        monkeypatch.setattr(linalg, "prefers_device", lambda *_, answer=on_device: answer)
        model = CoolMTGP((X, Y), kernels.Matern52(lengthscales=0.8))
        found.append(loss_of(model, profile=profile).evaluate())
    assert_close(found[1].loss, found[0].loss)
    for actual, expected in zip(found[1].gradients, found[0].gradients, strict=True):
        assert_close(actual, expected, rtol=1e-7)


def test_the_models_own_loss_is_a_graph_that_calls_python_for_the_decomposition_alone(rng):
    """As a loop of one's own has it, and so does "adam" on a GPU."""
    model = CoolMTGP(smooth_data(rng, N=9), SE(lengthscales=0.8))

    def objective():
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        return loss, tape.gradient(loss, model.trainable_variables)

    graph = tf.function(objective).get_concrete_function()
    assert python_calls(graph.graph) <= 1
    (loss, gradients), (expected, others) = graph(), objective()
    assert_close(loss, expected)
    for actual, gradient in zip(gradients, others, strict=True):
        assert_close(actual, gradient, rtol=1e-8)
