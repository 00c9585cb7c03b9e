r"""
Predictions from rows on a grid, at any points.

The covariance of a test point with the grid is a Kronecker product of vectors, one per axis. It is
never formed for many points at once: the axes are summed over one after the other.

Letters: N rows, n points of an axis, M test points, T tasks, j a rotated task.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType
from gpflow.posteriors import PrecomputedValue

from ..graphs import unconverted
from ..joint.conditioning import CHUNK, map_batch, some_at_a_time
from ..joint.kronecker import JointSolution
from ..joint.posteriors import CompleteDataPosterior
from ..systems.products import KroneckerVectors
from .kernels import KernelOnGrid


class GridPosterior(CompleteDataPosterior):
    """
    Posterior given data on a grid without missing targets.

    :param on_grid: The kernel as a product over the axes.
    """

    def __init__(self, *arguments: Any, on_grid: KernelOnGrid, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_grid = on_grid

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        U, *rest = self.solve()
        assert isinstance(U, KroneckerVectors)
        tensors = [*U.vectors, *U.values, *rest]
        return tuple(PrecomputedValue(part, (False,) * part.shape.rank) for part in tensors)

    def _from_cache(self, cache: tuple[tf.Tensor, ...]) -> JointSolution:
        count, tensors = len(self.on_grid.axes), tuple(map(tf.convert_to_tensor, cache))
        vectors, values, rest = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        return JointSolution(KroneckerVectors(vectors, values, self.on_grid.grid.rows), *rest)

    def _own_options(self) -> dict[str, Any]:
        return {"on_grid": self.on_grid}

    def _moments_without_added(
        self, solution: JointSolution, Xnew: TensorType, full_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        mean, explained = self._moments_at_points(solution, Xnew)
        if full_cov:
            explained = map_batch(lambda X: self._explained_between(solution, X), Xnew)
        d, prior = solution.d, self._prior_covariance(Xnew, full_cov)
        if full_cov:
            q = d[:, None, None] * prior[..., None, :, :] - explained
        else:
            q = d[:, None] * prior[..., None, :] - tf.linalg.matrix_transpose(explained)
            q = tf.maximum(q, tf.zeros([], q.dtype))
        return mean, q

    def _mean(self, solution: JointSolution, Xnew: TensorType) -> tf.Tensor:
        if self.added is not None:
            return super()._mean(solution, Xnew)
        return self._moments_at_points(solution, Xnew)[0]

    @check_shapes(
        "Xnew: [batch..., M, D]", "return[0]: [batch..., M, T]", "return[1]: [batch..., M, T]"
    )
    def _moments_at_points(
        self, solution: JointSolution, Xnew: TensorType
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Means of the tasks, and how much of the rotated tasks' variances the data explains."""
        U = solution.U
        assert isinstance(U, KroneckerVectors)
        alpha, gain = tf.gather(solution.alpha, U.rows), variance_gain(solution)

        def both(X: tf.Tensor) -> tf.Tensor:
            cross = self.on_grid.cross(X)
            squares = [tf.square(part) for part in rotate(U, cross)]
            return tf.concat([sum_over_axes(alpha, cross), sum_over_axes(gain, squares)], axis=1)

        limit = CHUNK // (alpha.shape[1] * max(1, alpha.shape[0] // U.shape[0]))
        points = tf.reshape(Xnew, [-1, Xnew.shape[-1]])
        found = some_at_a_time(limit, both, points, alpha.dtype)
        shape = tf.concat([tf.shape(Xnew)[:-1], [2 * alpha.shape[1]]], axis=0)
        mean, explained = tf.split(tf.reshape(found, shape), 2, axis=-1)
        return mean, explained

    @check_shapes("X: [M, D]", "return: [T, M, M]")
    def _explained_between(self, solution: JointSolution, X: TensorType) -> tf.Tensor:
        """How much of the rotated tasks' covariances between points the data explains."""
        U = solution.U
        assert isinstance(U, KroneckerVectors)
        first, *others = rotate(U, self.on_grid.cross(X))
        rest = others[0]
        for part in others[1:]:
            rest = tf.reshape(rest[:, None] * part, [-1, tf.shape(X)[0]])
        num_tasks, size = solution.d.shape[0], tf.shape(X)[0]
        gain = tf.reshape(variance_gain(solution), [U.shape[0], -1, num_tasks])

        def explained(v: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:  # [n, M], [n, rest, T]
            V = tf.reshape(v[:, None] * rest, [-1, size])
            scaled = V * tf.transpose(tf.reshape(weights, [-1, num_tasks]))[:, :, None]
            return tf.tensordot(tf.linalg.matrix_transpose(scaled), V, axes=1)

        if X.shape[0] is not None and gain.shape[0] * gain.shape[1] * X.shape[0] <= CHUNK:
            return explained(first, gain)
        return tf.foldl(
            unconverted(lambda total, part: total + explained(part[0][None], part[1][None])),
            (first, gain),
            tf.zeros([num_tasks, size, size], first.dtype),
            parallel_iterations=1,
        )


def variance_gain(solution: JointSolution) -> tf.Tensor:
    r"""[N, T], :math:`d_j^2 / (\lambda_n d_j + 1)`."""
    return solution.seen_shrinkage * tf.square(solution.d)


def rotate(U: KroneckerVectors, cross: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """[n, M] each, the covariances of all axes with test points, in the eigenbasis."""
    pairs = zip(U.vectors, cross, strict=True)
    return [tf.matmul(vectors, part, transpose_a=True) for vectors, part in pairs]


@check_shapes("A: [N, T]", "factors[all]: [., M]", "return: [M, T]")
def sum_over_axes(A: TensorType, factors: Sequence[TensorType]) -> tf.Tensor:
    r"""
    Sums over a grid with weights that are products over its axes.

    .. math:: \sum_{ab} A_{abt} \, f_{am} \, g_{bm}
    """
    first, *others = factors
    num_points = tf.shape(first)[1]
    result = tf.matmul(first, tf.reshape(A, [first.shape[0], -1]), transpose_a=True)
    for part in others:
        result = tf.reshape(result, [num_points, part.shape[0], -1])
        result = tf.reduce_sum(tf.transpose(part)[:, :, None] * result, axis=1)
    return tf.reshape(result, [num_points, A.shape[1]])
