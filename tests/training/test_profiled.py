"""Profiled training: the envelope gradient, what stays fixed, priors, how little it computes."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Parameter, kernels, mean_functions, set_trainable
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS, assert_close, trap_for_a_single_start
from spectra import exact

import gpflow_cool.linalg
import gpflow_cool.lowrank.statistics
import gpflow_cool.training.profiled
from gpflow_cool import CoolMTGP
from gpflow_cool.chain import newton
from gpflow_cool.chain.search import Box, Starts
from gpflow_cool.chain.terms import task_problems
from gpflow_cool.training import starts
from gpflow_cool.training.profiled import ProfiledChain, inner_box
from gpflow_cool.training.vector import ParameterVector

SE = kernels.SquaredExponential
Gamma = tfp.distributions.Gamma


def smooth_data(rng, N=20, T=3, D=1):
    """Different waves with shared noise: every b and sigma2 has its optimum inside the bounds."""
    X = rng.uniform(0.0, 5.0, size=(N, D))
    phases = np.array([0.0, 1.6, 3.5, 5.0])[:T]
    F = np.sin(X.sum(axis=1, keepdims=True) * [1.3, 0.9, 1.7, 0.6][:T] + phases)
    E = rng.normal(size=(N, T)) @ (np.eye(T) + 0.4 * np.triu(np.ones((T, T)), 1))
    Y = F + 0.25 * E
    return X, (Y - Y.mean(axis=0)) / Y.std(axis=0)


def minimise_plainly(model):
    """GPflow's own L-BFGS on the whole loss, to a tight tolerance."""
    gpflow.optimizers.Scipy().minimize(
        model.training_loss,
        model.trainable_variables,
        tf_fun_args={"autograph": False},
        options={"maxiter": 500, "ftol": 1e-13, "gtol": 1e-6},
    )
    return float(model.training_loss())


def values(model):
    return {name: p.numpy() for name, p in gpflow.utilities.parameter_dict(model).items()}


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


# Bounds that the inner problem does not know --------------------------------------------------


@pytest.mark.parametrize("name", ["b", "sigma2"])
def test_a_parameter_with_an_upper_bound_is_trained_outside(rng, name):
    X, Y = smooth_data(rng, N=12, T=2)
    models = [CoolMTGP((X, Y), SE(lengthscales=0.8)) for _ in range(2)]
    for model in models:
        transform = tfp.bijectors.Sigmoid(np.float64(0.01), np.float64(8.0))
        setattr(model, name, Parameter([0.3, 0.4], transform=transform))
    profile = models[0].profile()
    assert any(p is getattr(models[0], name) for p in profile.parameters)
    models[0].fit(verbose=0)
    assert np.all(getattr(models[0], name).numpy() < 8.0)
    assert_allclose(models[0].training_loss(), minimise_plainly(models[1]), atol=1e-3)


def test_b_above_a_bound_of_its_own(rng):
    model = CoolMTGP(smooth_data(rng, N=12, T=2), SE(lengthscales=0.8))
    model.b = Parameter([2.5, 3.0], transform=gpflow.utilities.positive(lower=2.0))
    model.fit(verbose=0, steps=20)
    assert np.all(model.b.numpy() >= 2.0) and np.min(model.b.numpy()) < 2.1


