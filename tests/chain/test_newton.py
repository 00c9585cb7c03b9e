"""The optimum of the inner problem, against dense algebra and SciPy."""

import numpy as np
import pytest
import reference as ref
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, LEARNINGS, assert_close, random_problem, trap_for_a_single_start
from properties.cases import make_data, random_case
from scipy.optimize import minimize
from spectra import exact, low_rank

from gpflow_cool.chain import newton
from gpflow_cool.chain.newton import evaluated, maximise
from gpflow_cool.chain.search import FINE, Box, Grid, Starts, estimate_terms, grid_axes
from gpflow_cool.chain.terms import shared_terms, task_problems, task_terms
from gpflow_cool.training.profiled import inner_box


def solve(spectrum, box, learning):
    return newton.solve(task_problems(spectrum, learning), box)


def maximise_first(problems, start):
    """The first task, by Newton's method from one start: its point and its value."""
    starts = Starts(np.zeros(1, int), np.log([start]))
    found = maximise(problems, WIDE, evaluated(problems, WIDE, starts))
    return found.starts.x[0], found.terms.values[0]


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


# Starts


@pytest.mark.parametrize("learning", LEARNINGS)
def test_the_grid_rescues_from_a_local_optimum(rng, learning):
    """Also where the search is coarse, because a point near an optimum is known."""
    problems, box = task_problems(exact(*trap_for_a_single_start(rng)), learning), boxes(WIDE, 3)
    x, value = maximise_first(problems, [1e-9, 1.0])
    solved = newton.solve(problems, box)
    assert value < solved.values[0] - 30.0
    assert x[0] < np.log(1e-6) and x[1] > np.log(0.9)
    trapped = newton.solve_from(problems, box, Starts(np.arange(3), np.log([[1e-9, 1.0]] * 3)))
    stays = newton.solve(problems, box, trapped)  # the terms have not changed
    assert_allclose(stays.values, trapped.values, rtol=1e-10, atol=1e-9)
    rescued = newton.solve(problems, box, trapped._replace(searched=trapped.values - 10.0))
    assert_allclose(rescued.values, solved.values, rtol=1e-10, atol=1e-9)
    assert_array_equal(rescued.searched, rescued.values)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_close_to_a_maximum_a_step_is_known_to_gain_what_it_gains(rng, learning):
    X, Y = smooth_targets(rng, 14, 3)
    problems = task_problems(exact(ref.squared_exponential(X, X, 1.0, 1.5), Y), learning)
    box = boxes(WIDE, 3)
    best = newton.solve(problems, box)
    inside = np.all(np.abs(np.log(best.parameters) - box.lower) > 1.0, axis=1)
    assert inside[:2].all()
    moved = Starts(np.arange(3), np.log(best.parameters) + [0.1, -0.1])
    present = evaluated(problems, box, moved)
    left = best.values - present.terms.values
    error = best.values - newton.hoped_for(problems, box, present)
    assert np.all(np.abs(error[inside]) < 0.3 * left[inside])


def test_a_rival_is_kept_for_the_next_kernel_matrix(rng):
    """Two maxima of one task: the lower one stays a start while it is not much lower."""
    problems = task_problems(exact(*trap_for_a_single_start(rng)), "hierarchical")
    starts = Starts(np.zeros(3, int), np.log([[1e-9, 1.0]] * 3))
    optima = maximise(problems, WIDE, evaluated(problems, WIDE, starts))
    x = np.array([[-9.0, 0.0], [1.0, -2.0], [1.01, -2.0]])
    for value, kept in ((-1.0, [0, 1]), (-100.0, [1])):
        terms = optima.terms._replace(values=np.array([value, 0.0, -0.5]))
        found = newton.solution(newton.Optima(optima.starts._replace(x=x), terms))
        assert_array_equal(found.maxima.x, x[kept])
        assert_array_equal(found.parameters, np.exp(x[1:2]))


