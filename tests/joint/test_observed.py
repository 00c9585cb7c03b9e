"""Algebra on observed entries, factorised and by conjugate gradients, against dense NumPy."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from patterns import PATTERNS, random_joint
from problems import assert_close, assert_moments

from gpflow_cool.joint import observed
from gpflow_cool.linalg import eigh

PATHS = {"cholesky": 1e-8, "conjugate_gradients": 1e-6}
SIZES = [(7, 3), (12, 4), (2, 5), (9, 1)]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "conjugate_gradients":
        monkeypatch.setattr(observed, "MAX_DENSE", 0)
    return request.param


def system_of(j):
    lam, U = eigh(tf.constant(j.K))
    return observed.observed_system(U, lam, tf.constant(j.C), tf.constant(j.Sigma), j.mask)


def embedded(j, values):
    full = np.zeros(j.Y.size)
    full[j.o] = values
    return full.reshape(j.Y.shape, order="F")


@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_solve_equals_dense(rng, N, T, pattern, path):
    j = random_joint(rng, N, T, pattern)
    system = system_of(j)
    assert (system.L is None) == (path == "conjugate_gradients")
    V = rng.normal(size=(2, N, T))
    expected = [embedded(j, np.linalg.solve(j.S_oo, v.ravel(order="F")[j.o])) for v in V]
    assert_close(observed.solve(system, tf.constant(V)), expected, rtol=PATHS[path])
    compiled = tf.function(lambda V: observed.solve(system, V), autograph=False)
    assert_close(compiled(tf.constant(V)), expected, rtol=PATHS[path])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_multiply_is_all_of_the_covariance(rng, pattern):
    j = random_joint(rng, 6, 3, pattern)
    V = rng.normal(size=(6, 3))
    expected = (j.S @ V.ravel(order="F")).reshape(6, 3, order="F")
    assert_close(observed.multiply(system_of(j), tf.constant(V[:, None]))[:, 0], expected)


@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_evidence_equals_dense(rng, N, T, pattern, path):
    j = random_joint(rng, N, T, pattern)
    actual = observed.observed_log_evidence(system_of(j), tf.constant(j.with_holes))
    assert_close(actual, ref.gaussian_log_density(j.y_o, j.S_oo), rtol=1e-9)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_completions_have_the_moments_of_the_missing_entries(rng, pattern, path):
    j = random_joint(rng, 6, 3, pattern)
    m = ~j.o
    mean, cov = j.condition(j.S[:, m], j.S[np.ix_(m, m)])
    noise = rng.normal(size=(2, 4000, 6, 3))
    Y = observed.draw_completions(system_of(j), tf.constant(j.with_holes), *noise).numpy()
    assert np.array_equal(Y[:, j.mask], np.broadcast_to(j.Y[j.mask], Y[:, j.mask].shape))
    draws = np.array([y.ravel(order="F")[m] for y in Y])
    assert_moments(draws, mean, cov)
    zero = np.zeros((1, 6, 3))
    average = observed.draw_completions(system_of(j), tf.constant(j.with_holes), zero, zero)[0]
    assert_close(average.numpy().ravel(order="F")[m], mean, rtol=PATHS[path])


def test_draws_change_little_when_the_covariances_do(rng):
    """Eigenvectors may flip their sign for nothing; draws must not show it."""
    j = random_joint(rng, 8, 3, "random_pattern")
    near = j._replace(C=j.C * (1 + 1e-7), X=j.X * (1 + 1e-7))
    noise = rng.normal(size=(2, 5, 8, 3))
    draws = [
        observed.draw_completions(system_of(each), tf.constant(j.with_holes), *noise)
        for each in (j, near)
    ]
    assert np.max(np.abs(draws[0] - draws[1])) < 1e-5


def test_white_noise_in_the_kernel_helps_conjugate_gradients(rng, monkeypatch):
    """The least eigenvalue of K counts as noise, so that K = I is solved in a step or two."""
    j = random_joint(rng, 30, 4, "random_pattern")
    monkeypatch.setattr(observed, "MAX_DENSE", 0)
    monkeypatch.setattr(observed, "CG_MAX_ITERATIONS", 2)
    Sigma = 1e-6 * j.Sigma
    eye = tf.eye(30, dtype=tf.float64)
    system = observed.observed_system(eye, tf.ones(30, tf.float64), j.C, Sigma, j.mask)
    V = rng.normal(size=(1, 30, 4))
    S = (np.kron(j.C, np.eye(30)) + np.kron(Sigma, np.eye(30)))[np.ix_(j.o, j.o)]
    expected = embedded(j, np.linalg.solve(S, V[0].ravel(order="F")[j.o]))
    assert_close(observed.solve(system, tf.constant(V))[0], expected, rtol=1e-6)


def test_residuals_are_checked(rng, monkeypatch):
    j = random_joint(rng, 12, 3, "random_pattern")
    monkeypatch.setattr(observed, "MAX_DENSE", 0)
    monkeypatch.setattr(observed, "CG_MAX_ITERATIONS", 1)
    monkeypatch.setattr(observed, "MAX_REFINEMENTS", 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradients did not converge: the noi"):
        observed.solve(system_of(j), tf.constant(j.Y[None]))


def test_a_right_hand_side_of_zero_gives_zero(rng, path):
    j = random_joint(rng, 6, 3, "block")
    zero = np.zeros((1, 6, 3))
    assert np.array_equal(observed.solve(system_of(j), tf.constant(zero)), zero)