def test_bounds_of_the_inner_problem():
    r"""
    b within 1e10 of :math:`v / k`, with v the variance of a task and k the mean of K's diagonal;
    above also of its mean square over the smallest eigenvalue. sigma2 within 1e10 of v / 10, above
    also of a tenth of the mean square, and above its floor.
    """
    K = np.diag([6.0, 1.0, 0.5, 0.0])  # of trace 7.5
    Y = np.array([[1.0, 20.0], [2.0, 21.0], [3.0, 19.0], [-4.0, 20.0]])
    squares, scales = np.array([7.5, 400.5]), np.array([7.25, 0.5])
    box = inner_box(exact(K, Y), scales, np.array([1e-4, 1e-30]))
    b = scales / (7.5 / 4)
    assert_allclose(np.exp(box.lower), np.stack([1e-10 * b, [1e-4, 5e-12]], axis=1))
    assert_allclose(np.exp(box.upper), 1e10 * np.stack([squares / 0.5, 0.1 * squares], axis=1))
    # of rank one: the eigenvalue is larger than the mean of the diagonal, 1.5, which then counts
    one = inner_box(exact(np.diag([6.0, 0.0, 0.0, 0.0]), Y), 1e3 * scales, np.zeros(2))
    assert_allclose(np.exp(one.upper[:, 0]), 1e10 * np.array([7250.0, 500.0]) / 1.5)
    # nothing but zeros
    none = inner_box(exact(np.zeros((4, 4)), Y), scales, np.zeros(2))
    assert_allclose(np.exp(none.upper[:, 0]), 1e10 * squares)


@pytest.mark.filterwarnings("ignore:.*as far from zero")
def test_noise_as_large_as_targets_that_the_kernel_cannot_explain(rng):
    """A linear kernel has no constant: without a bound in the way, the targets are mostly noise."""
    X, Y = rng.normal(size=(6, 2)), 1e6 + rng.normal(size=(6, 2))
    model = CoolMTGP((X, Y), kernels.Linear())
    model.fit(verbose=0)
    left = Y[:, 0] - X @ np.linalg.lstsq(X, Y[:, 0], rcond=None)[0]
    assert model.sigma2.numpy()[0] > np.mean(np.square(left))


def test_sigma2_stops_at_its_floor(rng):
    """A copy of another task wants no noise at all."""
    X, Y = smooth_data(rng)
    Y = Y[:, [0, 1, 0]]
    model = CoolMTGP((X, Y), SE(lengthscales=0.8))
    model.fit(verbose=0)
    floor = 1e-4 * np.var(Y[:, 2])
    assert_allclose(model.sigma2.numpy()[2], floor, rtol=1e-3)
    assert model.sigma2.numpy()[2] >= floor


# Maxima that a line search loses and finds again --------------------------------------------------


