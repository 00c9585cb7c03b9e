"""The posterior given complete data, and the posterior given data with missing targets."""

from collections.abc import Callable

import tensorflow as tf
from gpflow.base import MeanAndVariance, TensorType
from gpflow.posteriors import PrecomputeCacheType, PrecomputedValue

from ..gaussian import gaussian_log_density, univariate_log_densities
from ..kernels import kernel_matrix
from ..systems.products import for_copies, from_eigenbasis, to_eigenbasis
from . import sampling
from .base_posterior import JointPosterior
from .conditioning import (
    map_batch,
    point_weights,
    predictive_mean_of_observed,
    predictive_moments,
)
from .functions import Drawn
from .kronecker import (
    JointSolution,
    add_rotated_noise,
    covariance_in_eigenbasis,
    into_eigenbasis,
    predictive_mean,
    rotated_covariance,
    task_layout,
)
from .missing import ObservedSolution, solve
from .partly_given import PartlyGivenPosterior
from .sampling import (
    Draws,
    draw_blocks_of_tasks,
    draw_functions,
    draw_independent_points,
    draw_independent_tasks,
)
from .solved_posterior import check_has_cache
from .updating import (
    AddedRows,
    extend_rows,
    for_all_outcomes,
    rotated_cross_covariance,
    rotated_expansion,
    rotated_shift,
    split_complete,
)


def expand(
    solution: JointSolution,
    drawn: Drawn,
    points: tf.Tensor,
    rotated: tf.Tensor,
    v: tf.Tensor,
) -> Drawn:
    """Drawn functions plus what :func:`rotated_expansion` gives, without rows added before."""
    rows, weights = rotated_expansion(solution, rotated, v)
    return drawn._replace(rows=drawn.rows + rows, added=[*drawn.added, (points, weights)])


