"""What an estimator has learned about its inputs, and which kernels it has compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import SquaredExponential, Stationary

from ..grid.axes import find_grid
from ..grid.kernels import MAX_COLUMNS, grid_that_pays
from ..selection import candidates
from ..selection.choice import PER_INPUT, KernelTable
from ..selection.ranking import Candidate
from ..selection.relevance import input_relevance
from .choices import TASKS_OF_CHOICE
from .columns import in_blocks
from .encoding import Coding, Encoding


class LearnedKernel:
    """The part of the estimator that tells about its kernel."""

    model_: Any
    posterior_: Any
    _encoding: Encoding | None
    kernel_choice_: KernelTable | None = None
    """The kernels that were compared; None for one that was given."""

    @property
    def relevance_(self) -> Any:
        """
        How much each column of X matters: the part of the variance of the predicted means that
        moves if this column alone is exchanged with that of another row, see
        :func:`gpflow_cool.selection.relevance.input_relevance`. All targets count alike, in units
        of their deviations. The inputs that a column of words or one with gaps becomes are
        exchanged together. If X was a frame, this is a series with its names.
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "model_")
        X, Y = (np.asarray(part) for part in self.model_.rows.arrays())
        deviation = np.nanstd(Y, axis=0)
        relevance = input_relevance(
            lambda Z: in_blocks(lambda Z: (self.posterior_.predict_mean(Z),), [Z])[0],
            X,
            np.where(deviation > 0, deviation, 1.0),
            groups=columns_of_inputs(codings_of(self)),
        )
        has_names = hasattr(self, "feature_names_in_")
        names = [coding.name for coding in codings_of(self)]
        return named_series(relevance, names if has_names else None, "relevance")


def codings_of(regressor: Any) -> tuple[Coding, ...]:
    """How each column of the user's table becomes inputs of the model."""
    if regressor._encoding is not None:
        return tuple(regressor._encoding.codings)
    return tuple(Coding(name, "number") for name in regressor.encoded_names_)


def columns_of_inputs(codings: Sequence[Coding]) -> list[list[int]]:
    """
    Numbers of the inputs that each column of the user's table becomes.

    >>> hue = Coding("hue", "category", ("blue", "red"))
    >>> columns_of_inputs([Coding("size", "number"), hue, Coding("age", "number")])
    [[0], [1, 2], [3]]
    """
    ends = np.cumsum([len(coding.inputs) for coding in codings])
    return [
        list(range(end - len(coding.inputs), end))
        for coding, end in zip(codings, ends.tolist(), strict=True)
    ]


def named_series(values: AnyNDArray, names: Any, name: str) -> Any:
    """Values as a pandas series if they have names, else as they are."""
    if names is None:
        return values
    import pandas as pd

    return pd.Series(values, index=list(names), name=name)


def table_to_json(table: KernelTable | None) -> Any:
    """A table of kernels as plain data."""
    if table is None:
        return None
    rows = [[finite_or_none(value) for value in row] for row in table.candidates]
    return {**table._asdict(), "candidates": rows}


