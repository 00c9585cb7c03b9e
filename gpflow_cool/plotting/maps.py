"""
Maps: what a model predicts over two of its inputs, such as longitude and latitude.

A model here is anything that predicts: a model of this package or of GPflow (`predict_y`), or a
fitted estimator (`predict`), whose maps are in the user's units.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray
from numpy.typing import ArrayLike

from .. import checks
from .axes import own_axes
from .cells import (
    CELLS,
    MapGrid,
    centre_of,
    data_of,
    date_inputs,
    is_picture,
    map_grid,
    names_of,
    number_of,
    predict_cells,
    probabilities,
    simulate_cells,
    unit_ratio,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"mean": "viridis", "deviation": "BuPu", "probability": "YlOrRd"}
"""What a map can show, and its colours."""


class MapLayer(NamedTuple):
    """One picture: what is shown of which task."""

    task: int
    what: str
    limit: float | None = None

    def title(self, names: Sequence[str]) -> str:
        name = names[self.task]
        if self.what == "probability":
            return f"P({name} > {self.limit:g})"
        return name if self.what == "mean" else f"{name}, {self.what}"


def plot_map(
    model: Any,
    task: int | str = 0,
    what: str = "mean",
    ax: "Axes | None" = None,
    *,
    limit: float | None = None,
    x: int | str = 0,
    y: int | str = 1,
    cells: int | tuple[int, int] = CELLS,
    at: ArrayLike | None = None,
    data: bool = True,
    aspect: str | None = None,
) -> "Axes":
    """
    Map of one task over two inputs: its mean, its deviation, or the probability above a limit.

    >>> import gpflow
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.random.default_rng(0).uniform(size=[20, 2])
    >>> model = CoolMTGP((X, np.cos(3 * X)), gpflow.kernels.SquaredExponential())
    >>> ax = plot_map(model, "task_1", "probability", limit=0.5, cells=10)
    >>> ax.get_title()
    'P(task_1 > 0.5)'

    Deviations and probabilities are of new observations, noise included.

    :param model: A model, or a fitted estimator, whose maps are in the user's units.
    :param task: Number or name of the task.
    :param what: "mean", "deviation" or "probability".
    :param limit: For "probability".
    :param x: Number or name of the input that goes to the right; `y` goes upwards.
    :param cells: Number of cells along the longer side, or along both sides.
    :param at: Values of all inputs, of which those that are not on the map count; by default the
        means of the data, and of categories the most frequent one.
    :param data: Whether the data are drawn on top, coloured by their value on a map of the mean.
    :param aspect: "equal" if both inputs have the same unit, "auto" if not; by default what their
        names tell, see :func:`gpflow_cool.plotting.cells.unit_ratio`.
    """
    canvas = prepare(model, x, y, cells, at, aspect)
    layer = MapLayer(number_of(task, canvas.tasks, "task"), what, limit)
    check_layer(layer)
    (values,) = values_of_layers(model, canvas.grid.points, [layer], len(canvas.tasks))
    ax = own_axes((5.2, 4.4)) if ax is None else ax
    draw_layer(ax, canvas, values, layer, data)
    show_dates(ax, canvas)
    ax.set(xlabel=canvas.labels[0], ylabel=canvas.labels[1])
    return ax


def plot_maps(
    model: Any,
    tasks: Sequence[int | str] | None = None,
    what: Sequence[str] = ("mean", "deviation"),
    *,
    limits: Mapping[str, float] | None = None,
    simulations: int = 0,
    seed: int = 0,
    x: int | str = 0,
    y: int | str = 1,
    cells: int | tuple[int, int] = CELLS,
    at: ArrayLike | None = None,
    data: bool = True,
    aspect: str | None = None,
) -> "Figure":
    """
    Maps of several tasks side by side: one column per task, one row for each of `what`.

    >>> import gpflow
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.random.default_rng(0).uniform(size=[20, 2])
    >>> model = CoolMTGP((X, np.cos(3 * X)), gpflow.kernels.SquaredExponential())
    >>> figure = plot_maps(model, what=["mean", "probability"], cells=10,
    ...                    limits={"task_0": 0.5, "task_1": 0.9})
    >>> [ax.get_title() for ax in figure.axes[:4]]
    ['task_0', 'task_1', 'P(task_0 > 0.5)', 'P(task_1 > 0.9)']

    :param tasks: Numbers or names; by default all.
    :param what: Of "mean", "deviation" and "probability", which needs limits.
    :param limits: Limits by names of tasks; the place of a task without one stays empty.
    :param simulations: How many further rows show functions that are drawn at random, joint over
        cells and tasks.
    :param seed: Of the simulations. The other parameters are those of :func:`plot_map`.
    """
    canvas = prepare(model, x, y, cells, at, aspect)
    names = canvas.tasks
    shown = range(len(names)) if tasks is None else [number_of(t, names, "task") for t in tasks]
    limits = {} if limits is None else limits
    layers = [
        MapLayer(t, w, limits.get(names[t]) if w == "probability" else None)
        for w in what
        for t in shown
    ]
    drawn = drawn_layers(layers)
    values = values_of_layers(model, canvas.grid.points, drawn, len(names))
    pictures = dict(zip(drawn, values, strict=True))
    panels = [(layer, pictures.get(layer)) for layer in layers]
    if simulations:
        draws = simulate_cells(model, canvas.grid.points, simulations, seed)  # [S, M, T]
        panels += [
            (MapLayer(t, f"simulation {s + 1}"), draws[s, :, t])
            for s in range(simulations)
            for t in shown
        ]
    return panel_figure(canvas, panels, len(shown), data)


class Canvas(NamedTuple):
    """What all maps of a figure share."""

    grid: MapGrid
    places: AnyNDArray
    """[N, 2], where the data are."""

    Y: AnyNDArray
    """[N, T], the targets; NaN where one is missing."""

    labels: tuple[str, str]
    """Names of the two inputs."""

    dates: tuple[bool, bool]
    """Which of these are dates."""

    ratio: float | None
    """How long a unit of the first is in units of the second; None if their units differ."""

    tasks: list[str]


def prepare(
    model: Any,
    x: int | str,
    y: int | str,
    cells: int | tuple[int, int],
    at: ArrayLike | None,
    aspect: str | None,
) -> Canvas:
    """Names, data and cells of a map."""
    inputs, tasks = names_of(model)
    pair = (number_of(x, inputs, "input"), number_of(y, inputs, "input"))
    if pair[0] == pair[1]:
        raise ValueError(f"x and y are both {inputs[pair[0]]!r}: a map needs two inputs.")
    (X, Y), dates = data_of(model), date_inputs(model)
    labels, places = (inputs[pair[0]], inputs[pair[1]]), X[:, list(pair)]
    if aspect is not None:
        checks.option(aspect, "aspect", ["equal", "auto"])
    told = {"equal": 1.0, "auto": None}
    ratio = unit_ratio(labels, places) if aspect is None else told[aspect]
    grid = map_grid(X, pair, cells, centre_of(model) if at is None else at, ratio)
    shown = (dates[pair[0]], dates[pair[1]])
    return Canvas(grid, places, Y, labels, shown, ratio, tasks)


def check_layer(layer: MapLayer) -> None:
    checks.option(layer.what, "what", list(COLORS))
    if layer.what == "probability" and layer.limit is None:
        raise ValueError("A map of probabilities needs a limit.")
    if layer.what != "probability" and layer.limit is not None:
        raise ValueError(f'limit belongs to what="probability", not to {layer.what!r}.')


def drawn_layers(layers: Sequence[MapLayer]) -> list[MapLayer]:
    """The layers without those of probabilities that have no limit, if another one has."""
    some = any(layer.limit is not None for layer in layers)
    drawn = [
        layer
        for layer in layers
        if not (some and layer.what == "probability" and layer.limit is None)
    ]
    for layer in drawn:
        check_layer(layer)
    return drawn


def values_of_layers(
    model: Any, points: AnyNDArray, layers: Sequence[MapLayer], num_tasks: int
) -> list[AnyNDArray]:
    """What each layer shows of the cells, [M]; all of them from one prediction."""
    mean, std = predict_cells(model, points)
    shown = {"mean": mean, "deviation": std}
    limits = np.full(num_tasks, np.nan)
    for layer in layers:
        if layer.limit is not None:
            limits[layer.task] = layer.limit
    if not np.isnan(limits).all():
        shown["probability"] = probabilities(model, points, limits, (mean, std))
    return [shown[layer.what][:, layer.task] for layer in layers]


def draw_layer(ax: "Axes", canvas: Canvas, values: AnyNDArray, layer: MapLayer, data: bool) -> None:
    """The picture of one layer with its colour bar, its title and the data on top."""
    grid = canvas.grid
    low, high = color_range(values, canvas.Y[:, layer.task], layer.what)
    cmap = COLORS.get(layer.what, COLORS["mean"])
    image = ax.pcolormesh(
        grid.x, grid.y, grid.image(values), cmap=cmap, vmin=low, vmax=high, rasterized=True
    )
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.02)
    ax.set_title(layer.title(canvas.tasks))
    width, height = np.ptp(canvas.places, axis=0)
    if canvas.ratio is not None and is_picture(width * canvas.ratio, height):
        ax.set_aspect(1.0 / canvas.ratio)
    if data:
        draw_data(ax, canvas, layer)


def show_dates(ax: "Axes", canvas: Canvas) -> None:
    """Label axes of days since 1970 as dates."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    for axis, is_date in zip((ax.xaxis, ax.yaxis), canvas.dates, strict=True):
        if is_date:
            locator = AutoDateLocator()
            axis.set_major_locator(locator)
            axis.set_major_formatter(ConciseDateFormatter(locator))


