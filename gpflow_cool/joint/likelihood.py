"""Gaussian noise with a full covariance between tasks, as a GPflow likelihood."""

from collections.abc import Callable

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.likelihoods import Likelihood

from ..gaussian import gaussian_log_density, univariate_log_densities


class CorrelatedGaussian(Likelihood):
    r"""
    Observations of all tasks with noise that correlates between them, :math:`y \sim N(f, \Sigma)`.

    It has no parameters of its own: the covariance is the model's, computed whenever it is needed.
    As everywhere in GPflow, there is one variance per task, and one density per row.

    :param num_tasks: T.
    :param covariance: Gives Sigma, [T, T].
    """

    def __init__(self, num_tasks: int, covariance: Callable[[], tf.Tensor]) -> None:
        super().__init__(input_dim=None, latent_dim=num_tasks, observation_dim=num_tasks)
        self.covariance = covariance

    def _variances(self) -> tf.Tensor:
        return tf.linalg.diag_part(self.covariance())

    @inherit_check_shapes
    def _log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        residual = Y - F
        shape = tf.concat([tf.shape(residual), tf.shape(residual)[-1:]], axis=0)
        return gaussian_log_density(residual, tf.broadcast_to(self.covariance(), shape))

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.identity(F)

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.broadcast_to(self._variances(), tf.shape(F))

    @inherit_check_shapes
    def _predict_mean_and_var(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType
    ) -> MeanAndVariance:
        return tf.identity(Fmu), Fvar + self._variances()

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return univariate_log_densities(Y - Fmu, Fvar + self._variances())

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        Sigma = self.covariance()
        eye = tf.eye(tf.shape(Sigma)[0], dtype=Sigma.dtype)
        precision = tf.linalg.diag_part(tf.linalg.cholesky_solve(tf.linalg.cholesky(Sigma), eye))
        return self._log_prob(X, Fmu, Y) - 0.5 * tf.reduce_sum(Fvar * precision, axis=-1)
