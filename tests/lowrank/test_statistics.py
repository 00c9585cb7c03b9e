"""The chain on statistics of features, against dense algebra on K = F F^T."""

import warnings
from fractions import Fraction

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS, assert_close
from properties.cases import make_data, make_model, random_case

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.systems.spectrum import Spectrum
from gpflow_cool.joint.kronecker import spectrum_log_evidence, task_basis
from gpflow_cool.systems.statistics import (
    Statistics,
    decompose,
    decompose_rows,
    products_left,
    row_statistics,
    statistics_log_evidence,
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


def test_slack_that_may_be_rounding_counts(rng):
    p = Problem(rng, 9, 3, 2, rest=0.0)
    lower = p.diagonal * (1.0 - 1e-14)
    slack = decompose(p.statistics(diagonal=lower)).spectrum.slack.numpy()
    assert_close(slack, 1.5 * np.finfo(float).eps * lower.sum(), rtol=1e-12)


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


# Rows in memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, R, T", SHAPES)
def test_decomposition_of_rows_equals_dense(rng, N, R, T, learning):
    p = Problem(rng, N, R, T, rest=0.0)
    for F in (p.F, np.hstack([p.F, 2.0 * p.F[:, :1]])):
        known = decompose_rows(tf.constant(F), tf.constant(p.Y))
        assert_close(known.E * known.spectrum.lam @ tf.transpose(known.E), F.T @ F)
        terms = statistics_log_likelihoods(
            p.statistics(F=F), p.b, p.sigma2, learning=learning, decomposition=known
        )
        expected = ref.conditional_log_likelihoods(F @ F.T, p.Y, p.b, p.sigma2, learning)
        assert_close(terms, expected)


@pytest.mark.slow
def test_blocks_of_rows_give_what_all_rows_give(rng):
    p = Problem(rng, 500, 3, 2)
    blocks = decompose_rows(tf.constant(p.F), tf.constant(p.Y)).spectrum  # of 80 rows each
    whole = tf.function(decompose_rows)(tf.constant(p.F), tf.constant(p.Y)).spectrum
    assert_close(blocks.lam, whole.lam)
    assert_close(blocks.G0, whole.G0)
    assert_close(np.abs(blocks.Yr), np.abs(whole.Yr))


def fractions(A):
    return [[Fraction(float(entry)) for entry in row] for row in A]


def product(A, B):
    return [[sum(a * b for a, b in zip(r, c, strict=True)) for c in zip(*B)] for r in A]  # noqa: B905


def solved(A, B):
    """A^-1 B and the determinant of A, of fractions, by elimination."""
    rows, det = [[*a, *b] for a, b in zip(A, B, strict=True)], Fraction(1)
    for i in range(len(A)):
        det *= rows[i][i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(len(A)):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i], strict=True)]
    return [row[len(A) :] for row in rows], det


def exact_terms_of_two_tasks(F, Y, b, sigma2):
    """The hierarchical terms in exact arithmetic but for their logarithms."""
    N, F, Y = len(F), fractions(F), fractions(Y)
    Ft, Yt = list(zip(*F)), list(zip(*Y))  # noqa: B905
    FF, FY, YY = product(Ft, F), product(Ft, Y), product(Yt, Y)
    terms = []
    for t, (b_t, s_t) in enumerate(zip(b, sigma2, strict=True)):
        b_t, s_t = Fraction(float(b_t)), Fraction(float(s_t))
        A = [[x + (s_t / b_t if i == j else 0) for j, x in enumerate(r)] for i, r in enumerate(FF)]
        half, det = solved(A, FY)
        inside = product(list(zip(*FY)), half)  # noqa: B905
        G = [[(y - i) / s_t for y, i in zip(*rows, strict=True)] for rows in zip(YY, inside)]  # noqa: B905
        w = G[0][1] / (1 + G[0][0]) if t else Fraction(0)
        q = G[t][t] - w * G[0][1] if t else G[0][0]  # w^2 (1 + G) + ... at the best w
        log_det = len(FF) * np.log(float(b_t / s_t)) + np.log(float(det)) + N * np.log(float(s_t))
        terms.append(-0.5 * (float(q) + log_det + N * np.log(2 * np.pi)))
    return np.array(terms)


def test_exact_arithmetic_equals_dense(rng):
    p = Problem(rng, 9, 2, 2)
    expected = ref.conditional_log_likelihoods(p.F @ p.F.T, p.Y, p.b, p.sigma2, "hierarchical")
    assert_close(exact_terms_of_two_tasks(p.F, p.Y, p.b, p.sigma2), expected)


