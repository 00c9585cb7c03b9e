r"""
The inner problem of profiled training: the best b and sigma2 for a fixed kernel matrix.

With the spectrum fixed the objective splits into T problems in two numbers each,
:math:`(\log b_t, \log \sigma^2_t)`. A grid that all tasks share shows where the maxima are, and
Newton's method with exact derivatives goes there, one task after the other.

Letters: T tasks, n rows of a task's problem, P points of the grid.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from .terms import SharedTerms, Task, TaskProblems, Terms, shared_terms, task_terms

FINE, COARSE = np.log([10.0**0.5, 10.0**0.75]), np.log([10.0, 10.0**1.5])
"""Distances between points of the grid in log b and log sigma2, for the first search and for those
that only look whether a task has a better maximum elsewhere."""

MAX_STEP = 3.0
"""Longest Newton step in log b and log sigma2."""

MAX_ITERATIONS = 60

GAIN_TOLERANCE = 1e-12
"""A step with a smaller expected gain, in nats, is not taken."""

STRICT_ITERATIONS, LOOSE_GAIN_TOLERANCE = 15, 1e-9
"""After this many steps the tolerance grows tenfold per step, up to the loose one: where the data
hardly tell b from sigma2, many steps would gain next to nothing."""

MAX_GAIN_RATIO = 10.0
"""A start is given up if this many times the expected gain of its next step would not lift it to
the best start of its task. Near an optimum a step expects twice the gain that is left."""

LINEAR = 0.1
"""A term is as good as linear in b where its slope changes by this fraction towards zero."""

NUM_STARTS = 3
"""Of so many maxima on the grid Newton's method may start."""

SHORTENING, MAX_SHORTENINGS = 0.3, 8
"""A step that does not climb is shortened by this factor, up to so many times."""


class Box(NamedTuple):
    """Bounds of log b and log sigma2, [T, 2] each; equal bounds hold a number fixed."""

    lower: AnyNDArray
    upper: AnyNDArray

    def of_tasks(self, order: AnyNDArray) -> "Box":
        """The bounds of the tasks in another order."""
        return Box(self.lower[order], self.upper[order])


class InnerSolution(NamedTuple):
    """The optimum of each task."""

    parameters: AnyNDArray  # [T, 2], b and sigma2
    values: AnyNDArray  # [T], the terms
    gradients: AnyNDArray  # [T, 2], of the terms by b and sigma2
    W: AnyNDArray  # [T, T], row t holds the weights of the tasks before t
    A: AnyNDArray  # [n, T], the dual vectors


class Optimum(NamedTuple):
    """A point (log b, log sigma2) of one task, [2], and the term there."""

    x: AnyNDArray
    terms: Terms


class Starts(NamedTuple):
    """Maxima of each task on a grid, the best first."""

    points: AnyNDArray  # [T, starts, 2], (log b, log sigma2)
    estimates: AnyNDArray  # [T, starts], of the terms; minus infinity if a task has fewer maxima

    def split(self, parts: int) -> "list[Starts]":
        """The starts of so many groups of tasks, which stand one after the other."""
        both = np.split(self.points, parts), np.split(self.estimates, parts)
        return [Starts(*pair) for pair in zip(*both, strict=True)]


def solve(
    problems: TaskProblems, present: AnyNDArray | None, box: Box, *, looks_elsewhere: bool = True
) -> InnerSolution:
    """
    Maximise the term of every task.

    :param present: [T, 2], (b, sigma2) near the optimum, if they are known. The search then is
        coarse: another maximum is tried where the grid shows one that is higher.
    :param looks_elsewhere: False leaves that search out.
    """
    if present is not None and not looks_elsewhere:
        starts = Starts(np.empty([len(present), 0, 2]), np.empty([len(present), 0]))
    else:
        starts = search(problems, box, FINE if present is None else COARSE)
    return solve_from(problems, present, box, starts)


