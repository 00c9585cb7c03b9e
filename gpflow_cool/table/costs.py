"""What is decided by the number of rows, and what a fit will cost; without TensorFlow."""

import os
import time
from typing import NamedTuple

import numpy as np

from ..systems import DEFAULT_POINTS

MAX_ROWS = 5000
"""Beyond this many rows the exact model is used only on request: time grows with their cube."""

DEFAULT_ORDERS = 8
"""Orders of the tasks over which C and Sigma are averaged."""

PROBE_ROWS = 400
"""Rows of the matrix whose eigendecomposition is timed."""

PROBE_REPETITIONS = 4
"""How often it is timed; the fastest counts."""

EVALUATIONS = 20
"""Eigendecompositions of a fit: three starts, some fifteen evaluations, refinement, posterior."""

MATRICES = 14
"""Matrices of N x N numbers in memory at the peak: 7 to 14 were measured."""


def default_inducing(num_rows: int, linear: bool) -> int:
    """
    Number of inducing points where the user gives none; 0 for the exact model.

    :param linear: Whether the kernel is linear, so that the exact model is cheap for any rows.
    """
    return 0 if linear or num_rows <= MAX_ROWS else DEFAULT_POINTS


def inducing_sentence(num_rows: int, points: int) -> str:
    """What :func:`default_inducing` has decided, where rows are many."""
    return (
        f"{num_rows} rows are more than {MAX_ROWS}: they are seen through {points} inducing points,"
        " an approximation."
    )


def missing_sentence(num_rows: int, num_missing: int, points: int) -> str:
    """What cannot be done: inducing points for rows with missing targets."""
    return (
        f"{num_missing} of {num_rows} rows have a missing target, but {points} inducing points need"
        " every target."
    )


class Cost(NamedTuple):
    """Cost of one fit."""

    seconds: float
    gigabytes: float

    def __str__(self) -> str:
        """
        >>> print(Cost(seconds=5000.0, gigabytes=5.6))
        about 83 minutes and 5.6 GB of memory
        """
        return f"about {duration(self.seconds)} and {self.gigabytes:.1f} GB of memory"


def fit_cost(num_rows: int, fits: int = 1) -> Cost:
    """
    Time and memory of fits on this machine: an eigendecomposition of N rows costs N^3.

    :param fits: How many fits there are.
    """
    growth = (num_rows / PROBE_ROWS) ** 3
    seconds = probe_seconds() * growth * EVALUATIONS * fits
    return Cost(seconds, MATRICES * 8e-9 * num_rows**2)


def machine_gigabytes() -> float:
    """Memory of this machine; infinite where it is not told."""
    try:
        return 1e-9 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return float("inf")


def probe_seconds() -> float:
    """Seconds of an eigendecomposition of `PROBE_ROWS` rows on an idle machine."""
    K = 0.1 + np.diag(np.linspace(1.0, 2.0, PROBE_ROWS))
    seconds = []
    for _ in range(PROBE_REPETITIONS):
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
