"""Draws of the posterior at the rows of a table, however many these are."""

import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel

from ..joint.base_posterior import JointPosterior
from ..joint.fourier import terms_of
from ..joint.solved_posterior import task_matrices

MAX_JOINT_ROWS = 2000
"""Up to this many rows are drawn from their exact covariance, at a cost cubic in their number."""


def has_features(kernel: Kernel) -> bool:
    """Whether functions with this kernel can be drawn as a whole."""
    try:
        terms_of(kernel)
    except ValueError:
        return False
    return True


def draw_rows(
    posterior: JointPosterior, Z: AnyNDArray, num_samples: int, *, noise: bool, seed: int
) -> AnyNDArray:
    """
    Draw functions (or, with `noise`, observations) at rows, [S, M, T].

    Beyond `MAX_JOINT_ROWS` rows, functions are drawn as a whole where the kernel allows that.
    """
    if len(Z) <= MAX_JOINT_ROWS or not has_features(posterior.kernel):
        drawn = posterior.predict_samples(Z, num_samples, True, True, noise=noise, seed=(seed, 0))
        return drawn.numpy()
    values = posterior.sample_functions(num_samples, seed)(Z).numpy()
    if noise:
        _, Sigma = task_matrices(posterior.solution())
        white = np.random.default_rng(seed).normal(size=values.shape)
        values += white @ np.linalg.cholesky(Sigma).T
    return values
