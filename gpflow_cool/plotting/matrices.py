"""Heat maps of matrices over tasks, also of hundreds of them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from numpy.typing import ArrayLike

from .axes import own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TASKS_WITH_NUMBERS = 8
"""A heat map of more tasks than these has no numbers in its cells."""

LETTERS_AN_INCH = 8.1
"""How many letters of tick labels fit, with gaps between the labels."""

POINTS_AN_INCH, FONT_SIZES = 56.0, (6.0, 10.0)
"""How many points of letters fit below each other, with gaps; the smallest and largest letters."""


@check_shapes("matrix: [T, T]")
def plot_task_matrix(
    matrix: ArrayLike,
    names: Sequence[str] | None = None,
    ax: "Axes | None" = None,
    title: str | None = None,
    *,
    limit: float | None = None,
    order: Sequence[int] | None = None,
) -> "Axes":
    """
    Heat map of a matrix over tasks, such as C, Sigma or a correlation; white is zero.

    Where there is no room for the names of all tasks, every second, third, ... is named.

    >>> ax = plot_task_matrix([[1.0, 0.5], [0.5, 1.0]], names=["a", "b"], limit=1)
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['a', 'b']

    :param names: Names of the tasks; numbers from 0 if there are none.
    :param limit: Value at the ends of the colour scale, for instance 1 for correlations, or the
        same for two matrices that shall be compared; the largest absolute entry if None.
    :param order: Numbers of the tasks in the order in which they are drawn. For many tasks,
        :func:`cluster_order` puts those side by side that vary together.
    """
    values = np.asarray(matrix, dtype=float)
    labels = [str(t) for t in range(len(values))] if names is None else [str(n) for n in names]
    if len(labels) != len(values):
        raise ValueError(
            f"names has {len(labels)} entries, but the matrix has {len(values)} tasks: pass one"
            " name per task."
        )
    if order is not None:
        order = _checked_order(order, len(values))
        values, labels = values[np.ix_(order, order)], [labels[t] for t in order]
    if limit is None:
        limit = float(np.max(np.abs(values))) or 1.0
    # compressed: the constrained layout cuts long names off beside square axes.
    ax = own_axes((4.8, 4.0), layout="compressed") if ax is None else ax
    image = ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.04)
    _label_tasks(ax, labels)
    if len(values) <= MAX_TASKS_WITH_NUMBERS:
        _write_cells(ax, values, limit)
    if title is not None:
        ax.set_title(title)
    return ax


@check_shapes("correlation: [T, T]", "return: [T]")
def cluster_order(correlation: ArrayLike) -> AnyNDArray:
    r"""
    An order of the tasks that puts those side by side that vary together.

    Tasks are joined to clusters by the mean distance between their members, where

    .. math:: \mathrm{distance}_{tu} = \sqrt{2 (1 - R_{tu})}

    and the tree of clusters is turned so that neighbours are as close as it allows.

    >>> R = np.array([[1.0, -0.5, 0.9], [-0.5, 1.0, -0.4], [0.9, -0.4, 1.0]])
    >>> cluster_order(R).tolist() in ([0, 2, 1], [1, 2, 0])
    True

    :param correlation: R; NaN counts as 0.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    R = np.nan_to_num(np.asarray(correlation, dtype=float))
    if len(R) < 3:
        return np.arange(len(R))
    distance = np.sqrt(2.0 * np.maximum(1.0 - 0.5 * (R + R.T), 0.0))
    condensed = squareform(distance, checks=False)  # its diagonal is not looked at
    return leaves_list(linkage(condensed, method="average", optimal_ordering=True))


def _checked_order(order: Sequence[int], num_tasks: int) -> list[int]:
    """An order that has every task once."""
    numbers = [int(t) for t in order]
    if sorted(numbers) != list(range(num_tasks)):
        raise ValueError(
            f"order must have each of the tasks 0 to {num_tasks - 1} once, but has {len(numbers)}"
            " entries of which some are repeated or out of range: see cluster_order."
            if len(numbers) == num_tasks
            else f"order has {len(numbers)} entries, but the matrix has {num_tasks} tasks: it must"
            " have each of them once."
        )
    return numbers


def _label_tasks(ax: "Axes", labels: Sequence[str]) -> None:
    """Names of the tasks on both axes, slanted where they would collide, as many as fit."""
    inches = ax.get_window_extent().height / ax.figure.dpi
    size = float(np.clip(POINTS_AN_INCH * inches / len(labels), *FONT_SIZES))
    step = max(1, math.ceil(len(labels) * FONT_SIZES[0] / (POINTS_AN_INCH * inches)))
    ticks, shown = range(0, len(labels), step), labels[::step]
    room = LETTERS_AN_INCH * ax.get_window_extent().width / ax.figure.dpi
    slanted = max(len(label) for label in shown) * len(shown) > room
    turn: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(ticks, shown, fontsize=size, **(turn if slanted else {}))
    ax.set_yticks(ticks, shown, fontsize=size)
    if step > 1:
        ax.set_xlabel(f"{len(labels)} tasks, one in {step} is named")


def _write_cells(ax: "Axes", matrix: AnyNDArray, limit: float) -> None:
    """The value of each entry in its cell, light where the cell is dark."""
    size = "medium" if len(matrix) <= 5 else "x-small"
    for (row, column), value in np.ndenumerate(matrix):
        color = "white" if abs(value) > 0.6 * limit else "0.15"
        text = cell_text(value, limit)
        ax.text(column, row, text, ha="center", va="center", color=color, fontsize=size)


def cell_text(value: float, limit: float) -> str:
    """
    A number with two significant digits of the largest that stands beside it; ? for NaN.

    >>> cell_text(0.1234, limit=0.5), cell_text(-0.04, limit=7.0), cell_text(12300.0, limit=5e4)
    ('0.12', '0.0', '1e+04')

    Correlations, whose largest is 1, have two decimals:

    >>> cell_text(-0.639, limit=1.0), cell_text(np.nan, limit=1.0)
    ('-0.64', '?')
    """
    if np.isnan(value):
        return "?"
    if not 1e-3 <= limit < 1e4:
        return f"{value:.0e}" if value else "0"
    decimals = max(0, 2 - int(np.ceil(np.log10(limit))))
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0 makes -0.0 a plain zero
