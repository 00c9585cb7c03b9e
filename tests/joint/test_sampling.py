"""Draws of the missing targets, against the moments of dense Gaussians."""

import numpy as np
import pytest
import tensorflow as tf
from patterns import PATTERNS, random_joint
from problems import assert_close, assert_moments

from gpflow_cool import KroneckerMTGP
from gpflow_cool.joint import missing, sampling


def system_of(j):
    data = (j.X, j.with_holes)
    return KroneckerMTGP.ground_truth(data, j.gpflow_kernel(), j.C, j.Sigma).observed_system()


@pytest.mark.parametrize("max_dense, rtol", [(2000, 1e-8), (0, 1e-6)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_completions_have_the_exact_moments(rng, pattern, max_dense, rtol, monkeypatch):
    monkeypatch.setattr(missing, "MAX_DENSE", max_dense)
    j = random_joint(rng, 6, 3, pattern)
    m = ~j.o
    mean, cov = j.condition(j.S[:, m], j.S[np.ix_(m, m)])
    noise = rng.normal(size=(2, 4000, 6, 3))
    Y = sampling.draw_completions(system_of(j), tf.constant(j.with_holes), *noise).numpy()
    assert np.array_equal(Y[:, j.mask], np.broadcast_to(j.Y[j.mask], Y[:, j.mask].shape))
    draws = np.array([y.ravel(order="F")[m] for y in Y])
    assert_moments(draws, mean, cov)
    zero = np.zeros((1, 6, 3))
    average = sampling.draw_completions(system_of(j), tf.constant(j.with_holes), zero, zero)[0]
    assert_close(average.numpy().ravel(order="F")[m], mean, rtol=rtol)


def test_pairs_are_draws_of_numbers_and_of_their_opposites(rng, monkeypatch):
    j = random_joint(rng, 6, 3, "random_pattern")
    half = rng.normal(size=(2, 3, *j.with_holes.shape))
    signal, noise = np.concatenate([half, -half], axis=1)
    for largest in (missing.MAX_DENSE, 0):  # a factor, or conjugate gradients
        monkeypatch.setattr(missing, "MAX_DENSE", largest)
        Y = tf.constant(j.with_holes)
        expected = sampling.draw_completions(system_of(j), Y, signal, noise)
        assert_close(sampling.draw_pairs(system_of(j), Y, *half), expected.numpy(), rtol=1e-7)


def test_draws_change_little_when_the_covariances_do(rng):
    """Eigenvectors may flip their sign for nothing; draws must not show it."""
    j = random_joint(rng, 8, 3, "random_pattern")
    near = j._replace(C=j.C * (1 + 1e-7), X=j.X * (1 + 1e-7))
    noise = rng.normal(size=(2, 5, 8, 3))
    draws = [
        sampling.draw_completions(system_of(each), tf.constant(j.with_holes), *noise)
        for each in (j, near)
    ]
    assert np.max(np.abs(draws[0] - draws[1])) < 1e-5
