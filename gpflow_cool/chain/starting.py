"""
Starting values and bounds of b and sigma2, and the scale that b shares with the kernel.

b_t multiplies the kernel, so that only the product of b and the kernel's own variance matters.
:func:`fix_kernel_scale` keeps the kernel's scale as it is given, and b is learnt.
"""

import warnings

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
from ..systems.summary import positive_or_one, scales_of_moments
from ..variation import is_constant

NOISE_FRACTION = 0.1
"""Noise variance to start from, relative to the task's variance."""

CHAIN_NOISE_FLOOR = 1e-4
"""Smallest sigma2 of the chain, relative to the task's variance. Where a task is a combination of
earlier ones its sigma2 would run to zero, Sigma would become singular, and predictions would
magnify every error of C in that direction."""

EXACT_NOISE_FLOOR = 1e-6
"""Smallest noise of the exact model in any direction, relative to the tasks' variances, or a tenth
of what is given if that is less. Without noise in some direction its evidence has no maximum."""

MAX_ROWS_FOR_DISTANCES = 1000
"""The median distance is that of this many rows, drawn at random where there are more."""

MAX_SCALE_RATIO = 10.0
"""A larger ratio of the targets' standard deviations raises a warning."""

MAX_OFFSET = 100.0
"""A root mean square of a task above this many standard deviations raises a warning."""

LARGEST_OFFSET = 1e5
"""Beyond this it is an error: no ratio of the grid lets b hold both the offset and what varies. At
1e5 one of two tasks lost 1.1 nats, at 1e6 both lost 9 and 20 (30 rows)."""


def task_scales(residual: AnyNDArray) -> AnyNDArray:
    """
    Variance of each task; the mean square of a constant task; 1 for a task that is all zero.

    :param residual: [N, T], targets with the mean function subtracted; NaN where one is missing.
    """
    if np.isnan(residual).any():
        columns = (column[~np.isnan(column), None] for column in residual.T)
        return np.concatenate([task_scales(column) for column in columns])
    constant = is_constant(residual.min(axis=0), residual.max(axis=0), residual.dtype)
    mean_square = np.mean(np.square(residual), axis=0, dtype=np.float64)
    return scales_of_moments(np.var(residual, axis=0, dtype=np.float64), mean_square, constant)


def mean_squares(residual: AnyNDArray) -> AnyNDArray:
    """
    Mean of the squared targets of each task, [T].

    :param residual: As for :func:`task_scales`.
    """
    return np.asarray(np.nanmean(np.square(residual), axis=0, dtype=np.float64))


def check_offsets(
    scales: AnyNDArray,
    mean_square: AnyNDArray,
    *,
    constant_left: float = 1.0,
) -> None:
    """
    Warn if a task that is not constant is far from zero, compared with its deviation.

    :param scales: [T], see :func:`task_scales`.
    :param mean_square: [T], means of the squared targets, mean function subtracted.
    :param constant_left: What part of a constant is left where features of a linear kernel are
        taken out before anything is squared.
    :raises ValueError: If a task is so far from zero that nothing can be computed.
    """
    offsets = np.sqrt(mean_square / scales)
    task = int(np.argmax(offsets))
    if offsets[task] <= MAX_OFFSET:
        return
    text = (
        f"The targets of task {task} are {offsets[task]:.3g} times as far from zero as from their"
        " mean, and the model's mean is zero: {}. Subtract the mean, or pass"
        " mean_function=gpflow.mean_functions.Constant(c), where c is close to it."
    )
    if offsets[task] * constant_left > LARGEST_OFFSET:
        raise ValueError(text.format("how they vary would be lost beside that"))
    reason = "C, Sigma and predictions far from the data follow the offset, not how they vary"
    warnings.warn(text.format(reason), stacklevel=3)


class NoiseFloor(tfp.bijectors.Shift):
    """
    Adds a lower bound. Its inverse treats a value at the bound as one just above it, so that what
    was read from a parameter can be assigned to it again.
    """

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        above = y - self.shift
        rounding = 10.0 * np.finfo(above.dtype.as_numpy_dtype).eps * self.shift
        return tf.where(above < -rounding, above, tf.maximum(above, rounding))


