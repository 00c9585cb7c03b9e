"""The optimum of the inner problem, against dense algebra and SciPy."""

import numpy as np
import pytest
import reference as ref
from inner_problems import WIDE, boxes, smooth_targets
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, LEARNINGS, assert_close, random_problem
from properties.cases import make_data, random_case
from scipy.optimize import minimize
from spectra import exact, low_rank

from gpflow_cool.chain import newton
from gpflow_cool.chain.search import Box
from gpflow_cool.chain.starting import inner_box
from gpflow_cool.chain.terms import task_problems, task_terms


def solve(spectrum, box, learning):
    return newton.solve(task_problems(spectrum, learning), box)


# Signal and noise, hardly any noise, hardly any signal, and a combination of earlier tasks.
POINTS = np.array([[1.0, 0.1], [10.0, 1e-4], [0.1, 0.5], [1e-4, 1e-3]])


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


def dense_optimum(K, Y, t, learning, lower, upper, shift=0.0):
    """The best value of term t that SciPy finds from many starts with dense algebra."""

    def loss(x):
        value, gradient = dense_term(K, Y, t, *np.exp(x), learning)
        return -value, -np.exp(x) * gradient

    bounds = list(zip(lower, upper, strict=True))
    starts = [np.array([b, s]) for b in (-6.0, -2.0, 0.0, 2.0) for s in (-6.0, -3.0, -1.0, 0.0)]
    precise = {"ftol": 1e-14, "gtol": 1e-9}
    found = [
        minimize(loss, np.clip(x + shift, lower, upper), jac=True, bounds=bounds, options=precise)
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
    solution = solve(exact(K, Y), boxes(WIDE, T), learning)
    for t in range(T):
        best = dense_optimum(K, Y, t, learning, WIDE.lower[0], WIDE.upper[0])
        assert_allclose(solution.values[t], best, rtol=1e-7, atol=1e-6)
    dense = ref.conditional_log_likelihoods(K, Y, *solution.parameters.T, learning)
    assert_close(solution.values, dense, rtol=1e-7)  # noise at its floor: K_x of condition 1e6


def brute_force(K, Y, t, learning, lower, upper):
    """The best value of term t on a dense grid, of which the three best points are polished."""

    def loss(x):
        value, gradient = dense_term(K, Y, t, *np.exp(x), learning)
        return -value, -np.exp(x) * gradient

    axes = [np.linspace(low, high, 40) for low, high in zip(lower, upper, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    values = np.array([loss(x)[0] for x in points])
    precise = {"ftol": 1e-15, "gtol": 1e-10}
    bounds = list(zip(lower, upper, strict=True))
    starts = points[np.argsort(values)[:3]]
    return -min(minimize(loss, x, jac=True, bounds=bounds, options=precise).fun for x in starts)


DEGENERATE = {
    "copies": lambda rng, F, E: (F + 0.3 * E)[:, [0, 1, 0, 1]],
    "noise-free": lambda rng, F, E: F,
    "all noise": lambda rng, F, E: E,
    "more tasks than rows": lambda rng, F, E: (F + 0.3 * E)[:3],
}


@pytest.mark.slow
@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("kind", DEGENERATE)
def test_solve_equals_brute_force(rng, kind, learning):
    X = rng.normal(size=(10, 2))
    F, E = np.sin(2.0 * X @ rng.normal(size=(2, 4))), rng.normal(size=(10, 4))
    Y = DEGENERATE[kind](rng, F, E)
    Y, K = Y / Y.std(axis=0), ref.squared_exponential(X[: len(Y)], X[: len(Y)], 1.0, 1.0)
    box = Box(np.log([[1e-5, 1e-4]] * 4), np.log([[1e5, 1e2]] * 4))
    solution = solve(exact(K, Y), box, learning)
    for t in range(4):
        best = brute_force(K, Y, t, learning, box.lower[t], box.upper[t])
        assert_allclose(solution.values[t], best, rtol=0, atol=1e-6)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_solve_with_a_spectrum_of_low_rank(rng, learning):
    X, Y = smooth_targets(rng, 14, 3)
    F = np.hstack([np.sin(X), np.cos(X)])
    solution = solve(low_rank(F, Y), boxes(WIDE, 3), learning)
    for t in range(3):
        best = dense_optimum(F @ F.T, Y, t, learning, WIDE.lower[0], WIDE.upper[0])
        assert_allclose(solution.values[t], best, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradient_vanishes_inside_the_box(rng, learning):
    X, Y = smooth_targets(rng, 30, 2)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    spectrum = exact(K, Y[:, :1])
    solution = solve(spectrum, boxes(WIDE, 1), learning)
    _, gradient = dense_term(K, Y, 0, *solution.parameters[0], learning)
    assert_allclose(solution.gradients[0], gradient, atol=1e-6)
    # A step that gains less than 1e-10 nats is not taken: g^2 / curvature, with curvature O(10).
    assert np.max(np.abs(solution.parameters[0] * gradient)) < 1e-4


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
    solution = solve(exact(K, Y), box, learning)
    rounding = 1e-12
    for value, low, high in zip(solution.parameters.T, lower, upper, strict=True):
        assert np.all(value >= low * (1 - rounding)) and np.all(value <= high * (1 + rounding))
    for t in range(3):
        best = dense_optimum(K, Y, t, learning, np.log(lower), np.log(upper))
        assert_allclose(solution.values[t], best, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("column", [0, 1])
def test_a_fixed_number_stays_and_the_other_is_solved(rng, column, learning):
    X, Y = smooth_targets(rng, 14, 3)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    box = boxes(WIDE, 3)
    fixed = np.log([0.3, 0.5, 0.7])
    box.lower[:, column] = box.upper[:, column] = fixed
    solution = solve(exact(K, Y), box, learning)
    assert_array_equal(solution.parameters[:, column], np.exp(fixed))
    for t in range(3):
        best = dense_optimum(K, Y, t, learning, box.lower[t], box.upper[t])
        assert_allclose(solution.values[t], best, rtol=1e-7, atol=1e-6)


def test_nothing_to_solve_evaluates(rng):
    p = random_problem(rng, 7, 3)
    x = np.log(np.stack([p.b, p.sigma2], axis=1))
    solution = solve(exact(p.K, p.Y), Box(x, x), "hierarchical")
    assert_allclose(solution.parameters, np.exp(x), rtol=1e-14)
    assert_close(solution.values, ref.conditional_log_likelihoods(*p.chain, "hierarchical"))


# Odd data


def test_a_kernel_matrix_that_is_nearly_noise():
    """Only b + sigma2 is known well: the optimum is the end of a long and bent ridge."""
    rng = np.random.default_rng(4)
    Q, _ = np.linalg.qr(rng.normal(size=(30, 30)))
    K = Q @ np.diag(rng.uniform(0.99, 1.01, size=30)) @ Q.T
    Y = rng.normal(size=(30, 12)) @ (np.eye(12) + 0.5 * rng.normal(size=(12, 12)))
    Y = Y / Y.std(axis=0)
    solution = solve(exact(K, Y), boxes(WIDE, 12), "hierarchical")
    best = dense_optimum(K, Y, 0, "hierarchical", WIDE.lower[0], WIDE.upper[0])
    assert solution.values[0] > best - 1e-6


@pytest.mark.filterwarnings("ignore:.*as far from zero")
def test_copies_of_a_task_far_from_zero_keep_their_b():
    """Where b vanishes, the systems of such tasks are rounding, and their terms 14 nats lower."""
    case = random_case(43287)
    X, Y = make_data(case)
    problems = task_problems(exact(np.ones((len(X), len(X))), Y), "approximate")
    scales = np.var(Y, axis=0)
    box = inner_box(problems.spectrum, scales, 1e-4 * scales)
    best = newton.solve(problems, box)
    found = task_terms(problems, np.arange(Y.shape[1]), best.parameters).values
    assert_allclose(found, best.values, atol=1e-3)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_tasks_of_different_scales(rng, learning):
    X, Y = smooth_targets(rng, 14, 3)
    Y, K = Y * [1e-3, 1.0, 30.0], ref.squared_exponential(X, X, 1.0, 1.5)
    scales = np.var(Y, axis=0)[:, None]
    box = Box(np.log(scales * [1e-10, 1e-4]), np.log(scales * [1e10, 1e10]))
    solution = solve(exact(K, Y), box, learning)
    for t in range(3):
        unit = np.log(scales[t])
        found = dense_optimum(K, Y, t, learning, box.lower[t], box.upper[t], shift=unit)
        assert solution.values[t] > found - 1e-6


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_solution_is_finite_and_no_worse_than_other_points(rng, case, learning):
    """Degenerate data too: copies, zeros, T > N, N = 1, a kernel that is zero."""
    p = CASES[case](rng)
    T = len(p.b)
    spectrum = exact(p.K, p.Y)
    solution = solve(spectrum, boxes(WIDE, T), learning)
    assert all(np.all(np.isfinite(part)) for part in solution[:4])
    for point in POINTS:
        b, sigma2 = np.full(T, point[0]), np.full(T, point[1])
        dense = ref.conditional_log_likelihoods(p.K, p.Y, b, sigma2, learning)
        assert np.all(solution.values >= dense - 1e-9 * np.abs(dense))
    dense = ref.conditional_log_likelihoods(p.K, p.Y, *solution.parameters.T, learning)
    assert_close(solution.values, dense, rtol=1e-6)  # noise at its floor, signal of 1e3 or more


@pytest.mark.parametrize("learning", LEARNINGS)
def test_a_zero_task_ends_at_its_floor(rng, learning):
    """All-zero targets are explained by no signal and no noise: both run to their bounds."""
    p = CASES["zeros"](rng)
    solution = solve(exact(p.K, p.Y), boxes(WIDE, 4), learning)
    assert_allclose(solution.parameters[1, 1], 1e-4, rtol=1e-10)
    best = dense_optimum(p.K, p.Y, 1, learning, WIDE.lower[0], WIDE.upper[0])
    assert_allclose(solution.values[1], best, rtol=1e-7)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_a_copy_ends_at_its_floor(rng, learning):
    p = CASES["copies"](rng)
    solution = solve(exact(p.K, p.Y), boxes(WIDE, 3), learning)
    assert_allclose(solution.parameters[1:, 1], 1e-4, rtol=1e-10)
