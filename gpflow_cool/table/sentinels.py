"""
Numbers that may stand for a missing value, such as -999, and numbers too large or too small to
compute with; nothing here needs TensorFlow.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from .files import Numbers

CODES = [sign * code for code in (999.0, 9999.0, 99999.0, 999999.0) for sign in (-1, 1)]
"""What people write where they have no value."""

FEWEST, FAR = 3, 5.0
"""A code is told if it occurs so often, and is so many times farther from all other values of its
column than these are from each other. Per cent, from 0 to 100, are ten times as far from -999."""


def sentinels(values: Numbers) -> dict[float, int]:
    """
    Codes for missing values in a column, and how often they occur; NaN is ignored.

    >>> sentinels(np.array([0.0, 50.0, 100.0, -999.0, -999.0, -999.0]))
    {-999.0: 3}
    >>> sentinels(np.array([997.0, 998.0, 999.0, 999.0, 999.0]))
    {}
    """
    is_code = np.isin(values, CODES)
    others = values[~is_code & ~np.isnan(values)]
    if not is_code.any() or not len(others):
        return {}
    low, high = others.min(), others.max()
    found = {}
    for code, count in zip(*np.unique(values[is_code], return_counts=True), strict=True):
        distance = max(low - code, code - high)
        if count >= FEWEST and 0.0 < FAR * (high - low) < distance:
            found[float(code)] = int(count)
    return found


def sentinel_lines(columns: Numbers, names: Sequence[str]) -> list[str]:
    """
    What to say of codes for missing values.

    :param columns: [N, P].
    """
    return [
        f"{code:.0f} occurs {count} times in {name!r}, far from all other values: if it stands for"
        " a missing value, leave the cell empty."
        for name, values in zip(names, columns.T, strict=True)
        for code, count in sentinels(values).items()
    ]


def check_ranges(values: Numbers, names: Sequence[str], what: str) -> None:
    """
    Raise unless deviations of columns can be computed: numbers are squared for that.

    :param values: [N, P], NaN where a value is missing.
    :param names: Names of the columns.
    :param what: What the columns are: "Input" or "Target".
    """
    limits = np.finfo(np.float64)
    largest, smallest = np.sqrt(limits.max / values.size), np.sqrt(limits.tiny)
    for name, column in zip(names, values.T, strict=True):
        known = column[~np.isnan(column)]
        most = np.max(np.abs(known), initial=0.0)
        if most > largest:
            raise ValueError(
                f"{what} {name!r} has values of the size of {most:.3g}, whose squares are too large"
                " for float64: divide the column by a constant."
            )
        spread = np.ptp(known) if len(known) else 0.0
        if 0.0 < spread < smallest:
            raise ValueError(
                f"{what} {name!r} varies by {spread:.3g} only, whose square is too small for"
                " float64: multiply the column by a constant."
            )


def check_values(
    data: tuple[Numbers, Numbers], inputs: Sequence[str] | None, targets: Sequence[str]
) -> None:
    """
    Raise where deviations cannot be computed; warn the caller's caller of codes for missing values.

    :param data: Inputs [N, D] and targets [N, T].
    :param inputs: Names of the inputs; None if they have none.
    """
    X, Y = data
    names = [f"x{d}" for d in range(X.shape[1])] if inputs is None else inputs
    check_ranges(X, names, "Input")
    check_ranges(Y, targets, "Target")
    for line in sentinel_lines(X, names) + sentinel_lines(Y, targets):
        warnings.warn(line, stacklevel=3)
