r"""
The objective of features over rows that come in chunks, and its gradient: two passes over the data.

The first pass sums :math:`\Phi = F^\top F, \Psi = F^\top Y, \ldots` over all chunks; the objective
and its derivatives with respect to these are small. The second pass sums the gradient of
:math:`\langle \partial_\Phi, \Phi \rangle + \langle \partial_\Psi, \Psi \rangle + \ldots` over the
same chunks, which is that of the objective. Memory is that of one chunk and of [R, R].
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType
from gpflow.config import default_float
from gpflow.mean_functions import MeanFunction

from .distribution import sum_over_rows
from .inner import inner_spectrum
from .profile import ChainModel, Evaluation, ProfiledChain
from .rows import Rows
from .statistics import Statistics, decompose, row_statistics, statistics_log_likelihoods


class Features(Protocol):
    """Features of rows, f(x) = L^-1 cross(x)."""

    def cross(self, X: TensorType) -> tf.Tensor: ...
    def diagonal(self, X: TensorType) -> tf.Tensor: ...
    def factor(self) -> tf.Tensor: ...


class FeatureModel(ChainModel, Protocol):
    """What training over chunks needs of a model."""

    features: Features
    rows: Rows
    mean_function: MeanFunction
    scales: AnyNDArray
    strategy: tf.distribute.Strategy | None


class RowWeights(NamedTuple):
    """Derivatives of the objective with respect to sums over rows of K_mn and Y."""

    cross: tf.Tensor
    """[R, R], by K_mn K_nm, twice."""

    target: tf.Tensor
    """[R, T], by K_mn Y."""

    YY: tf.Tensor
    """[T, T], by Y^T Y, twice."""

    trace: tf.Tensor
    """[], by the trace of K."""


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
    """The inverse of a triangular matrix, by which chunk after chunk is multiplied."""
    return tf.linalg.triangular_solve(L, tf.eye(tf.shape(L)[0], dtype=L.dtype))


@check_shapes("L: [R, R]")
def row_weights(L: TensorType, gradient: Statistics) -> RowWeights:
    r"""
    From derivatives with respect to F^T F and F^T Y to those with respect to what is summed.

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
    """A number whose gradient is what some rows add to the gradient of the objective."""
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
    Sums over all rows: what is computed of a chunk is compiled, once, if it will be needed often.

    :param variables: What gradients are taken with respect to.
    """

    def __init__(
        self,
        features: Features,
        mean_function: MeanFunction,
        rows: Rows,
        strategy: tf.distribute.Strategy | None = None,
        variables: Sequence[tf.Variable] = (),
        *,
        compiled: bool = False,
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
        if compiled:
            matrix, number = tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([], tf.float64)
            rows_spec = [
                tf.TensorSpec([None, columns], default_float())
                for columns in (rows.num_inputs, rows.num_tasks)
            ]
            weights = RowWeights(matrix, matrix, matrix, number)
            self._statistics = graph(statistics, [matrix, *rows_spec])
            self._gradient = graph(gradient, [weights, *rows_spec])

    def statistics(self, L: TensorType) -> Statistics:
        """Statistics of all rows: one pass."""
        R, T = L.shape[0], self.rows.num_tasks
        zero = [tf.zeros(shape, tf.float64) for shape in ([R, R], [R, T], [T, T], [], [])]
        function = partial(self._statistics, lower_inverse(L))
        return Statistics(*sum_over_rows(self.rows, function, zero, self.strategy))

    def gradient(self, weights: RowWeights) -> list[tf.Tensor]:
        """What the rows add to the gradient with respect to the variables: one pass."""
        zero = [tf.zeros_like(variable) for variable in self.variables]
        function = partial(self._gradient, weights)
        return sum_over_rows(self.rows, function, zero, self.strategy)


def graph(function: Callable[..., Any], signature: list[Any]) -> Callable[..., Any]:
    """A function compiled for any number of rows."""
    return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()


class StreamedLoss(ProfiledChain):
    """
    The loss of a model with features, in two passes over its rows.

    :param solve: Whether b and sigma2 are solved for, see :class:`ProfiledChain`; else they are
        parameters like the others.
    """

    model: FeatureModel

    def __init__(self, model: FeatureModel, *, solve: bool) -> None:
        super().__init__(model)
        if not solve:
            self.solves_b = self.solves_sigma2 = False
            self.parameters = list(model.trainable_parameters)
        self.variables = [p.unconstrained_variable for p in self.parameters]
        self.sums = RowSums(
            model.features,
            model.mean_function,
            model.rows,
            model.strategy,
            self.variables,
            compiled=bool(self.variables),  # else one evaluation is all there will be
        )
        self._between: Any = None if self.variables else self._between_passes

    def evaluate(self) -> Evaluation:
        """Loss, gradient and terms at the present parameters."""
        statistics = self.sums.statistics(self.model.features.factor())
        scales = tf.constant(self.model.scales, tf.float64)
        if self._between is None:
            compiled = tf.function(self._between_passes, autograph=False)
            self._between = compiled.get_concrete_function(statistics, scales)
        with self.failures_as_they_are():
            loss, terms, gradients, weights = self._between(statistics, scales)
        self.num_decompositions += 1
        if self.variables:
            through_rows = self.sums.gradient(weights)
            gradients = [sum(pair) for pair in zip(gradients, through_rows, strict=True)]
        gradients = [np.asarray(g) for g in gradients]
        return Evaluation(float(loss), gradients, terms.numpy(), self.rounding)

    def _between_passes(
        self, statistics: Statistics, scales: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], RowWeights]:
        """
        Loss, terms, the gradient as far as it needs no rows, and how the rows are to be weighted
        for the rest of it; b and sigma2 are set.
        """
        model, variables = self.model, self.variables
        known = decompose(statistics, python_callback=True)
        present = self.present()
        inputs = [scales, present, *known.spectrum.parts()]
        best = self.in_numpy("solve_spectrum", inputs, tf.float64)
        self.assign(tf.cast(tf.ensure_shape(best, present.shape), present.dtype))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*statistics, *variables])
            b, sigma2 = tf.unstack(self.present(), axis=1)
            terms = statistics_log_likelihoods(
                statistics, b, sigma2, learning=model.learning, decomposition=known
            )
            loss = -(tf.reduce_sum(terms) + model.log_prior_density())
        by_statistics, gradients = tape.gradient(
            loss, [list(statistics), variables], unconnected_gradients="zero"
        )
        by_statistics = Statistics(*by_statistics)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            L = model.features.factor()
        through_L = tape.gradient(
            L,
            variables,
            output_gradients=factor_gradient(L, statistics, by_statistics),
            unconnected_gradients="zero",
        )
        gradients = [sum(pair) for pair in zip(gradients, through_L, strict=True)]
        return loss, terms, gradients, row_weights(L, by_statistics)

    def solve_spectrum(
        self, scales: AnyNDArray, present: AnyNDArray, *parts: AnyNDArray
    ) -> AnyNDArray:
        """The best b and sigma2 for a spectrum in parts, see :func:`inner_spectrum`."""
        return self.solve_inner(inner_spectrum(*parts), scales, present.astype(np.float64))
