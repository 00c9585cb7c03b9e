"""What the studies' figures have in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gpflow.base import AnyNDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """A figure that pyplot does not know: nothing stays open, no display is needed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def shared_legend(figure: "Figure", ax: "Axes") -> None:
    """The legend of one of the axes below all of them."""
    handles, labels = ax.get_legend_handles_labels()
    columns = min(len(labels), 7)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def matrix_rows(
    rows: Sequence[tuple[str, Sequence[AnyNDArray]]], titles: Sequence[str]
) -> "Figure":
    """
    Matrices over tasks side by side, one colour scale a row of the figure.

    :param rows: Name of each row, and its matrices; the first one sets the scale.
    """
    figure = new_figure(2.2 * len(titles) + 1.2, 2.3 * len(rows) + 0.3)
    grid = figure.subplots(len(rows), len(titles), squeeze=False)
    for axes, (name, matrices) in zip(grid, rows, strict=True):
        limit = float(np.max(np.abs(matrices[0]))) or 1.0
        for ax, matrix in zip(axes, matrices, strict=True):
            image = ax.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
            ticks = range(0, len(matrix), max(1, len(matrix) // 3))
            ax.set_xticks(ticks, [str(t) for t in ticks], fontsize="small")
            ax.set_yticks(ticks, [str(t) for t in ticks], fontsize="small")
        axes[0].set_ylabel(f"{name}\ntask")
        figure.colorbar(image, ax=list(axes), fraction=0.05, pad=0.01)
    for ax, title in zip(grid[0], titles, strict=True):
        ax.set_title(title)
    for ax in grid[-1]:
        ax.set_xlabel("task")
    return figure


def box(ax: "Axes", groups: Sequence[Sequence[float]], labels: Sequence[str], colors: Any) -> None:
    """Box plots, every measurement as a dot as well."""
    for i, (values, color) in enumerate(zip(groups, colors, strict=True)):
        ax.boxplot(
            values,
            positions=[i],
            widths=0.6,
            showfliers=False,
            medianprops={"color": color, "linewidth": 2},
            boxprops={"color": color},
            whiskerprops={"color": color},
            capprops={"color": color},
        )
        jitter = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(len(values))
        ax.plot(i + jitter, values, "o", color=color, markersize=3, alpha=0.6)
    ax.set_xticks(range(len(labels)), labels, rotation=60, ha="right", rotation_mode="anchor")
    ax.grid(axis="y", alpha=0.3, which="both")
