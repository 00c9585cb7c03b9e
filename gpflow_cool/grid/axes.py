"""
Tables whose rows are a grid: made from axes, found in a table, completed.

A grid is a Cartesian product of axes. An axis has one column of the inputs, or several: places are
one axis with the columns latitude and longitude, if not every latitude occurs with every longitude.

Letters: N rows, D inputs, n points of an axis, T tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from .. import checks

LEAST_SHARE = 0.5
"""A table with gaps counts as a grid where it has at least this share of the cells."""


@dataclass(frozen=True)
class Grid:
    """
    A table as a grid.

    >>> from gpflow_cool.grid import find_grid, grid_inputs
    >>> X = grid_inputs([10.0, 20.0], [1.0, 2.0, 3.0])
    >>> grid = find_grid(X[::-1])
    >>> grid.shape, grid.groups, grid.cells.tolist()
    ((2, 3), ((0,), (1,)), [5, 4, 3, 2, 1, 0])
    """

    groups: tuple[tuple[int, ...], ...]
    """The columns of each axis."""

    axes: tuple[AnyNDArray, ...]
    """The points of each axis, [n, columns], sorted."""

    cells: AnyNDArray
    """[N], the cell of each row; cells are numbered with the last axis running fastest."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points of each axis."""
        return tuple(map(len, self.axes))

    @property
    def num_cells(self) -> int:
        """Number of rows that the grid has if none is missing."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_full(self) -> bool:
        """Whether every cell has a row."""
        return len(self.cells) == self.num_cells

    @property
    def rows(self) -> AnyNDArray:
        """[N], the rows in the order of their cells."""
        return np.argsort(self.cells, kind="stable")

    def inputs(self) -> AnyNDArray:
        """[cells, D], the inputs of all cells, in their order."""
        return product_of_axes(self.groups, self.axes)


def grid_inputs(*axes: Any) -> AnyNDArray:
    """
    The inputs of a grid, [N, D]: every point of the first axis with every point of the second, and
    so on. The last axis runs fastest.

    >>> from gpflow_cool.grid import grid_inputs
    >>> grid_inputs([0.0, 1.0], [5.0, 6.0]).tolist()
    [[0.0, 5.0], [0.0, 6.0], [1.0, 5.0], [1.0, 6.0]]

    :param axes: The points of each axis: [n], or [n, d] where an axis has several columns, for
        example the coordinates of places.
    """
    if not axes:
        raise ValueError("grid_inputs() got no axis: pass the points of each axis, one by one.")
    points = [axis_points(axis, number) for number, axis in enumerate(axes)]
    ends = np.cumsum([0, *(axis.shape[1] for axis in points)]).tolist()
    groups = tuple(tuple(range(*pair)) for pair in zip(ends, ends[1:], strict=False))
    return product_of_axes(groups, tuple(points))


def axis_points(axis: Any, number: int) -> AnyNDArray:
    """The points of an axis, [n, d], each of them once."""
    name = f"Axis {number}"
    points = checks.numbers(axis, name)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or not points.size:
        raise ValueError(f"{name} has shape {points.shape}: pass its points as [n] or [n, d].")
    checks.check_finite(points, name, "give every point its coordinates")
    _, first, counts = np.unique(points, axis=0, return_index=True, return_counts=True)
    for index in first[counts > 1]:
        raise ValueError(
            f"{name} has the point {points[index].tolist()} more than once. A grid has each point"
            " of an axis once: drop the repetition, or average the measurements."
        )
    return points


def product_of_axes(groups: Sequence[tuple[int, ...]], axes: Sequence[AnyNDArray]) -> AnyNDArray:
    """[N, D], all combinations of points, the last axis running fastest."""
    X = np.empty([int(np.prod([len(axis) for axis in axes])), sum(map(len, groups))])
    places = np.indices([len(axis) for axis in axes]).reshape(len(axes), -1)
    for group, axis, place in zip(groups, axes, places, strict=True):
        X[:, list(group)] = axis[place]
    return X


def find_grid(
    X: Any, groups: Sequence[Sequence[int]] | None = None, *, least_share: float = 1.0
) -> Grid:
    """
    The grid that the rows of a table are, in whatever order they come.

    Of all ways to part the columns into axes the one with the most axes is found: two groups of
    columns become one axis if not all combinations of their points occur.

    >>> from gpflow_cool.grid import find_grid
    >>> find_grid([[0, 1], [0, 2], [5, 2], [5, 1], [9, 1], [9, 2]]).shape
    (3, 2)

    :param X: [N, D].
    :param groups: Columns that belong together from the start; by default each is on its own.
    :param least_share: Share of the combinations that must occur; below one for tables with gaps.
    :return: A grid, of one axis only if there is nothing better.
    :raises ValueError: If two rows have the same inputs.
    """
    X = checks.numbers(X, "X")
    if X.ndim != 2 or not X.size:
        raise ValueError(f"X has shape {X.shape}: pass the inputs of all rows as [N, D].")
    checks.check_finite(X, "X", "drop the row")
    found = part_columns(X, groups or [[d] for d in range(X.shape[1])], least_share)
    cells = np.ravel_multi_index(
        [axis.codes for axis in found], [len(axis.points) for axis in found]
    )
    check_distinct(cells)
    return Grid(tuple(axis.columns for axis in found), tuple(axis.points for axis in found), cells)


class Axis(NamedTuple):
    """Some columns of a table."""

    columns: tuple[int, ...]
    points: AnyNDArray  # [n, columns], the points that occur, sorted
    codes: AnyNDArray  # [N], the point of each row


def axis_of_columns(X: AnyNDArray, columns: Sequence[int]) -> Axis:
    """The points that occur in some columns."""
    codes = np.zeros(len(X), np.int64)
    for column in columns:
        _, code = np.unique(X[:, column], return_inverse=True)
        _, first, codes = np.unique(
            codes * (code.max() + 1) + code, return_index=True, return_inverse=True
        )
    return Axis(tuple(columns), X[np.ix_(first, list(columns))], codes)


def part_columns(X: AnyNDArray, groups: Sequence[Sequence[int]], least_share: float) -> list[Axis]:
    """The axes of a table: groups of columns, joined until all combinations of points occur."""
    axes = [axis_of_columns(X, group) for group in groups]
    while len(axes) > 1:
        pair = dependent_pair(axes, least_share)
        if pair is None:
            break
        i, j = pair
        joined = axis_of_columns(X, sorted(axes[i].columns + axes[j].columns))
        axes = [*(axis for k, axis in enumerate(axes) if k not in pair), joined]
    return sorted(axes, key=lambda axis: axis.columns)


def dependent_pair(axes: Sequence[Axis], least_share: float) -> tuple[int, int] | None:
    """
    Two axes of whose combinations too few occur; None if the axes are those of a grid.

    Two axes may be fine and three not. The pair with the fewest combinations is returned then.
    """
    num_rows = len(axes[0].codes)
    by_size = sorted(range(len(axes)), key=lambda i: -len(axes[i].points))
    worst, smallest = None, least_share
    for i, j in combinations(by_size, 2):
        num_cells = len(axes[i].points) * len(axes[j].points)
        if num_rows < least_share * num_cells:
            return i, j  # no need to count: there are not enough rows
        share = num_combinations(axes[i], axes[j]) / num_cells
        if worst is None or share < smallest:
            worst, smallest = (i, j), share
    all_cells = float(np.prod([float(len(axis.points)) for axis in axes]))
    is_grid = smallest >= least_share and num_rows >= least_share * all_cells
    return None if is_grid else worst


def num_combinations(one: Axis, other: Axis) -> int:
    """How many combinations of points of two axes occur."""
    occurs = np.zeros([len(one.points), len(other.points)], bool)
    occurs[one.codes, other.codes] = True
    return int(np.count_nonzero(occurs))


def check_distinct(cells: AnyNDArray) -> None:
    """Raise if two rows are in the same cell."""
    order = np.argsort(cells, kind="stable")
    repeated = np.flatnonzero(np.diff(cells[order]) == 0)
    if len(repeated):
        first, second = order[repeated[0] : repeated[0] + 2]
        raise ValueError(
            f"Rows {first} and {second} of X have the same inputs. A grid has one row per"
            " combination of its axes: average the targets of such rows, or drop one of them."
        )


def complete_grid(
    X: Any, Y: Any, groups: Sequence[Sequence[int]] | None = None
) -> tuple[AnyNDArray, AnyNDArray]:
    """
    A table with gaps as a full grid, in the order of its cells: NaN where there was no row.

    >>> import numpy as np
    >>> from gpflow_cool.grid import complete_grid
    >>> X, Y = complete_grid([[0.0, 5.0], [0.0, 6.0], [1.0, 6.0]], [[1.0], [2.0], [3.0]])
    >>> X.tolist(), Y[:, 0].tolist()
    ([[0.0, 5.0], [0.0, 6.0], [1.0, 5.0], [1.0, 6.0]], [1.0, 2.0, nan, 3.0])

    :param X: Inputs [N, D]; at least half of the grid must be there.
    :param Y: Targets [N, T], NaN where one is missing.
    :param groups: As for :func:`find_grid`.
    """
    grid = find_grid(X, groups, least_share=LEAST_SHARE)
    Y = checks.numbers(Y, "Y")
    if Y.ndim != 2 or len(Y) != len(grid.cells):
        raise ValueError(
            f"Y has shape {Y.shape}, and X has {len(grid.cells)} rows: pass one row of targets per"
            " row of inputs, [N, T]."
        )
    targets = np.full([grid.num_cells, Y.shape[1]], np.nan)
    targets[grid.cells] = Y
    return grid.inputs(), targets
