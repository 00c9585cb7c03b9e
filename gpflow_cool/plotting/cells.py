"""
Cells of maps, and what models predict and simulate there.

A model here is anything that predicts: a model of this package or of GPflow (`predict_y`), or a
fitted estimator (`predict`), whose answers are in the user's units.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from numpy.typing import ArrayLike
from scipy.special import ndtr

from ..joint.simulation import simulate

CELLS = 100
"""Number of cells along the longer side of a map, unless told otherwise."""

CELLS_AT_ONCE = 2000
"""Predictions are made for this many cells at a time, to bound the memory."""

MARGIN = 0.05
"""How far a map reaches beyond the data, as a part of their range."""


class MapGrid(NamedTuple):
    """Cells of a map by their centres."""

    x: AnyNDArray
    """[W], centres along the first input."""

    y: AnyNDArray
    """[H], centres along the second input."""

    points: AnyNDArray
    """[H * W, D], the inputs of all cells, row by row of the map."""

    def image(self, values: AnyNDArray) -> AnyNDArray:
        """[H, W, ...], values of cells [H * W, ...] as a picture."""
        return values.reshape(len(self.y), len(self.x), *values.shape[1:])


@check_shapes("X: [N, D]")
def map_grid(
    X: ArrayLike,
    inputs: tuple[int, int] = (0, 1),
    cells: int | tuple[int, int] = CELLS,
    at: ArrayLike | None = None,
    ratio: float | None = 1.0,
) -> MapGrid:
    """
    Cells over the range of the data in two inputs, and a margin around it.

    >>> grid = map_grid([[0.0, 0.0], [10.0, 5.0]], cells=4)
    >>> grid.points.shape, float(grid.x[0]), float(grid.x[-1])
    ((8, 2), 0.875, 9.125)

    :param X: Inputs of the data.
    :param inputs: Numbers of the two inputs.
    :param cells: Number of cells along the longer side, with square cells; or along both sides.
    :param at: Values of all inputs, of which those of the others count; by default their means.
    :param ratio: How long a unit of the first input is in units of the second; None if they have
        different units.
    """
    X = np.asarray(X, dtype=float)
    columns = X[:, list(inputs)]
    low, span = columns.min(axis=0), np.ptp(columns, axis=0)
    if not (span > 0).all():
        raise ValueError(
            f"Input {inputs[int(np.argmin(span))]} never varies in the data: a map needs two"
            " inputs that do."
        )
    low, span = low - MARGIN * span, span * (1.0 + 2.0 * MARGIN)
    W, H = cells if isinstance(cells, tuple) else side_lengths(span, cells, ratio)
    x, y = (a + s * (np.arange(n) + 0.5) / n for a, s, n in zip(low, span, (W, H), strict=True))
    points = np.tile(X.mean(axis=0) if at is None else np.asarray(at, dtype=float), [W * H, 1])
    points[:, inputs[0]], points[:, inputs[1]] = np.tile(x, H), np.repeat(y, W)
    return MapGrid(x, y, points)


def side_lengths(span: ArrayLike, cells: int, ratio: float | None = 1.0) -> tuple[int, int]:
    """
    Numbers of cells along two sides, `cells` along the longer one, so that cells are square; the
    same number along both where units differ, or one side is more than ten times as long.

    >>> side_lengths([10.0, 5.0], 100), side_lengths([1000.0, 5.0], 100)
    ((100, 50), (100, 100))
    """
    width, height = np.asarray(span, dtype=float) * [ratio or 0.0, 1.0]
    if not is_picture(width, height):
        return cells, cells
    longest = max(width, height)
    return max(1, round(cells * width / longest)), max(1, round(cells * height / longest))


def is_picture(width: float, height: float) -> bool:
    """Whether two sides in the same unit make a picture, and not a strip."""
    return 0.1 * height <= width <= 10.0 * height


PARTNERS = [("x", "y"), ("y", "z"), ("x", "z"), ("easting", "northing"), ("east", "north")]
"""Names of axes of places, or parts of such names."""

DEGREES = ({"lon", "long", "lng", "longitude"}, {"lat", "latitude"})


@check_shapes("places: [N, 2]")
def unit_ratio(names: tuple[str, str], places: AnyNDArray) -> float | None:
    """
    How long a unit of the first of two inputs is in units of the second, as their names tell.

    It is the cosine of the mean latitude for longitude and latitude, 1 for names such as x and y or
    two with the same unit in brackets, and None where the names do not tell.

    >>> somewhere = np.array([[7.0, 60.0], [8.0, 60.0]])
    >>> round(unit_ratio(("lon", "lat"), somewhere), 3), unit_ratio(("age", "dose"), somewhere)
    (0.5, None)
    >>> unit_ratio(("Xloc", "Yloc"), somewhere), unit_ratio(("top [m]", "reach [m]"), somewhere)
    (1.0, 1.0)
    """
    first, second = (name.strip().lower() for name in names)
    for pair, column, power in (((first, second), 1, 1.0), ((second, first), 0, -1.0)):
        latitude = places[:, column]
        if all(name in known for name, known in zip(pair, DEGREES, strict=True)):
            cosine = np.cos(np.radians(latitude.mean()))
            return float(cosine**power) if abs(latitude).max() < 90.0 else None
    return 1.0 if have_one_unit(first, second) else None


def have_one_unit(first: str, second: str) -> bool:
    """Whether two names are those of axes with the same unit."""
    units = [re.search(r"[(\[]([^)\]]+)[)\]]\s*$", name) for name in (first, second)]
    if all(units):
        return units[0].group(1) == units[1].group(1)  # type: ignore[union-attr]
    if any(units):
        return False
    if re.sub(r"\d+", "", first) == re.sub(r"\d+", "", second):  # x0 and x1
        return True
    pairs = [*PARTNERS, *((b, a) for a, b in PARTNERS)]
    swapped = (re.sub(rf"(?<![a-z]){a}|{a}(?![a-z])", b, first, count=1) for a, b in pairs)
    return second != first and second in swapped


# Predictions of any model -------------------------------------------------------------------------


def in_parts(points: AnyNDArray) -> Iterator[AnyNDArray]:
    for n in range(0, len(points), CELLS_AT_ONCE):
        yield points[n : n + CELLS_AT_ONCE]


def predict_cells(
    model: Any, points: AnyNDArray, *, noise: bool = True
) -> tuple[AnyNDArray, AnyNDArray]:
    """Means and standard deviations of all tasks at the cells, [M, T] each."""
    if hasattr(model, "predict_y"):
        source = model.posterior() if hasattr(model, "joint_solution") else model  # factorised once
        ask = source.predict_y if noise else source.predict_f
        found = [[np.asarray(part) for part in ask(some)] for some in in_parts(points)]
        mean, variance = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return mean, np.sqrt(variance)
    mean, std = model.predict(framed(model, points), return_std=True, include_noise=noise)
    shape = (len(points), -1)
    return np.asarray(mean).reshape(shape), np.asarray(std).reshape(shape)


def probabilities(
    model: Any, points: AnyNDArray, limits: AnyNDArray, predicted: tuple[AnyNDArray, AnyNDArray]
) -> AnyNDArray:
    """
    [M, T], probabilities that each task exceeds its limit at the cells.

    :param limits: [T], NaN for tasks that do not count.
    :param predicted: What :func:`predict_cells` gave.
    """
    if hasattr(model, "probability"):
        p = model.probability(framed(model, points), limits, which="each")
        return np.asarray(p).reshape(len(points), -1)
    mean, std = predicted
    return ndtr((mean - limits) / std)


def framed(model: Any, points: AnyNDArray) -> Any:
    """Inputs as an estimator knows them: a data frame if it was fitted to one, or encoded ones."""
    names = getattr(model, "feature_names_in_", None)
    if names is None or len(names) != points.shape[1]:  # categories are numbers already
        return points
    import pandas as pd

    return pd.DataFrame(points, columns=list(names))


def data_of(model: Any) -> tuple[AnyNDArray, AnyNDArray]:
    """Inputs and targets that a model was made with, in the units of its predictions."""
    X, Y = model.training_data() if hasattr(model, "training_data") else model.data
    return np.asarray(X), np.asarray(Y)


def names_of(model: Any) -> tuple[list[str], list[str]]:
    """Names of inputs and of tasks."""
    X, Y = data_of(model)
    tasks = getattr(model, "task_names", getattr(model, "target_names_", None))
    inputs = getattr(model, "encoded_names_", None)
    return (
        [f"x{d}" for d in range(X.shape[1])] if inputs is None else [str(n) for n in inputs],
        [str(t) for t in range(Y.shape[1])] if tasks is None else [str(n) for n in tasks],
    )


def centre_of(model: Any) -> AnyNDArray:
    """[D], where inputs stand that a map does not vary: at their means, or a common category."""
    if hasattr(model, "typical_inputs"):
        return np.asarray(model.typical_inputs())
    return data_of(model)[0].mean(axis=0)


def date_inputs(model: Any) -> list[bool]:
    """Which inputs are dates, as days since 1970."""
    kinds = getattr(model, "encoded_kinds_", None)
    return [kind == "date" for kind in kinds or [""] * data_of(model)[0].shape[1]]


def number_of(name: int | str, names: Sequence[str], what: str) -> int:
    """Number of something that is given by number or name."""
    if isinstance(name, str):
        if name not in names:
            raise ValueError(f"{what} {name!r} is not known. Choose one of: {', '.join(names)}.")
        return list(names).index(name)
    if not 0 <= name < len(names):
        raise ValueError(f"{what} {name!r} is not known: there are 0 to {len(names) - 1}.")
    return int(name)


@check_shapes("points: [M, D]", "return: [S, M, T]")
def simulate_cells(model: Any, points: AnyNDArray, num_samples: int, seed: int = 0) -> AnyNDArray:
    """
    Draws of all functions at all cells, joint over cells and tasks, without noise.

    :param model: A model, or a fitted estimator.
    """
    if hasattr(model, "simulate"):
        draws = model.simulate(framed(model, points), num_samples, seed)  # [M, T, S]
        return np.moveaxis(np.asarray(draws).reshape(len(points), -1, num_samples), -1, 0)
    return simulate(model.posterior(), points, num_samples, seed)
