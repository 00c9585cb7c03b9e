"""The chain on statistics of features, against dense algebra on K = F F^T."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from problems import LEARNINGS, assert_close

from gpflow_cool.joint.kronecker import spectrum_log_evidence, task_basis
from gpflow_cool.lowrank.statistics import (
    Statistics,
    decompose,
    row_statistics,
    statistics_log_likelihoods,
)

SHAPES = [(1, 1, 1), (7, 2, 3), (12, 3, 4), (4, 1, 5), (6, 6, 3), (5, 8, 2)]


class Problem:
    """K = F F^T plus a rest that the features do not see, and targets."""

    def __init__(self, rng, N, R, T, rest=0.3):
        self.F = rng.normal(size=(N, R))
        self.Y = rng.normal(size=(N, T))
        self.rest = rest * rng.uniform(size=N)
        self.diagonal = np.sum(self.F**2, axis=1) + self.rest
        self.b, self.sigma2 = rng.uniform(0.5, 2.0, size=T), rng.uniform(0.05, 0.5, size=T)

    def statistics(self, F=None, Y=None, diagonal=None):
        parts = (self.F, self.Y, self.diagonal)
        given = (F, Y, diagonal)
        return row_statistics(
            *(tf.constant(p if g is None else g) for p, g in zip(parts, given, strict=True))
        )

    def dense(self, F, Y, diagonal, b, sigma2, learning):
        terms = ref.conditional_log_likelihoods(F @ F.T, Y, b, sigma2, learning)
        return terms - 0.5 * b / sigma2 * (np.sum(diagonal) - np.sum(F**2))


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, R, T", SHAPES)
def test_terms_equal_dense(rng, N, R, T, learning):
    p = Problem(rng, N, R, T)
    terms = statistics_log_likelihoods(p.statistics(), p.b, p.sigma2, learning=learning)
    assert_close(terms, p.dense(p.F, p.Y, p.diagonal, p.b, p.sigma2, learning))


@pytest.mark.slow
@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, R, T", [(7, 2, 3), (6, 6, 3), (5, 8, 2), (4, 1, 5)])
def test_gradients_equal_finite_differences_of_dense(rng, N, R, T, learning):
    p = Problem(rng, N, R, T)
    arrays = [p.F, p.Y, p.diagonal, p.b, p.sigma2]
    g = rng.normal(size=T)
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        F, Y, diagonal, b, sigma2 = tensors
        terms = statistics_log_likelihoods(
            row_statistics(F, Y, diagonal), b, sigma2, learning=learning
        )
        total = tf.reduce_sum(g * terms)
    for i, actual in enumerate(tape.gradient(total, tensors)):
        direction = rng.normal(size=arrays[i].shape)

        def along(h, i=i, direction=direction):
            moved = [a + h * direction if i == j else a for j, a in enumerate(arrays)]
            return float(g @ p.dense(*moved, learning))

        step = 0.002 if i < 3 else 0.005 * float(np.min(arrays[i]))
        expected = ref.derivative(along, step)
        assert_close(np.sum(actual.numpy() * direction), expected, rtol=1e-7)


def test_statistics_of_parts_add_up(rng):
    p = Problem(rng, 9, 3, 2)
    parts = [p.statistics(p.F[n], p.Y[n], p.diagonal[n]) for n in (slice(4), slice(4, 9))]
    for first, second, expected in zip(*parts, p.statistics(), strict=True):
        assert_close(first + second, expected, rtol=1e-14)


def test_features_that_repeat_span_what_one_of_them_does(rng):
    p = Problem(rng, 9, 3, 2)
    F = np.hstack([p.F, p.F[:, :2], np.zeros((9, 1))])
    diagonal = np.sum(F**2, axis=1) + p.rest
    statistics = p.statistics(F=F, diagonal=diagonal)
    terms = statistics_log_likelihoods(statistics, p.b, p.sigma2, learning="hierarchical")
    assert_close(terms, p.dense(F, p.Y, diagonal, p.b, p.sigma2, "hierarchical"))


def test_slack_is_never_negative(rng):
    p = Problem(rng, 9, 3, 2, rest=0.0)
    lower = p.diagonal * (1.0 - 1e-14)
    assert decompose(p.statistics(diagonal=lower)).spectrum.slack.numpy() == 0.0


@pytest.mark.parametrize("N, R, T", SHAPES)
def test_evidence_equals_dense(rng, N, R, T):
    p = Problem(rng, N, R, T)
    A, B = rng.normal(size=(2, T, T))
    C, Sigma = A @ A.T, B @ B.T + 0.3 * np.eye(T)
    basis = task_basis(tf.constant(C), tf.constant(Sigma))
    actual = spectrum_log_evidence(decompose(p.statistics()).spectrum, basis)
    slack = 0.5 * np.sum(p.rest) * np.trace(np.linalg.solve(Sigma, C))
    assert_close(actual, ref.log_evidence(p.F @ p.F.T, p.Y, C, Sigma) - slack)


def test_statistics_are_float64_of_float32_rows(rng):
    p = Problem(rng, 7, 2, 2)
    single = row_statistics(*(tf.constant(a, tf.float32) for a in (p.F, p.Y, p.diagonal)))
    assert {part.dtype for part in single} == {tf.float64}
    assert isinstance(single, Statistics)
