"""The optimum of the inner problem, against dense algebra and SciPy."""

import numpy as np
import pytest
import reference as ref
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, LEARNINGS, assert_close, random_problem, trap_for_a_single_start
from scipy.optimize import minimize
from spectra import exact, low_rank

from gpflow_cool.chain import newton
from gpflow_cool.chain.newton import Box, Grid, maximise
from gpflow_cool.chain.terms import task_problems, task_terms


def solve(spectrum, box, learning, present=None):
    return newton.solve(task_problems(spectrum, learning), present, box)


WIDE = Box(np.log([[1e-10, 1e-4]]), np.log([[1e10, 1e10]]))
# Signal and noise, hardly any noise, hardly any signal, and a combination of earlier tasks.
POINTS = np.array([[1.0, 0.1], [10.0, 1e-4], [0.1, 0.5], [1e-4, 1e-3]])


def boxes(box, T):
    return Box(*(np.tile(side, (T, 1)) for side in box))


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


# Starts


@pytest.mark.parametrize("learning", LEARNINGS)
def test_the_grid_rescues_from_a_local_optimum(rng, learning):
    """Also where the search is coarse, because a point near an optimum is known."""
    spectrum = exact(*trap_for_a_single_start(rng))
    task = next(task_problems(spectrum, learning).tasks())
    trapped = maximise(task, np.log([1e-9, 1.0]), Box(*(side[0] for side in WIDE)))
    solved = solve(spectrum, boxes(WIDE, 3), learning)
    assert trapped.terms.value < solved.values[0] - 30.0
    assert trapped.x[0] < np.log(1e-6) and trapped.x[1] > np.log(0.9)
    rescued = solve(spectrum, boxes(WIDE, 3), learning, np.tile([1e-9, 1.0], (3, 1)))
    assert_allclose(rescued.values, solved.values, rtol=1e-10, atol=1e-9)
    again = solve(spectrum, boxes(WIDE, 3), learning, solved.parameters)
    assert_allclose(again.values, solved.values, rtol=1e-10, atol=1e-9)


def test_a_search_without_prospects_is_given_up(rng):
    task = next(task_problems(exact(*trap_for_a_single_start(rng)), "hierarchical").tasks())
    bounds, start = Box(*(side[0] for side in WIDE)), np.log([1e-9, 0.5])
    assert_array_equal(maximise(task, start, bounds, at_least=1e9).x, start)
    assert maximise(task, start, bounds, at_least=-1e9).x[1] > np.log(0.9)


def test_a_task_without_signal_takes_few_steps(monkeypatch):
    """In log b alone Newton lowers b by a factor of e per step, here from 1e-2 to 1e-10."""
    X = np.linspace(0.0, 4.0, 40)[:, None]
    alternating = (-1.0) ** np.arange(40)[:, None]  # nothing that a smooth kernel explains
    spectrum = exact(ref.squared_exponential(X, X, 1.0, 1.0), alternating)
    task = next(task_problems(spectrum, "hierarchical").tasks())
    calls = []
    monkeypatch.setattr(
        newton, "task_terms", lambda *point: calls.append(point) or task_terms(*point)
    )
    found = maximise(task, np.log([0.01, 1.0]), Box(*(side[0] for side in WIDE)))
    assert found.x[0] == WIDE.lower[0, 0]
    assert len(calls) <= 6


def test_signal_is_found_after_there_was_none(rng):
    """A warm start from no signal at all, without a look at the grid."""
    X, Y = smooth_targets(rng, 14, 2)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    problems, box = task_problems(exact(K, Y), "hierarchical"), boxes(WIDE, 2)
    nothing = np.tile([1e-10, 1.0], (2, 1))
    warm = newton.solve(problems, nothing, box, looks_elsewhere=False)
    assert_allclose(warm.values[0], newton.solve(problems, None, box).values[0], rtol=1e-9)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_orders_share_a_search(rng, learning):
    X, Y = smooth_targets(rng, 14, 4)
    problems = task_problems(exact(ref.squared_exponential(X, X, 1.0, 1.5), Y), learning)
    box = boxes(WIDE, 4)
    box.lower[:, 1] = np.log([1e-4, 0.3, 1e-3, 0.2])
    orders = [np.arange(4), np.array([2, 0, 3, 1]), np.array([3, 2, 1, 0])]
    together = newton.solve_orders(problems, orders, box)
    for order, solution in zip(orders, together, strict=True):
        alone = newton.solve(problems.of_tasks(order), None, box.of_tasks(order))
        assert_allclose(solution.values, alone.values, rtol=1e-9, atol=1e-9)
        for one, other in zip(solution, alone, strict=True):
            assert_allclose(one, other, rtol=1e-5, atol=1e-5)  # from other starts


def test_maxima_and_neighbours_on_a_grid():
    values = np.array([[3.0, 1.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    grid = Grid([np.arange(3.0), np.arange(4.0)], np.ones(2))
    maxima = grid.maxima(values.reshape(-1, 1))
    assert_array_equal(np.flatnonzero(np.isfinite(maxima)), [0, 6])
    assert_array_equal(grid.points()[[0, 6]], [[0.0, 0.0], [1.0, 2.0]])
    assert_array_equal(maxima[[0, 6], 0], [3.0, 2.0])
    near = grid.neighbours(np.arange(12) == 3)  # the corner of the first row
    assert_array_equal(np.flatnonzero(near), [2, 3, 6, 7])
    flat = Grid([np.zeros(1), np.arange(2.0)], np.ones(2)).maxima(np.zeros((2, 1)))
    assert_array_equal(flat, np.zeros((2, 1)))


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
    assert all(np.all(np.isfinite(part)) for part in solution)
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
