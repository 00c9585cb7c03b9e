"""
Covariances between tasks with parameters of their own, for models that learn them directly.

Each is a GPflow module that gives its matrix [T, T] when called, always positive definite.
"""

import abc

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Module, Parameter
from gpflow.base import AnyNDArray
from gpflow.utilities import positive

RELATIVE_FLOOR = 1e-10
"""Eigenvalues of a given covariance are lifted to this, relative to the largest."""


class TaskCovariance(Module, abc.ABC):
    """A positive definite matrix between tasks."""

    @abc.abstractmethod
    def __call__(self) -> tf.Tensor:
        """The matrix, [T, T]."""


class FullCovariance(TaskCovariance):
    r"""
    Any positive definite matrix, by its Cholesky factor, :math:`L L^\top`.

    :param start: [T, T].
    """

    def __init__(self, start: AnyNDArray) -> None:
        bijector = tfp.bijectors.FillScaleTriL(diag_bijector=positive(), diag_shift=None)
        self.factor = Parameter(np.linalg.cholesky(lift_eigenvalues(start)), transform=bijector)

    def __call__(self) -> tf.Tensor:
        return tf.matmul(self.factor, self.factor, transpose_b=True)

    def assign(self, value: AnyNDArray) -> None:
        """Set the matrix."""
        self.factor.assign(np.linalg.cholesky(lift_eigenvalues(value)))


class LowRankCovariance(TaskCovariance):
    r"""
    P rank-one terms plus a diagonal, :math:`W W^\top + \mathrm{diag}(v)`.

    :param start: [T, T]; the closest such matrix is taken.
    :param rank: P.
    :param shared: Whether the diagonal is one number times the identity, as in the paper.
    """

    def __init__(self, start: AnyNDArray, rank: int, *, shared: bool) -> None:
        values, vectors = np.linalg.eigh(start)
        rest = values[: len(values) - rank]
        # Never quite zero: a weight that is exactly zero has no gradient to leave it by.
        level = max(float(np.mean(rest)) if len(rest) else 0.0, 1e-3 * float(np.mean(values)))
        top = np.maximum(values[len(values) - rank :] - level, 1e-3 * level)
        self.weights = Parameter(vectors[:, len(values) - rank :] * np.sqrt(top))
        self.num_tasks = len(start)
        diagonal = np.float64(level) if shared else np.full(self.num_tasks, level)
        self.diagonal = Parameter(diagonal, transform=positive())

    def __call__(self) -> tf.Tensor:
        diagonal = tf.broadcast_to(self.diagonal, [self.num_tasks])
        return tf.linalg.diag(diagonal) + tf.matmul(self.weights, self.weights, transpose_b=True)


class DiagonalCovariance(TaskCovariance):
    """
    No correlation between tasks.

    :param start: [T, T]; its diagonal is taken.
    :param shared: Whether all tasks have the same variance.
    """

    def __init__(self, start: AnyNDArray, *, shared: bool) -> None:
        self.num_tasks = len(start)
        variances = np.diag(start)
        self.diagonal = Parameter(np.mean(variances) if shared else variances, transform=positive())

    def __call__(self) -> tf.Tensor:
        return tf.linalg.diag(tf.broadcast_to(self.diagonal, [self.num_tasks]))


def lift_eigenvalues(S: AnyNDArray, floor: float = RELATIVE_FLOOR) -> AnyNDArray:
    """The same matrix, with eigenvalues of at least `floor` times the largest."""
    values, vectors = np.linalg.eigh(0.5 * (S + S.T))
    if values[0] >= floor * values[-1]:
        return np.asarray(S)
    lifted = (
        vectors * np.maximum(values, floor * max(values[-1], np.finfo(float).tiny))
    ) @ vectors.T
    return np.asarray(0.5 * (lifted + lifted.T))