class CompleteDataPosterior(JointPosterior[JointSolution]):
    """Posterior given data without missing targets, from T independent rotated tasks."""

    added: AddedRows | None = None
    """Complete rows that it was conditioned on besides."""

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        N, T = True, False  # whether an axis may change its length
        data = {"U": (N, N), "lam": (N,), "Z": (N, T), "alpha": (N, T)}
        basis = {"P": (T, T), "P_inverse": (T, T), "d": (T,), "log_det": ()}
        axes = JointSolution(**data, **basis, seen=(N,))
        return tuple(map(PrecomputedValue, self.solve(), axes))

    def _from_cache(self, cache: tuple[tf.Tensor, ...]) -> JointSolution:
        return JointSolution(*map(tf.convert_to_tensor, cache))

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

    def _mean(self, solution: JointSolution, Xnew: TensorType) -> tf.Tensor:
        if self.added is not None:
            return super()._mean(solution, Xnew)
        return predictive_mean(solution, self.cross_covariance(Xnew))

    def _rotated_moments(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool, noise: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean of the tasks without mean function, and covariances of the rotated tasks."""
        mean, q = self._moments_of_outcomes(solution, Xnew, full_cov)
        q = add_rotated_noise(q, full_cov) if noise else q
        return mean, q if self.added is None else for_all_outcomes(q, self.added.white)

    def _moments_of_outcomes(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The same of functions, where the covariance is that of all outcomes alike."""
        if self.added is None:
            return self._moments_without_added(solution, Xnew, full_cov)
        mean, q, _, _ = self._moments_with_added(solution, Xnew, full_cov)
        return mean, q if full_cov else tf.nn.relu(q)

    def _moments_with_added(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """The same, with the points in the eigenbasis and what :meth:`_whitened` gives, if any."""
        Kmn = self.cross_covariance(Xnew)
        V = into_eigenbasis(solution.U, Kmn)
        mean = predictive_mean(solution, Kmn)
        q = covariance_in_eigenbasis(solution, V, self._prior_covariance(Xnew, full_cov), full_cov)
        if self.added is None:
            return mean, q, V, None
        E = self._whitened(solution, self.added, Xnew, V)
        mean += rotated_shift(E, self.added.white, solution.P)
        if full_cov:
            return mean, q - tf.matmul(E, E, transpose_a=True), V, E
        return mean, q - tf.reduce_sum(tf.square(E), axis=-2), V, E

    def _moments_without_added(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The same without the rows that were added."""
        Kmn = self.cross_covariance(Xnew)
        q = rotated_covariance(solution, Kmn, self._prior_covariance(Xnew, full_cov), full_cov)
        return predictive_mean(solution, Kmn), q

    def _whitened(
        self, solution: JointSolution, added: AddedRows, Xnew: TensorType, V: tf.Tensor
    ) -> tf.Tensor:
        """
        [batch..., T, q, M], L^-1 times the covariance of added rows and points.

        :param V: The points in the eigenbasis.
        """
        Kqm = self._covariance_of_points(added.X, Xnew)
        cross = rotated_cross_covariance(solution, added.rotated, V, Kqm)
        return tf.linalg.triangular_solve(added.L, cross)

    def _in_eigenbasis(self, solution: JointSolution, Xnew: TensorType) -> tf.Tensor:
        """[batch..., R, M], covariance of the solution's rows and points, in the eigenbasis."""
        return into_eigenbasis(solution.U, self.cross_covariance(Xnew))

    def _covariance_with(
        self, solution: JointSolution, points: tf.Tensor
    ) -> Callable[[TensorType], tf.Tensor]:
        V = self._in_eigenbasis(solution, points)
        E = None if self.added is None else self._whitened(solution, self.added, points, V)

        def covariance(Xnew: TensorType) -> tf.Tensor:
            new = self._in_eigenbasis(solution, Xnew)
            Kqm = self._covariance_of_points(points, Xnew)
            q = rotated_cross_covariance(solution, tf.transpose(V), new, Kqm)
            if self.added is not None:
                whitened = self._whitened(solution, self.added, Xnew, new)
                q -= tf.matmul(E, whitened, transpose_a=True)
            return tf.einsum("tj,...jqm,uj->...mtqu", solution.P, q, solution.P)

        return covariance

    def _row_weights(
        self, solution: JointSolution, prior: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        U, d = solution.U, solution.d
        inside = for_copies(to_eigenbasis, U, prior)
        F = tf.matmul(inside, solution.P_inverse, transpose_b=True)
        rotated = (solution.Z - F - noise) * solution.seen_shrinkage * d
        return for_copies(from_eigenbasis, U, tf.matmul(rotated, solution.P, transpose_b=True))

    def _draw(self, solution: JointSolution, num_samples: int, seed: int) -> Drawn:
        drawn, added = super()._draw(solution, num_samples, seed), self.added
        if added is None:
            return drawn
        residual = self._residuals(solution, drawn, added.X, added.Y, seed)
        Z = tf.matmul(residual, solution.P_inverse, transpose_b=True)
        v = tf.linalg.cholesky_solve(added.L, tf.transpose(Z, [2, 1, 0]))  # [T, q, S]
        return expand(solution, drawn, added.X, added.rotated, tf.transpose(v, [2, 1, 0]))

    def _shift(
        self, solution: JointSolution, drawn: Drawn, points: tf.Tensor, weights: tf.Tensor
    ) -> Drawn:
        v = tf.matmul(weights, solution.P)  # [S, q, T]
        V = self._in_eigenbasis(solution, points)
        drawn = expand(solution, drawn, points, tf.transpose(V), v)
        if self.added is None:
            return drawn
        E = self._whitened(solution, self.added, points, V)  # [T, p, q]
        half = tf.matmul(E, tf.transpose(v, [2, 1, 0]))
        v = -tf.linalg.triangular_solve(self.added.L, half, adjoint=True)  # [T, p, S]
        v = tf.transpose(v, [2, 1, 0])
        return expand(solution, drawn, self.added.X, self.added.rotated, v)

    def _given(self, Xnew: tf.Tensor, Ynew: tf.Tensor) -> JointPosterior:
        complete, rest = split_complete(Xnew, Ynew)
        posterior = self._twin()
        posterior.added = self.added
        if complete is not None:
            posterior.added = posterior._add_rows(*complete)
        return posterior if rest is None else PartlyGivenPosterior(posterior, *rest)

    def _add_rows(self, X: tf.Tensor, Y: tf.Tensor) -> AddedRows:
        """The rows that were added, and some more of them."""
        solution, old = self.solution(), self.added
        mean, q, V, E = self._moments_with_added(solution, X, full_cov=True)
        residual = Y - self._add_mean_function(X, mean)
        Z = tf.matmul(residual, solution.P_inverse, transpose_b=True)  # [outcomes..., q, T]
        L = tf.debugging.check_numerics(
            tf.linalg.cholesky(add_rotated_noise(q, full_cov=True)),
            "The covariance of the new rows has no factorisation in this precision: use float64, or"
            " give the model more noise",
        )
        white = tf.linalg.triangular_solve(L, tf.linalg.matrix_transpose(Z)[..., None])[..., 0]
        new = AddedRows(X, Y, tf.transpose(V), L, white)
        return new if old is None else extend_rows(old, new, E)

    def update_cache(self, precompute_cache: PrecomputeCacheType | None = None) -> None:
        if self.added is not None:
            check_has_cache(precompute_cache)
        super().update_cache(precompute_cache)
        if self.added is not None:
            rows, self.added = self.added, None
            self.added = self._add_rows(rows.X, rows.Y)

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
        if self._needs_blocks(solution, Xnew, full_cov):
            mean = predictive_mean(solution, self.cross_covariance(Xnew))
            eye = tf.eye(self.num_tasks, dtype=mean.dtype)
            rotated = self._draw_in_blocks(solution, Xnew, tf.zeros_like(mean), eye, asked)
            return mean + tf.matmul(rotated, solution.P, transpose_b=True)
        mean, q = self._rotated_moments(solution, Xnew, full_cov, noise)
        prior = self._prior_variances(Xnew, solution.d, mean)
        rotated = draw_independent_tasks(tf.zeros_like(mean), q, full_cov, count, prior, seed)
        return mean[..., None, :, :] + tf.matmul(rotated, solution.P, transpose_b=True)

    def _separate_samples(
        self, solution: JointSolution, Xnew: TensorType, asked: Draws
    ) -> tf.Tensor:
        if not self._needs_blocks(solution, Xnew, asked.full_cov):
            return super()._separate_samples(solution, Xnew, asked)
        mean = predictive_mean(solution, self.cross_covariance(Xnew))
        return self._draw_in_blocks(solution, Xnew, mean, tf.square(solution.P), asked)

    def _needs_blocks(self, solution: JointSolution, Xnew: TensorType, full_cov: bool) -> bool:
        """Whether covariances over points are too large for all tasks at once."""
        several = full_cov and self.added is None and Xnew.shape.rank == 2
        return several and self._tasks_at_once(solution, Xnew) < self.num_tasks

    def _tasks_at_once(self, solution: JointSolution, Xnew: TensorType) -> int:
        num_points = int(Xnew.shape[0] or 1)
        largest = max(num_points, int(solution.lam.shape[0] or 1))
        return max(1, sampling.MAX_NUMBERS // (num_points * largest))

    def _draw_in_blocks(
        self,
        solution: JointSolution,
        Xnew: TensorType,
        mean: TensorType,
        squares: TensorType,
        asked: Draws,
    ) -> tf.Tensor:
        r"""
        Draws that are independent over tasks, in blocks of tasks.

        .. math:: S_t = \sum_j p_{tj}^2 \, d_j \, k_{**} - k_*^\top U \, \mathrm{diag} \Big(
                  \sum_j p_{tj}^2 \, d_j^2 / (\lambda d_j + 1) \Big) \, U^\top k_*

        :param squares: [T, T], the squares of p: of P, or one for rotated tasks.
        """
        num_samples, _, noise, seed = asked
        V, Knn = self._in_eigenbasis(solution, Xnew), self._prior_covariance(Xnew, True)
        amplitudes = tf.linalg.matvec(squares, solution.d)
        explained = tf.matmul(
            squares, solution.seen_shrinkage * tf.square(solution.d), transpose_b=True
        )
        noises = float(noise) * tf.reduce_sum(squares, axis=1)

        def covariances(block: slice) -> tf.Tensor:
            scaled = V * tf.sqrt(explained[block])[:, :, None]  # [tasks, R, M]
            S = amplitudes[block, None, None] * Knn - tf.matmul(scaled, scaled, transpose_a=True)
            return tf.linalg.set_diag(S, tf.linalg.diag_part(S) + noises[block, None])

        prior = self._prior_variances(Xnew, amplitudes, mean)
        size = self._tasks_at_once(solution, Xnew)
        return draw_blocks_of_tasks(mean, covariances, size, num_samples, prior, seed)


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

    def _mean(self, solution: ObservedSolution, Xnew: TensorType) -> tf.Tensor:
        return predictive_mean_of_observed(solution, self.cross_covariance(Xnew))

    def _covariance_with(
        self, solution: ObservedSolution, points: tf.Tensor
    ) -> Callable[[TensorType], tf.Tensor]:
        system = solution.system
        weights = point_weights(system, self.cross_covariance(points))

        def covariance(Xnew: TensorType) -> tf.Tensor:
            k = tf.cast(self._covariance_of_points(points, Xnew), tf.float64)
            prior = tf.einsum("q...m,tu->...mtqu", k, system.C)
            K = tf.cast(self.cross_covariance(Xnew), tf.float64)
            explained = tf.einsum("n...m,qunt->...mtqu", K, weights)
            return tf.cast(prior - explained, Xnew.dtype)

        return covariance

    def _row_weights(
        self, solution: ObservedSolution, prior: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        system, (f, e) = solution.system, (tf.cast(part, tf.float64) for part in (prior, noise))
        targets = f + tf.matmul(e, solution.P, transpose_b=True)
        weights = tf.matmul(solution.weights - solve(system, targets), system.C)
        return tf.cast(weights, prior.dtype)

    def _shift(
        self, solution: ObservedSolution, drawn: Drawn, points: tf.Tensor, weights: tf.Tensor
    ) -> Drawn:
        system, v = solution.system, tf.cast(weights, tf.float64)
        rows = point_weights(system, self.cross_covariance(points))
        explained = tf.cast(tf.einsum("sqt,qtnu->snu", v, rows), weights.dtype)
        new = (points, tf.cast(tf.matmul(v, system.C), weights.dtype))
        return drawn._replace(rows=drawn.rows - explained, added=[*drawn.added, new])

    def _given(self, Xnew: tf.Tensor, Ynew: tf.Tensor) -> JointPosterior:
        return PartlyGivenPosterior(self._twin(), Xnew, Ynew)

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
