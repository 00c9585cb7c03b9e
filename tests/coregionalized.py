"""Data and models in GPflow's coregionalization layout, which the tests of it share."""

import gpflow
import numpy as np
from gpflow.kernels import Coregion


def augmented(X, Y, column=None, order=None):
    """Rows of single tasks, task after task or in the given order, and their targets [N T, 1]."""
    N, T = Y.shape
    column = X.shape[1] if column is None else column
    X_aug = np.vstack([np.insert(X, column, t, axis=1) for t in range(T)])
    Y_aug = Y.reshape(-1, 1, order="F")
    order = np.arange(N * T) if order is None else order
    return X_aug[order], Y_aug[order]


def coregion_gpr(X_aug, Y, base, num_tasks, column, **options):
    kernel = base * Coregion(num_tasks, 1, active_dims=[column])
    return gpflow.models.GPR((X_aug, Y), kernel, **options)


def sorted_rows(X, Y):
    """Rows in an order that does not depend on the order given."""
    both = np.hstack([X, Y])
    return both[np.lexsort(both.T[::-1])]
