"""The posterior given complete data, and the posterior given data with missing targets."""

import tensorflow as tf
from gpflow.base import MeanAndVariance, TensorType
from gpflow.posteriors import PrecomputedValue

from ..chain.kernels import kernel_matrix
from ..linalg import gaussian_log_density, univariate_log_densities
from .base_posterior import JointPosterior
from .conditioning import map_batch, predictive_moments
from .kronecker import (
    JointSolution,
    add_rotated_noise,
    predictive_mean,
    rotated_covariance,
    task_layout,
)
from .missing import ObservedSolution
from .sampling import Draws, draw_functions, draw_independent_points, draw_independent_tasks


class CompleteDataPosterior(JointPosterior[JointSolution]):
    """Posterior given data without missing targets, from T independent rotated tasks."""

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        N, T = True, False  # whether an axis may change its length
        data = {"U": (N, N), "lam": (N,), "Z": (N, T), "alpha": (N, T)}
        basis = {"P": (T, T), "P_inverse": (T, T), "d": (T,), "log_det": ()}
        return tuple(map(PrecomputedValue, self.solve(), JointSolution(**data, **basis)))

    def _from_cache(self, cache: tuple[tf.Tensor, ...]) -> JointSolution:
        return JointSolution(*cache)

    def _moments(
        self,
        solution: JointSolution,
        Xnew: TensorType,
        full_cov: bool,
        full_output_cov: bool,
        *,
        noise: bool = False,
    ) -> MeanAndVariance:
        mean, q = self._rotated_moments(solution, Xnew, full_cov, noise)
        return mean, task_layout(q, solution.P, full_cov, full_output_cov)

    def _rotated_moments(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool, noise: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean of the tasks without mean function, and covariances of the rotated tasks."""
        Kmn = self.cross_covariance(Xnew)
        q = rotated_covariance(solution, Kmn, self._prior_covariance(Xnew, full_cov), full_cov)
        q = add_rotated_noise(q, full_cov) if noise else q
        return predictive_mean(solution, Kmn), q

    def _joint_log_density(self, Xnew: TensorType, Ynew: TensorType, full_cov: bool) -> tf.Tensor:
        """T problems of size M x M in the rotated basis, O(T M^3)."""
        solution = self.solution()
        mean, q = self._rotated_moments(solution, Xnew, full_cov, noise=True)
        residual = Ynew - self._add_mean_function(Xnew, mean)
        Z = tf.matmul(residual, solution.P_inverse, transpose_b=True)  # [..., M, T]
        if not full_cov:
            rows = univariate_log_densities(Z, tf.linalg.matrix_transpose(q))
            return rows - solution.log_det
        num_points = tf.cast(tf.shape(Z)[-2], Z.dtype)
        tasks = gaussian_log_density(tf.linalg.matrix_transpose(Z), q)
        return tf.reduce_sum(tasks, axis=-1) - num_points * solution.log_det

    def _correlated_samples(
        self, solution: JointSolution, Xnew: TensorType, asked: Draws
    ) -> tf.Tensor:
        """Draws of the rotated tasks, which are independent: T problems of size M x M."""
        count, full_cov, noise, seed = asked
        mean, q = self._rotated_moments(solution, Xnew, full_cov, noise)
        prior = self._mean_variance(Xnew) * solution.d
        rotated = draw_independent_tasks(tf.zeros_like(mean), q, full_cov, count, prior, seed)
        return mean[..., None, :, :] + tf.matmul(rotated, solution.P, transpose_b=True)


class MissingDataPosterior(JointPosterior[ObservedSolution]):
    """Posterior given the observed targets, where others are missing."""

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        solution = self.solve()
        self._template = tf.nest.map_structure(
            lambda part: tf.TensorSpec.from_tensor(part) if tf.is_tensor(part) else part, solution
        )
        tensors = [part for part in tf.nest.flatten(solution) if tf.is_tensor(part)]
        return tuple(PrecomputedValue(part, (False,) * part.shape.rank) for part in tensors)

    def _from_cache(self, cache: tuple[tf.Tensor, ...]) -> ObservedSolution:
        tensors = map(tf.convert_to_tensor, cache)
        return tf.nest.map_structure(
            lambda part: next(tensors) if isinstance(part, tf.TensorSpec) else part, self._template
        )

    def _task_matrices(self, solution: ObservedSolution) -> tuple[tf.Tensor, tf.Tensor]:
        return solution.system.C, solution.system.Sigma

    def _moments(
        self,
        solution: ObservedSolution,
        Xnew: TensorType,
        full_cov: bool,
        full_output_cov: bool,
        *,
        noise: bool = False,
    ) -> MeanAndVariance:
        Kmn, Knn = self.cross_covariance(Xnew), self._prior_covariance(Xnew, full_cov)
        return predictive_moments(solution, Kmn, Knn, full_cov, full_output_cov, noise)

    def _correlated_samples(
        self, solution: ObservedSolution, Xnew: TensorType, asked: Draws
    ) -> tf.Tensor:
        """Draws by Matheron's rule, or from one T x T problem per point."""
        count, full_cov, noise, seed = asked
        if full_cov:

            def draw(Xnew: tf.Tensor) -> tf.Tensor:
                K = kernel_matrix(self.kernel, tf.concat([self.X_data, Xnew], axis=0))
                return draw_functions(solution, K, count, noise=noise, seed=seed)

            return map_batch(draw, Xnew)
        mean, S = self._moments(solution, Xnew, False, True, noise=noise)
        variance = tf.reduce_mean(tf.linalg.diag_part(solution.system.C))
        prior = self.kernel(Xnew, full_cov=False) * tf.cast(variance, S.dtype)
        return draw_independent_points(mean, S, count, prior, seed)
