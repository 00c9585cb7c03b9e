"""The posterior given rows of which targets are missing, besides those of another posterior."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from gpflow.base import MeanAndVariance, TensorType
from gpflow.posteriors import PrecomputeCacheType, PrecomputedValue

from .base_posterior import JointPosterior
from .functions import Drawn
from .sampling import Draws, draw_independent_points, draw_jointly
from .solved_posterior import check_has_cache
from .updating import (
    AddedTargets,
    add_targets,
    explained_layout,
    join_outcomes,
    target_shift,
    target_weights,
    whiten_targets,
)


class PartlyGivenPosterior(JointPosterior[Any]):
    """
    Posterior given more rows, of which targets are missing.

    :param inner: The posterior without these rows; it belongs to this one.
    """

    added: AddedTargets | None = None

    def __init__(self, inner: JointPosterior[Any], X: tf.Tensor, Y: tf.Tensor) -> None:
        self.inner = inner
        super().__init__(
            inner.kernel,
            (inner.X_data, Y),
            inner.mean_function,
            inner.solution,
            precompute_cache=PrecomputeCacheType.NOCACHE,  # the inner one has it
            cross_covariance=inner.cross_covariance,
        )
        self._add(X, Y)

    def _add(self, X: tf.Tensor, Y: tf.Tensor) -> None:
        solution = self.solution()
        mean, S = self.inner.predict_y(X, full_cov=True, full_output_cov=True)
        S = tf.reshape(S, tf.concat([[-1], tf.shape(S)[-4:]], axis=0))[0]  # alike for all outcomes
        self.added = add_targets(mean, S, X, Y)
        self._covariance = self.inner._covariance_with(solution, X)

    def update_cache(self, precompute_cache: PrecomputeCacheType | None = None) -> None:
        if self.added is None:
            return super().update_cache(precompute_cache)
        check_has_cache(precompute_cache)
        self.inner.update_cache(precompute_cache)
        return self._add(self.added.X, self.added.Y)

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        return self.inner._precompute()

    def _from_cache(self, cache: tuple[tf.Tensor, ...]) -> Any:
        return self.inner._from_cache(cache)

    def _task_matrices(self, solution: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return self.inner._task_matrices(solution)

    def _moments(
        self,
        solution: Any,
        Xnew: TensorType,
        full_cov: bool,
        full_output_cov: bool,
        *,
        noise: bool = False,
    ) -> MeanAndVariance:
        mean, cov = self.inner._moments(solution, Xnew, full_cov, full_output_cov, noise=noise)
        added, E = self._explaining(Xnew)
        explained = explained_layout(E, full_cov, full_output_cov)
        cov -= explained
        if not (full_cov or full_output_cov):
            cov = tf.nn.relu(cov)
        shape = tf.concat([tf.shape(added.white)[:-1], tf.shape(explained)], axis=0)
        return mean + target_shift(E, added.white), tf.broadcast_to(cov, shape)

    def _explaining(self, Xnew: TensorType) -> tuple[AddedTargets, tf.Tensor]:
        """The added targets, and their whitened covariance with functions, [batch..., E, M, T]."""
        assert self.added is not None
        return self.added, whiten_targets(self.added, self._covariance(Xnew))

    def _covariance_with(
        self, solution: Any, points: tf.Tensor
    ) -> Callable[[TensorType], tf.Tensor]:
        inner = self.inner._covariance_with(solution, points)
        _, old = self._explaining(points)

        def covariance(Xnew: TensorType) -> tf.Tensor:
            _, new = self._explaining(Xnew)
            return inner(Xnew) - tf.einsum("...emt,equ->...mtqu", new, old)

        return covariance

    def _given(self, Xnew: tf.Tensor, Ynew: tf.Tensor) -> JointPosterior:
        """The inner posterior is conditioned first, so that one of this class is enough."""
        assert self.added is not None
        more = self.inner._given(Xnew, Ynew)
        if not isinstance(more, PartlyGivenPosterior):
            return PartlyGivenPosterior(more, self.added.X, self.added.Y)
        assert more.added is not None
        X = tf.concat([self.added.X, more.added.X], axis=0)
        return PartlyGivenPosterior(more.inner, X, join_outcomes(self.added.Y, more.added.Y, -2))

    def _correlated_samples(self, solution: Any, Xnew: TensorType, asked: Draws) -> tf.Tensor:
        """One problem of size M T x M T, or one of size T x T per point."""
        count, full_cov, noise, seed = asked
        mean, S = self._moments(solution, Xnew, full_cov, True, noise=noise)
        C, _ = self._task_matrices(solution)
        variance = tf.cast(tf.reduce_mean(tf.linalg.diag_part(C)), S.dtype)
        kernel = self._prior_covariance(Xnew, full_cov=False)
        prior = tf.zeros_like(mean[..., 0]) + kernel * variance  # [outcomes..., batch..., M]
        if not full_cov:
            return draw_independent_points(mean, S, count, prior, seed)
        return draw_jointly(mean, S, count, tf.reduce_mean(prior, axis=-1), seed)

    def _row_weights(self, solution: Any, prior: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return self.inner._row_weights(solution, prior, noise)

    def _draw(self, solution: Any, num_samples: int, seed: int) -> Drawn:
        assert self.added is not None
        drawn = self.inner._draw(solution, num_samples, seed)
        residual = self._residuals(solution, drawn, self.added.X, self.added.Y, seed + 1)
        weights = target_weights(self.added, residual)
        return self.inner._shift(solution, drawn, self.added.X, weights)

    def _shift(self, solution: Any, drawn: Drawn, points: tf.Tensor, weights: tf.Tensor) -> Drawn:
        raise NotImplementedError("Rows are added to the inner posterior, see _given.")