@pytest.mark.slow
@pytest.mark.parametrize("b, sigma2", [(1.0, 0.01), (1e16, 0.01), (1e16, 1e-4)])
def test_linear_features_of_targets_far_from_zero_lose_no_digits(rng, b, sigma2):
    X = rng.normal(size=(50, 2))
    Y = X @ rng.normal(size=(2, 2)) + 0.1 * rng.normal(size=(50, 2)) + 1e8
    kernel = gpflow.kernels.Linear() + gpflow.kernels.Constant()
    with pytest.warns(UserWarning, match="as far from zero as from their mean"):
        model = CoolMTGP((X, Y), kernel, b=[b, b], sigma2=[sigma2, sigma2])
    expected = exact_terms_of_two_tasks(np.hstack([X, np.ones((50, 1))]), Y, [b] * 2, [sigma2] * 2)
    assert_close(model.conditional_log_likelihoods(), expected, rtol=1e-6)
    gpflow.set_trainable(model.b, False)
    gpflow.set_trainable(model.sigma2, False)
    assert_close(model.profile().evaluate().loss, -np.sum(expected), rtol=1e-6)
    with pytest.warns(UserWarning, match="as far from zero as from their mean"):
        first = KroneckerMTGP(
            (X, Y[:, :1]), kernel, task_covariance=[[b]], noise_covariance=[[sigma2]]
        )
    assert_close(first.log_marginal_likelihood(), expected[0], rtol=1e-6)
    evidence = super(KroneckerMTGP, first).log_marginal_likelihood()
    assert_close(evidence, expected[0], rtol=1e-6)


def test_evidence_with_a_given_decomposition_equals_dense(rng):
    p = Problem(rng, 9, 3, 2, rest=0.0)
    A, B = rng.normal(size=(2, 2, 2))
    C, Sigma = A @ A.T, B @ B.T + 0.3 * np.eye(2)
    known = decompose_rows(tf.constant(p.F), tf.constant(p.Y))
    actual = statistics_log_evidence(p.statistics(), C, Sigma, decomposition=known)
    assert_close(actual, ref.log_evidence(p.F @ p.F.T, p.Y, C, Sigma))


@pytest.mark.parametrize("N, M, lengthscale", [(400, 50, 3.0), (60, 80, 5.0)])
def test_profiled_loss_is_the_loss_at_its_parameters_with_long_lengthscales(N, M, lengthscale):
    """Eigenvectors of tiny eigenvalues hold a part of Y by rounding alone."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(N, 1))
    Y = np.hstack([np.sin(4 * X), np.cos(3 * X) + X]) + 0.05 * rng.normal(size=(N, 2))
    kernel = gpflow.kernels.SquaredExponential(lengthscales=lengthscale)
    model = SparseCoolMTGP((X, Y - Y.mean(axis=0)), kernel, np.linspace(0, 1, M)[:, None])
    found = model.profile().evaluate()
    assert found.rounding < 1.0
    assert abs(found.loss - float(model.training_loss())) < max(found.rounding, 1e-6)


# What features leave of the targets ---------------------------------------------------------------


def of_mean(Y):
    """The spectrum of one feature, which is constant."""
    Yr = np.full([1, len(Y)], len(Y) ** -0.5) @ Y
    return Spectrum(np.ones(1), Yr, Y.T @ Y - Yr.T @ Yr, float(len(Y)))


@pytest.mark.parametrize("N", [2, 5, 40, 2000])
def test_products_that_cancel_have_no_negative_eigenvalues(rng, N):
    """Near copies of a task at 1e6, where the feature explains the mean; little noise, or much."""
    negative = 0
    for _ in range(20):
        Y = rng.normal(size=(N, 1)) + 1e-6 * rng.normal(size=(N, 3)) + 1e6
        spectrum, rounding = of_mean(Y), np.finfo(float).eps * np.sum(Y[:, 0] ** 2)
        plain = spectrum.G0
        lowest = min(0.0, np.linalg.eigvalsh(plain)[0])  # targets of equal length
        negative += lowest < 0.0
        G0 = products_left(spectrum, np.full(3, 1e-12)).numpy()
        assert np.linalg.eigvalsh(G0)[0] > -0.5 * rounding
        assert_allclose(G0 - plain, -lowest * np.eye(3), atol=rounding)
        assert_array_equal(products_left(spectrum, np.full(3, 1e3 * N)), plain)
    assert negative > 2  # what this test is about


def test_products_of_other_targets_keep_their_digits(rng):
    """Three targets at 3e6 beside one at zero, in units far apart, and one that is empty."""
    N, units = 50, np.array([1e20, 1.0, 1e-20, 1.0, 0.0])
    noise = rng.normal(size=(N, 5)) @ rng.normal(size=(5, 5))
    Y = (noise + [0.0, 3e6, 3e6, 3e6, 0.0]) * units
    G0 = products_left(of_mean(Y), 1e-12 * np.square(units) + 1e-60).numpy()
    centred = Y - Y.mean(axis=0)
    assert_allclose(G0[0, 0], centred[:, 0] @ centred[:, 0], rtol=1e-13)
    lengths = np.linalg.norm(Y[:, :4], axis=0)
    cosines = (G0 - centred.T @ centred)[:4, :4] / lengths / lengths[:, None]
    assert np.max(np.abs(cosines)) < 10.0 * np.sqrt(N) * np.finfo(float).eps
    assert_array_equal(G0[4], 0.0)


def test_products_of_which_much_is_left_are_the_plain_ones(rng):
    spectrum = of_mean(rng.normal(size=(6, 3)))
    assert_array_equal(products_left(spectrum, np.full(3, 1e-12)), spectrum.G0)


def test_near_copies_of_a_task_far_from_zero_have_a_loss():
    """`random_case(80186)`: one inducing point, rows that are all equal."""
    case = random_case(80186)
    data = make_data(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # targets far from zero
        model = make_model(case, data)
        model.fit(verbose=0)
    assert np.isfinite(model.training_loss())
    assert np.isfinite(model.log_marginal_likelihood())
