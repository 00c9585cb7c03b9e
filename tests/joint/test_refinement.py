"""C and Sigma, each as a chain of its own, against dense algebra on rows."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import eigh

from gpflow_cool.joint import kronecker, refinement
from gpflow_cool.joint.refinement import (
    covariance_of_moments,
    expected_moments,
    refined_covariances,
)
from gpflow_cool.systems.spectrum import Spectrum

GRID = np.exp(np.arange(-8.0, 7.0))

# The M-step


def best_regression(X, y):
    """Weights, their covariance over s, and s, at the weight variance with the best evidence."""
    N, best = len(y), -np.inf
    for variance in GRID:
        M = np.eye(N) + variance * X @ X.T
        q = y @ np.linalg.solve(M, y)
        value = -0.5 * N * np.log(q) - 0.5 * np.linalg.slogdet(M)[1]
        value -= 0.5 * (np.log(variance) / 3.0) ** 2
        if value > best:
            V = np.linalg.inv(X.T @ X + np.eye(X.shape[1]) / variance)
            best, found = value, (V @ X.T @ y, V, q / N)
    return found


def slow_covariance(Y, orders, include_uncertainty):
    """From the rows themselves, task by task."""
    deviation = np.sqrt(np.mean(Y**2, axis=0))
    Y, total = Y / deviation, np.zeros([Y.shape[1]] * 2)
    for order in orders:
        C = np.zeros_like(total)
        for t, task in enumerate(order):
            before = order[:t]
            w, V, s = best_regression(Y[:, before], Y[:, task])
            known = C[np.ix_(before, before)]
            C[task, before] = C[before, task] = known @ w
            C[task, task] = s + w @ known @ w
            if include_uncertainty:
                C[task, task] += s * np.trace(V @ known)
        total += C / len(orders)
    return total * np.outer(deviation, deviation)


def correlated(rng, N, T):
    return rng.normal(size=(N, T)) @ rng.normal(size=(T, T)) * rng.uniform(0.1, 10.0, T)


def random_orders(rng, T, number=3):
    return np.array([rng.permutation(T) for _ in range(number)])


@pytest.mark.parametrize("include_uncertainty", [False, True])
@pytest.mark.parametrize("N, T", [(1, 1), (6, 1), (9, 2), (12, 5), (4, 7), (30, 8)])
def test_covariance_is_that_of_regressions_on_the_rows(rng, N, T, include_uncertainty):
    for _ in range(5):
        Y, orders = correlated(rng, N, T), random_orders(rng, T)
        actual = covariance_of_moments(Y.T @ Y, N, orders, include_uncertainty)
        expected = slow_covariance(Y, orders, include_uncertainty)
        assert_allclose(actual, expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())


def test_covariance_is_that_of_the_moments_if_rows_are_many(rng):
    """Weights cost of the order of log(N) / N of their evidence, then nothing."""
    errors = []
    Y, orders = correlated(rng, 50, 4), random_orders(rng, 4)
    C = Y.T @ Y / 50
    for N in (1e4, 1e6, 1e8):
        actual = covariance_of_moments(N * C, N, orders, include_uncertainty=True)
        errors.append(np.abs(actual - C).max())
    assert errors[1] < errors[0] / 50.0
    assert errors[2] < errors[1] / 50.0


# The E-step


def random_covariance(rng, T):
    A = rng.normal(size=(T, T))
    return A @ A.T + 0.1 * np.eye(T)


def random_eigenbasis(rng, N, R):
    U = np.linalg.qr(rng.normal(size=(N, N)))[0][:, :R]
    return rng.uniform(0.5, 2.0, R), U


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("N, R, T", [(1, 1, 1), (5, 5, 1), (6, 6, 3), (7, 4, 3), (3, 2, 6)])
def test_moments_are_those_of_dense_conditionals(rng, N, R, T, copies):
    """`vec` stacks columns: cov(f_t, f_u) is block (t, u), C_tu K."""
    lam, U = random_eigenbasis(rng, N, R)
    C, Sigma = random_covariance(rng, T), random_covariance(rng, T)
    largest = eigh(C, Sigma, eigvals_only=True).max()
    lam[0] = 0.009 / largest  # says nothing about C
    K, prior = (U * lam) @ U.T, np.kron(C, (U * lam) @ U.T)
    total = prior + np.kron(Sigma, np.eye(N))
    cov = prior - prior @ np.linalg.solve(total, prior)  # of functions, and so of the noise
    weight = (U[:, 1:] / lam[1:]) @ U[:, 1:].T  # inverse of K in the informative directions
    Y = rng.normal(size=(copies, N, T))

    def second_moment(mean, weight):
        blocks = cov.reshape(T, N, T, N)
        inside = np.mean([m @ weight @ m.T for m in mean], axis=0)
        return inside + np.einsum("tnum,mn->tu", blocks, weight)

    given = [np.linalg.solve(total, y.T.ravel()) for y in Y]
    functions = [(prior @ alpha).reshape(T, N) for alpha in given]
    noise = [y.T - f for y, f in zip(Y, functions, strict=True)]
    Yr = np.concatenate([U.T @ y for y in Y]) / np.sqrt(copies)
    G0 = np.mean([y.T @ y for y in Y], axis=0) - Yr.T @ Yr
    actual = expected_moments(lam, Yr, G0, C, Sigma)
    assert_allclose(np.trace(K), lam.sum())
    assert actual.num_informative == R - 1
    assert_allclose(actual.signal, second_moment(functions, weight), rtol=1e-8, atol=1e-9)
    assert_allclose(actual.noise, second_moment(noise, np.eye(N)), rtol=1e-8, atol=1e-9)


def test_without_prior_a_step_is_that_of_maximum_likelihood(rng, monkeypatch):
    """
    If all weights have a flat prior, and nothing is added for their uncertainty. A wide prior of
    the weight variance is not enough: the evidence charges for weights whatever that prior is.
    """
    monkeypatch.setattr(refinement, "WEIGHT_VARIANCES", np.array([1e12]))
    N, T = 15, 4
    lam, U = random_eigenbasis(rng, N, N)
    Y, orders = correlated(rng, N, T), random_orders(rng, T)
    C, Sigma = random_covariance(rng, T), random_covariance(rng, T)
    data = (lam, U.T @ Y, np.zeros([T, T]), float(N))
    spectrum = Spectrum(*(tf.constant(part, tf.float64) for part in data))
    signal, noise = kronecker.em_step(spectrum, tf.constant(C), tf.constant(Sigma))
    moments = expected_moments(*data[:3], C, Sigma)
    actual, _ = refined_covariances(*data, C, Sigma, orders, steps=1)
    assert_allclose(actual, signal, rtol=1e-8, atol=1e-8)
    actual = covariance_of_moments(moments.noise, N, orders, include_uncertainty=False)
    assert_allclose(actual, noise, rtol=1e-8, atol=1e-8)


# Laws


def random_problem(rng, N, T, R=None):
    """Arguments up to the orders, of targets partly outside the span of R eigenvectors."""
    lam, U = random_eigenbasis(rng, N, R or N)
    lam *= 10.0 ** rng.uniform(-4.0, 2.0, len(lam))
    Y = correlated(rng, N, T)
    Yr = U.T @ Y
    G0 = Y.T @ Y - Yr.T @ Yr
    C, Sigma = random_covariance(rng, T), random_covariance(rng, T)
    return lam, Yr, G0, float(N), C, Sigma, random_orders(rng, T)


def assert_covariances(C, Sigma):
    assert_array_equal(C, C.T)
    assert_array_equal(Sigma, Sigma.T)
    assert np.linalg.eigvalsh(C)[0] >= -1e-12 * np.abs(C).max()
    np.linalg.cholesky(Sigma)  # raises unless positive definite


SIZES = [(1, 1), (1, 4), (8, 1), (10, 3), (20, 6), (4, 30)]


@pytest.mark.parametrize("N, T", SIZES)
def test_results_are_covariances_with_some_noise(rng, N, T):
    for R in (N, max(1, N // 2)):
        problem = random_problem(rng, N, T, R)
        _, Yr, G0, *_ = problem
        C, Sigma = refined_covariances(*problem, steps=20)
        assert_covariances(C, Sigma)
        mean_square = (np.sum(Yr**2, axis=0) + np.diag(G0)) / N
        assert np.all(np.diag(Sigma) >= 1e-4 * mean_square)


@pytest.mark.parametrize("N, T", SIZES)
def test_units_of_targets_do_not_matter(rng, N, T):
    lam, Yr, G0, N, C, Sigma, orders = random_problem(rng, N, T)
    unit = 2.0 ** rng.integers(-20, 20, T)
    both = np.outer(unit, unit)
    expected = refined_covariances(lam, Yr, G0, N, C, Sigma, orders, steps=5)
    scaled = refined_covariances(
        lam, Yr * unit, G0 * both, N, C * both, Sigma * both, orders, steps=5
    )
    for actual, matrix in zip(scaled, expected, strict=True):
        assert_allclose(actual / both, matrix, rtol=1e-7, atol=1e-8 * np.abs(matrix).max())


@pytest.mark.parametrize("N, T", SIZES)
def test_places_of_tasks_do_not_matter(rng, N, T):
    lam, Yr, G0, N, C, Sigma, orders = random_problem(rng, N, T)
    place = rng.permutation(T)
    moved = np.ix_(place, place)
    expected = refined_covariances(lam, Yr, G0, N, C, Sigma, orders, steps=5)
    actual = refined_covariances(
        lam, Yr[:, place], G0[moved], N, C[moved], Sigma[moved], np.argsort(place)[orders], steps=5
    )
    for a, matrix in zip(actual, expected, strict=True):
        assert_allclose(a, matrix[moved], rtol=1e-7, atol=1e-8 * np.abs(matrix).max())


# Degenerate data


@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("missing", ["C", "eigenvalues"])
def test_without_signal_everything_is_noise(rng, N, T, missing):
    lam, Yr, G0, N, C, Sigma, orders = random_problem(rng, N, T)
    C, lam = (0.0 * C, lam) if missing == "C" else (C, 0.0 * lam)
    actual, noise = refined_covariances(lam, Yr, G0, N, C, Sigma, orders, steps=3)
    assert_array_equal(actual, C)  # nothing is said about it
    expected = covariance_of_moments(Yr.T @ Yr + G0, N, orders, include_uncertainty=True)
    assert_allclose(noise, expected, rtol=1e-7, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("N, T", [(8, 1), (10, 3), (4, 30)])
def test_task_of_zeros_stays_apart(rng, N, T):
    """The others get what they get without it."""
    lam, Yr, G0, N, C, Sigma, orders = random_problem(rng, N, T)
    expected = refined_covariances(lam, Yr, G0, N, C, Sigma, orders, steps=5)

    def beside(S, variance):
        return np.pad(S, (1, 0)) + np.diag(np.eye(T + 1)[0] * variance)

    more = np.array([np.insert(order + 1, rng.integers(T + 1), 0) for order in orders])
    data = np.pad(Yr, [(0, 0), (1, 0)]), beside(G0, 0.0)
    C, Sigma = refined_covariances(lam, *data, N, beside(C, 2.0), beside(Sigma, 3.0), more, steps=5)
    assert_array_equal(C[0], np.zeros(T + 1))
    assert_array_equal(Sigma[0], np.eye(T + 1)[0] * 1e-4)
    for actual, matrix in zip((C[1:, 1:], Sigma[1:, 1:]), expected, strict=True):
        assert_allclose(actual, matrix, rtol=1e-7, atol=1e-8 * np.abs(matrix).max())


@pytest.mark.parametrize("T", [1, 4])
def test_targets_of_zeros_only(rng, T):
    lam, Yr, G0, N, C, Sigma, orders = random_problem(rng, 6, T)
    """Nothing is refined: without any signal C would be zero, and no covariance."""
    found = refined_covariances(lam, 0.0 * Yr, 0.0 * G0, N, C, Sigma, orders, steps=60)
    assert_array_equal(found[0], C)
    assert_array_equal(found[1], Sigma)


def test_copies_of_rows_and_of_tasks(rng):
    """Half the eigenvalues are zero, and each task is there twice."""
    lam, Yr, G0, N, C, Sigma, orders = random_problem(rng, 12, 6)
    lam[::2] = 0.0
    Yr[:, 3:] = Yr[:, :3]
    C, Sigma = refined_covariances(lam, Yr, G0, N, C, Sigma, orders, steps=60)
    assert_covariances(C, Sigma)
