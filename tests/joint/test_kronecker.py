"""The joint model in its own basis, against dense Kronecker algebra."""

from typing import NamedTuple

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import CASES, LAYOUTS, Problem, assert_close, random_problem
from scipy.stats import multivariate_normal

from gpflow_cool import KroneckerMTGP
from gpflow_cool.joint import kronecker
from gpflow_cool.linalg import eigh
from gpflow_cool.systems.eigen import EigenSystem, exact_spectrum
from gpflow_cool.systems.spectrum import Spectrum


class Joint(NamedTuple):
    """A problem with matrices C and Sigma of its own, and its solution."""

    p: Problem
    W: ref.Array
    B: ref.Array
    C: ref.Array
    Sigma: ref.Array
    basis: kronecker.TaskBasis
    solution: kronecker.JointSolution


def joint(rng, p, rank=None):
    """Random W and B (of a rank below T, if given); C and Sigma by the reference."""
    T = len(p.b)
    W = np.tril(rng.normal(size=(T, T)), -1)
    A = rng.normal(size=(T, rank or T))
    B = A @ A.T
    basis = kronecker.chain_task_basis(*map(tf.constant, (W, B, p.sigma2)))
    lam, U = eigh(tf.constant(p.K))
    solution = kronecker.solve_joint(U, exact_spectrum(lam, U, tf.constant(p.Y)), basis)
    C, Sigma = ref.task_covariance(W, B), ref.noise_covariance(W, p.sigma2)
    return Joint(p, W, B, C, Sigma, basis, solution)


def rotated(j, full_cov):
    _, Ks, Kss = j.p.kernels
    Knn = Kss if full_cov else np.diag(Kss)
    return kronecker.rotated_covariance(j.solution, tf.constant(Ks), tf.constant(Knn), full_cov)


# The basis


@pytest.mark.parametrize("T, rank", [(1, 1), (2, 2), (5, 5), (5, 2)])
def test_basis_diagonalises_signal_and_noise_together(rng, T, rank):
    j = joint(rng, random_problem(rng, 3, T), rank)
    P, P_inverse, d, log_det = (part.numpy() for part in j.basis)
    assert_close(P @ P.T, j.Sigma)
    assert_close(P @ np.diag(d) @ P.T, j.C)
    assert_close(P_inverse @ P, np.eye(T))
    assert_close(log_det, np.linalg.slogdet(P)[1])
    assert d.min() >= 0.0


def test_basis_of_a_nearly_singular_noise_loses_no_digits(rng):
    """Sigma's condition number is 1e16, where its own Cholesky factor means nothing."""
    W = np.tril(rng.normal(size=(3, 3)), -1)
    sigma2 = np.array([1.0, 1e-16, 1e-8])
    basis = kronecker.chain_task_basis(*map(tf.constant, (W, np.eye(3), sigma2)))
    P, P_inverse, _, log_det = (part.numpy() for part in basis)
    # P P^T = A diag(sigma2) A^T, so (I - W) P has orthogonal rows of squared lengths sigma2.
    whitened = (np.eye(3) - W) @ P / np.sqrt(sigma2)[:, None]
    assert_close(whitened @ whitened.T, np.eye(3), rtol=1e-7)
    assert_close(P_inverse @ P, np.eye(3), rtol=1e-7)
    assert_close(log_det, 0.5 * np.sum(np.log(sigma2)))


@pytest.mark.parametrize("T, rank", [(1, 1), (2, 2), (5, 5), (5, 2)])
def test_basis_of_any_two_covariances(rng, T, rank):
    """From C and Sigma alone; the basis itself is unique up to signs where all d differ."""
    j = joint(rng, random_problem(rng, 3, T), rank)
    basis = kronecker.task_basis(tf.constant(j.C), tf.constant(j.Sigma))
    P, P_inverse, d, log_det = (part.numpy() for part in basis)
    assert_close(P @ P.T, j.Sigma)
    assert_close(P @ np.diag(d) @ P.T, j.C)
    assert_close(P_inverse @ P, np.eye(T))
    assert_close(log_det, np.linalg.slogdet(P)[1])
    assert_close(d, j.basis.d)
    assert d.min() >= 0.0


