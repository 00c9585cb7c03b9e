"""Where fits end: laws on random data sets, and never where one optimiser happened to end."""

from typing import NamedTuple

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
import tensorflow_probability as tfp
from fits import Breaking, make
from gpflow import kernels, set_trainable
from gpflow.keras import tf_keras
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS, minimise_plainly, smooth_data

from gpflow_cool import CoolMTGP, SparseCoolMTGP
from gpflow_cool.training.losses import loss_of
from gpflow_cool.training.run import History
from gpflow_cool.training.starts import assign_all, starting_values

SE = kernels.SquaredExponential

SAME = 0.05
"""Nats by which two fits may differ that nobody would tell apart."""

GRID_ERROR = 5e-3
"""Nats by which a loss that is interpolated between ratios may differ from the one at its b and
sigma2."""


def random_data(seed):
    """Sums of waves with correlated noise; sizes, number of inputs and noise differ."""
    rng = np.random.default_rng(seed)
    N, D, T = rng.integers(15, 40), rng.integers(1, 3), rng.integers(2, 5)
    X = rng.uniform(-2.0, 2.0, size=(N, D))
    waves = np.sin(X @ rng.normal(size=(D, 3)) * 2.0 + rng.uniform(0.0, 6.0, size=3))
    noise = rng.normal(size=(N, T)) @ (np.eye(T) + 0.4 * rng.normal(size=(T, T)))
    return X, waves @ rng.normal(size=(3, T)) + rng.uniform(0.1, 0.5) * noise


def slope(model):
    """The largest derivative of the loss by an unconstrained variable."""
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    gradients = tape.gradient(loss, model.trainable_variables)
    return max(float(np.max(np.abs(gradient))) for gradient in gradients)


def optimizers():
    return {
        "profile": "profile",
        "scipy": "scipy",
        "gpflow": gpflow.optimizers.Scipy(),
        "adam": tf_keras.optimizers.Adam(0.1),
    }


class Route(NamedTuple):
    """What an optimizer made of a data set."""

    model: CoolMTGP
    history: History
    start: float