def noise_transform(sigma2: AnyNDArray, scales: AnyNDArray) -> tfp.bijectors.Bijector:
    """
    Positive, and above `CHAIN_NOISE_FLOOR` of the task's variance, or above a tenth of the start if
    that is less: a user who starts below the floor means it.
    """
    floor = np.minimum(CHAIN_NOISE_FLOOR * scales, 0.1 * sigma2)
    bound = NoiseFloor(tf.constant(floor, dtype=sigma2.dtype))
    return tfp.bijectors.Chain([bound, positive(lower=0.0)])


def scale_parameters(kernel: Kernel) -> list[Parameter]:
    """
    The parameters that must stay fixed for the kernel's scale to be fixed.

    They are the variance of a single kernel, those of all factors of a product, and that of the
    first term of a sum, to which the other terms are relative. A kernel whose variances are more
    than a scale (`Linear` with one variance per column) has none.
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
    return positive_or_one(float(np.mean(kernel(tf.constant(X), full_cov=False).numpy())))


def chain_start(kernel_variance: float, scales: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """
    b and sigma2 to start from: signal that explains all the variance, and noise of a tenth of it.

    With more noise, training may end where everything is noise.

    :param kernel_variance: Mean of the kernel matrix's diagonal.
    :param scales: The tasks' variances, see :func:`task_scales`.
    """
    return scales / positive_or_one(kernel_variance), NOISE_FRACTION * scales


def half_median_distance(X: AnyNDArray, seed: int = 0, metric: str = "euclidean") -> float:
    """
    Half the median distance between different rows of X, the lengthscale to start from.

    Rows beyond `MAX_ROWS_FOR_DISTANCES` are drawn at random; 1 where all rows are equal.

    >>> half_median_distance(np.array([[0.0], [1.0], [2.0]]))
    0.5

    :param metric: Of SciPy's `pdist`; "cityblock" for the lengthscale of a
        :class:`~gpflow_cool.Laplacian` kernel.
    """
    if len(X) > MAX_ROWS_FOR_DISTANCES:
        X = np.random.default_rng(seed).choice(X, MAX_ROWS_FOR_DISTANCES, replace=False)
    distances = pdist(X, metric)
    distances = distances[distances > 0]
    return 0.5 * float(np.median(distances)) if len(distances) else 1.0


def warn_of_scales(scales: AnyNDArray) -> None:
    """
    Warn if the scales of the targets are far apart.

    :param scales: [T], the tasks' variances.
    """
    ratio = float(np.sqrt(scales.max() / scales.min()))
    if ratio > MAX_SCALE_RATIO:
        warnings.warn(
            f"The standard deviations of the targets differ by a factor of {ratio:.3g}. The model"
            " assumes comparable scales, in the prior of the weights between tasks and in starting"
            " values and bounds of the covariances: standardise Y.",
            stacklevel=3,
        )


def check_shared_scales(scales: AnyNDArray, dtype: np.dtype) -> None:
    """
    Refuse targets so far apart that a variance which they share leaves no digits for the smallest.

    :param scales: [T], the tasks' variances.
    """
    ratio = float(np.sqrt(scales.max() / scales.min()))
    most = float(np.finfo(dtype).eps ** -0.5)
    if ratio > most:
        raise ValueError(
            f"The standard deviations of the targets differ by a factor of {ratio:.3g}, but a"
            " low-rank C and noise of rank 0 have one variance for all tasks, and beyond"
            f" {most:.2g} {np.dtype(dtype).name} has no digits for the smallest. Standardise Y, or"
            ' use rank=None and noise_rank="full".'
        )


def chain_parameters(
    b: TensorData | None,
    sigma2: TensorData | None,
    kernel_variance: float,
    scales: AnyNDArray,
) -> tuple[Parameter, Parameter]:
    """
    The parameters b and sigma2, [T] each: as the user gave them, else from the tasks' variances.

    :param kernel_variance: Mean of k(x, x).
    :param scales: [T], the tasks' variances.
    """
    start_b, start_sigma2 = chain_start(kernel_variance, scales)
    b = checks.positive_vector(start_b if b is None else b, "b", len(scales))
    sigma2 = start_sigma2 if sigma2 is None else sigma2
    sigma2 = checks.positive_vector(sigma2, "sigma2", len(scales))
    return (
        Parameter(b, transform=positive(lower=0.0)),
        Parameter(sigma2, transform=noise_transform(sigma2, scales)),
    )
