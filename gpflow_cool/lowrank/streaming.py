r"""
The objective of features over rows that come in chunks, and its gradient: two passes over the data.

The first pass sums :math:`\Phi = F^\top F, \Psi = F^\top Y, \ldots` over all chunks; the objective
and its derivatives with respect to these are small. The second pass sums the gradient of
:math:`\langle \partial_\Phi, \Phi \rangle + \langle \partial_\Psi, \Psi \rangle + \ldots` over the
same chunks, which is that of the objective. Memory holds one chunk and a few R x R matrices.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType
from gpflow.mean_functions import MeanFunction

from ..graphs import compiled
from ..linalg import inverse_root_gradient
from .features import Features
from .rows import Rows, sum_over_rows
from .statistics import Statistics, row_statistics


class RowWeights(NamedTuple):
    """What the derivatives of the objective by K_mn and by the targets of a row are made of."""

    whitening: tf.Tensor  # [R, R], W
    cross: tf.Tensor  # [R, R], by K_mn, times F^T
    target: tf.Tensor  # [R, T], by K_mn, times Y^T
    FY: tf.Tensor  # [R, T], by Y, times F
    YY: tf.Tensor  # [T, T], by Y, times Y
    trace: tf.Tensor  # [], by the trace of K


@check_shapes("X: [N, D]", "Y: [N, T]", "W: [R, R]")
def chunk_statistics(
    features: Features,
    mean_function: MeanFunction,
    W: TensorType,
    X: TensorType,
    Y: TensorType,
) -> Statistics:
    """Statistics of some rows."""
    F = tf.matmul(tf.cast(features.cross(X), tf.float64), W, transpose_a=True)
    return row_statistics(F, Y - mean_function(X), features.diagonal(X))


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


@check_shapes("X: [N, D]", "Y: [N, T]", "return: []")
def chunk_surrogate(
    features: Features,
    mean_function: MeanFunction,
    weights: RowWeights,
    X: TensorType,
    Y: TensorType,
) -> tf.Tensor:
    """A number whose gradient is the part of the objective's gradient due to some rows."""
    Kmn = tf.cast(features.cross(X), tf.float64)
    F = tf.stop_gradient(tf.matmul(Kmn, weights.whitening, transpose_a=True))
    R = tf.cast(Y - mean_function(X), tf.float64)
    by_cross = tf.matmul(weights.cross, F, transpose_b=True)
    by_cross += tf.matmul(weights.target, R, transpose_b=True)
    by_target = tf.matmul(F, weights.FY) + tf.matmul(R, weights.YY)
    diagonal = tf.cast(features.diagonal(X), tf.float64)
    return (
        tf.reduce_sum(Kmn * tf.stop_gradient(by_cross))
        + tf.reduce_sum(R * tf.stop_gradient(by_target))
        + weights.trace * tf.reduce_sum(diagonal)
    )


class RowSums:
    """
    Sums over all rows.

    :param variables: The variables of the gradient.
    :param compile: Whether to compile the functions of a chunk, for sums that are needed often.
    """

    def __init__(
        self,
        features: Features,
        mean_function: MeanFunction,
        rows: Rows,
        strategy: tf.distribute.Strategy | None = None,
        variables: Sequence[tf.Variable] = (),
        *,
        compile: bool = False,
    ) -> None:
        self.rows, self.strategy, self.variables = rows, strategy, list(variables)

        def statistics(W: tf.Tensor, X: tf.Tensor, Y: tf.Tensor) -> list[tf.Tensor]:
            return list(chunk_statistics(features, mean_function, W, X, Y))

        def gradient(weights: RowWeights, X: tf.Tensor, Y: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self.variables)
                value = chunk_surrogate(features, mean_function, weights, X, Y)
            return tape.gradient(value, self.variables, unconnected_gradients="zero")

        self._statistics, self._gradient = statistics, gradient
        if compile:
            matrix, number = tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([], tf.float64)
            rows_spec = [
                tf.TensorSpec([None, columns], rows.dtype)
                for columns in (rows.num_inputs, rows.num_tasks)
            ]
            weights = RowWeights(matrix, matrix, matrix, matrix, matrix, number)
            self._statistics = compiled(statistics, matrix, *rows_spec)
            self._gradient = compiled(gradient, weights, *rows_spec)

    def statistics(self, W: TensorType) -> Statistics:
        """Statistics of all rows: one pass."""
        R, T = W.shape[0], self.rows.num_tasks
        zero = [tf.zeros(shape, tf.float64) for shape in ([R, R], [R, T], [T, T], [], [])]
        function = partial(self._statistics, W)
        return Statistics(*sum_over_rows(self.rows, function, zero, self.strategy))

    def gradient(self, weights: RowWeights) -> list[tf.Tensor]:
        """The part of the gradient that is a sum over rows: one pass."""
        zero = [tf.zeros_like(variable) for variable in self.variables]
        function = partial(self._gradient, weights)
        return sum_over_rows(self.rows, function, zero, self.strategy)