@pytest.mark.parametrize("case", CASES)
def test_rotated_targets_are_independent(rng, case):
    """vec(Z) = (P^-1 (x) U^T) vec(Y): its covariance is diagonal, lam_n d_j + 1."""
    j = joint(rng, CASES[case](rng))
    U, lam, P = (part.numpy() for part in (j.solution.U, j.solution.lam, j.solution.P))
    rotation = np.kron(np.linalg.inv(P), U.T)
    assert_close(
        j.solution.Z.numpy().ravel(order="F"), rotation @ j.p.Y.ravel(order="F"), rtol=1e-8
    )
    covariance = rotation @ ref.joint_covariance(j.p.K, j.C, j.Sigma) @ rotation.T
    variances = np.outer(lam, j.solution.d) + 1.0
    assert_close(covariance, np.diag(variances.ravel(order="F")), rtol=1e-8)
    assert_close(j.solution.shrinkage, 1.0 / variances)


@pytest.mark.parametrize("case", CASES)
def test_dual_matrix_solves_the_joint_system(rng, case):
    """vec(alpha) = (C (x) I) (C (x) K + Sigma (x) I)^-1 vec(Y)."""
    j = joint(rng, CASES[case](rng))
    S = ref.joint_covariance(j.p.K, j.C, j.Sigma)
    expected = np.kron(j.C, np.eye(len(j.p.K))) @ np.linalg.solve(S, j.p.Y.ravel(order="F"))
    assert_close(j.solution.alpha.numpy().ravel(order="F"), expected, rtol=1e-8)


# Evidence and predictions


@pytest.mark.parametrize("case", CASES)
def test_evidence_is_task_major(rng, case):
    """vec stacks columns, so the task matrix is the left factor: the order, without a helper."""
    j = joint(rng, CASES[case](rng))
    S = np.kron(j.C, j.p.K) + np.kron(j.Sigma, np.eye(len(j.p.K)))
    expected = multivariate_normal(cov=S).logpdf(j.p.Y.ravel(order="F"))
    spectrum = exact_spectrum(*eigh(tf.constant(j.p.K)), tf.constant(j.p.Y))
    actual = kronecker.spectrum_log_evidence(spectrum, j.basis)
    assert_close(actual, expected)
    assert_close(actual, ref.log_evidence(j.p.K, j.p.Y, j.C, j.Sigma))


def evidence_gradients(K, Y, C, Sigma):
    """dJ = sum G dS with G = 1/2 (a a^T - S^-1), a = S^-1 vec(Y), S = C (x) K + Sigma (x) I."""
    N, T = Y.shape
    S = ref.joint_covariance(K, C, Sigma)
    a = np.linalg.solve(S, Y.ravel(order="F"))
    G = 0.5 * (np.outer(a, a) - np.linalg.inv(S)).reshape(T, N, T, N)
    return (
        np.einsum("tnum,tu->nm", G, C),
        -a.reshape(T, N).T,
        np.einsum("tnum,nm->tu", G, K),
        np.einsum("tnun->tu", G),
    )


