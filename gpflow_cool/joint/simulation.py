"""Draws at many points at once, such as the cells of a map or the rows of a table."""

from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel

from ..linalg import cholesky_with_jitter
from .base_posterior import JointPosterior
from .fourier import terms_of
from .solved_posterior import task_matrices

MAX_EXACT = 2000
"""Up to this many points, draws go through the covariance between all of them."""

MAX_WITHOUT_FEATURES = 6000
"""The same for kernels whose functions cannot be drawn as a whole; more points are refused."""


@check_shapes("Xnew: [M, D]", "return: [S, M, T]")
def simulate(
    posterior: JointPosterior[Any],
    Xnew: AnyNDArray,
    num_samples: int,
    seed: int = 0,
    *,
    noise: bool = False,
) -> AnyNDArray:
    """
    Draw functions (or, with `noise`, observations), joint over points and tasks.

    Few points are drawn through the covariance between all of them, which takes the cube of their
    number. For many, whole functions are drawn (`sample_functions`) and evaluated at the points.

    :raises ValueError: If there are many points, and the kernel has no features.
    """
    if len(Xnew) <= most_exact(posterior.kernel):
        options: dict[str, Any] = {"noise": noise, "seed": (seed, 0)}
        return np.asarray(posterior.predict_samples(Xnew, num_samples, True, True, **options))
    if not has_features(posterior.kernel):
        raise ValueError(
            f"{len(Xnew)} points are too many to draw together with the kernel"
            f" {type(posterior.kernel).__name__}, whose functions cannot be drawn as a whole: pass"
            f" at most {MAX_WITHOUT_FEATURES}, or use a squared exponential, Matern, rational"
            " quadratic or linear kernel, or a sum or product of these."
        )
    values = np.asarray(posterior.sample_functions(num_samples, seed=seed)(Xnew))
    if noise:
        _, Sigma = task_matrices(posterior.solution())
        white = np.random.default_rng(seed).normal(size=values.shape).astype(values.dtype)
        values = values + white @ np.asarray(cholesky_with_jitter(tf.constant(Sigma))).T
    return values


def most_exact(kernel: Kernel) -> int:
    """The largest number of points that are drawn through their covariance."""
    return MAX_EXACT if has_features(kernel) else MAX_WITHOUT_FEATURES


def has_features(kernel: Kernel) -> bool:
    """Whether functions with this kernel can be drawn as a whole."""
    try:
        terms_of(kernel)
    except ValueError:
        return False
    return True
