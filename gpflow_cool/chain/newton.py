r"""
The inner problem of profiled training: the best b and sigma2 for a fixed kernel matrix.

With the spectrum fixed the objective splits into T problems in two numbers each,
:math:`(\log b_t, \log \sigma^2_t)`. A grid that all tasks share shows where the maxima are, and
Newton's method with exact derivatives goes there, one task after the other.

Letters: T tasks, n rows of a task's problem, P points of the grid.
"""

import math
from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from .terms import Task, TaskProblems, Terms, shared_terms, task_terms

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


@check_shapes("present: [T, 2]")
def solve(problems: TaskProblems, present: AnyNDArray | None, box: Box) -> InnerSolution:
    """
    Maximise the term of every task.

    :param present: (b, sigma2) near the optimum, if they are known. The search then is coarse:
        another maximum is tried where the grid shows one that is higher.
    """
    starts, estimates = search(problems, box, FINE if present is None else COARSE)
    W, A = np.zeros([len(starts)] * 2), np.empty_like(problems.Y)
    optima = []
    for t, task in enumerate(problems.tasks()):
        bounds = Box(box.lower[t], box.upper[t])
        known = None if present is None else np.log(present[t])
        optima.append(best_of_starts(task, bounds, known, starts[t], estimates[t]))
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
        best = maximise(task, known, bounds)
        threshold = best.terms.value
    for start in starts[estimates > threshold]:
        other = maximise(task, start, bounds, at_least=best.terms.value)
        best = max(best, other, key=lambda optimum: optimum.terms.value)
    return best


# The grid -----------------------------------------------------------------------------------------


def search(problems: TaskProblems, box: Box, spacing: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """
    The highest maxima of each task on a grid that all tasks share.

    Each point of the grid stands for the best size of b and sigma2 within half a cell, see
    :class:`.SharedTerms`: where rows are many, terms are steep in this direction.

    :return: Points (log b, log sigma2), [T, starts, 2], the best first, and estimates of the terms
        there, [T, starts], minus infinity where a task has fewer maxima.
    """
    axes = grid_axes(problems, box, spacing)
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 1, 2)  # [P, 1, 2]
    shared = shared_terms(problems, np.exp(x[:, 0]))  # [P, T]
    reach = 0.5 * spacing[1]
    low = np.clip(np.max(box.lower - x, axis=2), -reach, 0.0)  # [P, T]
    high = np.clip(np.min(box.upper - x, axis=2), 0.0, reach)
    tiny = np.finfo(float).tiny
    residuals, counts = (np.log(np.maximum(part, tiny)) for part in shared[1:])
    shift = np.clip(residuals - counts, low, high)
    change = shared.residuals * np.expm1(-shift) + shared.counts * shift
    near = np.all((x >= box.lower - spacing) & (x <= box.upper + spacing), axis=2)
    estimates = np.where(near, shared.values - 0.5 * change, -np.inf)
    grid = estimates.reshape([*map(len, axes), -1])
    estimates = np.where(local_maxima(grid), grid, -np.inf).reshape(estimates.shape)
    ranked = np.argsort(-estimates, axis=0, kind="stable")[:NUM_STARTS]  # [starts, T]
    points = x[ranked, 0] + np.take_along_axis(shift, ranked, axis=0)[..., None]
    return np.swapaxes(points, 0, 1), np.take_along_axis(estimates, ranked, axis=0).T


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


def local_maxima(values: AnyNDArray) -> AnyNDArray:
    """Where none of the eight neighbours in a grid is higher; both [values of b, of sigma2, T]."""
    rows, columns, _ = values.shape
    padded = np.pad(values, [(1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
    around = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return np.all([values >= other for other in around], axis=0)


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

    A number at its bound whose gradient points outside stays where it is. In Python's own floats,
    which are faster than arrays of two numbers.

    :return: The step in (log b, log sigma2), and what it would gain if the problem were linear.
    """
    scale = np.exp(x)
    gradient = scale * terms.gradient
    held = ((x <= bounds.lower) & (gradient <= 0)) | ((x >= bounds.upper) & (gradient >= 0))
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
    return shorter * np.array(step) * ~held, shorter * (step[0] * g + step[1] * h)


def climb(task: Task, present: Optimum, step: AnyNDArray, bounds: Box) -> Optimum | None:
    """Take a step, shortened until it climbs; None if the point is as high as rounding lets it."""
    for _ in range(MAX_SHORTENINGS):
        x = np.clip(present.x + step, *bounds)
        terms = task_terms(task, *np.exp(x))
        if terms.value > present.terms.value:
            return Optimum(x, terms)
        step = SHORTENING * step
    return None