def likelihood_and_gradients(arrays, g, dtype=tf.float64):
    """The log likelihood, and the gradient of g times it."""
    tensors = [tf.cast(array, dtype) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        K, Y, C, Sigma = tensors
        value = kronecker.kronecker_log_likelihood(EigenSystem(K, Y), C, Sigma)
        scaled = tf.cast(g, value.dtype) * value
    return value, tape.gradient(scaled, tensors)


@pytest.mark.parametrize("case", CASES)
def test_log_likelihood_and_its_gradients_equal_dense(rng, case):
    j = joint(rng, CASES[case](rng))
    arrays = j.p.K, j.p.Y, j.C, j.Sigma
    value, gradients = likelihood_and_gradients(arrays, 1.7)
    assert_close(value, ref.log_evidence(*arrays))
    for actual, expected in zip(gradients, evidence_gradients(*arrays), strict=True):
        assert_close(actual, 1.7 * expected, rtol=1e-7)
    directions = [rng.normal(size=array.shape) for array in arrays]
    directions = [d if i == 1 else d + d.T for i, d in enumerate(directions)]
    slope = ref.derivative(
        lambda h: ref.log_evidence(
            *(array + h * d for array, d in zip(arrays, directions, strict=True))
        ),
        step=1e-4 * np.linalg.eigvalsh(j.Sigma)[0],
    )
    actual = sum(np.sum(G * d) for G, d in zip(gradients, directions, strict=True))
    assert_close(actual, 1.7 * slope, rtol=1e-6)  # rounding of six evidences over a small step


@pytest.mark.parametrize("equal", [2, 4])
def test_gradients_where_signal_to_noise_is_equal(rng, equal):
    """C = P diag(d) P^T with equal d: the basis is not unique, and the evidence is smooth there."""
    p = random_problem(rng, 6, 4)
    P = rng.normal(size=(4, 4))
    d = np.array([0.7, 0.7, 0.7, 0.7])
    d[equal:] = [1.9, 0.0][: 4 - equal]
    arrays = p.K, p.Y, (P * d) @ P.T, P @ P.T
    value, gradients = likelihood_and_gradients(arrays, 1.0)
    assert_close(value, ref.log_evidence(*arrays))
    for actual, expected in zip(gradients, evidence_gradients(*arrays), strict=True):
        assert_close(actual, expected, rtol=1e-8)


@pytest.mark.parametrize("copies", [1, 3])
def test_evidence_gradient_of_a_low_rank_spectrum_equals_finite_differences(rng, copies):
    """With completions, targets outside the span, and slack."""
    R, T, N = 3, 4, 9
    lam, Yr = rng.uniform(0.5, 2.0, size=R), rng.normal(size=(copies * R, T))
    C, Sigma, G0 = (A @ A.T + 0.3 * np.eye(T) for A in rng.normal(size=(3, T, T)))

    def evidence(C, Sigma, function=kronecker.spectrum_log_evidence):
        spectrum = Spectrum(*map(tf.constant, (lam, Yr, G0, np.float64(N))), slack=0.7)
        return function(spectrum, kronecker.task_basis(tf.constant(C), tf.constant(Sigma)))

    gradient = evidence(C, Sigma, kronecker.evidence_gradient)
    D = rng.normal(size=(T, T))
    D = 1e-2 * (D + D.T)
    slope = ref.derivative(lambda h: evidence(C + h * D, Sigma).numpy(), 1e-2)
    assert_close(np.sum(gradient.C * D), slope, rtol=1e-7)
    slope = ref.derivative(lambda h: evidence(C, Sigma + h * D).numpy(), 1e-2)
    assert_close(np.sum(gradient.Sigma * D), slope, rtol=1e-7)


def test_log_likelihood_in_float32(rng):
    """Single precision outside, double inside: digits are lost to the condition number of K."""
    j = joint(rng, random_problem(rng, 7, 3))
    arrays = j.p.K, j.p.Y, j.C, j.Sigma
    value, gradients = likelihood_and_gradients(arrays, 1.0, tf.float32)
    assert_close(value, ref.log_evidence(*arrays), rtol=1e-4)
    for actual, expected in zip(gradients, evidence_gradients(*arrays), strict=True):
        assert actual.dtype == tf.float32
        assert_close(actual, expected, rtol=1e-3)


@pytest.mark.parametrize("case", ["N1-T1", "N7-T3", "N2-T5", "N12-T4", "linear", "copies", "zeros"])
def test_em_step_equals_the_reference(rng, case):
    j = joint(rng, CASES[case](rng))
    lam = j.solution.lam.numpy()
    Yr = j.solution.U.numpy().T @ j.p.Y
    spectrum = exact_spectrum(j.solution.lam, j.solution.U, tf.constant(j.p.Y))
    actual = kronecker.em_step(spectrum, tf.constant(j.C), tf.constant(j.Sigma))
    for a, e in zip(actual, ref.em_step(lam, Yr, j.C, j.Sigma), strict=True):
        assert_close(a, e, rtol=1e-8)


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("case", CASES)
def test_predictions_in_every_layout(rng, case, rank):
    j = joint(rng, CASES[case](rng), rank)
    arguments = *j.p.kernels, j.p.Y, j.C, j.Sigma
    mean, f_cov = ref.predict_f(*arguments)
    _, y_cov = ref.predict_y(*arguments)
    assert_close(
        kronecker.predictive_mean(j.solution, tf.constant(j.p.kernels[1])), mean, rtol=1e-8
    )
    for full_cov, full_output_cov in LAYOUTS:
        q = rotated(j, full_cov)
        noisy = kronecker.add_rotated_noise(q, full_cov)
        for rotated_cov, expected in [(q, f_cov), (noisy, y_cov)]:
            actual = kronecker.task_layout(rotated_cov, j.solution.P, full_cov, full_output_cov)
            layout = ref.layout(expected, full_cov, full_output_cov)
            # Prior minus what the data explain: digits are lost relative to the prior.
            assert_close(actual, layout, rtol=1e-9 * max(1.0, np.abs(j.C).max()))


def test_rotated_variances_are_the_diagonal_and_never_negative(rng):
    p = random_problem(rng, 6, 3)
    p = p._replace(sigma2=np.full(3, 1e-14), Xnew=p.X)  # what is left is rounding
    j = joint(rng, p)
    variances = rotated(j, False).numpy()
    assert variances.min() >= 0.0
    rounding = np.finfo(float).eps * 100 * np.max(j.solution.d) * np.max(p.K)
    diagonal = np.diagonal(rotated(j, True), axis1=-2, axis2=-1)
    assert np.abs(variances - diagonal).max() <= rounding


def test_layouts_entry_by_entry(rng):
    """cov(f_t(x_m), f_u(x_n)) = sum_j P_tj P_uj q_j(x_m, x_n), with a batch in front."""
    q, P = rng.normal(size=(2, 3, 4, 4)), rng.normal(size=(3, 3))
    expected = np.zeros((2, 4, 3, 4, 3))
    for i, m, t, n, u, k in np.ndindex(2, 4, 3, 4, 3, 3):
        expected[i, m, t, n, u] += P[t, k] * P[u, k] * q[i, k, m, n]
    for full_cov, full_output_cov in LAYOUTS:
        part = q if full_cov else np.diagonal(q, axis1=-2, axis2=-1)
        actual = kronecker.task_layout(tf.constant(part), tf.constant(P), full_cov, full_output_cov)
        layouts = [ref.layout(one, full_cov, full_output_cov) for one in expected]
        assert_close(actual, np.stack(layouts))


def test_noise_is_added_where_a_point_meets_itself(rng):
    q = rng.normal(size=(2, 3, 4, 4))
    assert_close(kronecker.add_rotated_noise(tf.constant(q), True), q + np.eye(4), rtol=1e-15)
    assert_close(kronecker.add_rotated_noise(tf.constant(q[0]), False), q[0] + 1.0, rtol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("full_cov", [False, True])
def test_batches_equal_loops(rng, full_cov):
    j = joint(rng, random_problem(rng, 5, 3))
    Xnew = rng.normal(size=(2, 3, 4, 2))
    Ks = np.stack([[j.p.k(j.p.X, x) for x in row] for row in Xnew])  # [2, 3, N, M]
    Kss = np.stack([[j.p.k(x, x) for x in row] for row in Xnew])
    Knn = Kss if full_cov else np.diagonal(Kss, axis1=-2, axis2=-1)
    rows_first = tf.constant(np.moveaxis(Ks, 2, 0))
    mean = kronecker.predictive_mean(j.solution, rows_first)
    q = kronecker.rotated_covariance(j.solution, rows_first, tf.constant(Knn), full_cov)
    for i in np.ndindex(2, 3):
        arguments = j.solution, tf.constant(Ks[i])
        assert_close(mean[i], kronecker.predictive_mean(*arguments), rtol=1e-12)
        one = kronecker.rotated_covariance(*arguments, tf.constant(Knn[i]), full_cov)
        assert_close(q[i], one, rtol=1e-12)


# Conditioning at a point


KNOWN = {
    "none": [False, False, False, False],
    "first": [True, False, False, False],
    "last two": [False, False, True, True],
    "alternating": [True, False, True, False],
    "all": [True, True, True, True],
}


@pytest.mark.parametrize("known", KNOWN)
def test_condition_on_known_equals_dense_conditioning(rng, known):
    """Of any Gaussian: what is asked for need not be what is observed, nor `cross` symmetric."""
    T, known = 4, np.array(KNOWN[known])
    A = rng.normal(size=(3, 2 * T, 2 * T))
    both = A @ np.swapaxes(A, 1, 2) + 0.1 * np.eye(2 * T)  # of (asked, observed), three points
    mean, Y = rng.normal(size=(3, T)), rng.normal(size=(3, T))
    prior, cross, S = both[:, :T, :T], both[:, :T, T:], both[:, T:, T:]
    actual = kronecker.condition_on_known(
        *map(tf.constant, (S, cross, prior, mean, np.where(known, Y, np.nan)))
    )
    for m in range(3):
        gain = cross[m][:, known] @ np.linalg.inv(S[m][np.ix_(known, known)])
        assert_close(actual[0][m], mean[m] + gain @ (Y[m] - mean[m])[known], rtol=1e-8)
        assert_close(actual[1][m], prior[m] - gain @ cross[m][:, known].T, rtol=1e-8)


def test_condition_on_known_differs_from_point_to_point(rng):
    T = 3
    A = rng.normal(size=(2, T, T))
    S = A @ np.swapaxes(A, 1, 2) + 0.1 * np.eye(T)
    mean, Y = rng.normal(size=(2, T)), np.array([[np.nan, 1.0, np.nan], [0.5, np.nan, -2.0]])
    together = kronecker.condition_on_known(*map(tf.constant, (S, S, S, mean, Y)))
    for m in range(2):
        apart = kronecker.condition_on_known(*(tf.constant(part[m]) for part in (S, S, S, mean, Y)))
        assert_close(together[0][m], apart[0], rtol=1e-13)
        assert_close(together[1][m], apart[1], rtol=1e-13)
        known = np.isfinite(Y[m])
        assert_close(together[0][m].numpy()[known], Y[m][known])  # observing is believing


def test_copies_of_rows_without_noise(rng):
    """Signal 1e20 and 1e26 times the noise: what a copy adds is rounding, and so is its part."""
    p = random_problem(rng, 5, 2)
    K, Ks, Kss = p.kernels
    copied = np.repeat(np.arange(5), 2)
    lam, U = eigh(tf.constant(K[np.ix_(copied, copied)]))
    basis = kronecker.task_basis(tf.constant(np.diag([1e20, 1e26])), tf.constant(np.eye(2)))
    spectrum = exact_spectrum(lam, U, tf.constant(p.Y[copied]))
    unit = np.finfo(float).eps * np.max(lam)
    solution = kronecker.solve_joint(U, spectrum, basis, unit=unit)
    cross = tf.constant(Ks[copied])
    mean = kronecker.predictive_mean(solution, cross)
    assert_allclose(mean, Ks.T @ np.linalg.solve(K, p.Y), rtol=1e-6, atol=1e-6)
    expected = Kss - Ks.T @ np.linalg.solve(K, Ks)
    for full_cov in (True, False):
        Knn = tf.constant(Kss if full_cov else np.diag(Kss))
        q = kronecker.rotated_covariance(solution, cross, Knn, full_cov).numpy()
        for task, d in zip(q, basis.d.numpy(), strict=True):
            assert_allclose(task / d, expected if full_cov else np.diag(expected), atol=1e-7)


def test_columns_of_a_linear_kernel_in_units_far_apart(rng):
    """Its features have eigenvalues with digits of their own, down to the square of rounding."""
    X = rng.normal(size=(60, 2)) * [1e9, 1.0]
    Y = X[:, 1:] * [1.0, -2.0] + 0.1 * rng.normal(size=(60, 2))
    kernel = gpflow.kernels.Linear()
    model = KroneckerMTGP.ground_truth(
        (X, Y), kernel, task_covariance=np.eye(2), noise_covariance=0.01 * np.eye(2)
    )
    mean, _ = model.predict_f(X)
    slopes = np.linalg.solve(X[:, 1:].T @ X[:, 1:] + 0.01, X[:, 1:].T @ Y)
    assert_allclose(mean, X[:, 1:] * slopes, atol=0.1)  # the other slope is nearly zero
    left_out = model.leave_one_out()
    assert np.sqrt(np.mean(np.square(left_out.mean - Y))) < 0.12


def test_leave_one_out_in_float32_is_that_of_float64():
    """Little noise, and many rows: rounding of float32 eigenvalues is no reason for less."""
    x = np.linspace(0.0, 1.0, 300)[:, None]
    Y = np.hstack([np.sin(9.0 * x), np.cos(7.0 * x)])
    found = []
    for dtype in (np.float64, np.float32):
        with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
            data, kernel = (x.astype(dtype), Y.astype(dtype)), gpflow.kernels.Matern52()
            model = KroneckerMTGP.ground_truth(
                data, kernel, task_covariance=np.eye(2), noise_covariance=1e-6 * np.eye(2)
            )
            cov = model.leave_one_out(full_output_cov=False).cov
            found.append(float(np.mean(np.sqrt(cov))))
    assert_allclose(found[1], found[0], rtol=0.1)
