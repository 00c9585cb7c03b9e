"""
Columns of a table: standardised and back again; data frames in, data frames out.

Pandas is imported only where a frame is made, and a frame is made only if one came in. Answers
about rows are frames only where the labels of the rows are known: pandas aligns by labels, so that
labels of our own would pair the wrong rows.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from .. import checks
from ..variation import is_constant

# Standardised columns -----------------------------------------------------------------------------


class Scaling(NamedTuple):
    """What is subtracted from each column, and what it is then divided by: z = (x - c) / s."""

    centre: AnyNDArray
    """[P]."""

    scale: AnyNDArray
    """[P], positive; infinite for a column that is not used, which becomes zero."""

    @check_shapes("values: [M, P]", "return: [M, P]")
    def standardised(self, values: AnyNDArray) -> AnyNDArray:
        return (values - self.centre) / self.scale

    @check_shapes("mean: [M, P]", "return: [M, P]")
    def mean(self, mean: AnyNDArray) -> AnyNDArray:
        """Standardised values in the user's units."""
        return mean * self.scale + self.centre

    @check_shapes("cov: [batch..., P, P]", "return: [batch..., P, P]")
    def covariance(self, cov: AnyNDArray) -> AnyNDArray:
        """Covariances between columns in the user's units."""
        return cov * np.multiply.outer(self.scale, self.scale)

    def log_density(self, log_density: AnyNDArray, known: AnyNDArray | None = None) -> AnyNDArray:
        r"""
        Joint log densities of rows in the user's units.

        .. math:: \log p(y) = \log p(z) - \sum_t \log s_t

        :param known: [M, P], the columns t that each row's density is of; None for all.
        """
        if known is None:
            return log_density - np.sum(np.log(self.scale))
        return log_density - known @ np.log(self.scale)


@check_shapes("X: [N, D]", "Y: [N, T]")
def scalings(X: AnyNDArray, Y: AnyNDArray, standardize: bool = True) -> tuple[Scaling, Scaling]:
    """How inputs and targets are scaled; a constant input is not used."""
    if standardize:
        return standardising(X, constant_scale=np.inf), standardising(Y, constant_scale=1.0)
    inputs, targets = (Scaling(np.zeros(A.shape[1]), np.ones(A.shape[1])) for A in (X, Y))
    return inputs, targets


@check_shapes("values: [N, P]")
def standardising(values: AnyNDArray, constant_scale: float) -> Scaling:
    """
    The scaling to mean 0 and standard deviation 1; NaN is ignored. A constant column becomes 0, as
    it would not if its mean were subtracted, which is rounded.

    :param constant_scale: What to divide a constant column by.
    """
    constant = constant_columns(values)
    centre = np.where(constant, np.nanmin(values, axis=0), np.nanmean(values, axis=0))
    return Scaling(centre, np.where(constant, constant_scale, np.nanstd(values, axis=0)))


@check_shapes("values: [N, P]", "return: [P]")
def constant_columns(values: AnyNDArray) -> AnyNDArray:
    """
    Which columns vary by no more than rounding; NaN is ignored.

    >>> constant_columns(np.array([[0.1, 1.0], [0.1, 2.0]])).tolist()
    [True, False]
    """
    return np.asarray(is_constant(np.nanmin(values, axis=0), np.nanmax(values, axis=0)))


def check_targets(Y: AnyNDArray, names: Sequence[str]) -> None:
    """Raise if a target is NaN in every row; warn the caller's caller of constant targets."""
    checks.check_observed(~np.isnan(Y), [f"Target {name!r}" for name in names])
    constant = [name for name, c in zip(names, constant_columns(Y), strict=True) if c]
    if constant:
        warnings.warn(
            f"Targets that never vary: {', '.join(constant)}. They are predicted to stay as they"
            " are, with deviations that mean little: leave them out.",
            stacklevel=3,
        )


# The form of the targets, and answers in the same form --------------------------------------------


class LeaveOneOutAnswer(NamedTuple):
    """Every training row predicted from all the others, in the user's units."""

    mean: Any
    """[N, T]; like the rest, NaN where a target is missing."""

    std: Any
    """[N, T], of the observation, noise included."""

    cov: Any
    """[N, T, T]; None where only deviations were asked for."""

    log_density: Any
    """[N], joint over the observed tasks of a row."""


class Imputed(NamedTuple):
    """Targets with the missing ones filled in, in the user's units."""

    completed: Any
    """[N, T], observed targets as they are, and the means of missing ones."""

    std: Any
    """[N, T], standard deviations of the missing targets; zero for the others."""

    cov: Any
    """[N, T, T], covariance of each row's missing targets; zero for the others."""


FORMS = ("array", "vector", "frame", "series")