def color_range(values: AnyNDArray, y: AnyNDArray, what: str) -> tuple[float, float]:
    """Ends of the colour scale: 0 and 1 for probabilities, for means those of the data as well."""
    if what == "probability":
        return 0.0, 1.0
    if what == "deviation":
        return float(values.min()), float(values.max())
    return float(min(values.min(), np.nanmin(y))), float(max(values.max(), np.nanmax(y)))


def draw_data(ax: "Axes", canvas: Canvas, layer: MapLayer) -> None:
    """The rows that have the task: coloured like the map on one of the mean, else small dots."""
    known = np.isfinite(canvas.Y[:, layer.task])
    places, values = canvas.places[known], canvas.Y[known, layer.task]
    if layer.what != "mean":
        ax.plot(*places.T, ".", color="0.1", markersize=2.5)
        return
    image = ax.collections[0]
    style: dict[str, Any] = {"cmap": image.cmap, "norm": image.norm, "linewidth": 0.6}
    ax.scatter(places[:, 0], places[:, 1], c=values, s=18, edgecolor="white", **style)


def panel_figure(
    canvas: Canvas, panels: Sequence[tuple[MapLayer, AnyNDArray | None]], columns: int, data: bool
) -> "Figure":
    """A figure of its own with a panel for each layer, row by row; empty where it has no values."""
    from matplotlib.figure import Figure

    rows = len(panels) // columns
    figure = Figure(figsize=(3.7 * columns, 3.1 * rows), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for ax, (layer, values) in zip(axes.flat, panels, strict=True):
        ax.set_visible(values is not None)
        if values is not None:
            draw_layer(ax, canvas, values, layer, data and not layer.what.startswith("simulation"))
    show_dates(axes[0, 0], canvas)  # all others share its axes
    for line, axis in [*((c, "x") for c in axes.T), *((r[::-1], "y") for r in axes)]:
        label_last([ax for ax in line if ax.get_visible()], canvas, axis)
    return figure


def label_last(axes: Sequence["Axes"], canvas: Canvas, axis: str) -> None:
    """Label the last of several axes that share one: those of a column, or of a row backwards."""
    for ax in axes[-1:]:
        ax.set(**{f"{axis}label": canvas.labels["xy".index(axis)]})
        shown: dict[str, Any] = {"labelbottom" if axis == "x" else "labelleft": True}
        ax.tick_params(**shown)
