"""The chain's terms in NumPy and their derivatives, against dense algebra."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import CASES, LEARNINGS, assert_close, random_problem
from spectra import exact, low_rank

from gpflow_cool.chain import terms as terms_module
from gpflow_cool.chain.compression import dual_vectors
from gpflow_cool.chain.likelihood import solve_chain
from gpflow_cool.systems.spectrum import Spectrum, exact_spectrum_of_arrays
from gpflow_cool.chain.systems import cholesky
from gpflow_cool.chain.terms import (
    factor_of_products,
    kernel_gradient,
    shared_terms,
    task_problems,
    task_terms,
)


def terms_of(spectrum, parameters, learning):
    """Terms of all tasks, each at its own point."""
    return task_terms(task_problems(spectrum, learning), np.arange(len(parameters)), parameters)


def all_tasks(p, spectrum, learning):
    """Every task at the problem's b and sigma2."""
    return terms_of(spectrum, np.stack([p.b, p.sigma2], axis=1), learning)


def dense_hessians(K, Y, b, sigma2, learning):
    """
    Second derivatives of term t with respect to (b_t, s_t), from explicit inverses, [T, 2, 2].

    H_ij = 1/2 trace(Q S_i Q S_j) - alpha^T S_i P S_j alpha with S = (K, I), P = K_xy^-1, and
    Q = P (approximate) or K_x^-1 (hierarchical).
    """
    hessians = []
    for t in range(Y.shape[1]):
        P = np.linalg.inv(ref.composed_kernel(K, Y, b, sigma2, t))
        Kx_inverse = np.linalg.inv(ref.input_kernel(K, b, sigma2, t))
        Q = P if learning == "approximate" else Kx_inverse
        alpha = P @ Y[:, t]
        S = [K, np.eye(len(K))]
        hessians.append(
            [
                [0.5 * np.trace(Q @ Si @ Q @ Sj) - alpha @ Si @ P @ Sj @ alpha for Sj in S]
                for Si in S
            ]
        )
    return np.array(hessians)


