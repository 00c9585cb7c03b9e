"""The grid on which the inner problem looks for maxima: how far it goes, and which are starts."""

import numpy as np
import pytest
import reference as ref
from inner_problems import WIDE, boxes, smooth_targets
from numpy.testing import assert_allclose, assert_array_equal
from spectra import exact

from gpflow_cool.chain import newton
from gpflow_cool.chain.search import (
    FINE,
    Box,
    Grid,
    Starts,
    estimate_terms,
    grid_axes,
    highest,
    margin_of_rows,
    together,
)
from gpflow_cool.chain.terms import shared_terms, task_problems, task_terms


def small_problems(rng, T=2):
    """Eigenvalues 4, 1 and 0.25, and one that is rounding."""
    Q, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    K = Q @ np.diag([4.0, 1.0, 0.25, 0.0]) @ Q.T
    return task_problems(exact((K + K.T) / 2, rng.normal(size=(4, T))), "hierarchical")


def starts_of(values, num_rows):
    """Which of some maxima of one task are starts."""
    x = np.stack([np.arange(float(len(values)))] * 2, axis=1)[:, None]
    return highest(np.array(values)[:, None], x, margin_of_rows(num_rows)).x[:, 0].tolist()


def test_the_three_highest_maxima_are_starts():
    assert starts_of([-2.0, -1.0, -np.inf, 0.0, -3.0], 1.0) == [3.0, 1.0, 0.0]


@pytest.mark.parametrize("num_rows, margin", [(0.0, 5.0), (100.0, 7.0), (1000.0, 25.0)])
def test_a_maximum_far_below_the_highest_is_no_start(num_rows, margin):
    """5 nats and 0.02 for each row."""
    assert starts_of([0.0, 0.01 - margin], num_rows) == [0.0, 1.0]
    assert starts_of([0.0, -0.01 - margin], num_rows) == [0.0]


def test_the_highest_maximum_is_a_start_also_where_the_margin_is_lost_in_rounding():
    """As for a task without signal, at a sigma2 that is held: `random_case(160102)`."""
    starts = highest(np.array([[-8e16]]), np.zeros([1, 1, 2]), 5.0)
    assert_array_equal(starts.tasks, [0])


def test_each_task_has_starts_of_its_own():
    x = np.arange(12.0).reshape(3, 2, 2)
    found = highest(np.array([[0.0, -9.0], [-9.0, 0.0], [-1.0, -np.inf]]), x, 5.0)
    assert_array_equal(found.tasks, [0, 0, 1])
    assert_array_equal(found.x, [x[0, 0], x[2, 0], x[1, 1]])


