"""What a fit will cost, told before it starts; nothing here needs TensorFlow."""

import time
from typing import NamedTuple

import numpy as np

MAX_ROWS = 5000
"""The exact model takes more rows than these only on request, since time grows with their cube."""

DEFAULT_ORDERS = 8
"""Orders of the tasks over which C and Sigma are averaged: each costs no eigendecomposition."""

PROBE = 400
"""Rows of the matrix whose eigendecomposition is timed."""

REPETITIONS = 4
"""How often it is; the fastest counts."""

EVALUATIONS = 15
"""Eigendecompositions of a fit, its posterior included."""

MATRICES = 14
"""Matrices of N x N numbers in memory at the peak: 7 to 14 were measured."""


class Cost(NamedTuple):
    """Of one fit."""

    seconds: float
    gigabytes: float

    def __str__(self) -> str:
        """
        >>> print(Cost(seconds=5000.0, gigabytes=5.6))
        about 83 minutes and 5.6 GB of memory
        """
        return f"about {duration(self.seconds)} and {self.gigabytes:.1f} GB of memory"


def fit_cost(num_rows: int, attempts: int = 1) -> Cost:
    """
    Time and memory of a fit on this machine: an eigendecomposition of N rows costs N^3.

    :param attempts: How many times it trains.
    """
    growth = (num_rows / PROBE) ** 3
    seconds = time_once() * growth * EVALUATIONS * attempts
    return Cost(seconds, MATRICES * 8e-9 * num_rows**2)


def time_once() -> float:
    """Seconds of an eigendecomposition of `PROBE` rows, when nothing else is in its way."""
    K = 0.1 + np.diag(np.linspace(1.0, 2.0, PROBE))
    seconds = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        np.linalg.eigh(K)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def duration(seconds: float) -> str:
    """
    A time that people can read.

    >>> duration(42.0), duration(300.0), duration(8000.0), duration(2e5)
    ('42 seconds', '5 minutes', '2.2 hours', '2.3 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
