"""Functions drawn from posteriors: their moments, data without noise, gradients, seeds."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import (
    Constant,
    Exponential,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    SquaredExponential,
    White,
)
from problems import assert_close, assert_moments, random_covariance

from gpflow_cool import CoolMTGP, KroneckerMTGP, Laplacian, SparseCoolMTGP
from gpflow_cool.joint import fourier
from gpflow_cool.joint import functions as functions_module
from gpflow_cool.joint.fourier import prior_features

FREQUENCIES = 128

KERNELS = {
    "squared exponential": SquaredExponential(1.3, lengthscales=[0.7, 2.0]),
    "matern12": Matern12(0.8, lengthscales=1.5),
    "matern32": Matern32(0.8, lengthscales=[1.5, 0.6]),
    "matern52": Matern52(0.8, lengthscales=0.9),
    "exponential": Exponential(1.1, lengthscales=0.8),
    "rational quadratic": RationalQuadratic(1.2, lengthscales=[0.8, 1.6], alpha=0.7),
    "laplacian": Laplacian(1.2, lengthscales=[0.8, 1.6]),
    "linear": Linear(variance=[0.5, 1.5]),
    "active dims": Matern32(lengthscales=0.5, active_dims=[1]) + Linear(active_dims=[0]),
    "sum": SquaredExponential(lengthscales=2.0) + Constant(0.4) + Linear(0.3),
    "product": SquaredExponential(1.3, lengthscales=0.9, active_dims=[0])
    * Matern52(lengthscales=1.7),
    "product with slopes": Matern52(lengthscales=1.2) * Linear(variance=[0.5, 1.5]) * Constant(2.0),
    "product of slopes": Linear(0.7, active_dims=[0]) * Linear(0.5),
    "product of sums": (Matern32() + Constant(0.5))
    * (SquaredExponential(active_dims=[1]) + Linear()),
}


@pytest.fixture(autouse=True)
def few_frequencies(monkeypatch):
    """An eighth of what users get: fewer numbers to draw, and larger errors to average out."""
    monkeypatch.setattr(fourier, "NUM_FREQUENCIES", FREQUENCIES)


@pytest.mark.parametrize("name", KERNELS)
def test_features_have_the_kernel_as_inner_product(rng, name):
    """The mean over 40 seeds is within five standard errors; one seed has a small error too."""
    kernel, X = KERNELS[name], tf.constant(rng.normal(size=(6, 2)))
    origin = tf.constant([0.3, -2.0], tf.float64)
    drawn = []
    for seed in range(40):
        F = prior_features(kernel, 2, origin, seed)(X).numpy()
        drawn.append(F @ F.T)
    error = np.std(drawn, axis=0) / np.sqrt(40) + 1e-12
    assert np.all(np.abs(np.mean(drawn, axis=0) - kernel(X)) < 5.0 * error)
    assert np.max(np.std(drawn, axis=0)) < 3.0 / np.sqrt(FREQUENCIES) * np.max(kernel(X))


def test_features_of_inputs_far_from_zero(rng):
    X = rng.normal(size=(5, 1))
    kernel = SquaredExponential()
    near, far = (
        prior_features(kernel, 1, tf.constant([at], tf.float64), 0)(tf.constant(X + at)).numpy()
        for at in (0.0, 1e9)
    )
    assert_close(far @ far.T, near @ near.T, 1e-5)


def exact_model(kernel, X, Y, C, Sigma):
    mean = gpflow.mean_functions.Constant(0.7)
    return KroneckerMTGP.ground_truth((X, Y), kernel, C, Sigma, mean_function=mean)


def check_moments(posterior, X):
    """4,000 functions, of 8 seeds so that features differ, within five standard errors."""
    mean, cov = posterior.predict_f(X, full_cov=True, full_output_cov=True)
    # Not compiled: eight graphs would take longer than all draws.
    draws = [posterior.sample_functions(500, seed).values(tf.constant(X)) for seed in range(8)]
    size = mean.shape[0] * mean.shape[1]
    flat = np.reshape(draws, (-1, size))
    assert_moments(flat, np.ravel(mean), np.reshape(cov, (size, size)))


@pytest.mark.slow
@pytest.mark.parametrize("N, T", [(6, 2), (1, 3), (5, 1)])
@pytest.mark.parametrize("holes", [False, True])
def test_moments_over_points_and_tasks(rng, N, T, holes):
    X, Y = rng.normal(size=(N, 2)), rng.normal(size=(N, T))
    if holes and N > 1:
        Y[0, 0] = Y[2, T - 1] = np.nan
    C, Sigma = random_covariance(rng, T), 0.3 * random_covariance(rng, T)
    posterior = exact_model(KERNELS["squared exponential"], X, Y, C, Sigma).posterior()
    check_moments(posterior, np.vstack([X[:1], rng.normal(size=(2, 2))]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["product with slopes", "rational quadratic", "linear", "sum"])
def test_moments_of_other_kernels(rng, name):
    """The linear kernel's posterior is one of features."""
    X, Y = rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    C, Sigma = random_covariance(rng, 2), 0.3 * random_covariance(rng, 2)
    check_moments(exact_model(KERNELS[name], X, Y, C, Sigma).posterior(), rng.normal(size=(3, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_moments_given_more_rows(rng, before, after):
    """Complete rows, then rows with holes: each with and without holes in the training data."""
    X, Y = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    Y[0, 0] = np.nan if before else Y[0, 0]
    Y[7, 1] = np.nan if after else Y[7, 1]
    C, Sigma = random_covariance(rng, 2), 0.3 * random_covariance(rng, 2)
    posterior = exact_model(KERNELS["matern52"], X[:4], Y[:4], C, Sigma).posterior()
    given = posterior.condition_on(X[4:6], Y[4:6]).condition_on(X[6:], Y[6:])
    check_moments(given, np.vstack([X[5:8:2], rng.normal(size=(1, 2))]))


@pytest.mark.slow
def test_moments_with_inducing_points(rng):
    X, Y = rng.normal(size=(15, 2)), rng.normal(size=(15, 2))
    kernel = SquaredExponential(lengthscales=1.5)
    model = SparseCoolMTGP((X, Y), kernel, X[:4], b=[0.9, 1.4], sigma2=[0.2, 0.3])
    check_moments(model.posterior(), rng.normal(size=(3, 2)))
    check_moments(model.posterior().condition_on(X[:2] + 0.5, Y[:2]), rng.normal(size=(3, 2)))


def small_posterior(rng, kernel=KERNELS["squared exponential"], noise=0.1, holes=False):
    X, Y = rng.normal(size=(7, 2)), rng.normal(size=(7, 2))
    if holes:
        Y[1, 0] = np.nan
    model = exact_model(kernel, X, Y, np.array([[1.0, 0.5], [0.5, 1.2]]), noise * np.eye(2))
    return model.posterior(), X, Y


@pytest.mark.parametrize("holes", [False, True])
def test_functions_interpolate_data_without_noise(rng, holes):
    """Noise of deviation 1e-4; what is missing varies by far more."""
    posterior, X, Y = small_posterior(rng, noise=1e-8, holes=holes)
    values = posterior.sample_functions(20, seed=3)(X).numpy()
    observed = np.isfinite(Y)
    assert np.abs(values - Y)[:, observed].max() < 1e-3
    if holes:
        assert values[:, ~observed].std() > 0.05


def test_gradients_equal_differences(rng):
    posterior, _, _ = small_posterior(rng, KERNELS["matern52"])
    functions = posterior.sample_functions(3, seed=0)
    X = tf.constant(rng.normal(size=(4, 2)))
    with tf.GradientTape() as tape:
        tape.watch(X)
        value = functions(X)[2, 1, 0]
    gradient = tape.gradient(value, X).numpy()
    for step in np.eye(2):
        sides = [functions(X + sign * 1e-5 * step)[2, 1, 0] for sign in (1.0, -1.0)]
        assert_close(gradient[1] @ step, (sides[0] - sides[1]) / 2e-5, 1e-6)
    assert_close(np.delete(gradient, 1, axis=0), np.zeros((3, 2)))  # other points have no part


def test_after_a_change_of_parameters_they_are_refused(rng):
    X = rng.normal(size=(6, 2))
    model = CoolMTGP((X, np.sin(X)), gpflow.kernels.SquaredExponential())
    functions = model.posterior().sample_functions(2, seed=0)
    functions(X)
    model.kernel.lengthscales.assign(3.0)
    with pytest.raises(ValueError, match="parameters or inputs have changed.*draw anew"):
        functions(X)


def test_the_same_functions_again(rng, monkeypatch):
    """Another call, points in chunks and batches, each function at its own points, another seed."""
    posterior, _, _ = small_posterior(rng)
    X = rng.normal(size=(2, 4, 5, 2))
    functions = posterior.sample_functions(3, seed=5)
    values = functions(X)
    assert values.shape == (3, 2, 4, 5, 2)
    assert_close(functions(X[1, 2]), values[:, 1, 2], 1e-12)
    monkeypatch.setattr(functions_module, "CHUNK", 3 * 270)
    again = posterior.sample_functions(3, seed=5)
    assert again._chunk < 4
    assert_close(again(X), values, 1e-12)
    assert_close(again.each(X[0, :3]), [values[s, 0, s] for s in range(3)], 1e-12)
    assert np.abs(posterior.sample_functions(3, seed=6)(X) - values).max() > 0.1


def test_without_a_seed_tensorflow_decides(rng):
    posterior, X, _ = small_posterior(rng, noise=1.0)
    tf.random.set_seed(4)
    first, second = posterior.sample_functions(2)(X), posterior.sample_functions(2)(X)
    tf.random.set_seed(4)
    assert_close(posterior.sample_functions(2)(X), first, 0.0)
    assert np.abs(first - second).max() > 0.01


def test_drawn_inside_of_a_graph(rng):
    posterior, X, _ = small_posterior(rng)
    draw = tf.function(lambda X: posterior.sample_functions(2, seed=1)(X))
    assert_close(draw(tf.constant(X)), posterior.sample_functions(2, seed=1)(X), 1e-10)


def test_compiled_once(rng):
    posterior, X, _ = small_posterior(rng)
    functions = posterior.sample_functions(2, seed=1)
    for size in (1, 3, 7):
        functions(X[:size])
    assert functions._compiled.experimental_get_tracing_count() == 1


def test_single_precision(rng):
    X, Y = rng.normal(size=(2, 9, 2)).astype(np.float32)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        model = CoolMTGP((X, Y), SquaredExponential(lengthscales=1.5), b=1.0, sigma2=0.1)
        posterior = model.posterior()
        draws = posterior.sample_functions(2000, seed=1)(X[:3])
        mean, variance = posterior.predict_f(X[:3])
    assert draws.dtype == tf.float32
    assert np.all(np.abs(np.mean(draws, 0) - mean) < 5.0 * np.sqrt(variance / 2000) + 1e-3)


@pytest.mark.parametrize(
    "kernel", [Periodic(SquaredExponential()), SquaredExponential() + White(), Matern12() * White()]
)
def test_kernels_without_features_are_refused(rng, kernel):
    posterior, _, _ = small_posterior(rng, kernel)
    with pytest.raises(ValueError, match="No features are known for the kernel (Periodic|White)"):
        posterior.sample_functions(2)


def test_bad_arguments_are_refused(rng):
    posterior, X, Y = small_posterior(rng)
    with pytest.raises(ValueError, match="num_samples=0 must be a whole number"):
        posterior.sample_functions(0)
    with pytest.raises(ValueError, match="seed=-1"):
        posterior.sample_functions(1, seed=-1)
    with pytest.raises(ValueError, match=r"functions can be drawn for one outcome"):
        posterior.condition_on(X, np.stack([Y, Y])).sample_functions(1)
    with pytest.raises(ValueError, match=r"Xnew has shape \(7, 1\)"):
        posterior.sample_functions(1)(X[:, :1])
