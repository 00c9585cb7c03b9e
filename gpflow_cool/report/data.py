"""What the scripts of a report work with, as plain data; and which rows surprise the model."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from scipy.special import ndtr
from scipy.stats import chi2

from ..plotting import CALIBRATION_LEVELS, calibration_curves, map_grid
from ..plotting.cells import predict_cells, unit_ratio
from ..table.learned import codings_of
from ..table.residuals import standardised_rows
from ..table.summary import observed_and_predicted
from .whatif import what_if_document

MAX_TARGETS_DRAWN = 12
"""Predictions of at most this many targets are drawn."""

MAX_ROWS_DRAWN = 2000
"""Of more rows than these, so many are drawn, evenly over the table."""

MAX_SURPRISES = 15
"""How many rows are listed."""

MAP_CELLS = 60
"""Number of cells along the longer side of a map."""

MAX_COVARIANCES = 50_000_000
"""Where covariances of all rows have more numbers than these, no row is called surprising."""


class LeftOut(NamedTuple):
    """Training targets, and every row predicted from all the others, [N, T]."""

    Y: AnyNDArray
    mean: AnyNDArray
    std: AnyNDArray
    interval: AnyNDArray
    """[N, T, 2], intervals of two standard deviations, through the transform of the targets."""

    residual: AnyNDArray
    """[N, T], residuals of the transformed targets, divided by their deviations."""

    surprise: AnyNDArray | None
    """[N], see :func:`surprise`; None where it would take too much memory."""


class Findings:
    """An estimator, and what several parts of its report need, computed once."""

    def __init__(self, regressor: Any) -> None:
        self.regressor = regressor

    @cached_property
    def names(self) -> list[str]:
        """Names of the targets."""
        return [str(name) for name in self.regressor.target_names_]

    @cached_property
    def model(self) -> dict[str, Any] | str:
        """What the page predicts with, or why it does not."""
        return what_if_document(self.regressor)

    @cached_property
    def rows(self) -> LeftOut:
        """Every row predicted from all the others."""
        Y, mean, std, _ = observed_and_predicted(self.regressor)
        normal, p = standardised_rows(self.regressor), None
        residual = (normal.Y - normal.mean) / normal.std
        if Y.size * Y.shape[1] <= MAX_COVARIANCES:
            p = surprise(normal.Y, normal.mean, self.regressor.model_.leave_one_out().cov.numpy())
        targets, levels = self.regressor._targets, ndtr([-2.0, 2.0])
        interval = targets.quantiles(normal.mean, normal.std**2, levels.tolist())
        return LeftOut(Y, mean, std, interval, residual, p)


def report_data(found: Findings) -> dict[str, Any]:
    """All that the scripts of a page need."""
    regressor, rows = found.regressor, found.rows
    return {
        "targets": found.names,
        "controls": input_controls(regressor),
        "numInputs": len(regressor.encoded_names_),
        "ranges": target_ranges(rows.Y),
        "scatter": scatter_data(rows, row_labels(regressor, len(rows.Y))),
        "calibration": calibration_data(rows),
        "model": found.model,
        "maps": map_data(regressor),
    }


def varying_inputs(regressor: Any) -> list[int]:
    """Numbers of the inputs that are not constant."""
    return np.flatnonzero(np.isfinite(regressor._inputs.scale)).tolist()


def input_controls(regressor: Any) -> list[dict[str, Any]]:
    """
    For each column of the user's table: its kind, where its inputs begin, its range, and its value
    in a typical row.
    """
    X, typical = regressor.training_data()[0], regressor.typical_inputs()
    controls: list[dict[str, Any]] = []
    first = 0
    for coding in codings_of(regressor):
        size = len(coding.inputs)
        control: dict[str, Any] = {"name": coding.name, "kind": coding.kind, "first": first}
        if coding.kind == "category":
            start = int(np.argmax(typical[first : first + size])) if size else 0
            control |= {"categories": list(coding.categories), "start": start}
        else:
            x = X[:, first]
            control |= {
                "min": float(x.min()),
                "max": float(x.max()),
                "start": float(typical[first]),
            }
            control |= {"flag": coding.flag, "fill": coding.fill}
        controls.append(control)
        first += size
    return controls


def target_ranges(Y: AnyNDArray) -> list[list[float]]:
    """Where each target is drawn: what holds 96% of the data, and a fifth of it on both sides."""
    low, high = np.nanquantile(Y, [0.02, 0.98], axis=0)
    margin = np.where(high > low, 0.2 * (high - low), 1.0)
    return np.stack([low - margin, high + margin], axis=1).tolist()


def scatter_data(rows: LeftOut, labels: list[str]) -> list[dict[str, Any]]:
    """Observed and predicted values of the first targets."""
    found = []
    for t in range(min(rows.Y.shape[1], MAX_TARGETS_DRAWN)):
        known = np.flatnonzero(~np.isnan(rows.Y[:, t]))
        known = known[np.unique(np.linspace(0, len(known) - 1, MAX_ROWS_DRAWN).astype(int))]
        low, high = np.moveaxis(rows.interval, -1, 0)
        parts = {"y": rows.Y, "mean": rows.mean, "low": low, "high": high}
        cells = {name: rounded(part[known, t]) for name, part in parts.items()}
        found.append({**cells, "row": [labels[n] for n in known]})
    return found


def rounded(values: AnyNDArray) -> list[float]:
    """Numbers with six digits, to keep the page small."""
    return [float(f"{value:.6g}") for value in values.ravel()]


def has_labels(regressor: Any) -> bool:
    """
    Whether the rows of the fit have labels of their own. The numbers that pandas gives to the rows
    of any table are none, and a saved estimator has none.
    """
    index = getattr(regressor, "_index", None)
    return index is not None and list(index) != list(range(len(index)))


def row_labels(regressor: Any, num_rows: int) -> list[str]:
    """Labels of the training rows, or their numbers, counted from 1 as people do."""
    labels = regressor._index if has_labels(regressor) else range(1, num_rows + 1)
    return [str(label) for label in labels]


def calibration_data(rows: LeftOut) -> dict[str, Any]:
    """Curves of the first targets, and of all targets together if there are several."""
    levels = list(CALIBRATION_LEVELS)
    curves, joint = calibration_of(rows, levels)
    return {"levels": levels, "curves": curves.T.tolist(), "joint": joint}


def calibration_of(rows: LeftOut, levels: list[float]) -> tuple[AnyNDArray, list[float] | None]:
    """
    Fractions of rows inside regions of some probabilities: intervals of each of the first targets,
    [P, T], and ellipsoids of all together, [P], if there are several.
    """
    z = rows.residual[:, :MAX_TARGETS_DRAWN]
    p, T = rows.surprise, rows.Y.shape[1]
    joint = None if p is None or T == 1 else [float(np.nanmean(p >= 1.0 - c)) for c in levels]
    return calibration_curves(z, np.zeros_like(z), np.ones_like(z), levels), joint


@check_shapes("Y: [N, T]", "mean: [N, T]", "cov: [N, T, T]", "return: [N]")
def surprise(Y: AnyNDArray, mean: AnyNDArray, cov: AnyNDArray) -> AnyNDArray:
    r"""
    Probability of a row at least as far from its prediction as this one.

    .. math:: P(\chi^2_k > r^\top S_{oo}^{-1} r)

    with k observed targets o; 1 where there is none. If the predictions are right, it is uniform
    between 0 and 1, and an ellipsoid of probability c holds the rows that have at least 1 - c.

    >>> float(surprise(np.array([[1.96]]), np.zeros([1, 1]), np.ones([1, 1, 1])).round(3)[0])
    0.05
    """
    known = ~np.isnan(Y)
    both = known[:, :, None] & known[:, None, :]
    S = np.where(both, cov, np.eye(Y.shape[1]))
    r = np.where(known, Y - mean, 0.0)
    squares = np.einsum("nt,nt->n", r, np.linalg.solve(S, r[:, :, None])[:, :, 0])
    count = known.sum(axis=1)
    return np.where(count > 0, chi2.sf(squares, np.maximum(count, 1)), 1.0)


class SurprisingRow(NamedTuple):
    """A row that is far from its leave-one-out prediction."""

    label: str
    probability: float
    target: str
    observed: float
    predicted: float
    low: float
    high: float


def most_surprising(found: Findings) -> list[SurprisingRow]:
    """
    The rows of the lowest probabilities, with the target that deviates most; none of a stream, of
    which only some rows are kept, and not their places.
    """
    rows, p = found.rows, found.rows.surprise
    if p is None or len(p) < found.regressor.model_.num_rows:
        return []
    labels = row_labels(found.regressor, len(rows.Y))

    def described(n: int) -> SurprisingRow:
        t = int(np.nanargmax(np.abs(rows.residual[n])))
        values = map(float, (rows.Y[n, t], rows.mean[n, t], *rows.interval[n, t]))
        return SurprisingRow(labels[n], float(p[n]), found.names[t], *values)

    order = np.argsort(p, kind="stable")[:MAX_SURPRISES]
    return [described(int(n)) for n in order if not np.isnan(rows.Y[n]).all()]


def is_map(regressor: Any) -> bool:
    """Whether the inputs are two columns of numbers or dates that vary."""
    kinds = regressor.encoded_kinds_
    return len(varying_inputs(regressor)) == 2 == len(kinds) and "indicator" not in kinds


def map_data(regressor: Any) -> dict[str, Any] | None:
    """Means and deviations over two inputs; None if there are not two that vary."""
    if not is_map(regressor):
        return None
    X, (first, second) = regressor.training_data()[0], regressor.encoded_names_
    ratio = unit_ratio((first, second), X)
    grid = map_grid(X, cells=MAP_CELLS, ratio=ratio)
    mean, std = predict_cells(regressor, grid.points)
    shown = range(min(mean.shape[1], MAX_TARGETS_DRAWN))
    parts = {"mean": mean, "std": std}
    cells = {name: [rounded(part[:, t]) for t in shown] for name, part in parts.items()}
    kinds = regressor.encoded_kinds_
    return {"x": grid.x.tolist(), "y": grid.y.tolist(), "ratio": ratio, "kinds": kinds, **cells}