@pytest.mark.parametrize("learning", LEARNINGS)
def test_giving_up_hopeless_starts_keeps_the_best_optimum(rng, learning, monkeypatch):
    """From many starts, against a search that gives none up; a ratio of 0.5 loses an optimum."""
    systems = []
    monkeypatch.setattr(
        newton, "task_terms", lambda *args: systems.append(len(args[1])) or task_terms(*args)
    )
    kernels = [trap_for_a_single_start(rng)]
    for lengthscale in (0.3, 1.5, 5.0):
        X, Y = smooth_targets(rng, 14, 3)
        kernels.append((ref.squared_exponential(X, X, 1.0, lengthscale), Y))
    corners = np.array([[b, s] for b in (1e-9, 1e-2, 1.0, 1e2) for s in (1e-3, 0.1, 1.0)])
    starts = Starts(np.repeat(np.arange(3), len(corners)), np.log(np.tile(corners, (3, 1))))
    for K, Y in kernels:
        problems, box = task_problems(exact(K, Y), learning), boxes(WIDE, 3)
        found = newton.solve_from(problems, box, starts)
        with monkeypatch.context() as patch:
            patch.setattr(newton, "MAX_GAIN_RATIO", 1e30)
            cost, everywhere = sum(systems), newton.solve_from(problems, box, starts)
        assert cost < 0.9 * (sum(systems) - cost)
        assert_allclose(found.values, everywhere.values, rtol=1e-10, atol=1e-9)
        systems.clear()


def test_the_last_step_is_expanded(rng):
    """Values, gradients and weights beside a point, by their Taylor series."""
    p = random_problem(rng, 9, 3)
    problems, tasks = task_problems(exact(p.K, p.Y), "hierarchical"), np.arange(3)
    x = np.log(np.stack([p.b, p.sigma2], axis=1))
    step = rng.normal(size=(3, 2))
    errors = []
    for size in (1e-2, 1e-3):
        start = newton.Optima(Starts(tasks, x), task_terms(problems, tasks, np.exp(x)))
        found = newton.expanded(start, x + size * step).terms
        exact_terms = task_terms(problems, tasks, np.exp(x + size * step))
        errors.append(
            [
                np.max(np.abs(part - other))
                for part, other in zip(
                    found[:2] + (found.W,), exact_terms[:2] + (exact_terms.W,), strict=True
                )
            ]
        )
    rates = np.log10(np.array(errors[0]) / errors[1])
    assert_allclose(rates, [3.0, 2.0, 2.0], atol=0.3)


def test_a_task_without_signal_takes_few_steps(monkeypatch):
    """In log b alone Newton lowers b by a factor of e per step, here from 1e-2 to 1e-10."""
    X = np.linspace(0.0, 4.0, 40)[:, None]
    alternating = (-1.0) ** np.arange(40)[:, None]  # nothing that a smooth kernel explains
    spectrum = exact(ref.squared_exponential(X, X, 1.0, 1.0), alternating)
    calls = []
    monkeypatch.setattr(newton, "task_terms", lambda *args: calls.append(1) or task_terms(*args))
    x, _ = maximise_first(task_problems(spectrum, "hierarchical"), [0.01, 1.0])
    assert x[0] == WIDE.lower[0, 0]
    assert len(calls) <= 6