class TargetForm(NamedTuple):
    """The form in which the targets came, and in which answers are given."""

    kind: str
    """"array" [N, T], "vector" [N], "frame" or "series"."""

    names: tuple[str, ...]
    """Names of the columns."""

    @property
    def is_pandas(self) -> bool:
        return self.kind in ("frame", "series")

    def rows(self, values: AnyNDArray, index: Any = None) -> Any:
        """One row per point, [M, T], in the form of the targets; without an index, an array."""
        if not self.is_pandas or index is None:
            return values if self.kind in ("array", "frame") else values[:, 0]
        import pandas as pd

        frame = pd.DataFrame(values, index=index, columns=list(self.names))
        return frame if self.kind == "frame" else frame.iloc[:, 0]

    def column(self, values: AnyNDArray, name: str, index: Any = None) -> Any:
        """One number per point, [M]."""
        if not self.is_pandas or index is None:
            return values
        import pandas as pd

        return pd.Series(values, index=index, name=name)

    def matrix(self, values: AnyNDArray) -> Any:
        """A matrix between tasks, [T, T]."""
        if not self.is_pandas:
            return values
        import pandas as pd

        return pd.DataFrame(values, index=list(self.names), columns=list(self.names))

    def matrices(self, values: AnyNDArray, index: Any = None) -> Any:
        """One matrix between tasks per point, [M, T, T]; of a frame, `.loc[row]` is one."""
        if not self.is_pandas or index is None:
            return values
        import pandas as pd

        names = list(self.names)
        pairs = [index.repeat(len(names)), names * len(values)]
        rows = pd.MultiIndex.from_arrays(pairs, names=["row", "task"])
        return pd.DataFrame(values.reshape(-1, len(names)), index=rows, columns=names)


def target_form(y: Any, values: AnyNDArray) -> TargetForm:
    """
    The form in which targets came.

    :param values: The same as an array, [N] or [N, T].
    """
    if is_frame(y):
        return TargetForm("frame", tuple(str(name) for name in y.columns))
    if is_series(y):
        return TargetForm("series", ("y" if y.name is None else str(y.name),))
    if values.ndim == 1:
        return TargetForm("vector", ("y",))
    return TargetForm("array", tuple(f"task_{t}" for t in range(values.shape[1])))


def is_frame(value: Any) -> bool:
    """Whether something is a data frame; pandas need not be installed."""
    return hasattr(value, "iloc") and hasattr(value, "columns")


def is_series(value: Any) -> bool:
    return hasattr(value, "iloc") and not hasattr(value, "columns") and hasattr(value, "name")


def index_of(X: Any) -> Any:
    """Labels of the rows of a frame or a series; None for an array."""
    return X.index if is_frame(X) or is_series(X) else None


def check_pair(X: Any, y: Any) -> None:
    """
    Raise if there is no column, if y has text, if rows are in another order than in X, or a target
    is an input.
    """
    for table, name, what in [(X, "X", "input"), (y, "y", "target")]:
        if is_frame(table) and table.shape[1] == 0:
            raise ValueError(f"{name} has no columns: pass a frame with at least one {what}.")
    check_no_text(y, "y")
    check_no_times(y)
    check_same_rows(X, y)
    check_no_target_among_inputs(X, y)


def check_same_rows(X: Any, y: Any) -> None:
    """Raise if X and y have the same labels of rows in another order: rows are paired as given."""
    own, other = index_of(X), index_of(y)
    if own is None or other is None or own.equals(other):
        return
    labels, others = list(own), list(other)
    different = [n for n, (a, b) in enumerate(zip(labels, others, strict=False)) if a != b]
    if different and len(set(labels)) == len(labels) and set(labels) == set(others):
        n = different[0]
        raise ValueError(
            f"X and y have the same labels of rows in another order: row {n} is {labels[n]!r} in X,"
            f" and {others[n]!r} in y. Rows are paired by their order: pass y.loc[X.index], or"
            " y.to_numpy() if it is right as it is."
        )


def check_no_target_among_inputs(X: Any, y: Any) -> None:
    """Raise if a column of y is a column of X as well, by name and by values."""
    if not is_frame(X) or not (is_frame(y) or is_series(y)):
        return
    targets = [y.iloc[:, t] for t in range(y.shape[1])] if is_frame(y) else [y]
    inputs = [X.iloc[:, d] for d in range(X.shape[1])]
    both = [
        target.name
        for target in targets
        if any(
            column.name == target.name and have_same_numbers(column, target) for column in inputs
        )
    ]
    if both:
        raise ValueError(
            f"{', '.join(map(repr, both))} is in X and in y, with the same values: nothing is left"
            " to predict. Drop what is a target from X."
        )


def have_same_numbers(one: Any, other: Any) -> bool:
    """Whether two series have the same numbers, and gaps at the same rows."""
    try:
        a, b = (np.asarray(part, dtype=np.float64) for part in (one, other))
    except (ValueError, TypeError):  # words
        return False
    return np.array_equal(a, b, equal_nan=True)


