"""What the studies' figures have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gpflow.base import AnyNDArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """A figure outside pyplot, so that nothing stays open and no display is needed."""
    return Figure(figsize=(width, height), layout="constrained")


def shared_legend(figure: Figure, ax: Axes) -> None:
    """Put the legend of one of the axes below all of them."""
    handles, labels = ax.get_legend_handles_labels()
    columns = min(len(labels), 7)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def covariances_figure(
    title: str, covariances: Mapping[str, tuple[AnyNDArray, AnyNDArray]]
) -> Figure:
    """
    Covariances between tasks side by side: C above, Sigma below, one colour scale for each.

    :param covariances: C and Sigma by the name above them; the first pair sets the scales.
    """
    figure = new_figure(2.2 * len(covariances) + 1.2, 4.9)
    figure.suptitle(title)
    grid = figure.subplots(2, len(covariances), squeeze=False)
    rows = zip(*covariances.values(), strict=True)
    for axes, name, matrices in zip(grid, ("C", r"$\Sigma$"), rows, strict=True):
        limit = float(np.max(np.abs(matrices[0]))) or 1.0
        for ax, matrix in zip(axes, matrices, strict=True):
            image = ax.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
            ticks = range(0, len(matrix), max(1, len(matrix) // 3))
            ax.set_xticks(ticks, [str(t) for t in ticks], fontsize="small")
            ax.set_yticks(ticks, [str(t) for t in ticks], fontsize="small")
        axes[0].set_ylabel(f"{name}\ntask")
        figure.colorbar(image, ax=list(axes), fraction=0.05, pad=0.01)
    for ax, name in zip(grid[0], covariances, strict=True):
        ax.set_title(name)
    for ax in grid[-1]:
        ax.set_xlabel("task")
    return figure


def box(ax: Axes, groups: Sequence[Sequence[float]], labels: Sequence[str], colors: Any) -> None:
    """Box plots, with every measurement as a dot."""
    for i, (values, color) in enumerate(zip(groups, colors, strict=True)):
        line = {"color": color}
        style: dict[str, Any] = {"boxprops": line, "whiskerprops": line, "capprops": line}
        style |= {"medianprops": line | {"linewidth": 2}, "showfliers": False}
        ax.boxplot(values, positions=[i], widths=0.6, **style)
        jitter = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(len(values))
        ax.plot(i + jitter, values, "o", color=color, markersize=3, alpha=0.6)
    ax.set_xticks(range(len(labels)), labels, rotation=60, ha="right", rotation_mode="anchor")
    ax.grid(axis="y", alpha=0.3, which="both")
