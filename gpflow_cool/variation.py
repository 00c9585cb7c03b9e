"""
Columns that do not vary, or too little. Nothing of TensorFlow: commands answer mistakes at once.
"""

from typing import Any

import numpy as np

ROUNDING_UNITS = 10.0
"""Numbers that differ by up to this many units of rounding are equal."""


SMALLEST_RANGE, LARGEST_TARGET = 1e-50, 1e50
"""Targets may vary as little as the first and be as large as the second: training takes the sixth
power of their scale, in float64."""


def is_constant(low: Any, high: Any, dtype: Any = np.float64) -> Any:
    """
    Whether columns of numbers are constant to rounding, from their smallest and largest numbers.

    >>> is_constant(np.array([0.1, 1.0]), np.array([0.1, 2.0])).tolist()
    [True, False]

    :param dtype: The type that the numbers had when they were rounded.
    """
    largest = np.maximum(np.abs(low), np.abs(high))
    return high - low <= ROUNDING_UNITS * np.finfo(dtype).eps * largest


def check_ranges(low: Any, high: Any, dtype: Any) -> None:
    """
    Raise if powers of a target's scale would underflow or overflow.

    :param low: [T], the smallest target of each task.
    :param high: [T], the largest target of each task.
    :param dtype: The type of the targets.
    """
    limits = np.finfo(dtype)
    smallest = max(SMALLEST_RANGE, float(np.sqrt(limits.tiny / limits.eps)))
    varies = ~is_constant(low, high, dtype)
    advice = "standardise Y, or choose another unit"
    for t in np.flatnonzero(varies & (high - low < smallest)):
        raise ValueError(
            f"Y[:, {t}] varies by {high[t] - low[t]:.3g} only, powers of which are too small for"
            f" {np.dtype(dtype).name}: {advice}."
        )
    largest = np.maximum(np.abs(low), np.abs(high))
    for t in np.flatnonzero(largest > LARGEST_TARGET):
        raise ValueError(
            f"Y[:, {t}] has an entry of size {largest[t]:.3g}, powers of which are too large for"
            f" {np.dtype(dtype).name}: {advice}."
        )
