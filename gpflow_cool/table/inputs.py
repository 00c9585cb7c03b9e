"""The estimator's inputs: a table as it comes is encoded, all else is scikit-learn's to check."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from .. import checks
from .columns import Scaling, check_no_text, unmasked
from .encoding import MISSING_INPUTS, Encoding, learn_encoding, raw_table


class TrainingInputs(NamedTuple):
    """What a fit is given, with the rows left out that are not to be used."""

    X: Any
    """The user's inputs, or if there is an encoding, the encoded ones [N, D]."""

    y: Any
    encoding: Encoding | None
    """None where all inputs are numbers, and gaps are refused."""


def place_of(row: int, name: str) -> str:
    return f"X, row {row}, column {name!r}"


def training_inputs(X: Any, y: Any, missing: str) -> TrainingInputs:
    """Learn how inputs are encoded, and encode them."""
    from sklearn.utils import _safe_indexing, check_consistent_length

    checks.option(missing, "missing_inputs", MISSING_INPUTS)
    X, y = unmasked(X), unmasked(y)
    table = raw_table(X)
    if table is None or (table.is_plain and missing == "refuse"):
        refuse_gaps(X, IN_TRAINING)
        return TrainingInputs(X, y, None)
    if len(table.columns) < np.shape(X)[1]:
        raise ValueError("Two columns of X have the same name: rename one.")
    check_consistent_length(X, y)
    encoding = learn_encoding(table.columns, missing, place_of, table.categorical)
    encoded = encoding.encode(table.columns, place_of)
    rows = np.flatnonzero(encoded.kept)
    if len(rows) < min(2, len(encoded.X)):
        raise ValueError(
            f"X has too few rows without a gap ({len(rows)}). A model needs at least two: pass"
            ' missing_inputs="fill", or leave out columns with many gaps.'
        )
    return TrainingInputs(encoded.X[rows], y if y is None else _safe_indexing(y, rows), encoding)


IN_TRAINING = (
    'pass missing_inputs="fill" to fill them with medians and flag them, or missing_inputs="drop"'
    " to leave out their rows."
)
IN_NEW_ROWS = (
    "the model was fitted to inputs without gaps. Fill them or leave their rows out, or fit again"
    ' with missing_inputs="fill".'
)


def refuse_gaps(X: Any, advice: str) -> None:
    """
    Raise if a table of numbers has NaN; all else is scikit-learn's to check.

    :param advice: What to do about them.
    """
    values = np.asarray(X) if hasattr(X, "dtype") or hasattr(X, "columns") else np.zeros(0)
    if values.dtype.kind != "f" or values.ndim != 2 or not np.isnan(values).any():
        return
    gaps = np.argwhere(np.isnan(values))
    (row, column), count = gaps[0], len(gaps)
    which = "the only gap" if count == 1 else f"one of {count} gaps"
    name = str(list(X.columns)[column] if hasattr(X, "columns") else column)
    raise ValueError(f"{place_of(int(row), name)} is NaN, {which} in the inputs: {advice}")


def keep_names(estimator: Any, X: Any, encoding: Encoding | None) -> list[str] | None:
    """
    Set the names of the user's own columns, where the fit has seen encoded ones.

    :return: As :func:`encoded_names`.
    """
    from sklearn.utils.validation import validate_data

    if encoding is not None:
        validate_data(estimator, X, skip_check_array=True)
    return encoded_names(estimator, encoding)


def encoded_names(estimator: Any, encoding: Encoding | None) -> list[str] | None:
    """Names of the inputs that the kernel sees; None where the user's inputs have none."""
    if encoding is not None:
        return encoding.inputs
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def new_inputs(estimator: Any, X: Any, encoding: Encoding | None) -> AnyNDArray:
    """
    Inputs [M, D] of new rows, in the user's units.

    An array of numbers that has one column per encoded input is taken as encoded already.
    """
    from sklearn.utils.validation import check_array, validate_data

    X = unmasked(X)
    if encoding is None:
        check_no_text(X, "X")
        refuse_gaps(X, IN_NEW_ROWS)
        return np.asarray(validate_data(estimator, X, reset=False, dtype=np.float64))
    if isinstance(X, np.ndarray) and X.dtype.kind in "biuf":
        if X.ndim == 2 and X.shape[1] == len(encoding.inputs):
            return np.asarray(check_array(X, dtype=np.float64))
    validate_data(estimator, X, reset=False, skip_check_array=True)
    table = raw_table(X)
    if table is None:
        raise ValueError("X must be a table with two dimensions, as in the fit.")
    names = [coding.name for coding in encoding.codings]
    columns = dict(zip(names, table.columns.values(), strict=True))
    encoded = encoding.encode(columns, place_of)
    for remark in encoded.remarks:
        warnings.warn(remark, stacklevel=4)
    if not encoded.kept.all():
        row = int(np.flatnonzero(~encoded.kept)[0])
        raise ValueError(
            f"Row {row} of X has a gap, and the model was fitted without such rows"
            ' (missing_inputs="drop"): leave it out, or fit with missing_inputs="fill".'
        )
    return np.asarray(check_array(encoded.X, estimator=estimator))


def keep_indicators(scaling: Scaling, encoding: Encoding | None) -> Scaling:
    """
    A scaling of encoded inputs that leaves indicators at 0 and 1, but for those that never vary.

    The squared distance between two categories is then 2 for any two of them, which is also what it
    is, on average, between two rows of a standardised column.
    """
    if encoding is None:
        return scaling
    used = encoding.indicators & np.isfinite(scaling.scale)
    return Scaling(scaling.centre, np.where(used, 1.0, scaling.scale))


def refuse_weights(other: Mapping[str, Any]) -> None:
    """
    Raise if a fit is given what it does not take.

    :param other: Arguments of `fit` that it does not know.
    """
    if "sample_weight" in other:
        if other["sample_weight"] is None:
            return
        raise ValueError(
            "sample_weight is not supported: one noise covariance holds for all rows, which is what"
            " makes the fit fast. Give every measurement a row of its own, with its own value, and"
            " leave out rows that are not to count."
        )
    if other:
        raise TypeError(f"fit() does not take {next(iter(other))!r}.")