def test_starts_together_are_in_the_order_of_the_tasks():
    one = Starts(np.array([0, 2]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    found = together(one, Starts(np.array([0, 1]), np.array([[5.0, 6.0], [7.0, 8.0]])))
    assert_array_equal(found.tasks, [0, 0, 1, 2])
    assert_array_equal(found.x, [[1.0, 2.0], [5.0, 6.0], [7.0, 8.0], [3.0, 4.0]])


# How far the grid goes ----------------------------------------------------------------------------


def test_the_grid_goes_from_no_signal_to_nothing_but_signal(rng):
    """
    b from where the largest eigenvalue has a tenth of the smallest noise to where the smallest one
    above rounding has ten times the largest mean square; sigma2 up to that mean square.
    """
    problems = small_problems(rng)
    largest = np.max(np.mean(np.square(problems.Y), axis=0))
    wide = Box(np.log([[1e-20, 1e-3], [1e-20, 1e-2]]), np.log([[1e20, 1e20]] * 2))
    b, sigma2 = grid_axes(problems, wide, FINE)
    assert_allclose(np.exp(b[[0, -1]]), [1e-3 / 40.0, 10.0 * largest / 0.25], rtol=1e-9)
    assert_allclose(np.exp(sigma2[[0, -1]]), [1e-3, largest], rtol=1e-9)
    for axis, spacing in zip((b, sigma2), FINE, strict=True):
        steps = np.diff(axis)
        assert_allclose(steps, steps[0])
        assert spacing * (len(axis) - 2) / (len(axis) - 1) <= steps[0] <= spacing


def test_the_grid_stays_between_the_bounds_of_all_tasks(rng):
    narrow = Box(np.log([[0.1, 0.2], [0.3, 0.4]]), np.log([[0.5, 0.6], [0.7, 0.8]]))
    b, sigma2 = grid_axes(small_problems(rng), narrow, FINE)
    assert_allclose(np.exp([b[0], b[-1]]), [0.1, 0.7])
    assert_allclose(np.exp(sigma2[0]), 0.2)
    assert 0.4 <= np.exp(sigma2[-1]) <= 0.8 * (1 + 1e-12)


def test_the_grid_reaches_bounds_above_all_that_data_ask_for(rng):
    """Where b and sigma2 are bounded from below, optima are at the bounds."""
    high = Box(np.log([[1e6, 1e3], [1e7, 1e4]]), np.log([[1e9, 1e9]] * 2))
    b, sigma2 = grid_axes(small_problems(rng), high, FINE)
    assert_allclose(np.exp([b[0], b[-1], sigma2[0], sigma2[-1]]), [1e6, 1e7, 1e3, 1e4])


def test_points_next_to_the_bounds_of_a_task_count_for_it(rng):
    """Up to one cell outside: the bounds may lie between two points. Those beyond do not count."""
    problems = small_problems(rng)
    points = np.stack([np.linspace(-3.0, 3.0, 13), np.zeros(13)], axis=1)  # [P, 2], every half
    spacing = np.array([0.5, 0.75])
    box = Box(np.array([[0.1, -1.0], [-9.0, 0.2]]), np.array([[0.2, 1.0], [9.0, 0.2]]))
    terms = shared_terms(problems, np.exp(points))
    values, _ = estimate_terms(points, terms, box, spacing)
    assert_array_equal(points[np.isfinite(values[:, 0]), 0], [0.0, 0.5])
    assert np.isfinite(values[:, 1]).all()  # sigma2 is fixed, and less than a cell away
    far = box._replace(lower=box.lower + [0.0, 2.0], upper=box.upper + [0.0, 2.0])
    assert not np.isfinite(estimate_terms(points, terms, far, spacing)[0]).any()


def test_numbers_that_are_fixed_between_points_of_the_grid(rng):
    """A different sigma2 per task, and b free: every task is solved."""
    problems = small_problems(rng, T=4)
    fixed = np.log([0.013, 0.11, 0.37, 1.9])
    box = Box(np.stack([np.full(4, -20.0), fixed], 1), np.stack([np.full(4, 20.0), fixed], 1))
    found = newton.solve(problems, box)
    assert_allclose(found.parameters[:, 1], np.exp(fixed))
    grid = Grid([np.linspace(-20.0, 20.0, 4001), fixed], np.ones(2))
    best = shared_terms(problems, np.exp(grid.points())).values.reshape(4001, 4, 4)
    assert_allclose(found.values, [best[:, t, t].max() for t in range(4)], atol=1e-4)


def test_starts_that_lead_to_the_same_maximum_do_not_add_up():
    one = Starts(np.array([0, 1]), np.array([[0.0, 0.0], [1.0, 2.0]]))
    other = Starts(np.array([0, 0, 1]), np.array([[0.01, -0.02], [0.5, 0.0], [1.02, 2.01]]))
    both = together(one, other)
    assert both.tasks.tolist() == [0, 0, 1]
    assert_array_equal(both.x, [[0.0, 0.0], [0.5, 0.0], [1.0, 2.0]])
    assert_array_equal(together(both, other).x, both.x)


# What is found on the grid ------------------------------------------------------------------------


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