def solve_orders(
    problems: TaskProblems, orders: list[AnyNDArray], box: Box
) -> Iterator[InnerSolution]:
    """
    Maximise the terms of all tasks in each of some orders, which share the search.

    :param box: In the tasks' own order.
    """
    starts = search_orders(problems, orders, box)
    for order, own in zip(orders, starts, strict=True):
        yield solve_from(problems.of_tasks(order), None, box.of_tasks(order), own)


def solve_from(
    problems: TaskProblems, present: AnyNDArray | None, box: Box, starts: Starts
) -> InnerSolution:
    """Maximise the term of every task from the starts of a search."""
    num_tasks = len(box.lower)
    W, A = np.zeros([num_tasks, num_tasks]), np.empty_like(problems.Y)
    optima = []
    for t, task in enumerate(problems.tasks()):
        bounds = Box(box.lower[t], box.upper[t])
        known = None if present is None else np.log(present[t])
        optima.append(best_of_starts(task, bounds, known, *(part[t] for part in starts)))
        W[t, :t], A[:, t] = optima[-1].terms.w, optima[-1].terms.a
    return InnerSolution(
        np.exp([optimum.x for optimum in optima]),
        np.array([optimum.terms.value for optimum in optima]),
        np.array([optimum.terms.gradient for optimum in optima]),
        W,
        A,
    )


def best_of_starts(
    task: Task,
    bounds: Box,
    known: AnyNDArray | None,
    starts: AnyNDArray,
    estimates: AnyNDArray,
) -> Optimum:
    """
    The best optimum of one task.

    :param known: A point near the optimum. Of the starts, those with higher estimates are tried.
    :param starts: Points (log b, log sigma2), the best first.
    :param estimates: Of the term at the starts.
    """
    if known is None:
        best, threshold = maximise(task, starts[0], bounds), -np.inf
        starts, estimates = starts[1:], estimates[1:]
    else:
        best = maximise(task, with_some_signal(task, known), bounds)
        threshold = best.terms.value
    for start in starts[estimates > threshold]:
        other = maximise(task, start, bounds, at_least=best.terms.value)
        best = max(best, other, key=lambda optimum: optimum.terms.value)
    return best


# The grid -----------------------------------------------------------------------------------------


def with_some_signal(task: Task, x: AnyNDArray) -> AnyNDArray:
    """
    The point (log b, log sigma2), b raised to where the signal is a thousandth of the noise.

    Where b has vanished its slope has too, although there may be a signal by now.
    """
    largest = float(np.max(task.problems.lam, initial=np.finfo(float).tiny))
    return np.array([max(x[0], x[1] - np.log(1e3 * largest)), x[1]])


def search(problems: TaskProblems, box: Box, spacing: AnyNDArray) -> Starts:
    """The highest maxima of each task on a grid that all tasks share."""
    grid = Grid(grid_axes(problems, box, spacing), spacing)
    terms = shared_terms(problems, np.exp(grid.points()))
    estimates, x = estimate_terms(grid.points(), terms, box, spacing)
    return highest(grid.maxima(estimates), x)


def search_orders(problems: TaskProblems, orders: list[AnyNDArray], box: Box) -> list[Starts]:
    """
    The highest maxima of each task in each order.

    The first order is searched on the whole grid, the others where its tasks have their maxima.
    """
    first, others = orders[0], orders[1:]
    grid = Grid(grid_axes(problems, box, FINE), FINE)
    points = grid.points()
    terms = shared_terms(problems.of_tasks(first), np.exp(points))
    estimates, x = estimate_terms(points, terms, box.of_tasks(first), FINE)
    maxima = grid.maxima(estimates)
    starts = [highest(maxima, x)]
    if others:
        near = grid.neighbours(np.isfinite(maxima).any(axis=1))
        terms = shared_terms(problems, np.exp(points[near]), others)
        tasks = np.concatenate(others)
        found, x = estimate_terms(points[near], terms, box.of_tasks(tasks), FINE)
        estimates = np.full([len(points), len(tasks)], np.inf)  # unknown: no maximum beside it
        estimates[near] = found
        maxima = np.where(found == found.max(axis=0), found, grid.maxima(estimates)[near])
        starts += highest(maxima, x).split(len(others))
    return starts


