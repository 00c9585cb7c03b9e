"""The system of features against dense algebra on K = F F^T, and its gradient."""

from fractions import Fraction

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import assert_close

from gpflow_cool.systems.eigen import EigenSystem
from gpflow_cool.systems.statistics import (
    FeatureSystem,
    Statistics,
    decompose,
    decompose_rows,
    row_statistics,
)

SHAPES = [(1, 1, 1), (7, 2, 3), (12, 3, 4), (4, 1, 5), (6, 6, 3), (5, 8, 2)]
RATIOS = np.array([0.0, 0.02, 1.0, 50.0])


class Problem:
    """K = F F^T plus a rest that the features do not see, and targets."""

    def __init__(self, rng, N, R, T, rest=0.3):
        self.F = rng.normal(size=(N, R))
        self.Y = rng.normal(size=(N, T))
        self.rest = rest * rng.uniform(size=N)

    def statistics(self, F=None):
        F = self.F if F is None else F
        diagonal = np.sum(F**2, axis=1) + self.rest
        return row_statistics(*map(tf.constant, (F, self.Y, diagonal)))

    def dense(self, r, F=None):
        """G(r), and log|r K + I| plus r times the slack."""
        F = self.F if F is None else F
        systems = [ratio * F @ F.T + np.eye(len(F)) for ratio in r]
        gram = np.stack([self.Y.T @ np.linalg.solve(S, self.Y) for S in systems])
        log_det = np.array([np.linalg.slogdet(S)[1] for S in systems])
        return gram, log_det + r * np.sum(self.rest)


@pytest.mark.parametrize("N, R, T", SHAPES)
def test_values_equal_dense(rng, N, R, T):
    p = Problem(rng, N, R, T)
    gram, log_det = FeatureSystem(p.statistics())(RATIOS)
    expected = p.dense(RATIOS)
    assert_close(gram, expected[0])
    assert_close(log_det, expected[1])


@pytest.mark.parametrize("N, R, T", SHAPES)
def test_rows_themselves_give_what_the_eigenvectors_of_K_give(rng, N, R, T):
    p = Problem(rng, N, R, T, rest=0.0)
    exact = EigenSystem(tf.constant(p.F @ p.F.T), p.Y)
    for F in (p.F, np.hstack([p.F, 2.0 * p.F[:, :1], np.zeros((N, 1))])):
        known = decompose_rows(tf.constant(F), tf.constant(p.Y))
        assert_close(known.E * known.spectrum.lam @ tf.transpose(known.E), F.T @ F)
        system = FeatureSystem(p.statistics(F), known)
        extra = F.shape[1] - R
        if not extra:
            for one, other in zip(system(RATIOS), exact(tf.constant(RATIOS)), strict=True):
                assert_close(one, other)
        for one, other in zip(system(RATIOS), p.dense(RATIOS, F), strict=True):
            assert_close(one, other)


def of_statistics(r, statistics, has_slack):
    """G(r) and the log determinant as functions of sums over rows that need not fit each other."""
    FF, FY, YY, trace, _ = statistics
    eye = np.eye(len(FF))
    gram = [YY - ratio * FY.T @ np.linalg.solve(ratio * FF + eye, FY) for ratio in r]
    log_det = np.array([np.linalg.slogdet(ratio * FF + eye)[1] for ratio in r])
    return np.stack(gram), log_det + has_slack * r * (trace - np.trace(FF))


@pytest.mark.parametrize("of_rows", [False, True])
@pytest.mark.parametrize("N, R, T", [(1, 1, 1), (7, 2, 3), (12, 4, 2), (4, 1, 5), (6, 6, 3)])
def test_gradient_by_differences(rng, N, R, T, of_rows):
    """With respect to ratios and all sums, of rows with slack, or decomposed themselves."""
    p, r = Problem(rng, N, R, T, rest=0.0 if of_rows else 0.3), np.array([0.2, 1.0, 3.0])
    A, a = rng.normal(size=(3, T, T)), rng.normal(size=3)
    known = decompose_rows(tf.constant(p.F), tf.constant(p.Y)) if of_rows else None
    tensors = [tf.constant(r), *p.statistics()]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        gram, log_det = FeatureSystem(Statistics(*tensors[1:]), known)(tensors[0])
        total = tf.reduce_sum(A * gram) + tf.reduce_sum(a * log_det)
    arrays = [part.numpy() for part in tensors]
    for i, gradient in enumerate(tape.gradient(total, tensors)):
        direction = rng.uniform(-1.0, 1.0, size=arrays[i].shape)
        if i in (1, 3):  # F^T F and Y^T Y stay symmetric
            direction = direction + direction.T

        def along(h, i=i, direction=direction):
            moved = [part + h * direction if i == k else part for k, part in enumerate(arrays)]
            gram, log_det = of_statistics(moved[0], moved[1:], not of_rows)
            return np.sum(A * gram) + a @ log_det

        size = np.sum(np.abs(gradient * direction))
        actual, expected = np.sum(gradient * direction), ref.derivative(along, 1e-3)
        assert_allclose(actual, expected, rtol=1e-7, atol=1e-8 * size)