def finite_or_none(value: Any) -> Any:
    """None for infinity and NaN, which a kernel has that failed, and JSON has not."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


def table_from_json(saved: Any) -> KernelTable | None:
    """The inverse of :func:`table_to_json`."""
    if saved is None:
        return None
    rows = tuple(candidate_from_json(row) for row in saved["candidates"])
    return KernelTable(rows, str(saved["chosen"]), int(saved["num_rows"]))


def candidate_from_json(row: Any) -> Candidate:
    """A kernel of a saved table; one that failed has no numbers."""
    if Candidate(*row).error:
        row = [row[0], -np.inf, np.nan, np.nan, *row[4:]]
    return Candidate(*row)


def kernel_name(regressor: Any) -> str:
    """The name of the kernel that was chosen or given; of an object, that of its class."""
    if regressor.kernel_choice_ is not None:
        return regressor.kernel_choice_.chosen
    kernel = regressor.kernel
    return kernel if isinstance(kernel, str) else type(kernel).__name__


def kernel_in_words(regressor: Any) -> str:
    """The kernel that was trained, and whether inputs have lengthscales of their own in it."""
    if regressor.kernel_choice_ is not None:
        return str(regressor.kernel_choice_.chosen)
    given, kernel = regressor.kernel, regressor.model_.kernel
    name = given if isinstance(given, str) else candidates.kernel_name(kernel)
    parts = [part for part in (kernel, *kernel.submodules) if isinstance(part, Stationary)]
    return name + PER_INPUT * any(np.size(part.lengthscales.numpy()) > 1 for part in parts)


def choice_sentence(table: KernelTable | None, num_targets: int) -> str:
    """One line about the choice of the kernel; empty where it was given."""
    if table is None:
        return ""
    kernels = [row for row in table.candidates if not row.name.endswith(PER_INPUT)]
    if len(kernels) == 1:  # see `train_model`
        return f"kernel:  {table.chosen} (of those with a name the only one for a grid)"
    failed = sum(bool(row.error) for row in kernels)
    others = f", of which {failed} failed" if failed else ""
    some = f" and {TASKS_OF_CHOICE} of the targets" if num_targets > TASKS_OF_CHOICE else ""
    return (
        f"kernel:  {table.chosen} (chosen among {len(kernels)}{others}, by leave-one-out of"
        f" {table.num_rows} rows{some})"
    )


def grid_of(regressor: Any) -> dict[str, Any] | None:
    """The grid that all rows of an estimator are, and whether its model uses it; None if none."""
    model = regressor.model_
    X = np.asarray(model.data[0])
    varied = np.flatnonzero(np.ptp(X, axis=0))
    if len(X) < model.num_rows or not 2 <= len(varied) <= MAX_COLUMNS:
        return None
    try:
        grid = find_grid(X[:, varied])
    except ValueError:  # repeated rows
        return None
    if len(grid.shape) == 1:
        return None
    names = [regressor.encoded_names_[d] for d in varied]
    return {
        "shape": list(grid.shape),
        "axes": [[names[d] for d in group] for group in grid.groups],
        "used": bool(getattr(model, "is_on_grid", False)),
        "pays": grid_that_pays(SquaredExponential(), X) is not None,
    }


def grid_sentence(grid: Mapping[str, Any] | None) -> str:
    """
    One line about the grid that the rows are; empty if there is none.

    >>> grid_sentence({"shape": [20, 30], "axes": [["time"], ["lat", "lon"]], "used": True})
    'grid:    20 x 30 points over time x (lat, lon), of which the exact model makes use'
    """
    if grid is None:
        return ""
    names = [axis[0] if len(axis) == 1 else f"({', '.join(axis)})" for axis in grid["axes"]]
    said = f"grid:    {' x '.join(map(str, grid['shape']))} points over {' x '.join(names)}"
    if grid["used"]:
        return f"{said}, of which the exact model makes use"
    if grid["pays"]:
        return f"{said}, of which this model makes no use: --kernel se without --inducing does"
    return f"{said}; they are too few, or one axis is too long, for the model to gain by that"


def relevance_by_name(regressor: Any) -> dict[str, float]:
    """Relevance of each column of an estimator's inputs."""
    names = [coding.name for coding in codings_of(regressor)]
    return dict(zip(names, map(float, regressor.relevance_), strict=True))


def relevance_sentence(relevance: Mapping[str, float], most: int = 5) -> str:
    """
    One line with the inputs that matter most.

    >>> relevance_sentence({"size": 0.0, "age": 0.0})
    'matter most: none, because the predictions are the same everywhere'
    >>> relevance_sentence({"size": 0.25, "colour": 0.0, "age": 0.5}, most=2)
    'matter most: age 0.5, size 0.25, ... (part of the variance of predictions that each moves)'
    """
    if not any(relevance.values()):
        return "matter most: none, because the predictions are the same everywhere"
    order = sorted(relevance, key=lambda name: -relevance[name])
    parts = [f"{name} {relevance[name]:.2g}" for name in order[:most]]
    parts += ["..."] if len(order) > most else []
    return f"matter most: {', '.join(parts)} (part of the variance of predictions that each moves)"