@pytest.fixture(scope="module")
def routes():
    """Some data sets, each trained by every optimizer."""
    found = []
    for seed in range(3):
        data, fitted = random_data(seed), {}
        for name, optimizer in optimizers().items():
            model = make(data, learning=LEARNINGS[seed % 2])
            start = float(model.training_loss())
            steps = 300 if name == "adam" else None
            fitted[name] = Route(model, model.fit(optimizer, steps=steps, verbose=0), start)
        found.append(fitted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scipy", "gpflow", "adam"])
def test_every_optimizer_ends_at_the_loss_of_profile(routes, name):
    """In the median: with few rows two of them may end at different optima."""
    gaps = [
        fitted[name].model.training_loss() - fitted["profile"].model.training_loss()
        for fitted in routes
    ]
    assert abs(np.median(gaps)) < SAME


@pytest.mark.slow
def test_no_fit_ends_above_its_start(routes):
    for fitted in routes:
        for model, history, start in fitted.values():
            assert model.training_loss() <= start + GRID_ERROR
            assert min(history.history["loss"]) <= start + GRID_ERROR


@pytest.mark.slow
def test_the_parameters_are_those_of_the_best_loss_seen(routes):
    for fitted in routes:
        for name, (model, history, _) in fitted.items():
            allowed = GRID_ERROR if name == "profile" else 1e-6
            assert_allclose(model.training_loss(), min(history.history["loss"]), atol=allowed)


@pytest.mark.slow
def test_the_gradient_at_the_end_is_small(routes):
    for name in ("profile", "scipy"):
        assert np.median([slope(fitted[name].model) for fitted in routes]) < 0.1


# Starts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_fit_ends_below_every_start(rng, restarts):
    data = smooth_data(rng, N=15)
    model, losses = make(data), []
    loss = loss_of(model, profile=True)
    for values in starting_values(model, restarts, np.random.default_rng(7)):
        assign_all(list(model.trainable_parameters), values)
        losses.append(loss.evaluate().loss)
    assert np.ptp(losses) > 1.0
    fitted = make(data)
    history = fitted.fit(restarts=restarts, seed=7, verbose=0)
    assert max(history.history["loss"]) <= min(losses) + 1e-9
    assert fitted.training_loss() <= min(losses) + GRID_ERROR


@pytest.mark.parametrize("lengthscale", [1e-3, 1e3])
def test_a_bad_lengthscale_to_start_from_does_no_harm(rng, lengthscale):
    good, bad = (make(smooth_data(rng)) for _ in range(2))
    bad.data = good.data
    bad.kernel.lengthscales.assign(lengthscale)
    bad.b.assign(np.full(3, 1e-9))  # and all noise
    for model in (good, bad):
        model.fit(verbose=0)
    assert bad.training_loss() < good.training_loss() + SAME


def test_a_fit_finds_the_optimum_at_long_lengthscales():
    """A line with a wiggle: a lengthscale of 0.7 fits the wiggle, and a long one fits better."""
    rng = np.random.default_rng(39)
    X = rng.uniform(-3.0, 3.0, size=(25, 1))
    Y = np.hstack([X, -X]) / 1.7 + 0.25 * np.sin(4.0 * X) + 0.2 * rng.normal(size=(25, 2))
    scanned, model = (CoolMTGP((X, Y), SE(lengthscales=0.3)) for _ in "ab")
    model.fit(verbose=0)
    scanned.weight_variance.assign(model.weight_variance)
    loss, losses = loss_of(scanned, profile=True), []
    for lengthscale in np.geomspace(0.1, 100.0, 40):
        scanned.kernel.lengthscales.assign(lengthscale)
        losses.append(loss.evaluate().loss)
    assert model.training_loss() < min(losses) + SAME


class Python(SE):
    """A kernel that cannot be compiled."""

    def K(self, X, X2=None):
        if self.lengthscales > 0:
            return super().K(X, X2)
        raise ValueError


def bounded():
    kernel = SE()
    low, high = np.float64(0.1), np.float64(2.0)
    kernel.lengthscales = gpflow.Parameter(1.0, transform=tfp.bijectors.Sigmoid(low, high))
    return kernel


@pytest.mark.parametrize("kernel", [lambda: Breaking(3.0), Python, bounded])
def test_odd_kernels_end_where_a_plain_one_does(rng, kernel):
    """Long lengthscales, which are tried, may not be allowed, and a kernel may need Python."""
    X = rng.uniform(-2.0, 2.0, size=(30, 2))
    Y = np.hstack([np.sin(2.0 * X), np.cos(X[:, :1])]) + 0.1 * rng.normal(size=(30, 3))
    odd, plain = (CoolMTGP((X, Y), k) for k in (kernel(), SE()))
    for model in (odd, plain):
        model.fit(verbose=0)
    assert plain.kernel.lengthscales < 1.9
    assert_allclose(odd.training_loss(), plain.training_loss(), atol=SAME)


# Priors, and parameters that stay -----------------------------------------------------------------

CHANGES = {
    "prior of b": lambda model: gamma(model.b),
    "prior of sigma2": lambda model: gamma(model.sigma2),
    "prior of the lengthscale": lambda model: gamma(model.kernel.lengthscales),
    "prior of lambda": lambda model: gamma(model.weight_variance),
    "b fixed": lambda model: set_trainable(model.b, False),
    "sigma2 fixed": lambda model: set_trainable(model.sigma2, False),
    "lambda fixed": lambda model: set_trainable(model.weight_variance, False),
    "kernel fixed": lambda model: set_trainable(model.kernel, False),
    "mean fixed": lambda model: set_trainable(model.mean_function, False),
}


def gamma(parameter):
    parameter.prior = tfp.distributions.Gamma(np.float64(5.0), np.float64(5.0))


@pytest.mark.slow
@pytest.mark.parametrize("change", [*CHANGES, "unit"])
def test_a_fit_ends_where_gpflows_own_loop_ends_and_what_is_fixed_stays(rng, change):
    data, models = smooth_data(rng), []
    for _ in range(2):
        mean = gpflow.mean_functions.Constant(np.array([0.3, 0.0, -0.2]))
        model = CoolMTGP(
            data,
            SE(lengthscales=0.8),
            mean,
            b=[1.3, 0.7, 1.1],
            sigma2=[0.1, 0.3, 0.2],
            weight_prior="unit" if change == "unit" else "scaled",
        )
        CHANGES.get(change, lambda model: None)(model)
        models.append(model)
    model, plain = models
    fixed = [p for p in model.parameters if not p.trainable]
    before = [p.numpy() for p in fixed]
    model.fit(verbose=0)
    for parameter, value in zip(fixed, before, strict=True):
        assert_array_equal(parameter, value)
    assert model.training_loss() < minimise_plainly(plain) + SAME


@pytest.mark.slow
def test_inducing_points_at_all_rows_train_to_the_same_predictions(rng):
    X, Y = smooth_data(rng, N=30)
    dense, sparse = CoolMTGP((X, Y), SE()), SparseCoolMTGP((X, Y), SE(), X, chunk_rows=7)
    for model in (dense, sparse):
        model.fit(verbose=0)
    assert_allclose(sparse.training_loss(), dense.training_loss(), atol=SAME)
    Xnew = np.linspace(0.0, 5.0, 9)[:, None]
    noise = np.sqrt(np.diag(dense.noise_covariance()))
    difference = sparse.predict_f(Xnew)[0] - dense.predict_f(Xnew)[0]
    assert np.all(np.abs(difference) < 0.1 * noise)


# What the data say --------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
def test_targets_of_noise(rng, learning):
    """Nothing to find: the loss is that of independent noise or better."""
    X, Y = rng.uniform(size=(40, 1)), rng.normal(size=(40, 3))
    model = CoolMTGP((X, Y), SE(), learning=learning)
    model.fit(verbose=0)
    white = ref.conditional_log_likelihoods(
        np.zeros((40, 40)), Y, np.ones(3), np.mean(Y**2, axis=0), learning, 1e-6
    )
    loss = -model.maximum_log_likelihood_objective()
    assert loss < -np.sum(white) + 3.0  # lambda of nothing has a prior
    f = model.predict_f(X)[0]
    assert np.mean(np.square(f)) < 0.5


def test_targets_of_zeros():
    X = np.linspace(0.0, 1.0, 10)[:, None]
    model = CoolMTGP((X, np.zeros((10, 2))), SE())
    model.fit(verbose=0)
    assert np.isfinite(model.training_loss())
    assert_allclose(model.predict_f(X)[0], 0.0, atol=1e-9)
    assert np.all(model.sigma2.numpy() < 2e-4)  # the floor for a task without variance is 1e-4


def test_sigma2_stops_at_its_floor(rng):
    """A copy of another task wants no noise at all."""
    X, Y = smooth_data(rng)
    model = CoolMTGP((X, Y[:, [0, 1, 0]]), SE(lengthscales=0.8))
    model.fit(verbose=0)
    assert_allclose(model.sigma2.numpy()[2], 1e-4 * np.var(Y[:, 0]), rtol=1e-3)


FAR_AWAY = {
    "offset": (np.linspace(0.0, 10.0, 30) + 300.0, kernels.Linear() + kernels.Constant()),
    "years": (np.arange(1990.0, 2020.0), kernels.Linear() + kernels.Constant()),
    "long lengthscale": (np.linspace(-2.0, 2.0, 30), SE(lengthscales=1e2)),
}


@pytest.mark.parametrize("case", FAR_AWAY)
def test_a_trend_is_found_where_the_kernel_is_nearly_constant(rng, case):
    x, kernel = FAR_AWAY[case]
    y = (x - x.mean()) / x.std() + 0.1 * rng.normal(size=len(x))
    model = CoolMTGP((x[:, None], (y - y.mean())[:, None]), gpflow.utilities.deepcopy(kernel))
    model.fit(verbose=0)
    error = model.predict_f(x[:, None])[0][:, 0] - (y - y.mean())
    assert np.std(error) < 0.2  # not "all noise", whose error is 1