def test_statistics_of_parts_add_up(rng):
    p = Problem(rng, 9, 3, 2)
    diagonal = np.sum(p.F**2, axis=1) + p.rest
    parts = [
        row_statistics(*(tf.constant(array[rows], tf.float64) for array in (p.F, p.Y, diagonal)))
        for rows in (slice(4), slice(4, 9))
    ]
    for first, second, expected in zip(*parts, p.statistics(), strict=True):
        assert_close(first + second, expected, rtol=1e-14)


def test_features_that_repeat_span_what_one_of_them_does(rng):
    p = Problem(rng, 9, 3, 2)
    F = np.hstack([p.F, p.F[:, :2], np.zeros((9, 1))])
    for one, other in zip(FeatureSystem(p.statistics(F))(RATIOS), p.dense(RATIOS, F), strict=True):
        assert_close(one, other)


def test_features_of_very_different_lengths_keep_their_digits(rng):
    """Ten features from 1 down to 1e-9, as inducing points with a long lengthscale have them."""
    lengths = np.logspace(0, -9, 10)
    F = np.linalg.qr(rng.normal(size=(30, 10)))[0] * lengths
    p = Problem(rng, 30, 10, 2, rest=0.0)
    found = decompose(p.statistics(F)).spectrum
    assert_allclose(np.sort(found.lam), np.sort(lengths**2), rtol=1e-5)
    known = p.Y.T @ (F / lengths)
    r = np.array([1e3, 1e18])
    explained = [known * (x * lengths**2 / (x * lengths**2 + 1.0)) @ known.T for x in r]
    assert_close(found.gram(tf.constant(r)), p.Y.T @ p.Y - np.array(explained), rtol=1e-5)


def test_slack_that_may_be_rounding_counts(rng):
    p = Problem(rng, 9, 3, 2, rest=0.0)
    trace = np.sum(p.F**2) * (1.0 - 1e-14)
    statistics = p.statistics()._replace(trace=tf.constant(trace))
    slack = decompose(statistics).spectrum.slack
    assert_close(slack, 1.5 * np.finfo(float).eps * trace, rtol=1e-12)


def test_single_precision_rows_have_sums_in_double_precision(rng):
    p = Problem(rng, 7, 2, 2)
    rows = [part.astype(np.float32) for part in (p.F, p.Y, p.rest)]
    doubles = row_statistics(*(tf.constant(part, tf.float64) for part in rows))
    for one, other in zip(row_statistics(*map(tf.constant, rows)), doubles, strict=True):
        assert_close(one, other, rtol=1e-14)


@pytest.mark.parametrize("N", [40, 500])
def test_blocks_of_rows_give_what_all_rows_give(rng, N):
    p = Problem(rng, N, 3, 2, rest=0.0)
    arrays = tf.constant(p.F), tf.constant(p.Y)
    blocks = decompose_rows(*arrays).spectrum
    whole = tf.function(decompose_rows)(*arrays).spectrum  # TensorFlow's, not LAPACK's
    r = tf.constant(RATIOS)
    assert_close(blocks.gram(r), whole.gram(r))
    assert_close(blocks.log_det(r), whole.log_det(r))
    assert_close(blocks.gram(r), p.dense(RATIOS)[0])


def exact_gram(F, Y, r):
    """G(r) of two features in exact arithmetic: Y^T Y - Psi^T (Phi + I / r)^-1 Psi."""
    F, Y = ([[Fraction(float(x)) for x in column] for column in A.T] for A in (F, Y))
    dot = lambda a, b: sum(x * y for x, y in zip(a, b, strict=True))  # noqa: E731
    (p, q), (_, s) = ([dot(f, g) + (f is g) / Fraction(r) for g in F] for f in F)
    det = p * s - q * q
    inverse = [[s / det, -q / det], [-q / det, p / det]]
    Psi = [[dot(f, y) for f in F] for y in Y]
    explained = lambda a, b: sum(  # noqa: E731
        a[i] * inverse[i][j] * b[j] for i in range(2) for j in range(2)
    )
    return [[float(dot(y, z) - explained(a, b)) for z, b in zip(Y, Psi)] for y, a in zip(Y, Psi)]  # noqa: B905


@pytest.mark.parametrize("offset, r", [(0.0, 1.0), (1e4, 1e3), (1e8, 1e8), (1e8, 1e16)])
def test_rows_of_targets_far_from_zero_lose_no_digits(rng, offset, r):
    x = rng.normal(size=50)
    F = np.column_stack([x, np.ones(50)])
    Y = x[:, None] * [1.0, -0.4] + 0.1 * rng.normal(size=(50, 2)) + offset
    known = decompose_rows(tf.constant(F), tf.constant(Y)).spectrum
    expected = exact_gram(F, Y, r)
    # Rounding of rows of length offset sqrt(50), where .1 sqrt(50) is left of them.
    assert_close(known.gram(tf.constant([r], tf.float64))[0], expected, 1e-10 + 1e-14 * offset)
