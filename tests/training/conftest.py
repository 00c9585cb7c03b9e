"""Data that the tests of `fit` share."""

import numpy as np
import pytest


@pytest.fixture(name="data")
def _data(rng):
    """Forty rows of three smooth tasks, the last nearly a mixture of the others."""
    X = rng.uniform(-2, 2, size=[40, 2])
    F = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1]), X[:, 0] * X[:, 1] / 2], axis=1)
    shared = rng.normal(size=[40, 1])
    return X, F + 0.2 * shared + 0.2 * rng.normal(size=[40, 3])