class Grid(NamedTuple):
    """Points (log b, log sigma2) that all tasks share."""

    axes: list[AnyNDArray]  # values of log b and of log sigma2
    spacing: AnyNDArray  # [2], at least their distances

    def points(self) -> AnyNDArray:
        """[P, 2]."""
        return np.stack(np.meshgrid(*self.axes, indexing="ij"), axis=-1).reshape(-1, 2)

    def around(self, values: AnyNDArray, outside: Any) -> list[AnyNDArray]:
        """The values, [P, T], at each point and at its eight neighbours."""
        rows, columns = map(len, self.axes)
        shaped = values.reshape(rows, columns, -1)
        padded = np.pad(shaped, [(1, 1), (1, 1), (0, 0)], constant_values=outside)
        blocks = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
        return [block.reshape(values.shape) for block in blocks]

    def maxima(self, values: AnyNDArray) -> AnyNDArray:
        """The values where none of the neighbours is higher, minus infinity elsewhere."""
        highest = np.maximum.reduce(self.around(values, -np.inf))
        return np.where(values >= highest, values, -np.inf)

    def neighbours(self, chosen: AnyNDArray) -> AnyNDArray:
        """[P], which points are chosen or next to one that is."""
        return np.any(self.around(chosen[:, None], False), axis=0)[:, 0]


def estimate_terms(
    points: AnyNDArray, terms: SharedTerms, box: Box, spacing: AnyNDArray
) -> tuple[AnyNDArray, AnyNDArray]:
    """
    Estimates of the terms near points of a grid.

    Each point stands for the best size of b and sigma2 within half a cell, see
    :class:`.SharedTerms`: where rows are many, terms are steep in this direction.

    :param points: [P, 2].
    :return: The estimates [P, T], and where they hold, [P, T, 2].
    """
    x, reach = points[:, None], 0.5 * spacing[1]
    low = np.clip(np.max(box.lower - x, axis=2), -reach, 0.0)  # [P, T]
    high = np.clip(np.min(box.upper - x, axis=2), 0.0, reach)
    tiny = np.finfo(float).tiny
    residuals, counts = (np.log(np.maximum(part, tiny)) for part in terms[1:])
    shift = np.clip(residuals - counts, low, high)
    change = terms.residuals * np.expm1(-shift) + terms.counts * shift
    near = np.all((x >= box.lower - spacing) & (x <= box.upper + spacing), axis=2)
    return np.where(near, terms.values - 0.5 * change, -np.inf), x + shift[..., None]


def highest(maxima: AnyNDArray, x: AnyNDArray) -> Starts:
    """The highest maxima, [P, T], and where they are, of x [P, T, 2]."""
    ranked = np.argsort(-maxima, axis=0, kind="stable")[:NUM_STARTS]  # [starts, T]
    points = np.take_along_axis(x, ranked[..., None], axis=0)
    return Starts(np.swapaxes(points, 0, 1), np.take_along_axis(maxima, ranked, axis=0).T)


def grid_axes(problems: TaskProblems, box: Box, spacing: AnyNDArray) -> list[AnyNDArray]:
    """
    Values of log b and log sigma2 between which the optima of all tasks lie.

    sigma2 goes up to the largest mean square of a task. b goes from where the largest eigenvalue
    hides in the noise to where the smallest one above rounding explains a task by itself.
    """
    spectrum = problems.spectrum
    useful = spectrum.lam[spectrum.lam > spectrum.rounding]
    smallest, largest = (useful.min(), useful.max()) if len(useful) else (1.0, 1.0)
    lower, upper = np.min(box.lower, axis=0), np.max(box.upper, axis=0)
    mean_squares = np.sum(np.square(problems.Y), axis=0) / spectrum.num_rows
    size = np.log(np.max(mean_squares) + np.finfo(float).tiny)
    low = np.clip([lower[1] - np.log(10.0 * largest), lower[1]], lower, upper)
    high = np.clip([size + np.log(10.0 / smallest), size], low, upper)
    numbers = 1 + np.ceil((high - low) / spacing).astype(int)
    return [np.linspace(*ends) for ends in zip(low, high, numbers, strict=True)]


