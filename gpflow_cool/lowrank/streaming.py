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
from scipy.linalg.blas import dtrmm

from ..graphs import compiled
from ..linalg import has_gpu
from .features import Features
from .rows import Rows, sum_over_rows
from .statistics import Statistics, row_statistics


class RowWeights(NamedTuple):
    """Derivatives of the objective with respect to sums over rows of K_mn and Y."""

    cross: TensorType  # [R, R], by K_mn K_nm, twice
    target: TensorType  # [R, T], by K_mn Y
    YY: TensorType  # [T, T], by Y^T Y, twice
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


@check_shapes("X: [N, D]", "Y: [N, T]", "L_inverse: [R, R]")
def chunk_statistics(
    features: Features,
    mean_function: MeanFunction,
    L_inverse: TensorType,
    X: TensorType,
    Y: TensorType,
) -> Statistics:
    """Statistics of some rows, which TensorFlow can differentiate."""
    Kmn = tf.cast(features.cross(X), tf.float64)
    F = tf.matmul(Kmn, L_inverse, transpose_a=True, transpose_b=True)
    return row_statistics(F, Y - mean_function(X), features.diagonal(X))


@check_shapes("L_inverse: [R, R]")
def statistics_of_parts(L_inverse: TensorType, parts: ChunkParts) -> Statistics:
    """
    Statistics of some rows, without a gradient.

    Without a GPU, BLAS multiplies: it knows that L is triangular and that F^T F is symmetric, which
    saves half of the work.
    """
    count = float(parts.R.shape[0])
    if has_gpu():
        F = tf.matmul(parts.Kmn, L_inverse, transpose_a=True, transpose_b=True)
        products = [tf.matmul(one, two, transpose_a=True) for one, two in pairs_of(F, parts.R)]
    else:
        F = dtrmm(1.0, np.asarray(L_inverse).T, np.asarray(parts.Kmn).T, side=1, lower=0)
        products = [tf.constant(one.T @ two) for one, two in pairs_of(F, np.asarray(parts.R))]
    FF, FY, YY = products
    return Statistics(FF, FY, YY, tf.constant(parts.trace), tf.constant(count, tf.float64))


def pairs_of(F: Any, Y: Any) -> list[tuple[Any, Any]]:
    """The factors of F^T F, F^T Y and Y^T Y."""
    return [(F, F), (F, Y), (Y, Y)]


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


def parts_gradient(weights: RowWeights, parts: ChunkParts) -> ChunkParts:
    """Derivatives of the objective with respect to the parts of a chunk; all arrays, or tensors."""
    Kmn, R, _ = parts
    transposed = np.transpose if isinstance(Kmn, np.ndarray) else tf.transpose
    return ChunkParts(
        Kmn=weights.cross @ Kmn + weights.target @ transposed(R),
        R=transposed(Kmn) @ weights.target + R @ weights.YY,
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

    def statistics(self, L: TensorType) -> Statistics:
        """Statistics of all rows, which TensorFlow can differentiate: one pass."""
        function = partial(chunk_statistics, self.features, self.mean_function, lower_inverse(L))
        return self._sum_of_statistics(function, L.shape[0])

    def training_statistics(self, L: TensorType) -> Statistics:
        """Statistics of all rows, without a gradient: one pass."""

        def function(X: tf.Tensor, Y: tf.Tensor) -> Statistics:
            return statistics_of_parts(L_inverse, ChunkParts(*self._parts(X, Y)))

        L_inverse = lower_inverse(L)
        return self._sum_of_statistics(function, L.shape[0])

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
            return tape.gradient(
                list(parts),
                self.variables,
                output_gradients=list(parts_gradient(weights, parts)),
                unconnected_gradients="zero",
            )

        matrix, number = tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([], tf.float64)
        weights = RowWeights(matrix, matrix, matrix, number)
        return compiled(gradient, weights, *self.chunk_spec)

    @property
    def chunk_spec(self) -> list[tf.TensorSpec]:
        """X and Y of a chunk."""
        columns = (self.rows.num_inputs, self.rows.num_tasks)
        return [tf.TensorSpec([None, count], self.rows.dtype) for count in columns]
