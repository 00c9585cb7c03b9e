"""The inner problem: its terms, derivatives and optimum, against dense algebra and SciPy."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, LEARNINGS, assert_close, random_problem, trap_for_a_single_start
from scipy.optimize import minimize

from gpflow_cool.chain import newton
from gpflow_cool.chain.likelihood import solve_chain
from gpflow_cool.chain.spectrum import Spectrum


def exact(K, Y):
    """The spectrum of a dense kernel matrix, by NumPy."""
    lam, U = np.linalg.eigh(K)
    T = Y.shape[1]
    return newton.inner_spectrum(np.maximum(lam, 0.0), U.T @ Y, np.zeros((T, T)), len(Y))


def low_rank(F, Y):
    """The spectrum of K = F F^T with R < N columns, section 4b of the mathematics."""
    lam, E = np.linalg.eigh(F.T @ F)
    Yr = (E.T @ F.T @ Y) / np.sqrt(lam)[:, None]
    return newton.inner_spectrum(lam, Yr, Y.T @ Y - Yr.T @ Yr, len(Y))


def all_tasks(p, spectrum, learning):
    """Every task at the problem's b and sigma2."""
    parameters = np.stack([p.b, p.sigma2], axis=1)
    return newton.evaluate(spectrum, np.arange(len(p.b)), parameters, learning)


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


