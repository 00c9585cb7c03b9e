"""Profiled training ends at the best maximum, and does not take a signal for noise."""

import gpflow
import numpy as np
import pytest
import reference as ref
from gpflow import kernels, mean_functions, set_trainable
from gpflow.kernels import SquaredExponential as SE
from numpy.testing import assert_allclose
from problems import LEARNINGS, trap_for_a_single_start, values
from spectra import exact

from gpflow_cool import CoolMTGP
from gpflow_cool.chain import newton
from gpflow_cool.chain.search import Box, Starts
from gpflow_cool.chain.terms import task_problems
from gpflow_cool.training.profiled import ProfiledChain

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
