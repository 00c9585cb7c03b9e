"""
Starting values, the noise's lower bound, and the scale that is one number too many.

b_t multiplies the kernel, so that b and the kernel's own variance say one thing twice.
:func:`fix_kernel_scale` is the one place where that is settled: the kernel's scale stays as given,
and b is learnt.
"""

import warnings
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import set_trainable
from gpflow.base import AnyNDArray, Parameter, TensorData
from gpflow.kernels import (
    ArcCosine,
    Combination,
    Kernel,
    Linear,
    Periodic,
    Product,
    Static,
    Stationary,
)
from gpflow.utilities import positive
from scipy.spatial.distance import pdist

from .. import checks

NOISE_FRACTION = 0.1
"""Noise variance to start from, relative to the task's variance."""

NOISE_FLOOR = 1e-4
"""Smallest noise variance, relative to the task's variance: where a task is a combination of
earlier ones its noise would run to zero, the noise covariance to singular, and every error of C in
that direction would blow up predictions."""

MAX_ROWS_FOR_DISTANCES = 1000

MAX_SCALE_RATIO = 10.0
"""Standard deviations of targets that differ by more than this factor are warned about."""


def task_scales(residual: AnyNDArray) -> AnyNDArray:
    """
    Variance of each task; of a constant one, its mean square; of one that is all zero, 1.

    :param residual: [N, T], targets with the mean function subtracted; NaN where one is missing.
    """
    if np.isnan(residual).any():
        columns = (column[~np.isnan(column), None] for column in residual.T)
        return np.concatenate([task_scales(column) for column in columns])
    mean_square = np.mean(np.square(residual), axis=0, dtype=np.float64)
    variance = np.var(residual, axis=0, dtype=np.float64)
    rounding = 10.0 * np.finfo(residual.dtype).eps * np.max(np.abs(residual), axis=0)
    constant = np.ptp(residual, axis=0) <= rounding
    return np.where(constant, np.where(mean_square > 0, mean_square, 1.0), variance)


class NoiseFloor(tfp.bijectors.Shift):
    """
    Adds a lower bound. Its inverse takes a value that has reached the bound, where nothing is left
    to subtract, for one just above: what was read from a parameter can be assigned to it again.
    """

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        above = y - self.shift
        rounding = 10.0 * np.finfo(above.dtype.as_numpy_dtype).eps * self.shift
        return tf.where(above < -rounding, above, tf.maximum(above, rounding))


def noise_transform(sigma2: AnyNDArray, scales: AnyNDArray) -> tfp.bijectors.Bijector:
    """
    Positive, and above `NOISE_FLOOR` of the task's variance; a user who starts below that bound
    means it, and gets a tenth of that start instead.
    """
    floor = np.minimum(NOISE_FLOOR * scales, 0.1 * sigma2)
    bound = NoiseFloor(tf.constant(floor, dtype=sigma2.dtype))
    return tfp.bijectors.Chain([bound, positive(lower=0.0)])


def scale_parameters(kernel: Kernel) -> list[Parameter]:
    """
    The parameters that must stay fixed for the kernel's scale to be fixed.

    One leaf's variance; every factor's in a product; the first in a sum, the other terms being
    relative to it. A kernel whose variances are more than a scale (`Linear` with one variance a
    column) has none.
    """
    if isinstance(kernel, Product):
        return [parameter for factor in kernel.kernels for parameter in scale_parameters(factor)]
    if isinstance(kernel, Combination):
        return next(filter(None, map(scale_parameters, kernel.kernels)), [])
    if isinstance(kernel, Periodic):
        return scale_parameters(kernel.base_kernel)
    if isinstance(kernel, Stationary | Static | Linear | ArcCosine):
        return [kernel.variance] if kernel.variance.shape.rank == 0 else []
    return []


def fix_kernel_scale(kernel: Kernel) -> None:
    """
    Keep the kernel's scale as it is: b, which multiplies it, is learnt instead.

    `print_summary` shows it as not trainable; `gpflow.set_trainable(model.kernel.variance, True)`
    undoes it. A variance with a prior is left alone: the prior settles the scale.
    """
    for parameter in scale_parameters(kernel):
        if parameter.prior is None:
            set_trainable(parameter, False)


def mean_kernel_diagonal(kernel: Kernel, X: AnyNDArray) -> float:
    """Mean of k(x, x) over the rows; 1 where that is no positive number."""
    mean = float(np.mean(kernel(tf.constant(X), full_cov=False).numpy()))
    return mean if np.isfinite(mean) and mean > 0 else 1.0


class ChainStart(NamedTuple):
    """Where to start b and sigma2, each [T]."""

    b: AnyNDArray
    sigma2: AnyNDArray


def chain_start(kernel_variance: float, scales: AnyNDArray) -> ChainStart:
    """
    Start with signal that explains all the variance, and noise of a tenth of it.

    More noise than that, and training may end where everything is noise.

    :param kernel_variance: Mean of the kernel matrix's diagonal.
    :param scales: The tasks' variances, see :func:`task_scales`.
    """
    kernel_variance = kernel_variance if kernel_variance > 0 else 1.0
    return ChainStart(scales / kernel_variance, NOISE_FRACTION * scales)


def half_median_distance(X: AnyNDArray, seed: int = 0) -> float:
    """
    Half the median distance between different rows of X, the lengthscale to start from.

    Rows beyond `MAX_ROWS_FOR_DISTANCES` are drawn at random; 1 where all rows are equal.

    >>> half_median_distance(np.array([[0.0], [1.0], [2.0]]))
    0.5
    """
    if len(X) > MAX_ROWS_FOR_DISTANCES:
        X = np.random.default_rng(seed).choice(X, MAX_ROWS_FOR_DISTANCES, replace=False)
    distances = pdist(X)
    distances = distances[distances > 0]
    return 0.5 * float(np.median(distances)) if len(distances) else 1.0


def chain_parameters(
    b: TensorData | None,
    sigma2: TensorData | None,
    kernel_variance: float,
    scales: AnyNDArray,
) -> tuple[Parameter, Parameter]:
    """
    The parameters b and sigma2, [T] each, from what the user gave, else from the tasks' variances.

    Warns of targets whose scales are far apart.

    :param kernel_variance: Mean of k(x, x).
    :param scales: [T], the tasks' variances.
    """
    ratio = float(np.sqrt(scales.max() / scales.min()))
    if ratio > MAX_SCALE_RATIO:
        warnings.warn(
            f"The standard deviations of the targets differ by a factor of {ratio:.3g}. The"
            " prior of the weights between tasks assumes comparable scales: standardise Y.",
            stacklevel=3,
        )
    start = chain_start(kernel_variance, scales)
    b = checks.positive_vector(start.b if b is None else b, "b", len(scales))
    sigma2 = start.sigma2 if sigma2 is None else sigma2
    sigma2 = checks.positive_vector(sigma2, "sigma2", len(scales))
    return (
        Parameter(b, transform=positive(lower=0.0)),
        Parameter(sigma2, transform=noise_transform(sigma2, scales)),
    )
