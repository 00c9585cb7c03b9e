"""Factorisations and densities against NumPy and SciPy."""

import warnings

import extended as judge
import gpflow
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, assert_close, assert_moments
from scipy.stats import multivariate_normal, norm

from gpflow_cool import CoolMTGP, gaussian, linalg


def random_covariance(rng, *shape, M):
    A = rng.normal(size=(*shape, M, M))
    return A @ np.swapaxes(A, -1, -2) / M + 0.2 * np.eye(M)


# Eigendecomposition

ROUTES = {
    "eager": linalg.eigh,
    "graph": tf.function(linalg.eigh),
    "callback": tf.function(lambda K: linalg.eigh(K, python_callback=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", ["N1-T1", "N7-T3", "linear", "repeated_rows", "zero_kernel"])
def test_eigh_factorises(rng, case, route):
    K = CASES[case](rng).K
    lam, U = ROUTES[route](tf.constant(K))
    assert_close(lam, np.maximum(np.linalg.eigvalsh(K), 0.0), rtol=1e-12)
    assert_close((U * lam.numpy()) @ tf.transpose(U), K, rtol=1e-12)
    assert_close(tf.transpose(U) @ U, np.eye(len(K)), rtol=1e-12)


@pytest.mark.parametrize("route", ROUTES)
def test_eigh_clips_at_zero(route):
    V = np.array([[3.0, 4.0], [-4.0, 3.0]]) / 5.0
    lam, U = ROUTES[route](tf.constant(V @ np.diag([-1e-9, 2.0]) @ V.T))
    assert lam[0].numpy() == 0.0
    assert_close((U * lam.numpy()) @ tf.transpose(U), 2.0 * np.outer(V[:, 1], V[:, 1]), rtol=1e-8)


@pytest.mark.parametrize("route", ROUTES)
def test_eigh_in_float32(rng, route):
    K = CASES["N7-T3"](rng).K
    lam, U = ROUTES[route](tf.constant(K, tf.float32))
    assert lam.dtype == U.dtype == tf.float32
    assert_close((U * lam.numpy()) @ tf.transpose(U), K, rtol=1e-5)


@pytest.mark.parametrize("route", ROUTES)
def test_eigh_has_no_derivative(rng, route):
    """NaN, not a number that looks like one: of every entry, also where eigenvalues differ."""
    K = tf.constant(CASES["N7-T3"](rng).K)
    with tf.GradientTape() as tape:
        tape.watch(K)
        lam, _ = ROUTES[route](K)
        total = tf.reduce_sum(lam)
    assert np.isnan(tape.gradient(total, K).numpy()).all()


def test_eigh_on_a_gpu_stays_in_tensorflow(rng, monkeypatch):
    """No callback then: what a device computes must not travel through Python."""
    monkeypatch.setattr(linalg, "has_gpu", lambda: True)
    monkeypatch.setattr(linalg, "device_is_faster", lambda *_: True)
    monkeypatch.setattr(linalg, "lapack_eigh", None)
    K = CASES["N7-T3"](rng).K
    lam, U = linalg.eigh(tf.constant(K), python_callback=True)
    assert_close((U * lam.numpy()) @ tf.transpose(U), K, rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_lapack_eigh_refuses_what_is_not_finite(value):
    with pytest.raises(ValueError, match="kernel matrix has entries that are not finite.*kernel's"):
        linalg.lapack_eigh(np.array([[1.0, value], [value, 1.0]]))


@pytest.mark.parametrize("smallest", [1e-3, 1e-7, 1e-12])
def test_graded_eigh_has_the_digits_of_small_eigenvalues(rng, smallest):
    """With 100 digits U^T S U is diagonal, relative to what stands on its diagonal."""
    D = np.geomspace(1.0, smallest, 9)
    S = D[:, None] * random_covariance(rng, M=9) * D
    lam, U = linalg.graded_eigh(S)
    diagonal = judge.exact(U).T @ judge.exact(S) @ judge.exact(U)
    root = np.sqrt(lam)
    assert_allclose(diagonal.astype(float) / np.outer(root, root), np.eye(9), rtol=0, atol=1e-7)
    assert_allclose(U.T @ U, np.eye(9), rtol=0, atol=1e-14)


@pytest.mark.parametrize("diagonal", [[0.0, 0.0], [0.0, 3.0], [0.0, 0.0, 1e-20, 1.0], [2.0]])
def test_graded_eigh_of_singular_matrices(diagonal):
    lam, U = linalg.graded_eigh(np.diag(diagonal))
    assert_allclose(lam, diagonal, rtol=1e-14)
    assert_allclose(U, np.eye(len(diagonal)), rtol=0, atol=1e-15)


# Inverse roots


@pytest.mark.parametrize("route", [{}, {"python_callback": True}])
def test_inverse_root(rng, route):
    S, A = random_covariance(rng, M=4), rng.normal(size=(4, 4))
    W = linalg.inverse_root(tf.constant(S), **route).numpy()
    assert_close(W @ W.T, np.linalg.inv(S), rtol=1e-12)

    def value(S):
        W = linalg.inverse_root(S, **route)
        return tf.reduce_sum(tf.square(tf.matmul(A, W)))  # of W W^T alone: tr(A S^-1 A^T)

    S = tf.constant(S)
    with tf.GradientTape() as tape:
        tape.watch(S)
        total = value(S)
    inverse = np.linalg.inv(S)
    assert_close(tape.gradient(total, S), -inverse @ A.T @ A @ inverse, rtol=1e-11)


def test_inverse_root_of_singular_covariances(rng):
    v = rng.normal(size=4)
    W = linalg.inverse_root(tf.constant(np.outer(v, v))).numpy()
    assert_close(W.T @ v @ W.T @ v, 1.0, rtol=1e-12)  # the only direction there is
    assert_array_equal(linalg.inverse_root(tf.zeros([3, 3], tf.float64)), np.zeros((3, 3)))


# Cholesky with jitter, and draws


def test_cholesky_with_jitter_adds_a_millionth_of_the_mean_variance(rng):
    S = random_covariance(rng, 2, 3, M=4)
    assert gpflow.config.default_jitter() == 1e-6
    mean_variance = np.trace(S, axis1=-2, axis2=-1)[..., None, None] / 4
    L = linalg.cholesky_with_jitter(tf.constant(S)).numpy()
    assert_close(L, np.tril(L), rtol=0)
    assert_close(L @ np.swapaxes(L, -1, -2), S + 1e-6 * mean_variance * np.eye(4), rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [0.0, 1e-12, 1.0, 1e12])
def test_cholesky_with_jitter_of_a_singular_covariance(rng, scale, dtype):
    v = rng.normal(size=4)
    S = (scale * np.outer(v, v)).astype(dtype)
    L = linalg.cholesky_with_jitter(tf.constant(S)).numpy()
    assert np.isfinite(L).all()
    assert_allclose(L @ L.T, S, rtol=0, atol=1e-5 * scale * np.mean(v**2) + 1e-30)


def test_cholesky_with_jitter_where_rounding_of_the_prior_is_all_there_is():
    unit = np.finfo(np.float64).eps * np.eye(4)
    for size, jitter in [
        (-10.0, 16.0),
        (-60.0, 16e3),
        (-2e4, 16e6 + 16e3),
    ]:  # in units of the prior's rounding
        L = linalg.cholesky_with_jitter(tf.constant(size * unit), prior=tf.constant(1.0))
        assert_close(L.numpy() ** 2, (size + jitter) * unit, rtol=1e-12)


@pytest.mark.parametrize("compiler", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_covariance_without_a_factor_leaves_the_others_of_its_batch_alone(compiler):
    good, bad = np.array([[1.0, 0.5], [0.5, 1.0]]), np.diag([1e-9, -1e-9])
    with tf.GradientTape() as tape:
        S = tf.Variable(np.stack([good, bad]))
        L = compiler(linalg.cholesky_with_jitter)(S, prior=tf.ones(2, tf.float64))
        total = tf.reduce_sum(L)
    assert_close(L[0] @ tf.transpose(L[0]), good + 1e-6 * np.eye(2), rtol=1e-12)
    assert_allclose(L[1] @ tf.transpose(L[1]), bad, atol=1e-6)
    assert np.isfinite(tape.gradient(total, S)).all()


def test_sample_gaussian_has_the_moments(rng):
    mean, S = rng.normal(size=(2, 3)), random_covariance(rng, 2, M=3)
    tf.random.set_seed(1)
    draws = gaussian.sample_gaussian(tf.constant(mean), tf.constant(S), 20_000).numpy()
    for i in range(2):
        assert_moments(draws[i], mean[i], S[i])
    assert_moments(  # one batch element says nothing of another
        np.concatenate(list(draws), axis=1),
        mean.ravel(),
        np.kron(np.diag([1, 0]), S[0]) + np.kron(np.diag([0, 1]), S[1]),
    )


def test_sample_gaussian_follows_the_seed(rng):
    mean, S = tf.constant(rng.normal(size=3)), tf.constant(random_covariance(rng, M=3))

    def draws(seed):
        tf.random.set_seed(seed)
        return gaussian.sample_gaussian(mean, S, 2).numpy()

    assert_allclose(draws(3), draws(3), rtol=0)
    assert np.abs(draws(3) - draws(4)).min() > 1e-6


# Densities and correlations


@pytest.mark.parametrize("M", [1, 4])
def test_gaussian_log_density_equals_scipy(rng, M):
    r, S = rng.normal(size=(2, 3, M)), random_covariance(rng, 2, 3, M=M)
    expected = [
        [multivariate_normal(cov=S[i, j]).logpdf(r[i, j]) for j in range(3)] for i in (0, 1)
    ]
    assert_close(gaussian.gaussian_log_density(tf.constant(r), tf.constant(S)), expected)


def test_gaussian_log_density_where_rounding_has_the_smallest_variance():
    """A difference of two numbers whose variances are 1e20: its variance is lost, or negative."""
    S = 1e20 * np.array([[1.0, 1.0], [1.0, 1.0 - 1e-15]])
    both = np.stack([S, np.diag([2.0, 3.0])])
    density = gaussian.gaussian_log_density(tf.zeros([2, 2], tf.float64), both).numpy()
    assert_allclose(density[1], -np.log(2 * np.pi) - 0.5 * np.log(6.0), rtol=1e-12)
    assert np.isfinite(density[0])
    highest = -np.log(2 * np.pi) - 0.5 * np.log(1e40 * 1e-13)  # 500 roundings of either variance
    assert density[0] < highest
    for function in (gaussian.gaussian_log_density, tf.function(gaussian.gaussian_log_density)):
        with tf.GradientTape() as tape:
            S = tf.Variable(both)
            value = tf.reduce_sum(function(tf.zeros([2, 2], tf.float64), S))
        gradient = tape.gradient(value, S).numpy()
        assert np.isfinite(gradient).all()
        assert_allclose(gradient[1], np.diag([-0.25, -1.0 / 6.0]))


def test_an_indefinite_matrix_is_not_taken_for_rounding():
    """In float32 a thousand rows round a variance by a tenth at worst: no more than 1e-3 is."""
    size, below = 1000, 0.01
    S = np.ones((size, size), np.float32) * (1.0 + below) - below * np.eye(size, dtype=np.float32)
    assert np.isnan(linalg.cholesky_beyond_rounding(S)).any()


def test_univariate_log_densities_equal_scipy(rng):
    r, v = rng.normal(size=(2, 3)), rng.uniform(0.1, 2.0, size=(2, 3))
    expected = norm(scale=np.sqrt(v)).logpdf(r).sum(axis=-1)
    assert_close(gaussian.univariate_log_densities(tf.constant(r), tf.constant(v)), expected)
    whitened = gaussian.univariate_log_densities(
        tf.constant(r / np.sqrt(v)), tf.constant(v), whitened=True
    )
    assert_close(whitened, expected)


def test_correlation_from_covariance(rng):
    S = random_covariance(rng, 2, M=4)
    expected = S.copy()
    for i, t, u in np.ndindex(2, 4, 4):
        expected[i, t, u] /= np.sqrt(S[i, t, t] * S[i, u, u])
    R = linalg.correlation_from_covariance(tf.constant(S)).numpy()
    assert_close(R, expected)
    assert (np.diagonal(R, axis1=-2, axis2=-1) == 1.0).all()


def test_correlation_of_a_task_without_variance():
    S = np.array([[4.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    expected = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
    assert_allclose(linalg.correlation_from_covariance(tf.constant(S)), expected, rtol=1e-15)


@pytest.mark.slow
def test_indefinite_kernel_matrix_is_told_once(rng):
    class Own(gpflow.kernels.Matern32):
        """GPflow's would be refused."""

    X, Y = rng.uniform(0, 4, size=(40, 3)), rng.normal(size=(40, 1))
    kernel = gpflow.kernels.Periodic(Own(lengthscales=5.0), period=2.0)
    assert np.linalg.eigvalsh(kernel(X))[0] < -1e-4
    model = CoolMTGP((X, Y), kernel, engine="spectral")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        model.fit(verbose=0, steps=5)
        mean, _ = model.predict_f(X)
    assert [str(warning.message) for warning in caught] == [linalg.INDEFINITE]
    assert "not positive definite at these inputs" in linalg.INDEFINITE
    assert np.isfinite(mean).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rounding_of_a_singular_matrix_is_not_told(dtype, rng):
    F = rng.normal(size=(200, 3)).astype(dtype)
    lam, _ = linalg.lapack_eigh(F @ F.T)
    assert lam[0] < 0