# Newton's method ----------------------------------------------------------------------------------


def maximise(task: Task, x: AnyNDArray, bounds: Box, at_least: float = -np.inf) -> Optimum:
    """
    Maximise the term of one task by Newton's method.

    :param x: (log b, log sigma2) to start from.
    :param bounds: [2] each.
    :param at_least: The search is given up where it will not come so high, see `MAX_GAIN_RATIO`.
    """
    x = np.clip(x, *bounds)
    terms = task_terms(task, *np.exp(x))
    for iteration in range(MAX_ITERATIONS):
        looser = 10.0 ** max(0, iteration - STRICT_ITERATIONS)
        step, gain = newton_step(x, terms, bounds)
        if not gain > min(GAIN_TOLERANCE * looser, LOOSE_GAIN_TOLERANCE):
            break
        if terms.value + MAX_GAIN_RATIO * gain < at_least:
            break
        better = climb(task, Optimum(x, terms), step, bounds)
        if better is None:
            break
        x, terms = better
    return Optimum(x, terms)


def newton_step(x: AnyNDArray, terms: Terms, bounds: Box) -> tuple[AnyNDArray, float]:
    """
    Ascent step: Newton with the absolute value of the curvature.

    A number at its bound whose gradient points outside stays where it is, and b goes straight to
    its lower bound where the task wants no signal. In Python's own floats,
    which are faster than arrays of two numbers.

    :return: The step in (log b, log sigma2), and what it would gain if the problem were linear.
    """
    scale = np.exp(x)
    gradient = scale * terms.gradient
    held = ((x <= bounds.lower) & (gradient <= 0)) | ((x >= bounds.upper) & (gradient >= 0))
    if not held[0] and wants_no_signal(gradient[0], scale[0] ** 2 * terms.hessian[0, 0]):
        held[0], jump, jump_gain = True, bounds.lower[0] - x[0], -float(gradient[0])
    else:
        jump, jump_gain = 0.0, 0.0
    free = scale * ~held
    g, h = (free * terms.gradient).tolist()
    (bb, bs), (_, ss) = (free[:, None] * terms.hessian * free).tolist()
    bb, ss = bb + g, ss + h
    middle, half = 0.5 * (bb + ss), 0.5 * (bb - ss)
    radius, angle = math.hypot(half, bs), 0.5 * math.atan2(bs, half)
    cos, sin = math.cos(angle), math.sin(angle)  # first eigenvector
    smallest = 1e-9 * (abs(middle) + radius) + 1e-12
    along = (cos * g + sin * h) / max(abs(middle + radius), smallest)
    across = (cos * h - sin * g) / max(abs(middle - radius), smallest)
    step = cos * along - sin * across, sin * along + cos * across
    shorter = MAX_STEP / max(abs(step[0]), abs(step[1]), MAX_STEP)
    move = shorter * np.array(step) * ~held + [jump, 0.0]
    return move, shorter * (step[0] * g + step[1] * h) + jump_gain


def climb(task: Task, present: Optimum, step: AnyNDArray, bounds: Box) -> Optimum | None:
    """Take a step, shortened until it climbs; None if the point is as high as rounding lets it."""
    for _ in range(MAX_SHORTENINGS):
        x = np.clip(present.x + step, *bounds)
        terms = task_terms(task, *np.exp(x))
        if terms.value > present.terms.value:
            return Optimum(x, terms)
        step = SHORTENING * step
    return None


def wants_no_signal(slope: float, curvature: float) -> bool:
    """
    Whether a term falls with b, and is as good as linear in b from here to zero.

    Newton's method in log b would lower b by a factor of e per step.

    :param slope: b times the derivative by b.
    :param curvature: b^2 times the second derivative.
    """
    return slope < 0.0 and abs(curvature) < LINEAR * -slope