@pytest.mark.parametrize("learning", LEARNINGS)
def test_steps_balance_what_lifts_and_what_lowers_the_parameters(rng, learning):
    """Against differences of log q - log n; gradients are (q - n) / 2."""
    p = random_problem(rng, 9, 3)
    problems, tasks = task_problems(exact(p.K, p.Y), learning), np.arange(300) % 3
    problems = problems._replace(spectrum=problems.spectrum._replace(slack=0.3))
    x = rng.uniform(-5.0, 3.0, size=(300, 2))

    def balance(x):
        terms = task_terms(problems, tasks, np.exp(x))
        return np.log(terms.fits) - np.log(terms.fits - 2.0 * terms.gradients)

    terms, h = task_terms(problems, tasks, np.exp(x)), 1e-5
    J = np.stack([(balance(x + e) - balance(x - e)) / (2 * h) for e in h * np.eye(2)], axis=2)
    expected = np.linalg.solve(J, -balance(x)[..., None])[..., 0]
    positive = np.linalg.det(J) > 0
    near = np.max(np.abs(expected), axis=1) < newton.MAX_STEP
    good = positive & near
    assert good.any() and (positive & ~near).any() and (near & ~positive).any()
    steps = newton.balancing_steps(np.exp(x), terms, np.ones([300, 2], bool))
    assert_allclose(steps, np.where(good[:, None], expected, 0.0), rtol=1e-4, atol=1e-6)
    held = newton.balancing_steps(np.exp(x), terms, np.array([[True, False]] * 300))
    alone = -balance(x)[:, 0] / J[:, 0, 0]
    assert_allclose(held[:, 0], np.where(J[:, 0, 0] < 0, alone, 0.0), rtol=1e-4, atol=1e-6)
    assert not held[:, 1].any()


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


def test_noise_that_does_not_matter_leads_no_step_astray(rng):
    """b is wrong by a fifth. Far below the signal, sigma2 is free, and moves the term by 1e-8."""
    Q, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    spectrum = exact(Q @ np.diag(rng.uniform(1.0, 2.0, 20)) @ Q.T, rng.normal(size=(20, 1)))
    problems, box = task_problems(spectrum, "hierarchical"), boxes(WIDE, 1)
    box.lower[:] = np.log([1e-10, 1e-12])
    b = newton.solve(problems, Box(np.log([[1e-10, 1e-12]]), np.log([[1e10, 1e-12]]))).parameters
    starts = Starts(np.zeros(1, int), np.log([[1.2 * b[0, 0], 1e-10]]))
    found = newton.solve_from(problems, box, starts)
    assert_allclose(found.parameters[0, 0], b[0, 0], rtol=1e-6)


def test_a_wrong_size_of_b_is_one_step_away(rng):
    """Noise at its bound, and b wrong by a factor of 1000, both ways."""
    Q, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    spectrum = exact(Q @ np.diag(rng.uniform(1.0, 2.0, 20)) @ Q.T, rng.normal(size=(20, 1)))
    problems = task_problems(spectrum, "hierarchical")
    low, high = np.log([[1e-10, 1e-12]]), np.log([[1e10, 1e-12]])
    best = newton.solve(problems, Box(low, high)).parameters
    for factor in (1e-3, 1e3):
        scale = best * [factor, 1.0]
        step = newton.balancing_steps(
            scale, task_terms(problems, np.zeros(1, int), scale), np.array([[True, False]])
        )
        assert_allclose(step, [[-np.log(factor), 0.0]], atol=1e-7)


def test_signal_is_found_after_there_was_none(rng):
    """From no signal at all, where the slope by log b has vanished."""
    X, Y = smooth_targets(rng, 14, 2)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    problems, box = task_problems(exact(K, Y), "hierarchical"), boxes(WIDE, 2)
    nothing = Starts(np.arange(2), np.log([[1e-10, 1.0]] * 2))
    warm = newton.solve_from(problems, box, nothing)
    assert_allclose(warm.values[0], newton.solve(problems, box).values[0], rtol=1e-9)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_orders_share_a_search(rng, learning):
    X, Y = smooth_targets(rng, 14, 4)
    problems = task_problems(exact(ref.squared_exponential(X, X, 1.0, 1.5), Y), learning)
    box = boxes(WIDE, 4)
    box.lower[:, 1] = np.log([1e-4, 0.3, 1e-3, 0.2])
    orders = [np.arange(4), np.array([2, 0, 3, 1]), np.array([3, 2, 1, 0])]
    together = newton.solve_orders(problems, orders, box)
    for order, solution in zip(orders, together, strict=True):
        alone = newton.solve(problems.of_tasks(order), box.of_tasks(order))
        assert_allclose(solution.values, alone.values, rtol=0, atol=1e-7)
        # From other starts. The last step's length is up to the cube root of TOLERANCE_OF_ORDERS
        # over the curvature, 0.003, and its square is what parameters and W are wrong by.
        assert_allclose(solution.parameters, alone.parameters, rtol=3e-5)
        assert_allclose(solution.W, alone.W, atol=3e-5)


