"""
Where the terms of all tasks have their maxima, on a grid over log b and log sigma2 that they share.

Letters: T tasks, P points of the grid.
"""

from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from .terms import SharedTerms, TaskProblems, shared_terms

FINE, MIDDLE, COARSE = np.log(10.0) * np.array([[0.25, 0.75], [0.75, 1.0], [1.0, 1.5]])
"""Distances between points of the grid in log b and log sigma2: for the first search, for orders of
the tasks, and for searches that only look whether a task has a better maximum elsewhere."""

SAME = 0.1
"""Starts of a task that are closer than this in both logarithms lead to the same maximum."""

NUM_STARTS = 3
"""Of so many maxima on the grid Newton's method may start."""


MARGIN, MARGIN_PER_ROW, MARGIN_OF_ORDERS = 5.0, 0.02, 2.0
"""A maximum on the grid that is so many nats lower than the task's highest is no start. Of 5462
random tasks 18 had their optimum at another maximum than the highest, at most 0.8 nats lower."""


class Box(NamedTuple):
    """Bounds of log b and log sigma2, [T, 2] each; equal bounds hold a number fixed."""

    lower: AnyNDArray
    upper: AnyNDArray

    def of_tasks(self, order: Any) -> "Box":
        """The bounds of the tasks in another order, or of some."""
        return Box(self.lower[order], self.upper[order])


class Starts(NamedTuple):
    """Points from which tasks are solved; a task may have several."""

    tasks: AnyNDArray  # [P], ascending
    x: AnyNDArray  # [P, 2], (log b, log sigma2)

    def of(self, chosen: AnyNDArray) -> "Starts":
        return Starts(self.tasks[chosen], self.x[chosen])


def together(one: Starts, other: Starts) -> Starts:
    """Both, in the order of the tasks; of starts in one cell of size `SAME` the first."""
    tasks, x = np.concatenate([one.tasks, other.tasks]), np.concatenate([one.x, other.x])
    cells = np.column_stack([tasks, np.round(x / SAME)])
    kept = np.sort(np.unique(cells, axis=0, return_index=True)[1])
    return Starts(tasks, x).of(kept[np.argsort(tasks[kept], kind="stable")])


