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
from .features import Features
from .rows import Rows, sum_over_rows
from .statistics import Statistics, row_statistics


class RowWeights(NamedTuple):
    """Derivatives of the objective with respect to sums over rows of K_mn and Y."""

    cross: tf.Tensor  # [R, R], by K_mn K_nm, twice
    target: tf.Tensor  # [R, T], by K_mn Y
    YY: tf.Tensor  # [T, T], by Y^T Y, twice
    trace: tf.Tensor  # [], by the trace of K


@check_shapes("X: [N, D]", "Y: [N, T]", "L_inverse: [R, R]")
def chunk_statistics(
    features: Features,
    mean_function: MeanFunction,
    L_inverse: TensorType,
    X: TensorType,
    Y: TensorType,
) -> Statistics:
    """Statistics of some rows."""
    Kmn = tf.cast(features.cross(X), tf.float64)
    F = tf.matmul(Kmn, L_inverse, transpose_a=True, transpose_b=True)
    return row_statistics(F, Y - mean_function(X), features.diagonal(X))


@check_shapes("L: [R, R]", "return: [R, R]")
def lower_inverse(L: TensorType) -> tf.Tensor:
    """The inverse of a triangular matrix; a product with it is faster than a solve per chunk."""
    return tf.linalg.triangular_solve(L, tf.eye(tf.shape(L)[0], dtype=L.dtype))


@check_shapes("L: [R, R]")
def row_weights(L: TensorType, gradient: Statistics) -> RowWeights:
    r"""
    Derivatives with respect to sums over rows, from those with respect to F^T F and F^T Y.

    .. math:: F^\top F = L^{-1} K_{mn} K_{nm} L^{-\top}, \qquad F^\top Y = L^{-1} K_{mn} Y
    """
    L_inverse = lower_inverse(L)
    inner = tf.matmul(gradient.FF, L_inverse)
    return RowWeights(
        cross=2.0 * tf.matmul(L_inverse, inner, transpose_a=True),
        target=tf.matmul(L_inverse, gradient.FY, transpose_a=True),
        YY=2.0 * gradient.YY,
        trace=gradient.trace,
    )


@check_shapes("L: [R, R]", "return: [R, R]")
def factor_gradient(L: TensorType, statistics: Statistics, gradient: Statistics) -> tf.Tensor:
    r"""
    Gradient with respect to L, which needs no pass over the rows.

    .. math:: \partial_L = -L^{-\top} (2 \, \partial_\Phi \Phi + \partial_\Psi \Psi^\top)
    """
    inside = 2.0 * tf.matmul(gradient.FF, statistics.FF)
    inside += tf.matmul(gradient.FY, statistics.FY, transpose_b=True)
    full = tf.linalg.triangular_solve(L, inside, adjoint=True)
    return -tf.linalg.band_part(full, -1, 0)


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
    R = tf.cast(Y - mean_function(X), tf.float64)
    by_cross = tf.matmul(weights.cross, Kmn) + tf.matmul(weights.target, R, transpose_b=True)
    by_target = tf.matmul(Kmn, weights.target, transpose_a=True) + tf.matmul(R, weights.YY)
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

        def statistics(L_inverse: tf.Tensor, X: tf.Tensor, Y: tf.Tensor) -> list[tf.Tensor]:
            return list(chunk_statistics(features, mean_function, L_inverse, X, Y))

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
            weights = RowWeights(matrix, matrix, matrix, number)
            self._statistics = compiled(statistics, matrix, *rows_spec)
            self._gradient = compiled(gradient, weights, *rows_spec)

    def statistics(self, L: TensorType) -> Statistics:
        """Statistics of all rows: one pass."""
        R, T = L.shape[0], self.rows.num_tasks
        zero = [tf.zeros(shape, tf.float64) for shape in ([R, R], [R, T], [T, T], [], [])]
        function = partial(self._statistics, lower_inverse(L))
        return Statistics(*sum_over_rows(self.rows, function, zero, self.strategy))

    def gradient(self, weights: RowWeights) -> list[tf.Tensor]:
        """The part of the gradient that is a sum over rows: one pass."""
        zero = [tf.zeros_like(variable) for variable in self.variables]
        function = partial(self._gradient, weights)
        return sum_over_rows(self.rows, function, zero, self.strategy)
