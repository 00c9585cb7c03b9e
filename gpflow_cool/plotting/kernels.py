"""Pictures of which kernel was chosen, and of which inputs matter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from check_shapes import check_shapes
from numpy.typing import ArrayLike

from .axes import own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS = 25
"""At most so many inputs are drawn, those that matter most."""


def plot_kernel_table(table: Any, ax: "Axes | None" = None) -> "Axes":
    """
    Leave-one-out densities of the kernels that were compared, the best on top.

    >>> from gpflow_cool import choose_kernel
    >>> X = np.linspace(0, 1, 12)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> choice = choose_kernel((X, Y), ["se", "linear"], relevance="given", verbose=0)
    >>> ax = plot_kernel_table(choice.table)
    >>> sorted(label.get_text() for label in ax.get_yticklabels())
    ['linear', 'se']

    :param table: Of :func:`gpflow_cool.choose_kernel`, or `kernel_choice_` of an estimator.
    """
    rows = [row for row in table.candidates if not row.error][::-1]
    ax = own_axes((6.0, 0.6 + 0.32 * len(rows))) if ax is None else ax
    densities = [row.log_density for row in rows]
    colors = ["C0" if row.name == table.chosen else "0.7" for row in rows]
    names = [row.name for row in rows]
    low = min(densities) - 0.05 * max(np.ptp(densities), 1e-3)
    ax.barh(names, np.array(densities) - low, left=low, color=colors)
    ax.set_xlim(left=low)
    ax.set_xlabel("mean log density of a row given the others (more is better)")
    failed = [row.name for row in table.candidates if row.error]
    if failed:
        ax.set_title(f"failed: {', '.join(failed)}", fontsize="small")
    return ax


@check_shapes("relevance: [D]")
def plot_relevance(relevance: ArrayLike, names: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """
    How much each input matters, the largest on top; of many inputs, the first `MAX_BARS`.

    >>> ax = plot_relevance([0.1, 0.7], names=["age", "weight"])
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['age', 'weight']

    :param relevance: Of :func:`gpflow_cool.selection.relevance.input_relevance`, or `relevance_` of
        an estimator.
    """
    values = np.asarray(relevance, dtype=float)
    order = np.argsort(-values, kind="stable")[:MAX_BARS][::-1]
    ax = own_axes((6.0, 0.6 + 0.28 * len(order))) if ax is None else ax
    ax.barh([str(names[d]) for d in order], values[order], color="C0")
    ax.set_xlim(left=0.0)
    ax.set_xlabel("part of the variance of predictions that the input moves")
    if len(values) > len(order):
        ax.set_title(f"the first {len(order)} of {len(values)} inputs", fontsize="small")
    return ax
