"""Figures of predictions: bands, level curves, calibration, predicted against observed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from numpy.typing import ArrayLike
from scipy.special import ndtri

from ..metrics import coverage
from .axes import own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS_AS_LINES = 500
"""More points than these are drawn without bars, and as pixels in a vector format."""


class Predictor(Protocol):
    """What :func:`plot_bands` needs of a model."""

    @property
    def data(self) -> Any: ...

    @property
    def task_names(self) -> tuple[str, ...]: ...

    def predict_f(self, Xnew: Any) -> tuple[Any, Any]: ...

    def predict_y(self, Xnew: Any) -> tuple[Any, Any]: ...


@check_shapes("Xnew: [M, D]")
def plot_bands(
    model: Predictor,
    Xnew: ArrayLike,
    task: int | str,
    ax: "Axes | None" = None,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    num_sigma: float = 2.0,
    color: str = "C0",
    legend: bool = True,
) -> "Axes":
    """
    Predictive mean of one task over a single input, with bands of f (dark) and y (light).

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> data = X, np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    >>> model = CoolMTGP(data, kernel, task_names=["a", "b"])
    >>> ax = plot_bands(model, np.linspace(0, 1, 50)[:, None], "b", data=data)
    >>> len(ax.collections) >= 2  # a band of the function, and one of observations
    True

    :param Xnew: Inputs [M, 1] to predict at, in any order.
    :param task: Number or name of the task.
    :param data: Pair of X [N, 1] and Y [N, T] to draw as dots; the model's own data if None.
    :param num_sigma: Half the width of the bands, in standard deviations.
    """
    t = _task_number(model.task_names, task)
    grid = _sorted_inputs(Xnew)
    f_mean, f_var = (np.asarray(a)[:, t] for a in model.predict_f(grid))
    y_mean, y_var = (np.asarray(a)[:, t] for a in model.predict_y(grid))
    X, Y = (np.asarray(a) for a in (model.data if data is None else data))

    ax = own_axes((6.4, 4.0)) if ax is None else ax
    x, k = grid[:, 0], num_sigma
    for mean, var, alpha, symbol in [(y_mean, y_var, 0.15, "y"), (f_mean, f_var, 0.35, "f")]:
        low, high = mean - k * np.sqrt(var), mean + k * np.sqrt(var)
        label = rf"${symbol}$ $\pm$ {k:g} sigma"
        ax.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0, label=label)
    ax.plot(x, f_mean, color=color, linewidth=2, label="predictive mean")
    ax.plot(X[:, 0], Y[:, t], "o", color="0.15", markersize=3.5, label="data", zorder=3)
    ax.set(title=model.task_names[t], xlabel="x", xlim=(x[0], x[-1]) if x[0] < x[-1] else None)
    if legend:
        ax.legend(fontsize="small")
    return ax


@check_shapes("mean: [2]", "cov: [2, 2]")
def plot_level_curves(
    mean: ArrayLike,
    cov: ArrayLike,
    ax: "Axes | None" = None,
    levels: Sequence[float] = (1.0, 2.0, 3.0),
    *,
    color: str = "C0",
    linestyle: str = "-",
    label: str | None = None,
    names: tuple[str, str] | None = None,
) -> "Axes":
    """
    Level curves of a bivariate normal density: ellipses around its mean.

    >>> ax = plot_level_curves([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], names=("a", "b"))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('a', 'b')

    :param levels: Distances from the mean, in standard deviations; see :func:`level_curve`.
    :param label: Name in a legend, which the caller draws.
    :param names: Names of the two axes.
    """
    ax = own_axes((4.4, 4.4)) if ax is None else ax
    for i, level in enumerate(levels):
        points = level_curve(mean, cov, level)
        style: dict[str, Any] = {"color": color, "linestyle": linestyle, "linewidth": 1.5}
        ax.plot(*points.T, label=label if i == 0 else None, **style)
    ax.plot(*np.asarray(mean, dtype=float), marker="+", color=color, markersize=8)
    ax.set_aspect("equal", adjustable="datalim")
    if names is not None:
        ax.set(xlabel=names[0], ylabel=names[1])
    return ax


@check_shapes("mean: [2]", "cov: [2, 2]", "return: [P, 2]")
def level_curve(mean: ArrayLike, cov: ArrayLike, level: float, num_points: int = 181) -> AnyNDArray:
    r"""
    Points of one level curve of a bivariate normal density, the last equal to the first.

    .. math:: \{\mu + k \, S^{1/2} u : |u| = 1\} = \{y : (y - \mu)^\top S^{-1} (y - \mu) = k^2\}

    >>> import numpy as np
    >>> points = level_curve([1.0, 0.0], np.eye(2), level=2.0, num_points=5)
    >>> np.hypot(points[:, 0] - 1.0, points[:, 1]).round(6).tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0]

    :param cov: Covariance S; a singular one gives a segment.
    :param level: k, the distance from the mean in standard deviations.
    """
    # eigh, not Cholesky: S may be singular.
    lam, U = np.linalg.eigh(np.asarray(cov, dtype=float))
    angle = np.linspace(0.0, 2.0 * np.pi, num_points)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # [P, 2]
    root = U * np.sqrt(np.maximum(lam, 0.0))  # S = root root^T
    return np.asarray(mean, dtype=float) + level * circle @ root.T


@check_shapes("Y: [N, T]", "mean: [N, T]", "var: [N, T]")
def plot_calibration(
    Y: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    names: Sequence[str] | None = None,
    ax: "Axes | None" = None,
    *,
    legend: bool = True,
) -> "Axes":
    """
    How often intervals hold what they promise: a curve for each task, on the diagonal at its best.

    Below the diagonal the model is too sure of itself, above it not sure enough.

    >>> import numpy as np
    >>> Y = np.random.default_rng(0).normal(size=[50, 2])
    >>> ax = plot_calibration(Y, np.zeros([50, 2]), np.ones([50, 2]), names=["a", "b"])
    >>> [text.get_text() for text in ax.get_legend().get_texts()][-2:]
    ['a', 'b']

    :param Y: Targets that the model has not seen, for instance each row left out in turn; NaN where
        one is missing.
    :param mean: Their predictive means.
    :param var: Their predictive variances, noise included.
    :param names: Names of the tasks; numbers from 0 if there are none.
    """
    from matplotlib.ticker import PercentFormatter

    observed = calibration_curves(Y, mean, var, CALIBRATION_LEVELS)  # [P, T]
    num_tasks = observed.shape[1]
    labels = [str(t) for t in range(num_tasks)] if names is None else [str(n) for n in names]
    ax = own_axes((4.4, 4.0)) if ax is None else ax
    ax.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="ideal")
    for t, label in enumerate(labels):
        ax.plot(CALIBRATION_LEVELS, observed[:, t], color=f"C{t % 10}", linewidth=1.5, label=label)
    ax.set(xlabel="probability of the interval", ylabel="targets inside", xlim=(0, 1), ylim=(0, 1))
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    if legend:
        ax.legend(fontsize="small", frameon=False, loc="upper left")
    return ax


CALIBRATION_LEVELS = tuple(np.linspace(0.0, 1.0, 41))
"""Probabilities at which calibration is drawn."""


def calibration_curves(
    Y: ArrayLike, mean: ArrayLike, var: ArrayLike, levels: Sequence[float]
) -> AnyNDArray:
    r"""
    Fraction of targets inside the central interval of each probability, [P, T].

    .. math:: \tfrac1N \, \#\{n : |y_{nt} - \mu_{nt}| \le
        \Phi^{-1}(\tfrac{1 + p}{2}) \sqrt{v_{nt}}\}

    Targets that are NaN are left aside.

    >>> import numpy as np
    >>> Y = np.array([[-2.0], [-0.1], [0.1], [2.0]])
    >>> calibration_curves(Y, np.zeros([4, 1]), np.ones([4, 1]), levels=[0.5]).tolist()
    [[0.5]]
    """
    widths = ndtri(0.5 * (1.0 + np.asarray(levels, dtype=float)))

    def curve(*columns: AnyNDArray) -> list[float]:
        y, m, v = (column[~np.isnan(columns[0])][:, None] for column in columns)
        return [float(coverage(y, m, v, num_sigma=width)[0]) for width in widths]

    parts = (np.asarray(part, dtype=float).T for part in (Y, mean, var))
    return np.array([curve(*columns) for columns in zip(*parts, strict=True)]).T


@check_shapes("y: [N]", "mean: [N]", "std: [N]")
def plot_predicted(
    y: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    ax: "Axes | None" = None,
    title: str | None = None,
    *,
    num_sigma: float = 2.0,
    color: str = "C0",
) -> "Axes":
    """
    Predicted against observed targets of one task, with error bars: leave-one-out, or held-out.

    >>> ax = plot_predicted([1.0, 2.0], mean=[1.1, 1.8], std=[0.1, 0.2], title="heat")
    >>> ax.get_title()
    'heat'

    :param y: Observed targets.
    :param mean: Their predictions.
    :param std: Standard deviations of the predictions, noise included.
    :param num_sigma: Half the length of the bars, in standard deviations.
    """
    observed, predicted = np.asarray(y, dtype=float), np.asarray(mean, dtype=float)
    bars = num_sigma * np.asarray(std, dtype=float)
    ax = own_axes((4.0, 4.0)) if ax is None else ax
    many = len(observed) > MAX_POINTS_AS_LINES
    ends = [min(observed.min(), predicted.min()), max(observed.max(), predicted.max())]
    ax.plot(ends, ends, color="0.6", linestyle="--", linewidth=1, zorder=1)
    ax.errorbar(
        observed,
        predicted,
        yerr=None if many else bars,
        fmt="o",
        color=color,
        ecolor=(0.6, 0.7, 0.8, 0.6),
        markersize=2.0 if many else 3.5,
        elinewidth=1,
        rasterized=many,
    )
    ax.set(xlabel="observed", ylabel="predicted", title=title)
    return ax


def _task_number(names: Sequence[str], task: int | str) -> int:
    """Number of a task that is given by number or name."""
    if isinstance(task, str):
        if task not in names:
            raise ValueError(f"task={task!r} is not known. Choose one of: {', '.join(names)}.")
        return list(names).index(task)
    if not 0 <= task < len(names):
        raise ValueError(f"task={task!r}, but the model has tasks 0 to {len(names) - 1}.")
    return int(task)


def _sorted_inputs(Xnew: ArrayLike) -> AnyNDArray:
    """Inputs in ascending order, checked to have one column."""
    grid = np.asarray(Xnew, dtype=float)
    if grid.shape[1] != 1:
        raise ValueError(
            f"Xnew has {grid.shape[1]} columns: bands can be drawn over one input only. Draw"
            " predict_y over the column that you want to see, with the others fixed."
        )
    return np.sort(grid, axis=0)
