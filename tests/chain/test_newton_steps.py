"""Steps of Newton's method: from which starts, how far, and when they end."""

import numpy as np
import pytest
import reference as ref
from inner_problems import WIDE, boxes, smooth_targets
from numpy.testing import assert_allclose, assert_array_equal
from problems import LEARNINGS, random_problem, trap_for_a_single_start
from spectra import exact

from gpflow_cool.chain import newton
from gpflow_cool.chain.newton import evaluated, maximise
from gpflow_cool.chain.search import Box, Starts
from gpflow_cool.chain.terms import task_problems, task_terms


def maximise_first(problems, start):
    """The first task, by Newton's method from one start: its point and its value."""
    starts = Starts(np.zeros(1, int), np.log([start]))
    found = maximise(problems, WIDE, evaluated(problems, WIDE, starts))
    return found.starts.x[0], found.terms.values[0]


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