def test_estimates_on_the_grid_are_lower_bounds_within_the_bounds_of_a_task(rng):
    X, Y = smooth_targets(rng, 14, 3)
    K = ref.squared_exponential(X, X, 1.0, 1.5)
    problems = task_problems(exact(K, Y), "hierarchical")
    box = boxes(WIDE, 3)
    box.lower[:, 1] = np.log([1e-4, 0.3, 1e-3])
    points = Grid(grid_axes(problems, box, FINE), FINE).points()
    terms = shared_terms(problems, np.exp(points))
    estimates, x = estimate_terms(points, terms, box, FINE)
    for t in range(3):
        known = np.isfinite(estimates[:, t])
        assert np.any(points[known, 1] < box.lower[t, 1] - 0.1) == (t > 0)
        assert np.all(x[known, t, 1] > box.lower[t, 1] - 1e-9)
        there = task_terms(problems, np.full(np.sum(known), t), np.exp(x[known, t])).values
        assert np.all(estimates[known, t] < there + 1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_a_jump_to_no_signal_gains_what_it_promises_and_is_evaluated(rng, learning):
    """The gain of such a jump, against the term where b has vanished."""
    X, Y = smooth_targets(rng, 14, 3)
    problems = task_problems(exact(ref.squared_exponential(X, X, 1.0, 1.5), Y), learning)
    tasks, largest = np.arange(3), newton.largest_eigenvalue(problems)
    box = Box(np.log([[1e-10, 1.0]] * 3), np.log([[1e10, 1.0]] * 3))
    for b in (1e-4, 1e-3):
        x = np.log([[b, 1.0]] * 3)
        terms = task_terms(problems, tasks, np.exp(x))
        steps, gains, lengths = newton.newton_steps(x, terms, box, largest)
        down = steps[:, 0] < -1.0
        assert down[-1]  # the task without signal
        there = task_terms(problems, tasks, np.exp(x + steps)).values
        assert_allclose((there - terms.values)[down], gains[down], rtol=newton.LINEAR)
        assert np.all(lengths[down] > newton.LAST_STEP)


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


def test_maxima_and_neighbours_on_a_grid():
    values = np.array([[3.0, 1.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    grid = Grid([np.arange(3.0), np.arange(4.0)], np.ones(2))
    maxima = grid.maxima(values.reshape(-1, 1))
    assert_array_equal(np.flatnonzero(np.isfinite(maxima)), [0, 6])
    assert_array_equal(grid.points()[[0, 6]], [[0.0, 0.0], [1.0, 2.0]])
    assert_array_equal(maxima[[0, 6], 0], [3.0, 2.0])
    near = grid.neighbours(np.arange(12) == 3)  # the corner of the first row
    assert_array_equal(np.flatnonzero(near), [2, 3, 6, 7])
    x = np.stack(np.meshgrid(np.arange(3.0), np.arange(4.0), indexing="ij"), axis=-1)
    parabola = -np.square(x[..., 0] - 1.2).reshape(-1, 1)  # highest at 1.2 on the first axis
    at = grid.between(parabola, x.reshape(-1, 1, 2)).reshape(3, 4, 2)
    assert_allclose(at[1], np.stack([np.full(4, 1.2), np.arange(4.0)], axis=1))
    assert_array_equal(at[[0, 2]], x[[0, 2]])  # at the edge, and none higher beside it
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