@pytest.mark.parametrize("seed", [5, 13])
def test_a_search_that_went_too_far_finds_the_maximum_that_it_left(seed):
    """There is another maximum on the way back, up to 3 nats lower."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(8, 1))
    Y = np.sin(3.0 * X + rng.uniform(0.0, 6.0, size=3)) + 0.3 * rng.normal(size=(8, 3))
    model = CoolMTGP((X, Y), SE(lengthscales=0.3))
    profile = model.profile()
    before = profile.evaluate().loss
    for lengthscale in (1.0, 0.6):
        model.kernel.lengthscales.assign(lengthscale)
        profile.evaluate()
    model.kernel.lengthscales.assign(0.3)
    assert_allclose(profile.evaluate().loss, before, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:The standard deviations of the targets differ")
@pytest.mark.parametrize("far", [20.0, 600.0])
def test_a_place_far_away_is_searched_anew(far):
    """From where a kernel is constant, the last maxima lead to a loss that is 1.4 nats higher."""
    X = np.array([[1.56], [-0.9], [-1.53], [0.32], [-0.03], [0.57]])
    first, second = [2.4, -0.6, -1.1, -7.0, -0.3, -0.4], [186.0, -2.2, -1.9, -12.0, -32.0, -9.1]
    Y = np.column_stack([first, second, [1.5, 9.7, 0.4, 0.8, 1.5, 0.6]])
    model = CoolMTGP((X, Y), SE(lengthscales=far))
    profile, there = model.profile(), CoolMTGP((X, Y), SE(lengthscales=0.6)).profile()
    profile.evaluate()
    model.kernel.lengthscales.assign(0.6)
    assert_allclose(profile.evaluate_anew().loss, there.evaluate().loss, rtol=1e-9)
    assert_allclose(profile.evaluate().loss, there.evaluate().loss, rtol=1e-9)


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
    afterwards = len(starts.LADDER) if N <= starts.FEW_ROWS else 0
    assert 2 < len(sizes) - afterwards <= 15
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    slope = tape.gradient(loss, model.kernel.lengthscales.unconstrained_variable)
    assert abs(float(slope)) < 2e-3


# All noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
def test_the_search_rescues_from_all_noise(rng, monkeypatch, learning):
    """
    At a lengthscale too long for the data the best is "all noise"; at a shorter one, that solution
    is still a local optimum, where a warm start alone would stay.
    """
    K, Y = trap_for_a_single_start(rng)
    X = np.linspace(0.0, 6.0, 30)[:, None]
    models = [CoolMTGP((X, Y), SE(lengthscales=100.0), learning=learning) for _ in range(2)]
    for model in models:
        model.profile().evaluate()
        assert model.b.numpy()[0] < 1e-6 and model.sigma2.numpy()[0] > 0.9 * np.var(Y[:, 0])
        model.kernel.lengthscales.assign(2.0)
    rescued = models[0].profile().evaluate()
    profile = models[1].profile()
    with monkeypatch.context() as patch:
        known = Starts(np.arange(3), np.log(profile.present().numpy()))
        patch.setattr(newton, "highest", lambda *_: known)
        stuck = profile.evaluate()
    assert stuck.loss > rescued.loss + 30.0
    assert models[1].b.numpy()[0] < 1e-6
    dense = ref.objective(K, Y, models[0].b.numpy(), models[0].sigma2.numpy(), learning)
    assert_allclose(rescued.loss, -dense, rtol=1e-8)
    assert np.all(models[0].sigma2.numpy() < 0.5 * np.var(Y, axis=0))


@pytest.mark.parametrize("learning", ["hierarchical"])
def test_fit_from_all_noise_finds_the_signal(rng, learning):
    _, Y = trap_for_a_single_start(rng)
    X = np.linspace(0.0, 6.0, 30)[:, None]
    good = CoolMTGP((X, Y), SE(lengthscales=0.8), learning=learning)
    good.fit(verbose=0)
    trapped = CoolMTGP((X, Y), SE(lengthscales=100.0), learning=learning, b=1e-9, sigma2=1.0)
    trapped.fit(verbose=0)
    assert_allclose(trapped.training_loss(), good.training_loss(), atol=1e-3)
    assert np.all(trapped.sigma2.numpy() < 0.1)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_a_task_with_hardly_any_noise_beside_all_noise(rng, learning):
    """With a still longer lengthscale the default start is trapped as well."""
    x = np.linspace(0.0, 6.0, 30)[:, None]
    Y = np.sin(2 * x + [0.0, 1.0]) + 0.05 * rng.normal(size=(30, 2))
    model = CoolMTGP((x, Y), SE(lengthscales=3.0), learning=learning)
    loss = model.profile().evaluate().loss
    K = ref.squared_exponential(x, x, 1.0, 3.0)
    grid = np.log([[b, s] for b in np.logspace(-8, 6, 8) for s in np.logspace(-3.9, 0, 5)])
    box = Box(*(np.tile(np.log(side), (2, 1)) for side in ([1e-10, 1e-4], [1e10, 1e10])))
    starts = Starts(np.repeat([0, 1], len(grid)), np.tile(grid, (2, 1)))
    problems = task_problems(exact(K, Y), learning)
    found = newton.maximise(problems, box, newton.evaluated(problems, box, starts))
    best = found.terms.values.reshape(2, -1).max(axis=1)
    assert_allclose(loss, -np.sum(best), atol=0.05)  # the floor is 1e-4 of the variance


@pytest.mark.parametrize("learning", LEARNINGS)
def test_targets_of_noise(rng, learning):
    """Nothing to find: the model says so, and the loss is that of independent noise or better."""
    X, Y = rng.uniform(size=(40, 1)), rng.normal(size=(40, 3))
    model = CoolMTGP((X, Y), SE(), learning=learning)
    history = model.fit(verbose=0, steps=5)
    assert all(np.all(np.isfinite(value)) for value in values(model).values())
    white = ref.conditional_log_likelihoods(
        np.zeros((40, 40)), Y, np.ones(3), np.var(Y, axis=0), learning
    )
    assert history.history["loss"][-1] <= -np.sum(white) + 1e-6


def test_targets_of_zeros():
    X = np.linspace(0.0, 1.0, 10)[:, None]
    model = CoolMTGP((X, np.zeros((10, 2))), SE())
    model.fit(verbose=0)
    assert all(np.all(np.isfinite(value)) for value in values(model).values())
    assert_allclose(model.sigma2, 1e-4, rtol=1e-3)  # the floor for a task without variance


@pytest.mark.parametrize("offset", [1.0, 1e6])
@pytest.mark.filterwarnings("ignore:The targets of task 0 are")
def test_targets_far_from_zero_of_rows_that_are_all_equal(rng, offset):
    r"""
    K is a matrix of ones. With mean m and variance v of y the best sigma2 is N v / (N - 1), the
    best b is m^2 - sigma2 / N, and eigenvalues of the covariance are N m^2 and N - 1 times sigma2.
    Of the latter, those of K that should be zero are known to N eps.
    """
    N = 12
    Y = offset + 0.3 * rng.normal(size=(N, 1))
    model = CoolMTGP((np.zeros((N, 1)), Y), SE(), mean_functions.Zero(), engine="spectral")
    loss = ProfiledChain(model).evaluate().loss
    sigma2, square = np.var(Y, ddof=1), np.mean(Y) ** 2
    log_det = np.log(N * square) + (N - 1) * np.log(sigma2)
    rounding = 0.5 * (N - 1) * np.log1p(square * N * np.finfo(float).eps / sigma2)
    expected = 0.5 * (N + N * np.log(2 * np.pi) + log_det)
    assert_allclose(loss, expected, rtol=1e-7, atol=rounding)
    error = 1e-3 + 2.0 * np.sqrt(rounding)  # the loss rises by a quarter of the squared change
    assert_allclose(model.b.numpy(), square - sigma2 / N, rtol=error)


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


# Kernels most of whose variance is in a direction that explains nothing ---------------------------


def best_on_a_grid(model):
    """The largest evidence of the only task over b and sigma2, by brute force."""
    y = model.data[1].numpy()[:, 0]
    lam, U = np.linalg.eigh(model.kernel(model.data[0]).numpy())
    lam, energy = np.maximum(lam, 0.0)[:, None, None], np.square(U.T @ y)[:, None, None]
    b = np.geomspace(1e-12, 1e14, 400)[:, None] * np.var(y) / np.mean(lam)
    sigma2 = np.geomspace(1e-4, 3.0, 60) * np.var(y)
    v = b * lam + sigma2
    return np.max(-0.5 * np.sum(energy / v + np.log(2.0 * np.pi * v), axis=0))


FAR_AWAY = {
    "offset": (np.linspace(0.0, 10.0, 30) + 300.0, kernels.Linear() + kernels.Constant()),
    "years": (np.arange(1990.0, 2020.0), kernels.Linear() + kernels.Constant()),
    "polynomial": (np.arange(1990.0, 2020.0), kernels.Polynomial(2)),
    "long lengthscale": (np.linspace(-2.0, 2.0, 30), SE(lengthscales=1e4)),
}


@pytest.mark.parametrize("case", FAR_AWAY)
def test_a_trend_is_found_where_the_kernel_is_nearly_constant(rng, case):
    x, kernel = FAR_AWAY[case]
    y = (x - x.mean()) / x.std() + 0.1 * rng.normal(size=len(x))
    kernel = gpflow.utilities.deepcopy(kernel)
    set_trainable(kernel, False)
    model = CoolMTGP((x[:, None], (y - y.mean())[:, None]), kernel)
    model.fit(verbose=0)
    # Years: what matters is the ninth digit of K, which differs between K and its features.
    assert model.maximum_log_likelihood_objective() > best_on_a_grid(model) - 0.05
    error = model.predict_f(x[:, None])[0][:, 0] - (y - y.mean())
    assert np.std(error) < 0.2  # not "all noise", whose error is 1
