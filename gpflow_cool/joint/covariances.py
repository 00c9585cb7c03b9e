"""
Covariances between tasks with parameters of their own, for models that learn them directly.

Each is a GPflow module that returns its matrix [T, T] when it is called. With a `floor`, variances
[T], the matrix stays above `diag(floor)` during training.
"""

import abc

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Module, Parameter
from gpflow.base import AnyNDArray
from gpflow.config import default_float
from gpflow.utilities import positive

from .. import checks
from ..chain.starting import EXACT_NOISE_FLOOR, NoiseFloor

SMALLEST_DEVIATION = 1e-8
"""Deviation of a task without variance, relative to the largest: its square is rounding."""

SINGULAR = 1e-10
"""A given noise covariance whose correlations have eigenvalues below this is taken to be singular,
and lifted to `EXACT_NOISE_FLOOR`."""


class TaskCovariance(Module, abc.ABC):
    """A positive (semi)definite matrix between tasks."""

    @abc.abstractmethod
    def __call__(self) -> tf.Tensor:
        """The matrix, [T, T]."""


class ScaledTriangle(tfp.bijectors.Bijector):
    r"""
    From a vector, [T (T + 1) / 2], to a Cholesky factor of variables of some scales.

    .. math:: L_{tu} = s_t \, x_{tu} \; (u < t), \qquad L_{tt} = s_t \log(1 + e^{x_{tt}})

    It is TensorFlow Probability's `Scale` after `FillScaleTriL`, which is a tree of bijectors, each
    of which takes milliseconds to ask whether it has seen its argument.

    :param scale: [T], s.
    """

    def __init__(self, scale: tf.Tensor, name: str = "scaled_triangle") -> None:
        parameters = dict(locals())
        self.scale = scale
        super().__init__(
            forward_min_event_ndims=1,
            inverse_min_event_ndims=2,
            dtype=scale.dtype,
            parameters=parameters,
            name=name,
        )

    def _forward(self, x: tf.Tensor) -> tf.Tensor:
        L = tfp.math.fill_triangular(x)
        L = tf.linalg.set_diag(L, tf.math.softplus(tf.linalg.diag_part(L)))
        return self.scale[:, None] * L

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        L = y / self.scale[:, None]
        L = tf.linalg.set_diag(L, tfp.math.softplus_inverse(tf.linalg.diag_part(L)))
        return tfp.math.fill_triangular_inverse(L)

    def _forward_log_det_jacobian(self, x: tf.Tensor) -> tf.Tensor:
        slopes = tf.math.log_sigmoid(tf.linalg.diag_part(tfp.math.fill_triangular(x)))
        entries = tf.range(1, len(self.scale) + 1, dtype=self.scale.dtype)
        return tf.reduce_sum(slopes + entries * tf.math.log(self.scale), axis=-1)

    def _forward_event_shape_tensor(self, shape: tf.Tensor) -> tf.Tensor:
        return tf.concat([shape[:-1], [len(self.scale)] * 2], axis=0)

    def _forward_event_shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        return shape[:-1].concatenate([len(self.scale)] * 2)

    def _inverse_event_shape_tensor(self, shape: tf.Tensor) -> tf.Tensor:
        return tf.concat([shape[:-2], [shape[-1] * (shape[-1] + 1) // 2]], axis=0)

    def _inverse_event_shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        size = len(self.scale)
        return shape[:-2].concatenate([size * (size + 1) // 2])


class FullCovariance(TaskCovariance):
    r"""
    Any positive definite matrix, by a Cholesky factor, :math:`L L^\top + \mathrm{diag}(floor)`.

    :param start: [T, T].
    """

    def __init__(self, start: AnyNDArray, floor: AnyNDArray | None = None) -> None:
        self.floor = np.zeros(len(start), start.dtype)
        if floor is not None:
            self.floor = np.asarray(floor, start.dtype)
        scale = tf.constant(deviations(start), start.dtype)
        self.factor = Parameter(self.factor_of(start), transform=ScaledTriangle(scale))

    def __call__(self) -> tf.Tensor:
        L = tf.convert_to_tensor(self.factor)
        return tf.matmul(L, L, transpose_b=True) + tf.linalg.diag(tf.constant(self.floor, L.dtype))

    def assign(self, value: AnyNDArray) -> None:
        """Set the matrix; where it is below the floor, it is raised to it."""
        self.factor.assign(self.factor_of(value))

    def factor_of(self, value: AnyNDArray) -> AnyNDArray:
        """L of a matrix, or of the one closest to it that is above the floor beyond rounding."""
        if np.all(self.floor > 0):
            rounding = 100.0 * len(value) * float(np.finfo(value.dtype).eps)
            value = lift_eigenvalues(value, self.floor, 1.0 + rounding)
        return semidefinite_cholesky(value - np.diag(self.floor))


class LowRankCovariance(TaskCovariance):
    r"""
    P rank-one terms plus a diagonal, :math:`W W^\top + \mathrm{diag}(v)`.

    :param start: [T, T]; its P largest eigenvalues are kept, and the others are replaced by their
        mean. These are eigenvalues of its correlations, if the diagonal is not shared.
    :param rank: P.
    :param shared: Whether the diagonal is one number times the identity, as in the paper.
    """

    def __init__(
        self, start: AnyNDArray, rank: int, *, shared: bool, floor: AnyNDArray | None = None
    ) -> None:
        self.num_tasks = len(start)
        deviation = np.ones(self.num_tasks) if shared else deviations(start)
        values, vectors = np.linalg.eigh(start / np.outer(deviation, deviation))
        rest, top = np.split(values, [self.num_tasks - rank])
        # Never exactly zero: a weight of zero has a gradient of zero, and would stay there.
        level = max(float(np.mean(rest)) if len(rest) else 0.0, 1e-3 * float(np.mean(values)))
        top = np.maximum(top - level, 1e-3 * level)
        weights = deviation[:, None] * vectors[:, self.num_tasks - rank :] * np.sqrt(top)
        self.weights = Parameter(weights.astype(start.dtype), transform=scale_of_rows(start))
        self.diagonal = variances(level * deviation**2, start.dtype, shared, floor)

    def __call__(self) -> tf.Tensor:
        diagonal = tf.broadcast_to(self.diagonal, [self.num_tasks])
        return tf.linalg.diag(diagonal) + tf.matmul(self.weights, self.weights, transpose_b=True)


class DiagonalCovariance(TaskCovariance):
    """
    No correlation between tasks.

    :param start: [T, T]; its diagonal is taken.
    :param shared: Whether all tasks have the same variance.
    """

    def __init__(self, start: AnyNDArray, *, shared: bool, floor: AnyNDArray | None = None) -> None:
        self.num_tasks = len(start)
        self.diagonal = variances(np.diag(start), start.dtype, shared, floor)

    def __call__(self) -> tf.Tensor:
        return tf.linalg.diag(tf.broadcast_to(self.diagonal, [self.num_tasks]))


def eye(num_tasks: int) -> AnyNDArray:
    """The identity, [T, T], in the float that GPflow makes parameters of."""
    return np.eye(num_tasks, dtype=default_float())


def variances(
    start: AnyNDArray, dtype: np.dtype, shared: bool, floor: AnyNDArray | None
) -> Parameter:
    """
    Positive numbers above a floor, one per task or, if shared, one for all tasks.

    A shared one starts at the mean, above the lowest floor: the other floors may be far above the
    noise.
    """
    start = np.asarray(np.mean(start) if shared else start, dtype)
    if floor is not None:
        floor = np.asarray(np.min(floor) if shared else floor, dtype)
        start = np.maximum(start, 2.0 * floor)
    smallest = SMALLEST_DEVIATION**2 * np.max(start) if np.any(start > 0) else 1.0
    unit = tfp.bijectors.Scale(tf.constant(np.maximum(start, smallest), dtype))
    parts = [unit, positive(lower=0.0)]
    if floor is not None:
        parts.insert(0, NoiseFloor(tf.constant(floor)))
    return Parameter(start, transform=tfp.bijectors.Chain(parts))


def scale_of_rows(start: AnyNDArray) -> tfp.bijectors.Scale:
    """
    Multiplies row t by the deviation of task t at the start: what an optimiser sees is of the order
    of one, whatever the units of the targets.
    """
    return tfp.bijectors.Scale(tf.constant(deviations(start)[:, None], start.dtype))


def deviations(S: AnyNDArray) -> AnyNDArray:
    """
    Standard deviations of a covariance, [T]; a small number for a task without variance.

    Such a task has nothing on the diagonal, or, by rounding, less than its covariances need.
    """
    deviation = np.sqrt(np.maximum(np.diag(S), 0.0))  # rounding may be below zero
    smallest = 2.0 * np.sqrt(np.finfo(S.dtype).tiny)  # its square is still a number
    correlated = np.all(np.abs(S) <= 1.001 * np.outer(deviation, deviation), axis=1)
    raised = np.maximum(deviation, max(SMALLEST_DEVIATION * np.max(deviation), smallest))
    return np.where(correlated & (deviation > smallest), deviation, raised)


def semidefinite_cholesky(S: AnyNDArray) -> AnyNDArray:
    """
    Cholesky factor of a matrix that may be singular.

    Eigenvalues of its correlations that are zero are raised just above rounding.
    """
    deviation = deviations(S).astype(np.float64)
    rounding = float(100.0 * len(S) * np.finfo(np.float64).eps)
    R = lift_eigenvalues(S / np.outer(deviation, deviation), np.ones(len(S)), rounding)
    return np.asarray(deviation[:, None] * np.linalg.cholesky(R), S.dtype)


def smallest_eigenvalue(S: AnyNDArray, metric: AnyNDArray) -> float:
    """The smallest eigenvalue relative to `diag(metric)`, [T]."""
    deviation = np.sqrt(metric.astype(np.float64))
    return float(np.linalg.eigvalsh(S / np.outer(deviation, deviation))[0])


def lift_eigenvalues(S: AnyNDArray, metric: AnyNDArray, smallest: float) -> AnyNDArray:
    r"""
    The same matrix with eigenvalues relative to `diag(metric)`, [T], of at least `smallest`.

    Of all matrices with this bound, it maximises the Gaussian likelihood of second moments S.
    """
    deviation = np.sqrt(metric.astype(np.float64))
    values, vectors = np.linalg.eigh(S / np.outer(deviation, deviation))
    if values[0] >= smallest:
        return S
    half = deviation[:, None] * vectors * np.sqrt(np.maximum(values, smallest))
    return np.asarray(half @ half.T, S.dtype)


def signal_start(residual: AnyNDArray, scales: AnyNDArray) -> AnyNDArray:
    """
    C to start from: the covariance of the targets, its correlations shrunk a little so that it has
    an inverse. A missing target, NaN, counts as the task's mean.
    """
    deviation = np.sqrt(scales)
    standard = np.nan_to_num((residual - np.nanmean(residual, axis=0)) / deviation)
    correlation = 0.9 * standard.T @ standard / len(residual)
    np.fill_diagonal(correlation, 1.0)
    return correlation * np.outer(deviation, deviation)


def signal_covariance_of_rank(C: AnyNDArray, rank: int | None) -> TaskCovariance:
    """C with parameters of its own: full, diagonal, or of low rank."""
    if rank is None:
        return FullCovariance(C)
    if checks.rank(rank, "rank", len(C), "or None") == 0:
        return DiagonalCovariance(C, shared=False)
    return LowRankCovariance(C, rank, shared=True)


def noise_covariance_of_rank(
    Sigma: AnyNDArray, noise_rank: int | str, scales: AnyNDArray
) -> TaskCovariance:
    """Sigma with parameters of its own, see :class:`gpflow_cool.KroneckerMTGP`; never singular."""
    rounding = float(np.finfo(Sigma.dtype).eps)
    lowest = max(EXACT_NOISE_FLOOR, 100.0 * rounding)
    own = np.where(np.diag(Sigma) > 0, np.diag(Sigma), scales)
    if smallest_eigenvalue(Sigma, own) < max(SINGULAR, 10.0 * rounding):
        Sigma = lift_eigenvalues(Sigma, own, lowest)
    floor = min(lowest, 0.1 * smallest_eigenvalue(Sigma, scales)) * scales
    floor = floor.astype(Sigma.dtype)
    if noise_rank == "full":
        return FullCovariance(Sigma, floor)
    if noise_rank == "diagonal":
        return DiagonalCovariance(Sigma, shared=False, floor=floor)
    rank = checks.rank(noise_rank, "noise_rank", len(Sigma), 'or "full", or "diagonal"')
    if rank == 0:
        return DiagonalCovariance(Sigma, shared=True, floor=floor)
    return LowRankCovariance(Sigma, rank, shared=False, floor=floor)
