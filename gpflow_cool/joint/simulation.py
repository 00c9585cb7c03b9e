"""Draws of functions at many points at once, such as the cells of a map."""

from typing import Any

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from .base_posterior import JointPosterior

MAX_EXACT = 4000
"""Up to this many points, draws go through the covariance between all of them."""

POINTS_AT_ONCE = 4000
"""Drawn functions are evaluated at this many points at a time, to bound the memory."""


@check_shapes("Xnew: [M, D]", "return: [S, M, T]")
def simulate(
    posterior: JointPosterior[Any], Xnew: AnyNDArray, num_samples: int, seed: int = 0
) -> AnyNDArray:
    """
    Draw functions without noise, joint over points and tasks.

    Few points are drawn through the covariance between all of them, which takes the cube of their
    number. For many, whole functions are drawn (`sample_functions`) and evaluated at the points.

    :raises ValueError: If there are many points, and the kernel has no features.
    """
    if len(Xnew) <= MAX_EXACT:
        drawn = posterior.predict_samples(Xnew, num_samples, full_output_cov=True, seed=(seed, 0))
        return np.asarray(drawn)
    functions = posterior.sample_functions(num_samples, seed=seed)
    parts = range(0, len(Xnew), POINTS_AT_ONCE)
    return np.concatenate([functions(Xnew[n : n + POINTS_AT_ONCE]) for n in parts], axis=-2)