def with_all_targets(y: Any, names: Sequence[str]) -> Any:
    """A frame or series of some of the targets, by their names, with NaN for the others."""
    if is_series(y) and len(names) > 1 and str(y.name) in names:
        y = y.to_frame()
    known = list(map(str, y.columns)) if is_frame(y) else []
    if not known or len(set(known)) < len(known) or not set(known) <= set(names):
        return y
    return y.set_axis(known, axis=1).reindex(columns=list(names))


def targets_of(y: Any, names: Sequence[str], num_rows: int) -> AnyNDArray:
    """[M, T], targets in the order of the fit; NaN is allowed."""
    from sklearn.utils.validation import check_array

    if is_frame(y) and set(map(str, y.columns)) == set(names):
        y = y.set_axis(list(map(str, y.columns)), axis=1)[list(names)]
    check_no_text(y := unmasked(y), "y")
    Y = check_array(y, dtype=np.float64, ensure_2d=False, ensure_all_finite="allow-nan")
    Y = Y[:, None] if Y.ndim == 1 else Y
    if Y.shape != (num_rows, len(names)):
        few = len(Y) == num_rows and Y.shape[1] < len(names)
        raise ValueError(
            f"y has shape {Y.shape}, but X has {num_rows} rows and the model has"
            f" {len(names)} targets: {', '.join(names)}."
            + " Add those that are not known as columns of NaN."
            * few
        )
    return Y


# Cells --------------------------------------------------------------------------------------------


def unmasked(values: Any) -> Any:
    """Numbers with NaN where a masked array is masked; anything else as it is."""
    is_masked = isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "biuf"
    return values.astype(np.float64).filled(np.nan) if is_masked else values


def check_no_text(values: Any, name: str) -> None:
    """Raise if a column of a table holds words, and name the column."""
    for column, cells in columns_of(values):
        word = next((cell for cell in cells if isinstance(cell, str) and not is_number(cell)), None)
        if word is not None:
            why = "numbers are needed" if name == "y" else "the fit had numbers there"
            raise ValueError(
                f"Column {column!r} of {name} holds text, for example {word[:40]!r}, but {why}:"
                " encode it as numbers, or leave it out."
            )


TIMES = {"m": ("durations", "divide"), "M": ("dates", "subtract a date, then divide")}


def check_no_times(y: Any) -> None:
    """Raise if a target holds dates or durations."""
    for name, column in y.items() if is_frame(y) else [(getattr(y, "name", None), y)]:
        dtype = getattr(column, "dtype", None)
        kind = "M" if type(dtype).__name__ == "PeriodDtype" else getattr(dtype, "kind", "")
        if kind in TIMES:
            where = "y" if name is None else f"Column {name!r} of y"
            what, how = TIMES[kind]
            raise ValueError(
                f"{where} holds {what}, but numbers are needed: {how} by pd.Timedelta(days=1)."
            )


def columns_of(values: Any) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Names, or numbers, and cells of the columns that may hold text."""
    if is_frame(values):
        for number, column in enumerate(values.columns):
            yield from columns_of(values.iloc[:, number].rename(column))
    elif is_series(values):
        categories = getattr(values.dtype, "categories", None)
        if categories is not None or values.dtype.kind not in "biufcmM":
            yield values.name, values if categories is None else categories
    elif isinstance(values, list | tuple | np.ndarray):
        with suppress(ValueError):  # rows of different lengths: told elsewhere
            array = np.asarray(values)
            if array.dtype.kind in "OU" and array.ndim in (1, 2):
                yield from enumerate(array.reshape(len(array), -1).T)


def is_number(text: str) -> bool:
    """
    >>> is_number("1e3"), is_number("red")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


# Rows in blocks ----------------------------------------------------------------------------------

ROWS_AT_ONCE = 1000
"""Predictions are computed for this many rows at a time, to bound the memory."""


MAX_NUMBERS = 2**24
"""So many numbers (128 MB) a result of these rows may have, unless one row has more."""


def in_blocks(
    function: Callable[..., Any], parts: Sequence[AnyNDArray], numbers: int = 1, **options: Any
) -> list[AnyNDArray]:
    """
    Results of a function of rows, computed for up to `ROWS_AT_ONCE` of them at a time.

    :param numbers: How many numbers the function computes per row, if these are many.
    """
    size = max(1, min(ROWS_AT_ONCE, MAX_NUMBERS // numbers))
    whole: list[AnyNDArray] = []
    for n in range(0, len(parts[0]), size):
        found = function(*(tf.constant(part[n : n + size]) for part in parts), **options)
        if not whole:
            whole = [np.empty([len(parts[0]), *b.shape[1:]], b.dtype.as_numpy_dtype) for b in found]
        for array, block in zip(whole, found, strict=True):
            array[n : n + size] = block
    return whole
