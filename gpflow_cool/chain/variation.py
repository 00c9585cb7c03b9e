"""Whether a column of numbers varies at all; the command line asks before it loads TensorFlow."""

from typing import Any

import numpy as np

ROUNDING_UNITS = 10.0
"""Numbers that differ by up to this many units of rounding are equal."""


def is_constant(low: Any, high: Any, dtype: Any = np.float64) -> Any:
    """
    Whether columns of numbers are constant to rounding, from their smallest and largest numbers.

    >>> is_constant(np.array([0.1, 1.0]), np.array([0.1, 2.0])).tolist()
    [True, False]

    :param dtype: The type that the numbers had when they were rounded.
    """
    largest = np.maximum(np.abs(low), np.abs(high))
    return high - low <= ROUNDING_UNITS * np.finfo(dtype).eps * largest
