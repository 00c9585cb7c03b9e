r"""
The objective of features over rows that come in chunks, and its gradient: two passes over the data.

The first pass sums :math:`\Phi = F^\top F, \Psi = F^\top Y, \ldots` over all chunks; the objective
and its derivatives with respect to these are small. The second pass sums the gradient of
:math:`\langle \partial_\Phi, \Phi \rangle + \langle \partial_\Psi, \Psi \rangle + \ldots` over the
same chunks, which is that of the objective. Memory holds one chunk and a few R x R matrices.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType
from gpflow.mean_functions import MeanFunction

from ..graphs import compiled
from ..linalg import has_gpu, inverse_root_gradient
from .features import Features
from .rows import Rows, sum_over_rows
from .statistics import Statistics, row_statistics


class RowWeights(NamedTuple):
    """What the derivatives of the objective by K_mn and by the targets of a row are made of."""

    whitening: TensorType  # [R, R], W
    cross: TensorType  # [R, R], by K_mn, times F^T
    target: TensorType  # [R, T], by K_mn, times Y^T
    FY: TensorType  # [R, T], by Y, times F
    YY: TensorType  # [T, T], by Y, times Y
    trace: TensorType  # [], by the trace of K


class ChunkParts(NamedTuple):
    """What the objective sees of some rows, in float64."""

    Kmn: TensorType  # [R, N]
    R: TensorType  # [N, T], targets less the mean function
    trace: TensorType  # [], trace of their kernel matrix


def chunk_parts(
    features: Features, mean_function: MeanFunction, X: TensorType, Y: TensorType
) -> ChunkParts:
    """What the objective sees of some rows."""
    return ChunkParts(
        tf.cast(features.cross(X), tf.float64),
        tf.cast(Y - mean_function(X), tf.float64),
        tf.reduce_sum(tf.cast(features.diagonal(X), tf.float64)),
    )


@check_shapes("X: [N, D]", "Y: [N, T]", "W: [R, R]")
def chunk_statistics(
    features: Features,
    mean_function: MeanFunction,
    W: TensorType,
    X: TensorType,
    Y: TensorType,
) -> Statistics:
    """Statistics of some rows, which TensorFlow can differentiate."""
    F = tf.matmul(tf.cast(features.cross(X), tf.float64), W, transpose_a=True)
    return row_statistics(F, Y - mean_function(X), features.diagonal(X))


@check_shapes("F: [N, R]")
def statistics_of_parts(F: TensorType, parts: ChunkParts) -> Statistics:
    """
    Statistics of some rows, without a gradient.

    Without a GPU, BLAS multiplies: it knows that F^T F is symmetric, which saves half of the work.

    :param F: The features of the rows, K_nm W.
    """
    count = float(parts.R.shape[0])
    if has_gpu():
        products = [tf.matmul(one, two, transpose_a=True) for one, two in pairs_of(F, parts.R)]
    else:
        pairs = pairs_of(np.asarray(F), np.asarray(parts.R))
        products = [tf.constant(one.T @ two) for one, two in pairs]
    FF, FY, YY = products
    return Statistics(FF, FY, YY, tf.constant(parts.trace), tf.constant(count, tf.float64))


def pairs_of(F: Any, Y: Any) -> list[tuple[Any, Any]]:
    """The factors of F^T F, F^T Y and Y^T Y."""
    return [(F, F), (F, Y), (Y, Y)]


@check_shapes("W: [R, R]")
def row_weights(W: TensorType, gradient: Statistics) -> RowWeights:
    r"""
    Weights of rows, from the gradient with respect to the statistics.

    .. math:: F = K_{nm} W, \qquad
              \partial_{K_{mn}} = 2 W \partial_\Phi F^\top + W \partial_\Psi Y^\top, \qquad
              \partial_Y = F \partial_\Psi + 2 Y \partial_\Gamma

    F stands here and not K_mn, whose weights :math:`2 W \partial_\Phi W^\top` would be so large
    that their rounding hides the gradient where inducing points are close to each other.
    """
    return RowWeights(
        whitening=W,
        cross=2.0 * tf.matmul(W, gradient.FF),
        target=tf.matmul(W, gradient.FY),
        FY=gradient.FY,
        YY=2.0 * gradient.YY,
        trace=gradient.trace,
    )


@check_shapes("W: [R, R]", "return: [R, R]")
def variance_gradient(W: TensorType, statistics: Statistics, gradient: Statistics) -> tf.Tensor:
    r"""
    Gradient with respect to K_mm, which needs no pass over the rows.

    .. math:: \partial_{K_{mm}} = -\tfrac{1}{2} W (2 \Phi \, \partial_\Phi
                                  + \Psi \, \partial_\Psi^\top) W^\top
    """
    inside = 2.0 * tf.matmul(statistics.FF, gradient.FF)
    inside += tf.matmul(statistics.FY, gradient.FY, transpose_b=True)
    return inverse_root_gradient(W, inside)


def parts_gradient(weights: RowWeights, F: Any, parts: ChunkParts) -> ChunkParts:
    """
    Derivatives of the objective with respect to the parts of a chunk.

    :param F: [N, R], the features of the rows, K_nm W.
    """
    return ChunkParts(
        Kmn=weights.cross @ tf.transpose(F) + weights.target @ tf.transpose(parts.R),
        R=F @ weights.FY + parts.R @ weights.YY,
        trace=weights.trace,
    )


class RowSums:
    """
    Sums over all rows.

    :param variables: The variables of the gradient.
    """

    def __init__(
        self,
        features: Features,
        mean_function: MeanFunction,
        rows: Rows,
        strategy: tf.distribute.Strategy | None = None,
        variables: Sequence[tf.Variable] = (),
    ) -> None:
        self.features, self.mean_function = features, mean_function
        self.rows, self.strategy, self.variables = rows, strategy, list(variables)

    def statistics(self, W: TensorType) -> Statistics:
        """Statistics of all rows, which TensorFlow can differentiate: one pass."""
        function = partial(chunk_statistics, self.features, self.mean_function, W)
        return self._sum_of_statistics(function, W.shape[0])

    def training_statistics(self, W: TensorType) -> Statistics:
        """Statistics of all rows, without a gradient: one pass."""

        def function(X: tf.Tensor, Y: tf.Tensor) -> Statistics:
            parts = ChunkParts(*self._parts(X, Y))
            return statistics_of_parts(tf.matmul(parts.Kmn, W, transpose_a=True), parts)

        return self._sum_of_statistics(function, W.shape[0])

    def gradient(self, weights: RowWeights) -> list[tf.Tensor]:
        """The part of the gradient that is a sum over rows: one pass."""
        zero = [tf.zeros_like(variable) for variable in self.variables]
        function = partial(self._gradient, weights)
        return sum_over_rows(self.rows, function, zero, self.strategy)

    def _sum_of_statistics(
        self, function: Callable[[tf.Tensor, tf.Tensor], Statistics], num_features: int
    ) -> Statistics:
        R, T = num_features, self.rows.num_tasks
        zero = [tf.zeros(shape, tf.float64) for shape in ([R, R], [R, T], [T, T], [], [])]
        return Statistics(*sum_over_rows(self.rows, function, zero, self.strategy))

    @cached_property
    def _parts(self) -> Callable[[tf.Tensor, tf.Tensor], ChunkParts]:
        """:func:`chunk_parts` as a graph."""
        function = partial(chunk_parts, self.features, self.mean_function)
        return compiled(function, *self.chunk_spec)

    @cached_property
    def _gradient(self) -> Callable[[RowWeights, tf.Tensor, tf.Tensor], list[tf.Tensor]]:
        """Gradient of what is due to a chunk, as a graph."""

        def gradient(weights: RowWeights, X: tf.Tensor, Y: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self.variables)
                parts = chunk_parts(self.features, self.mean_function, X, Y)
            F = tf.matmul(parts.Kmn, weights.whitening, transpose_a=True)
            return tape.gradient(
                list(parts),
                self.variables,
                output_gradients=list(parts_gradient(weights, F, parts)),
                unconnected_gradients="zero",
            )

        matrix, number = tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([], tf.float64)
        weights = RowWeights(matrix, matrix, matrix, matrix, matrix, number)
        return compiled(gradient, weights, *self.chunk_spec)

    @property
    def chunk_spec(self) -> list[tf.TensorSpec]:
        """X and Y of a chunk."""
        columns = (self.rows.num_inputs, self.rows.num_tasks)
        return [tf.TensorSpec([None, count], self.rows.dtype) for count in columns]