def own_derivative(function, value):
    """Derivative of every function(v)[t] with respect to v[t], by differences; v_t > 0."""
    columns = []
    for t, unit in enumerate(np.eye(len(value))):
        step = value[t] / 200  # see reference.finite_difference_gradients
        d1, d2, d3 = (
            function(value + k * step * unit)[t] - function(value - k * step * unit)[t]
            for k in (1, 2, 3)
        )
        columns.append((45 * d1 - 9 * d2 + d3) / (60 * step))
    return np.array(columns)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_terms_and_derivatives_equal_dense(rng, case, learning):
    p = CASES[case](rng)
    terms = all_tasks(p, exact(p.K, p.Y), learning)
    assert_close(terms.values, ref.conditional_log_likelihoods(*p.chain, learning))
    gradients = ref.analytic_gradients(*p.chain, learning)
    assert_close(terms.gradients, np.stack([gradients.b, gradients.sigma2], axis=1), rtol=1e-8)
    assert_close(terms.hessians, dense_hessians(*p.chain, learning), rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", ["N7-T1", "N7-T3", "N2-T5", "linear", "copies", "zeros"])
def test_gradient_equals_finite_differences_of_dense_terms(rng, case, learning):
    p = CASES[case](rng)
    by_b = own_derivative(
        lambda b: ref.conditional_log_likelihoods(p.K, p.Y, b, p.sigma2, learning), p.b
    )
    by_s = own_derivative(
        lambda s: ref.conditional_log_likelihoods(p.K, p.Y, p.b, s, learning), p.sigma2
    )
    terms = all_tasks(p, exact(p.K, p.Y), learning)
    assert_close(terms.gradients, np.stack([by_b, by_s], axis=1), rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", ["N7-T1", "N7-T3", "N2-T5", "linear", "copies", "zeros"])
def test_hessian_equals_finite_differences_of_dense_gradients(rng, case, learning):
    p = CASES[case](rng)

    def gradients(name, b, sigma2):
        return getattr(ref.analytic_gradients(p.K, p.Y, b, sigma2, learning), name)

    expected = np.empty((len(p.b), 2, 2))
    for i, name in enumerate(["b", "sigma2"]):
        expected[:, i, 0] = own_derivative(lambda b, n=name: gradients(n, b, p.sigma2), p.b)
        expected[:, i, 1] = own_derivative(lambda s, n=name: gradients(n, p.b, s), p.sigma2)
    terms = all_tasks(p, exact(p.K, p.Y), learning)
    assert_close(terms.hessians, expected, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_kernel_gradient_equals_dense(rng, case, learning):
    p = CASES[case](rng)
    lam, U = np.linalg.eigh(p.K)
    spectrum = exact_spectrum_of_arrays(np.maximum(lam, 0.0), U, p.Y)
    parameters = np.stack([p.b, p.sigma2], axis=1)
    problems, W = task_problems(spectrum, learning), all_tasks(p, spectrum, learning).W
    g = kernel_gradient(problems, parameters, W, dual_vectors(problems, parameters, W))
    expected = ref.analytic_gradients(p.K, p.Y, p.b, p.sigma2, learning)
    inside = np.diag(g.diagonal) + g.factors.T @ np.diag(g.weights) @ g.factors
    assert_close(U @ inside @ U.T, expected.K, rtol=1e-8)
    assert_close(U @ g.Yr, expected.Y, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, R, T", [(12, 3, 4), (9, 1, 2), (6, 5, 1), (5, 2, 7)])
def test_low_rank_spectrum_equals_dense(rng, N, R, T, learning):
    p, F = random_problem(rng, N, T), rng.normal(size=(N, R))
    dense = (F @ F.T, p.Y, p.b, p.sigma2)
    terms = all_tasks(p, low_rank(F, p.Y), learning)
    assert_close(terms.values, ref.conditional_log_likelihoods(*dense, learning))
    gradients = ref.analytic_gradients(*dense, learning)
    assert_close(terms.gradients, np.stack([gradients.b, gradients.sigma2], axis=1), rtol=1e-8)
    assert_close(terms.hessians, dense_hessians(*dense, learning), rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("rank", [None, 3])
def test_terms_equal_the_chain(rng, rank, learning):
    p = random_problem(rng, 12, 4)
    spectrum = exact(p.K, p.Y) if rank is None else low_rank(rng.normal(size=(12, rank)), p.Y)
    tensors = Spectrum(*(tf.constant(part, tf.float64) for part in spectrum))
    b, sigma2 = tf.constant(p.b), tf.constant(p.sigma2)
    with tf.GradientTape() as tape:
        tape.watch([b, sigma2])
        chain = solve_chain(tensors, b, sigma2, learning).terms
    by_b, by_sigma2 = tape.gradient(chain, [b, sigma2])
    terms = all_tasks(p, spectrum, learning)
    assert_close(terms.values, chain, rtol=1e-11)
    assert_close(terms.gradients, np.stack([by_b, by_sigma2], axis=1), rtol=1e-9)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("T", [9, 10, 11, 19])
def test_systems_of_rows_equal_dense(rng, T, rank, learning):
    """More tasks before than rows: the smaller system is that of the rows."""
    p, F = random_problem(rng, 9, T), rng.normal(size=(9, rank or 9))
    K = p.K if rank is None else F @ F.T
    spectrum = exact(K, p.Y) if rank is None else low_rank(F, p.Y)
    dense = (K, p.Y, p.b, p.sigma2)
    terms, g = all_tasks(p, spectrum, learning), ref.analytic_gradients(*dense, learning)
    assert_close(terms.values, ref.conditional_log_likelihoods(*dense, learning))
    assert_close(terms.gradients, np.stack([g.b, g.sigma2], axis=1), rtol=1e-8)
    assert_close(terms.hessians, dense_hessians(*dense, learning), rtol=1e-8)
    for t in range(T):
        alpha = np.linalg.solve(ref.composed_kernel(*dense, t), p.Y[:, t])
        assert_close(terms.W[t, :t], p.Y[:, :t].T @ alpha, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("slack", [0.0, 0.7])
@pytest.mark.parametrize(
    "N, R, T", [(1, 1, 1), (12, 3, 4), (9, 9, 3), (5, 2, 7), (3, 3, 8), (3, 3, 11), (1, 1, 5)]
)
def test_terms_of_all_tasks_at_shared_points(rng, N, R, T, slack, learning, monkeypatch):
    """Of some tasks, and of more than three times the rows, in blocks."""
    monkeypatch.setattr(terms_module, "MIN_BLOCK", 1)
    p, F = random_problem(rng, N, T), rng.normal(size=(N, R))
    K = F @ F.T
    spectrum = (exact(K, p.Y) if R == N else low_rank(F, p.Y))._replace(slack=np.array(slack))
    problems = task_problems(spectrum, learning)
    points = rng.uniform(0.1, 2.0, size=(3, 2))
    shared = shared_terms(problems, points)
    for point, values in zip(points, shared.values, strict=True):
        b, sigma2 = np.full(T, point[0]), np.full(T, point[1])
        dense = ref.conditional_log_likelihoods(K, p.Y, b, sigma2, learning)
        assert_close(values, dense - 0.5 * slack * point[0] / point[1])
        alone = terms_of(spectrum, np.tile(point, (T, 1)), learning)
        assert_close(values, alone.values)
    orders = [rng.permutation(T) for _ in range(2)]
    reordered = [shared_terms(problems.of_tasks(order), points) for order in orders]
    for parts in zip(shared_terms(problems, points, orders), *reordered, strict=True):
        assert_close(parts[0], np.concatenate(parts[1:], axis=1))
    # How the terms change with the size of b and sigma2.
    slope = ref.derivative(lambda h: shared_terms(problems, points * np.exp(h)).values, 1e-3)
    assert_close(0.5 * (shared.residuals - shared.counts), slope, 1e-6)


@pytest.mark.parametrize("slack", [0.4, 2.0])
def test_derivatives_with_slack(rng, slack):
    p = random_problem(rng, 9, 3)
    spectrum = low_rank(rng.normal(size=(9, 2)), p.Y)._replace(slack=np.array(slack))
    at = np.stack([p.b, p.sigma2], axis=1)
    terms = terms_of(spectrum, at, "hierarchical")
    for i, unit in enumerate(np.eye(2)):

        def at_h(h, unit=unit):
            return terms_of(spectrum, at + h * unit, "hierarchical")

        assert_close(terms.gradients[:, i], ref.derivative(lambda h: at_h(h).values, 1e-4), 1e-6)
        slope = ref.derivative(lambda h: at_h(h).gradients, 1e-4)
        assert_close(terms.hessians[:, i], slope, 1e-5)


@pytest.mark.parametrize("N, T", [(2, 9), (3, 12)])
def test_many_factors_of_the_gradient_become_few(rng, N, T):
    p = random_problem(rng, N, T)
    lam, U = np.linalg.eigh(p.K)
    spectrum = exact_spectrum_of_arrays(np.maximum(lam, 0.0), U, p.Y)
    problems, W = task_problems(spectrum, "approximate"), all_tasks(p, spectrum, "approximate").W
    parameters = np.stack([p.b, p.sigma2], axis=1)
    g = kernel_gradient(problems, parameters, W, dual_vectors(problems, parameters, W))
    expected = ref.analytic_gradients(p.K, p.Y, p.b, p.sigma2, "approximate")
    assert len(g.factors) < T * (T + 1) / 2
    inside = np.diag(g.diagonal) + g.factors.T @ np.diag(g.weights) @ g.factors
    assert_close(U @ inside @ U.T, expected.K, rtol=1e-8)
    assert_close(U @ g.Yr, expected.Y, rtol=1e-8)


@pytest.mark.parametrize("N, T", [(7, 4), (3, 6)])
def test_weights_and_their_slopes(rng, N, T):
    """Systems of tasks and of rows; some tasks, one of them twice; in blocks and at once."""
    p = random_problem(rng, N, T)
    problems = task_problems(exact(p.K, p.Y), "hierarchical")
    tasks = np.array([0, 1, T - 2, T - 1, T - 1])
    at = rng.uniform(0.1, 2.0, size=(5, 2))
    terms = task_terms(problems, tasks, at)
    for i, unit in enumerate(np.eye(2)):
        slopes = ref.derivative(lambda h, u=unit: task_terms(problems, tasks, at + h * u).W, 1e-4)
        assert_close(terms.slopes[:, i], slopes, 1e-6)
    for t, point, w in zip(tasks, at, terms.W, strict=True):
        b, sigma2 = (np.full(T, number) for number in point)
        alpha = np.linalg.solve(ref.composed_kernel(p.K, p.Y, b, sigma2, t), p.Y[:, t])
        assert_close(w, np.append(p.Y[:, :t].T @ alpha, np.zeros(T - t)), rtol=1e-8)


def test_problems_in_blocks(rng, monkeypatch):
    p = random_problem(rng, 4, 7)
    whole = all_tasks(p, exact(p.K, p.Y), "approximate")
    monkeypatch.setattr(terms_module, "MAX_NUMBERS", 8)
    for part, expected in zip(all_tasks(p, exact(p.K, p.Y), "approximate"), whole, strict=True):
        assert_close(part, expected, rtol=1e-12)


def test_a_singular_matrix_gets_a_factor():
    M = np.ones((3, 3))
    L = cholesky(M.T.copy(order="F"))
    assert_allclose(L @ L.T, M, rtol=1e-12)
    L = cholesky(np.diag([1e17, 4.0]))  # rounding swallows I in the first entry alone
    assert_allclose(np.diag(L) ** 2, [1e17 * (1 + 20 * np.finfo(float).eps), 4.0], rtol=1e-15)
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        cholesky(-np.eye(2))


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12, 0.0])
def test_a_row_in_which_all_targets_are_zero_gets_a_factor(size):
    """Two rows of standardised targets are (1, -1), whose sum, in the eigenbasis, is zero."""
    M = size * np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 1.0, 1.0]], order="F")
    expected = M.copy()
    L = cholesky(M)
    np.testing.assert_allclose(np.tril(L) @ np.tril(L).T, expected, atol=1e-13 * size + 1e-250)


def test_copies_at_a_scale_that_swallows_the_identity(rng):
    """I + G is singular to rounding then; the terms are still those of single tasks."""
    p = random_problem(rng, 12, 2)
    y = 1e9 * p.Y[:, :1]
    spectrum = exact(p.K, np.hstack([y, y, p.Y[:, 1:]]))
    parameters = np.array([[1e18, 1e10]] * 2 + [[1.0, 0.1]])
    for learning in LEARNINGS:
        terms = terms_of(spectrum, parameters, learning)
        assert np.isfinite(terms.values).all() and np.isfinite(terms.hessians).all()
        alone = terms_of(exact(p.K, y), parameters[:1], learning)
        assert_close(terms.values[:1], alone.values, rtol=1e-12)


@pytest.mark.parametrize("N, T", [(1, 1), (9, 3), (2, 5)])
def test_products_of_targets_in_any_units_keep_their_factors(rng, N, T):
    """Units from 1e-18 to 1e18: each entry is right relative to the lengths of its own targets."""
    units = 10.0 ** np.linspace(-18, 18, T)
    Y = rng.normal(size=(N, T)) * units
    Y[:, 0] *= T > 1 and N > 1  # a target without length, where there are others
    F = factor_of_products(Y.T @ Y)
    assert_allclose(F.T @ F / units[:, None] / units, Y.T @ Y / units[:, None] / units, atol=1e-14)


def test_rounding_beside_a_target_without_length_is_ignored():
    """Of a target that features explain, rounding may leave products with others."""
    G = np.array([[0.0, 3.0], [3.0, 4.0]])
    F = factor_of_products(G)
    assert_allclose(F.T @ F, np.diag([0.0, 4.0]), atol=1e-15)
