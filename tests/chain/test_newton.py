"""The optimum of the inner problem, against dense algebra and SciPy."""

import numpy as np
import pytest
import reference as ref
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, LEARNINGS, assert_close, random_problem, trap_for_a_single_start
from scipy.optimize import minimize
from spectra import exact, low_rank

from gpflow_cool.chain import newton
from gpflow_cool.chain.newton import Box
from gpflow_cool.chain.terms import task_problems, task_terms


def solve(spectrum, starts, box, learning):
    return newton.solve(task_problems(spectrum, learning), starts, box)


WIDE = Box(np.log([[1e-10, 1e-4]]), np.log([[1e10, 1e10]]))
# Signal and noise, hardly any noise, hardly any signal, and a combination of earlier tasks.
STARTS = np.array([[1.0, 0.1], [10.0, 1e-4], [0.1, 0.5], [1e-4, 1e-3]])


def boxes(box, T):
    return Box(*(np.tile(side, (T, 1)) for side in box))


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
    solution = solve(exact(K, Y), starts_for(T), boxes(WIDE, T), learning)
    for t in range(T):
        best = dense_optimum(K, Y, t, learning, WIDE.lower[0], WIDE.upper[0])
        assert_allclose(solution.terms[t], best, rtol=1e-7, atol=1e-6)
    dense = ref.conditional_log_likelihoods(K, Y, solution.b, solution.sigma2, learning)
    assert_close(solution.terms, dense, rtol=1e-7)  # noise at its floor: K_x of condition 1e6


@pytest.mark.parametrize("learning", LEARNINGS)
def test_solve_with_a_spectrum_of_low_rank(rng, learning):
    X, Y = smooth_targets(rng, 14, 3)
    F = np.hstack([np.sin(X), np.cos(X)])
    solution = solve(low_rank(F, Y), starts_for(3), boxes(WIDE, 3), learning)
    for t in range(3):
        best = dense_optimum(F @ F.T, Y, t, learning, WIDE.lower[0], WIDE.upper[0])
        assert_allclose(solution.terms[t], best, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradient_vanishes_inside_the_box(rng, learning):
    X, Y = smooth_targets(rng, 30, 2)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    spectrum = exact(K, Y[:, :1])
    solution = solve(spectrum, starts_for(1), boxes(WIDE, 1), learning)
    parameters = np.stack([solution.b, solution.sigma2], axis=1)
    gradient = task_terms(task_problems(spectrum, learning), np.arange(1), parameters).gradient
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
    box = boxes(Box(np.log([lower]), np.log([upper])), 3)
    solution = solve(exact(K, Y), starts_for(3), box, learning)
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
    solution = solve(exact(K, Y), starts_for(3), box, learning)
    assert_array_equal(solution[column], np.exp(fixed))
    for t in range(3):
        best = dense_optimum(K, Y, t, learning, box.lower[t], box.upper[t])
        assert_allclose(solution.terms[t], best, rtol=1e-7, atol=1e-6)


def test_nothing_to_solve_evaluates(rng):
    p = random_problem(rng, 7, 3)
    x = np.log(np.stack([p.b, p.sigma2], axis=1))
    solution = solve(exact(p.K, p.Y), np.exp(x)[None], Box(x, x), "hierarchical")
    assert_allclose(solution.b, p.b, rtol=1e-14)
    assert_allclose(solution.sigma2, p.sigma2, rtol=1e-14)
    assert_close(solution.terms, ref.conditional_log_likelihoods(*p.chain, "hierarchical"))


# Starts


@pytest.mark.parametrize("learning", LEARNINGS)
def test_the_best_start_wins_for_each_task(rng, learning):
    spectrum = exact(*trap_for_a_single_start(rng))
    trap, good = np.tile([[[1e-9, 1.0]]], (1, 3, 1)), starts_for(3)
    trapped = solve(spectrum, trap, boxes(WIDE, 3), learning)
    solved = solve(spectrum, good, boxes(WIDE, 3), learning)
    assert trapped.terms[0] < solved.terms[0] - 30.0
    assert trapped.b[0] < 1e-6 and trapped.sigma2[0] > 0.9
    for starts in (np.concatenate([trap, good]), np.concatenate([good, trap])):
        both = solve(spectrum, starts, boxes(WIDE, 3), learning)
        best = np.maximum(trapped.terms, solved.terms)
        assert_allclose(both.terms, best, rtol=1e-12)
    # One start good for task 0 only, another for the rest.
    mixed = np.stack([trap[0], good[0]])
    mixed[:, 0] = mixed[::-1, 0]
    swapped = solve(spectrum, mixed, boxes(WIDE, 3), learning)
    straight = solve(spectrum, np.stack([trap[0], good[0]]), boxes(WIDE, 3), learning)
    assert_allclose(swapped.terms, straight.terms, rtol=1e-12)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_solution_is_finite_and_no_worse_than_its_starts(rng, case, learning):
    """Degenerate data too: copies, zeros, T > N, N = 1, a kernel that is zero."""
    p = CASES[case](rng)
    T = len(p.b)
    spectrum = exact(p.K, p.Y)
    solution = solve(spectrum, starts_for(T), boxes(WIDE, T), learning)
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
    solution = solve(exact(p.K, p.Y), starts_for(4), boxes(WIDE, 4), learning)
    assert_allclose(solution.sigma2[1], 1e-4, rtol=1e-10)
    best = dense_optimum(p.K, p.Y, 1, learning, WIDE.lower[0], WIDE.upper[0])
    assert_allclose(solution.terms[1], best, rtol=1e-7)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_a_copy_ends_at_its_floor(rng, learning):
    p = CASES["copies"](rng)
    solution = solve(exact(p.K, p.Y), starts_for(3), boxes(WIDE, 3), learning)
    assert_allclose(solution.sigma2[1:], 1e-4, rtol=1e-10)