def search(problems: TaskProblems, box: Box, spacing: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """Maxima of each task on a grid that all tasks share, [P, T], and where they are, [P, T, 2]."""
    grid = Grid(grid_axes(problems, box, spacing), spacing)
    return search_at(problems, None, box, grid, np.ones(len(grid.points()), bool))


def search_orders(problems: TaskProblems, orders: list[AnyNDArray], box: Box) -> list[Starts]:
    """
    The highest maxima of each task in each order.

    The first order is searched on the whole grid, the others where its tasks have their maxima.
    """
    grid = Grid(grid_axes(problems, box, MIDDLE), MIDDLE)
    maxima, x = search_at(problems, orders[:1], box, grid, np.ones(len(grid.points()), bool))
    starts = [highest(maxima, x, MARGIN_OF_ORDERS)]
    if orders[1:]:
        near = grid.neighbours(np.isfinite(maxima).any(axis=1))
        maxima, x = search_at(problems, orders[1:], box, grid, near)
        for own in np.split(np.arange(maxima.shape[1]), len(orders) - 1):
            starts.append(highest(maxima[:, own], x[:, own], MARGIN_OF_ORDERS))
    return starts


def search_at(
    problems: TaskProblems,
    orders: list[AnyNDArray] | None,
    box: Box,
    grid: "Grid",
    where: AnyNDArray,
) -> tuple[AnyNDArray, AnyNDArray]:
    """
    Maxima on a part of a grid, of the tasks of one order after the other, and where they are.

    :param where: Which points. The highest of them is a maximum, also if a neighbour is not known.
    """
    points = grid.points()
    terms = shared_terms(problems, np.exp(points[where]), orders)
    tasks = slice(None) if orders is None else np.concatenate(orders)
    found, at = estimate_terms(points[where], terms, box.of_tasks(tasks), grid.spacing)
    estimates = np.full([len(points), found.shape[1]], np.inf)  # unknown: no maximum beside it
    x = np.zeros([*estimates.shape, 2])
    estimates[where], x[where] = found, at
    maxima = np.where(found == found.max(axis=0), found, grid.maxima(estimates)[where])
    return maxima, grid.between(estimates, x)[where]


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

    def between(self, values: AnyNDArray, x: AnyNDArray) -> AnyNDArray:
        """
        Where the values, [P, T], are highest between points and their neighbours in log b.

        By a parabola, where the three values have one that opens downwards and are known.

        :param x: [P, T, 2], where the values hold.
        """
        shaped = values.reshape(*map(len, self.axes), -1)
        at = x.reshape(*shaped.shape, 2).copy()
        below, here, above = shaped[:-2], shaped[1:-1], shaped[2:]
        with np.errstate(invalid="ignore"):
            bend, slope = below - 2.0 * here + above, above - below
            peaks = np.isfinite(bend) & (bend < 0.0) & (np.abs(slope) <= -bend)
        h = np.divide(-0.5 * slope, bend, out=np.zeros_like(bend), where=peaks)[..., None]
        first, last = at[:-2].copy(), at[2:]
        at[1:-1] += 0.5 * h * (last - first) + 0.5 * h**2 * (last - 2.0 * at[1:-1] + first)
        return at.reshape(x.shape)

    def neighbours(self, chosen: AnyNDArray) -> AnyNDArray:
        """[P], which points are chosen or next to one that is."""
        return np.any(self.around(chosen[:, None], False), axis=0)[:, 0]


def estimate_terms(
    points: AnyNDArray, terms: SharedTerms, box: Box, spacing: AnyNDArray
) -> tuple[AnyNDArray, AnyNDArray]:
    """
    Estimates of the terms near points of a grid.

    Each point stands for the best size of b and sigma2 within half a cell, see
    :class:`.SharedTerms`: where rows are many, terms are steep in this direction. A point outside
    the bounds of a task stands for one inside.

    :param points: [P, 2].
    :return: The estimates [P, T], and where they hold, [P, T, 2].
    """
    x, reach = points[:, None], 0.5 * spacing[1]
    low, high = np.max(box.lower - x, axis=2), np.min(box.upper - x, axis=2)  # [P, T]
    low = np.maximum(low, np.minimum(high, -reach))
    high = np.maximum(low, np.minimum(high, reach))
    tiny = np.finfo(float).tiny
    residuals, counts = (np.log(np.maximum(part, tiny)) for part in terms[1:])
    shift = np.clip(residuals - counts, low, high)
    change = terms.residuals * np.expm1(-shift) + terms.counts * shift
    near = np.all((x >= box.lower - spacing) & (x <= box.upper + spacing), axis=2)
    return np.where(near, terms.values - 0.5 * change, -np.inf), x + shift[..., None]


def margin_of_rows(num_rows: float) -> float:
    """How far below the highest a maximum on the grid may be to be a start of a fit."""
    return MARGIN + MARGIN_PER_ROW * num_rows


def highest(maxima: AnyNDArray, x: AnyNDArray, margin: float) -> Starts:
    """
    The highest maxima, [P, T], minus infinity where there is none, of x [P, T, 2].

    :param margin: Lower ones than the task's highest less this are left out.
    """
    ranked = np.argsort(-maxima, axis=0, kind="stable")[:NUM_STARTS]  # [starts, T]
    values = np.take_along_axis(maxima, ranked, axis=0)
    high = np.isfinite(values) & (values >= values[0] - margin)  # the margin may round to nothing
    tasks, numbers = np.nonzero(high.T)
    return Starts(tasks, x[ranked[numbers, tasks], tasks])


def grid_axes(problems: TaskProblems, box: Box, spacing: AnyNDArray) -> list[AnyNDArray]:
    """
    Values of log b and log sigma2 between which the optima of all tasks lie.

    sigma2 goes up to the largest mean square of a task. b goes from where the largest eigenvalue
    hides in the noise to where the smallest one above rounding explains a task by itself.
    """
    spectrum = problems.spectrum
    useful = spectrum.useful
    smallest, largest = (useful.min(), useful.max()) if len(useful) else (1.0, 1.0)
    lower, upper = np.min(box.lower, axis=0), np.max(box.upper, axis=0)
    mean_squares = np.sum(np.square(problems.Y), axis=0) / spectrum.num_rows
    size = np.log(np.max(mean_squares) + np.finfo(float).tiny)
    low = np.clip([lower[1] - np.log(10.0 * largest), lower[1]], lower, np.min(box.upper, axis=0))
    reached = np.maximum(low, np.max(box.lower, axis=0))
    high = np.clip([size + np.log(10.0 / smallest), size], reached, upper)
    numbers = 1 + np.ceil((high - low) / spacing).astype(int)
    return [np.linspace(*ends) for ends in zip(low, high, numbers, strict=True)]
