"""
Figures of what a model has learned and predicts.

Every function draws into the axes that it is given, or into a figure of its own, and returns the
axes. That figure is made without ``pyplot``: nothing is left open, no display is needed, and
``ax.figure.savefig(...)`` writes it. To have it in ``pyplot``'s care (``plt.show``), pass axes of
``plt.subplots()``. Matplotlib is imported on the first call.
"""

from .cells import map_grid
from .kernels import plot_kernel_table, plot_relevance
from .maps import plot_map, plot_maps
from .matrices import MAX_TASKS_WITH_NUMBERS, cell_text, cluster_order, plot_task_matrix
from .predictions import (
    CALIBRATION_LEVELS,
    Predictor,
    calibration_curves,
    level_curve,
    plot_bands,
    plot_calibration,
    plot_level_curves,
    plot_predicted,
)

__all__ = [
    "CALIBRATION_LEVELS",
    "MAX_TASKS_WITH_NUMBERS",
    "Predictor",
    "calibration_curves",
    "cell_text",
    "cluster_order",
    "level_curve",
    "map_grid",
    "plot_bands",
    "plot_calibration",
    "plot_kernel_table",
    "plot_level_curves",
    "plot_map",
    "plot_maps",
    "plot_predicted",
    "plot_relevance",
    "plot_task_matrix",
]
