"""What every method gives back, and what several of them need."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Moments = tuple[np.ndarray, np.ndarray]
Lengthscale = float | np.ndarray
"""Where to start: one number, or one for each input."""

COLUMNS = 2048
"""A model that predicts a full covariance over rows and tasks gets so many rows that it has about
this many columns: the covariances between rows are computed in vain and must not dominate."""


class Fitted(NamedTuple):
    """A trained model."""

    predict: Callable[[np.ndarray], Moments]
    """Mean [M, T] and covariance over tasks [M, T, T] of observations."""
    parameters: int
    """How many numbers were learnt."""


class Training(NamedTuple):
    """A model that is trained a minibatch at a time."""

    step: Callable[[np.ndarray, np.ndarray], None]
    """One step of the optimizer with these rows of X and Y."""
    predict: Callable[[np.ndarray], Moments]
    """As of :class:`Fitted`, at the present parameters."""


def in_chunks(predict: Callable[[np.ndarray], Moments], X: np.ndarray, T: int) -> Moments:
    """Moments of all rows from a function that gives mean [m, T] and covariance [m, T, m, T]."""
    rows = max(1, COLUMNS // T)
    parts = [predict(X[start : start + rows]) for start in range(0, len(X), rows)]
    means = [mean for mean, _ in parts]
    covs = [np.einsum("mtmu->mtu", S) for _, S in parts]
    return np.concatenate(means), np.concatenate(covs)


def diagonal(variances: np.ndarray) -> np.ndarray:
    """Covariances [M, T, T] of independent tasks with these variances [M, T]."""
    return variances[:, :, None] * np.eye(variances.shape[1])
