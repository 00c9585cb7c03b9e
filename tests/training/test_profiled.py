"""Profiled training: the envelope gradient, what stays fixed, priors, how little it computes."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import kernels, mean_functions, set_trainable
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS, assert_close, minimise_plainly, smooth_data, values

import gpflow_cool.linalg
import gpflow_cool.systems.statistics
import gpflow_cool.training.profiled
from gpflow_cool import CoolMTGP, SparseCoolMTGP
from gpflow_cool.training import trials
from gpflow_cool.training.optimizers import compiled_loss
from gpflow_cool.training.profiled import ProfiledChain
from gpflow_cool.training.vector import ParameterVector

SE = kernels.SquaredExponential
Gamma = tfp.distributions.Gamma


def count_decompositions(monkeypatch):
    """A list that grows by one with every decomposition of a kernel matrix, or of its features."""
    sizes = []

    def count(module, name):
        lapack = getattr(module, name)

        def counted(A):
            sizes.append(len(A))
            return lapack(A)

        monkeypatch.setattr(module, name, counted)

    count(gpflow_cool.training.profiled, "lapack_eigh")
    count(gpflow_cool.linalg, "lapack_eigh")
    count(gpflow_cool.linalg, "lapack_triangle")
    return sizes


# The profiled loss and its gradient ---------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
def test_loss_is_the_dense_objective_at_its_inner_optimum(rng, learning):
    X, Y = smooth_data(rng)
    model = CoolMTGP((X, Y), SE(lengthscales=0.8), learning=learning)
    evaluation = model.profile().evaluate()
    K = ref.squared_exponential(X, X, 1.0, 0.8)
    b, sigma2 = model.b.numpy(), model.sigma2.numpy()
    dense = ref.conditional_log_likelihoods(K, Y, b, sigma2, learning)
    assert_close(evaluation.terms, dense, rtol=1e-8)
    assert_allclose(evaluation.loss, -np.sum(dense), rtol=1e-8)
    G = ref.analytic_gradients(K, Y, b, sigma2, learning)
    # Steps that gain less than 1e-10 nats are not taken: g^2 / curvature, with curvature O(10).
    assert_allclose(b * G.b, 0.0, atol=1e-4)
    assert_allclose(sigma2 * G.sigma2, 0.0, atol=1e-4)


def constant_mean():
    return SE(lengthscales=1.1), mean_functions.Constant(np.array([0.2, -0.1]))


def linear_mean():
    mean = mean_functions.Linear(np.array([[0.2, -0.3]] * 2), np.zeros(2))
    set_trainable(mean.b, False)
    return SE(lengthscales=0.9), mean


TRAINED = {
    "isotropic": lambda: (SE(lengthscales=0.8), None),
    "ARD": lambda: (SE(lengthscales=[0.8, 1.1]), None),
    "sum": lambda: (SE(lengthscales=0.8) + kernels.Linear(variance=0.4), None),
    "one variance a column": lambda: (kernels.Linear(variance=[0.4, 1.2]), None),
    "constant mean": constant_mean,
    "linear mean": linear_mean,
}


@pytest.mark.parametrize(
    "kind, learning",
    [
        ("isotropic", "hierarchical"),
        ("isotropic", "approximate"),
        ("ARD", "hierarchical"),
        ("sum", "approximate"),
        ("one variance a column", "hierarchical"),
        ("constant mean", "hierarchical"),
        ("constant mean", "approximate"),
        ("linear mean", "approximate"),
    ],
)
def test_envelope_gradient_equals_finite_differences(rng, kind, learning):
    """Differences of the loss with the inner problem solved again at every point."""
    X, Y = smooth_data(rng, N=15, T=2, D=2)
    Y = Y + X @ [[0.5, -0.2], [0.1, 0.4]]  # something for a linear kernel
    kernel, mean = TRAINED[kind]()
    profile = CoolMTGP((X, Y), kernel, mean, learning=learning).profile()
    vector = ParameterVector(profile.parameters, logarithms=True)
    x = vector.numpy()

    gradient = vector.gradient(profile.evaluate().gradients)

    def loss(at):
        vector.assign(at)
        return profile.evaluate().loss

    expected = [ref.derivative(lambda h, e=unit: loss(x + h * e), 0.01) for unit in np.eye(len(x))]
    # The inner problem is solved to 1e-12 nats, so that differences over 0.01 are good to 1e-8.
    assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(gradient)) > 0.01


@pytest.mark.parametrize("frozen", ["nothing", "b", "sigma2"])
@pytest.mark.parametrize("kind", ["exact", "linear", "sparse"])
def test_the_loss_where_nothing_is_solved_for(rng, kind, frozen):
    """Loss, gradients and terms are those that TensorFlow computes; the solution stays known."""
    X, Y = smooth_data(rng, N=9, T=3, D=2)
    kernel = kernels.Linear(variance=[1.0, 2.0]) if kind == "linear" else SE(lengthscales=0.8)
    if kind == "sparse":
        model = SparseCoolMTGP((X, Y), kernel, X[:4])
    else:
        model = CoolMTGP((X, Y), kernel)
    if frozen != "nothing":
        set_trainable(getattr(model, frozen), False)
    profile = model.profile()
    solved = profile.evaluate().loss
    unsolved = profile.unsolved()
    vector = ParameterVector(unsolved.parameters, logarithms=True)
    vector.assign(vector.numpy() + 0.3 * rng.normal(size=vector.size))
    before = values(model)
    actual, expected = unsolved.evaluate(), compiled_loss(model)()
    variables = [p.unconstrained_variable.ref() for p in unsolved.parameters]
    theirs = dict(
        zip([v.ref() for v in model.trainable_variables], expected.gradients, strict=True)
    )
    assert_allclose(actual.loss, expected.loss, rtol=1e-10)
    assert_allclose(actual.terms, expected.terms, rtol=1e-9)
    assert {*variables} == theirs.keys()
    for variable, gradient in zip(variables, actual.gradients, strict=True):
        assert_allclose(gradient, theirs[variable], rtol=1e-6, atol=1e-8)
    for name, value in values(model).items():
        assert_allclose(value, before[name], rtol=1e-12)
    assert profile.lowest in (solved, np.inf)  # of features, no best solution is kept


def test_evaluating_twice_changes_nothing(rng):
    model = CoolMTGP(smooth_data(rng), SE(lengthscales=0.8))
    profile = model.profile()
    first = profile.evaluate()
    before = values(model)
    second = profile.evaluate()
    assert_allclose(second.loss, first.loss, rtol=1e-12)
    for name, value in values(model).items():
        assert_allclose(value, before[name], rtol=1e-4)


# Frozen parameters --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "frozen, learning",
    [
        ("b", "hierarchical"),
        ("b", "approximate"),
        ("sigma2", "hierarchical"),
        ("lengthscales", "approximate"),
        ("mean", "hierarchical"),
    ],
)
def test_a_frozen_parameter_stays_bit_for_bit(rng, frozen, learning):
    X, Y = smooth_data(rng)
    models = []
    for _ in range(2):
        model = CoolMTGP(
            (X, Y),
            SE(lengthscales=0.87),
            mean_functions.Constant(np.array([0.3, 0.0, -0.2])),
            learning=learning,
            b=[1.3, 0.7, 1.1],
            sigma2=[0.1, 0.3, 0.2],
        )
        parameters = {
            "b": model.b,
            "sigma2": model.sigma2,
            "lengthscales": model.kernel.lengthscales,
            "mean": model.mean_function.c,
        }
        set_trainable(parameters[frozen], False)
        models.append((model, parameters))
    model, parameters = models[0]
    before = {name: p.numpy() for name, p in parameters.items()}
    history = model.fit(verbose=0)
    assert history.converged
    for name, parameter in parameters.items():
        if name == frozen:
            assert_array_equal(parameter, before[name])
        else:
            assert np.all(np.abs(parameter.numpy() - before[name]) > 1e-6)
    assert_allclose(model.training_loss(), minimise_plainly(models[1][0]), atol=1e-3)


def test_frozen_b_and_sigma2_leave_nothing_inside(rng):
    model = CoolMTGP(smooth_data(rng), SE(), b=[1.3, 0.7, 1.1], sigma2=0.2)
    for parameter in (model.b, model.sigma2):
        set_trainable(parameter, False)
    before = values(model)
    model.fit(verbose=0)
    assert_array_equal(model.b, before[".b"])
    assert_array_equal(model.sigma2, before[".sigma2"])
    assert model.kernel.lengthscales.numpy() != before[".kernel.lengthscales"]
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    (slope,) = tape.gradient(loss, model.trainable_variables)
    assert abs(float(slope)) < 2e-3


# Priors -------------------------------------------------------------------------------------------

PRIORS = {
    "b": lambda model: [(model.b, Gamma(np.float64(5.0), np.float64(2.0)))],
    "sigma2": lambda model: [(model.sigma2, Gamma(np.float64(4.0), np.float64(10.0)))],
    "lengthscales": lambda model: [
        (model.kernel.lengthscales, Gamma(np.float64(9.0), np.float64(20.0)))
    ],
}
PRIORS["all"] = lambda model: [pair for kind in list(PRIORS)[:3] for pair in PRIORS[kind](model)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, learning",
    [
        ("b", "hierarchical"),
        ("sigma2", "approximate"),
        ("lengthscales", "hierarchical"),
        ("all", "approximate"),
    ],
)
def test_optimum_with_priors_is_that_of_plain_lbfgs(rng, kind, learning):
    X, Y = smooth_data(rng)
    profiled, plain = (CoolMTGP((X, Y), SE(lengthscales=0.8), learning=learning) for _ in range(2))
    without = profiled.profile().evaluate().loss
    for model in (profiled, plain):
        for parameter, prior in PRIORS[kind](model):
            parameter.prior = prior
    history = profiled.fit(verbose=0)
    assert history.converged
    loss = minimise_plainly(plain)
    assert_allclose(profiled.training_loss(), loss, atol=1e-3)
    for name, value in values(plain).items():
        assert_allclose(values(profiled)[name], value, rtol=0.02)
    assert abs(loss - without) > 0.1  # the prior is in it
    assert_allclose(history.history["loss"][-1], profiled.training_loss(), rtol=1e-10)


# What it costs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel, learning",
    [("linear", "hierarchical"), ("linear", "approximate"), ("frozen", "hierarchical")],
)
def test_no_kernel_parameter_one_decomposition(rng, monkeypatch, kernel, learning):
    X, Y = smooth_data(rng, N=30)
    make = kernels.Linear if kernel == "linear" else lambda: SE(lengthscales=0.8)
    models = [CoolMTGP((X, Y), make(), learning=learning) for _ in range(2)]
    if kernel == "frozen":
        for model in models:
            set_trainable(model.kernel, False)
    sizes = count_decompositions(monkeypatch)
    history = models[0].fit(verbose=0)
    assert len(sizes) == 1
    assert history.converged and len(history.epoch) == 1
    assert "no parameter is left to iterate over" in history.message
    assert_allclose(models[0].training_loss(), minimise_plainly(models[1]), atol=1e-3)


@pytest.mark.parametrize(
    "N, lengthscale, learning",
    [
        (30, 1.0, "hierarchical"),
        (30, 0.01, "approximate"),
        (30, 100.0, "hierarchical"),
        (80, 1.0, "approximate"),
    ],
)
def test_isotropic_kernel_at_most_fifteen_decompositions(
    rng, monkeypatch, N, lengthscale, learning
):
    model = CoolMTGP(smooth_data(rng, N=N), SE(lengthscales=lengthscale), learning=learning)
    sizes = count_decompositions(monkeypatch)
    history = model.fit(verbose=0)
    assert history.converged
    afterwards = len(trials.LADDER) if N <= trials.FEW_ROWS else 0
    assert 2 < len(sizes) - afterwards <= 15
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    slope = tape.gradient(loss, model.kernel.lengthscales.unconstrained_variable)
    assert abs(float(slope)) < 2e-3


def test_rounding_of_the_loss(rng):
    """How far the loss jumps when eigenvalues change in their last digit."""
    X, Y = smooth_data(rng, N=60)
    model = CoolMTGP((X, Y), SE(lengthscales=4.0), b=[1e6] * Y.shape[1], sigma2=[1e-2] * Y.shape[1])
    for parameter in (model.b, model.sigma2):
        set_trainable(parameter, False)
    profile, losses = model.profile(), []
    for step in range(40):
        model.kernel.lengthscales.assign(4.0 * (1.0 + step * 1e-14))
        losses.append(profile.evaluate().loss)
    jumps = np.std(losses)
    assert 0.1 * jumps < profile.evaluate().rounding < 30.0 * jumps


def test_a_profile_is_of_its_model(rng):
    model = CoolMTGP(smooth_data(rng), SE())
    profile = ProfiledChain(model)
    assert [p is model.kernel.lengthscales for p in profile.parameters] == [True]
    profile.evaluate()
    assert profile.num_decompositions == 1
