"""What every model of this package offers, as coregionalization, monitoring and training see it."""

import abc

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import RegressionData
from gpflow.models import GPModel
from gpflow.models.training_mixins import InternalDataTrainingLossMixin
from gpflow.posteriors import PrecomputeCacheType

from ..linalg import correlation_from_covariance
from .base_posterior import JointPosterior


class JointModel(GPModel, InternalDataTrainingLossMixin, abc.ABC):
    """A Gaussian process of T tasks, vec(Y) ~ N(mean, C (x) K + Sigma (x) I)."""

    data: RegressionData
    """X [N, D] and Y [N, T]; a sample of the rows where the data is read in chunks."""

    task_names: tuple[str, ...]

    input_names: tuple[str, ...] | None = None
    """Names of the columns of X, where it came with names: TensorBoard shows them."""

    @property
    def num_tasks(self) -> int:
        """T."""
        return int(self.num_latent_gps)

    @property
    @abc.abstractmethod
    def objective_term_names(self) -> tuple[str, ...]:
        """Names of the objective's terms."""

    @abc.abstractmethod
    def objective_terms(self) -> tf.Tensor:
        """The terms whose sum is the objective."""

    @inherit_check_shapes
    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        return tf.reduce_sum(self.objective_terms())

    @abc.abstractmethod
    def log_marginal_likelihood(self) -> tf.Tensor:
        """Log evidence at the present C and Sigma, []."""

    @abc.abstractmethod
    def task_covariance(self) -> tf.Tensor:
        """C, [T, T]."""

    @abc.abstractmethod
    def noise_covariance(self) -> tf.Tensor:
        """Sigma, [T, T]."""

    def task_correlation(self) -> tf.Tensor:
        """C as correlations, [T, T]."""
        return correlation_from_covariance(self.task_covariance())

    def noise_correlation(self) -> tf.Tensor:
        """Sigma as correlations, [T, T]."""
        return correlation_from_covariance(self.noise_covariance())

    @abc.abstractmethod
    def posterior(
        self, precompute_cache: PrecomputeCacheType | str | None = PrecomputeCacheType.TENSOR
    ) -> JointPosterior:
        """
        The posterior with its factorisations cached: predictions from it cost milliseconds.

        As in GPflow, call its `update_cache()` after a change of parameters or data: it shares the
        model's kernel and mean function, but not what was computed from them.

        :param precompute_cache: "tensor", "variable" or "nocache", as in GPflow.
        """