# Terms and derivatives ----------------------------------------------------------------------------


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_terms_and_derivatives_equal_dense(rng, case, learning):
    p = CASES[case](rng)
    terms = all_tasks(p, exact(p.K, p.Y), learning)
    assert_close(terms.value, ref.conditional_log_likelihoods(*p.chain, learning))
    gradients = ref.analytic_gradients(*p.chain, learning)
    assert_close(terms.gradient, np.stack([gradients.b, gradients.sigma2], axis=1), rtol=1e-8)
    assert_close(terms.hessian, dense_hessians(*p.chain, learning), rtol=1e-8)


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
    assert_close(terms.gradient, np.stack([by_b, by_s], axis=1), rtol=1e-8)


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
    assert_close(terms.hessian, expected, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_kernel_gradient_equals_dense(rng, case, learning):
    p = CASES[case](rng)
    lam, U = np.linalg.eigh(p.K)
    spectrum = newton.exact_inner_spectrum(np.maximum(lam, 0.0), U, p.Y)
    parameters = np.stack([p.b, p.sigma2], axis=1)
    g = newton.kernel_gradient(spectrum, parameters, learning)
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
    assert_close(terms.value, ref.conditional_log_likelihoods(*dense, learning))
    gradients = ref.analytic_gradients(*dense, learning)
    assert_close(terms.gradient, np.stack([gradients.b, gradients.sigma2], axis=1), rtol=1e-8)
    assert_close(terms.hessian, dense_hessians(*dense, learning), rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("rank", [None, 3])
def test_terms_equal_the_chain(rng, rank, learning):
    p = random_problem(rng, 12, 4)
    spectrum = exact(p.K, p.Y) if rank is None else low_rank(rng.normal(size=(12, rank)), p.Y)
    tensors = Spectrum(*(tf.constant(part, tf.float64) for part in spectrum[:4]))
    b, sigma2 = tf.constant(p.b), tf.constant(p.sigma2)
    with tf.GradientTape() as tape:
        tape.watch([b, sigma2])
        chain = solve_chain(tensors, b, sigma2, learning).terms
    by_b, by_sigma2 = tape.gradient(chain, [b, sigma2])
    terms = all_tasks(p, spectrum, learning)
    assert_close(terms.value, chain, rtol=1e-11)
    assert_close(terms.gradient, np.stack([by_b, by_sigma2], axis=1), rtol=1e-9)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("T", [newton.BLOCK, newton.BLOCK + 1, 2 * newton.BLOCK + 1])
def test_blocks_of_tasks_in_any_order_equal_dense(rng, T, rank, learning):
    p, F = random_problem(rng, 9, T), rng.normal(size=(9, rank or 9))
    K = p.K if rank is None else F @ F.T
    spectrum = exact(K, p.Y) if rank is None else low_rank(F, p.Y)
    tasks = rng.permutation(T)
    at = np.stack([p.b, p.sigma2], axis=1)[tasks]
    terms = newton.evaluate(spectrum, tasks, at, learning)
    dense = (K, p.Y, p.b, p.sigma2)
    g = ref.analytic_gradients(*dense, learning)
    assert_close(terms.value, ref.conditional_log_likelihoods(*dense, learning)[tasks])
    assert_close(terms.gradient, np.stack([g.b, g.sigma2], axis=1)[tasks], rtol=1e-8)
    assert_close(terms.hessian, dense_hessians(*dense, learning)[tasks], rtol=1e-8)


def test_what_makes_a_huge_gram_matrix_invertible_spares_the_padding():
    """Else a term would count the tasks after its own."""
    M = np.stack([np.diag([1e17, 1e18, 1.0, 1.0]), np.diag([2.0, 1.0, 1.0, 1.0])])
    mask = np.array([[True, True, False, False], [True, False, False, False]])
    ridge = 2 * np.finfo(float).eps * 1e18
    expected = np.stack([np.diag([1e17 + ridge, 1e18 + ridge, 1.0, 1.0]), M[1]])
    assert_array_equal(newton.invertible(M, mask), expected)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_problems_of_a_batch_do_not_mix(rng, learning):
    p = random_problem(rng, 9, 4)
    spectrum = exact(p.K, p.Y)
    tasks = np.array([2, 0, 2, 3, 1, 0])
    parameters = rng.uniform(0.1, 2.0, size=(6, 2))
    together = newton.evaluate(spectrum, tasks, parameters, learning)
    for q, (task, row) in enumerate(zip(tasks, parameters, strict=True)):
        alone = newton.evaluate(spectrum, np.array([task]), row[None], learning)
        for batched, single in zip(together, alone, strict=True):
            assert_close(batched[q], single[0], rtol=1e-12)
        b, sigma2 = np.full(4, row[0]), np.full(4, row[1])
        dense = ref.conditional_log_likelihoods(p.K, p.Y, b, sigma2, learning)
        assert_close(together.value[q], dense[task])


# The optimum --------------------------------------------------------------------------------------

WIDE = newton.Box(np.log([[1e-10, 1e-4]]), np.log([[1e10, 1e10]]))
# Signal and noise, hardly any noise, hardly any signal, and a combination of earlier tasks.
STARTS = np.array([[1.0, 0.1], [10.0, 1e-4], [0.1, 0.5], [1e-4, 1e-3]])


def boxes(box, T):
    return newton.Box(*(np.tile(side, (T, 1)) for side in box))


def starts_for(T, starts=STARTS):
    return np.tile(starts[:, None, :], (1, T, 1))


def smooth_targets(rng, N, T):
    """Functions of one input that share noise, of unit variance; the last one is noise."""
    x = np.sort(rng.uniform(0.0, 6.0, size=N))
    F = np.stack([np.sin(x + 0.7 * t) for t in range(T)], axis=1)
    F[:, -1] = 0.0
    Y = F + 0.4 * rng.normal(size=(N, T)) @ np.triu(np.ones((T, T)))
    return x[:, None], (Y - Y.mean(axis=0)) / Y.std(axis=0)


def dense_term(K, Y, t, b, sigma2, learning):
    """Term t and its gradient with respect to (b, sigma2), from two dense inverses."""
    Kx = b * K + sigma2 * np.eye(len(K))
    Kxy = Kx + Y[:, :t] @ Y[:, :t].T
    alpha = np.linalg.solve(Kxy, Y[:, t])
    S = Kxy if learning == "approximate" else Kx
    Q = np.linalg.inv(S)
    log_determinant = np.linalg.slogdet(S)[1] + len(K) * np.log(2 * np.pi)
    value = -0.5 * (Y[:, t] @ alpha + log_determinant)
    return value, 0.5 * np.array([alpha @ K @ alpha - np.sum(Q * K), alpha @ alpha - np.trace(Q)])


@pytest.mark.parametrize("learning", LEARNINGS)
def test_dense_term(rng, learning):
    p = random_problem(rng, 7, 3)
    G = ref.analytic_gradients(*p.chain, learning)
    for t, expected in enumerate(ref.conditional_log_likelihoods(*p.chain, learning)):
        value, gradient = dense_term(p.K, p.Y, t, p.b[t], p.sigma2[t], learning)
        assert_close(value, expected)
        assert_close(gradient, [G.b[t], G.sigma2[t]])


def dense_optimum(K, Y, t, learning, lower, upper):
    """The best value of term t that SciPy finds from many starts with dense algebra."""

    def loss(x):
        value, gradient = dense_term(K, Y, t, *np.exp(x), learning)
        return -value, -np.exp(x) * gradient

    bounds = list(zip(lower, upper, strict=True))
    starts = [(b, s) for b in (-6.0, -2.0, 0.0, 2.0) for s in (-6.0, -3.0, -1.0, 0.0)]
    precise = {"ftol": 1e-14, "gtol": 1e-9}
    found = [
        minimize(loss, np.clip(x, lower, upper), jac=True, bounds=bounds, options=precise)
        for x in starts
    ]
    return max(-result.fun for result in found)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize(
    "N, T, lengthscale", [(14, 3, 1.5), (14, 3, 0.05), (9, 2, 30.0), (1, 1, 1.0), (3, 4, 1.5)]
)
def test_solve_finds_the_best_optimum(rng, N, T, lengthscale, learning):
    X, Y = smooth_targets(rng, max(N, 8), T)
    X, Y = X[:N], Y[:N]
    K = ref.squared_exponential(X, X, 1.0, lengthscale)
    solution = newton.solve(exact(K, Y), starts_for(T), boxes(WIDE, T), learning)
    for t in range(T):
        best = dense_optimum(K, Y, t, learning, WIDE.lower[0], WIDE.upper[0])
        assert_allclose(solution.terms[t], best, rtol=1e-7, atol=1e-6)
    dense = ref.conditional_log_likelihoods(K, Y, solution.b, solution.sigma2, learning)
    assert_close(solution.terms, dense, rtol=1e-7)  # noise at its floor: K_x of condition 1e6


@pytest.mark.parametrize("learning", LEARNINGS)
def test_solve_with_a_spectrum_of_low_rank(rng, learning):
    X, Y = smooth_targets(rng, 14, 3)
    F = np.hstack([np.sin(X), np.cos(X)])
    solution = newton.solve(low_rank(F, Y), starts_for(3), boxes(WIDE, 3), learning)
    for t in range(3):
        best = dense_optimum(F @ F.T, Y, t, learning, WIDE.lower[0], WIDE.upper[0])
        assert_allclose(solution.terms[t], best, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradient_vanishes_inside_the_box(rng, learning):
    X, Y = smooth_targets(rng, 30, 2)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    spectrum = exact(K, Y[:, :1])
    solution = newton.solve(spectrum, starts_for(1), boxes(WIDE, 1), learning)
    parameters = np.stack([solution.b, solution.sigma2], axis=1)
    gradient = newton.evaluate(spectrum, np.arange(1), parameters, learning).gradient
    # A step that gains less than 1e-10 nats is not taken: g^2 / curvature, with curvature O(10).
    assert np.max(np.abs(parameters * gradient)) < 1e-4


# Bounds


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize(
    "lower, upper",
    [
        ([0.01, 0.3], [1e3, 2.0]),  # more noise than it wants
        ([0.01, 1e-4], [0.05, 2.0]),  # less signal
        ([3.0, 0.5], [3.5, 0.6]),
        ([1e-6, 1e-3], [1e-5, 2e-3]),  # far from every start
    ],
)
def test_bounds_are_respected(rng, lower, upper, learning):
    X, Y = smooth_targets(rng, 14, 3)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    box = boxes(newton.Box(np.log([lower]), np.log([upper])), 3)
    solution = newton.solve(exact(K, Y), starts_for(3), box, learning)
    rounding = 1e-12
    for value, low, high in zip(solution[:2], lower, upper, strict=True):
        assert np.all(value >= low * (1 - rounding)) and np.all(value <= high * (1 + rounding))
    for t in range(3):
        best = dense_optimum(K, Y, t, learning, np.log(lower), np.log(upper))
        assert_allclose(solution.terms[t], best, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("column", [0, 1])
def test_a_fixed_number_stays_and_the_other_is_solved(rng, column, learning):
    X, Y = smooth_targets(rng, 14, 3)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    box = boxes(WIDE, 3)
    fixed = np.log([0.3, 0.5, 0.7])
    box.lower[:, column] = box.upper[:, column] = fixed
    solution = newton.solve(exact(K, Y), starts_for(3), box, learning)
    assert_array_equal(solution[column], np.exp(fixed))
    for t in range(3):
        best = dense_optimum(K, Y, t, learning, box.lower[t], box.upper[t])
        assert_allclose(solution.terms[t], best, rtol=1e-7, atol=1e-6)


def test_nothing_to_solve_evaluates(rng):
    p = random_problem(rng, 7, 3)
    x = np.log(np.stack([p.b, p.sigma2], axis=1))
    solution = newton.solve(exact(p.K, p.Y), np.exp(x)[None], newton.Box(x, x), "hierarchical")
    assert_allclose(solution.b, p.b, rtol=1e-14)
    assert_allclose(solution.sigma2, p.sigma2, rtol=1e-14)
    assert_close(solution.terms, ref.conditional_log_likelihoods(*p.chain, "hierarchical"))


# Starts


@pytest.mark.parametrize("learning", LEARNINGS)
def test_the_best_start_wins_for_each_task(rng, learning):
    spectrum = exact(*trap_for_a_single_start(rng))
    trap, good = np.tile([[[1e-9, 1.0]]], (1, 3, 1)), starts_for(3)
    trapped = newton.solve(spectrum, trap, boxes(WIDE, 3), learning)
    solved = newton.solve(spectrum, good, boxes(WIDE, 3), learning)
    assert trapped.terms[0] < solved.terms[0] - 30.0
    assert trapped.b[0] < 1e-6 and trapped.sigma2[0] > 0.9
    for starts in (np.concatenate([trap, good]), np.concatenate([good, trap])):
        both = newton.solve(spectrum, starts, boxes(WIDE, 3), learning)
        best = np.maximum(trapped.terms, solved.terms)
        assert_allclose(both.terms, best, rtol=1e-12)
    # One start good for task 0 only, another for the rest.
    mixed = np.stack([trap[0], good[0]])
    mixed[:, 0] = mixed[::-1, 0]
    swapped = newton.solve(spectrum, mixed, boxes(WIDE, 3), learning)
    straight = newton.solve(spectrum, np.stack([trap[0], good[0]]), boxes(WIDE, 3), learning)
    assert_allclose(swapped.terms, straight.terms, rtol=1e-12)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_solution_is_finite_and_no_worse_than_its_starts(rng, case, learning):
    """Degenerate data too: copies, zeros, T > N, N = 1, a kernel that is zero."""
    p = CASES[case](rng)
    T = len(p.b)
    spectrum = exact(p.K, p.Y)
    solution = newton.solve(spectrum, starts_for(T), boxes(WIDE, T), learning)
    assert np.all(np.isfinite(solution))
    for start in STARTS:
        b, sigma2 = np.full(T, start[0]), np.full(T, start[1])
        dense = ref.conditional_log_likelihoods(p.K, p.Y, b, sigma2, learning)
        assert np.all(solution.terms >= dense - 1e-9 * np.abs(dense))
    dense = ref.conditional_log_likelihoods(p.K, p.Y, solution.b, solution.sigma2, learning)
    assert_close(solution.terms, dense, rtol=1e-6)  # noise at its floor, signal of 1e3 or more


@pytest.mark.parametrize("learning", LEARNINGS)
def test_a_zero_task_ends_at_its_floor(rng, learning):
    """All-zero targets are explained by no signal and no noise: both run to their bounds."""
    p = CASES["zeros"](rng)
    solution = newton.solve(exact(p.K, p.Y), starts_for(4), boxes(WIDE, 4), learning)
    assert_allclose(solution.sigma2[1], 1e-4, rtol=1e-10)
    best = dense_optimum(p.K, p.Y, 1, learning, WIDE.lower[0], WIDE.upper[0])
    assert_allclose(solution.terms[1], best, rtol=1e-7)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_a_copy_ends_at_its_floor(rng, learning):
    p = CASES["copies"](rng)
    solution = newton.solve(exact(p.K, p.Y), starts_for(3), boxes(WIDE, 3), learning)
    assert_allclose(solution.sigma2[1:], 1e-4, rtol=1e-10)


def test_copies_at_a_scale_that_swallows_the_identity(rng):
    """I + G is singular to rounding then; the terms are still those of single tasks."""
    p = random_problem(rng, 12, 2)
    y = 1e9 * p.Y[:, :1]
    spectrum = exact(p.K, np.hstack([y, y, p.Y[:, 1:]]))
    parameters = np.array([[1e18, 1e10]] * 2 + [[1.0, 0.1]])
    for learning in LEARNINGS:
        terms = newton.evaluate(spectrum, np.arange(3), parameters, learning)
        assert np.isfinite(terms.value).all() and np.isfinite(terms.hessian).all()
        alone = newton.evaluate(exact(p.K, y), np.zeros(1, int), parameters[:1], learning)
        assert_close(terms.value[:1], alone.value, rtol=1e-12)
