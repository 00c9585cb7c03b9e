r"""
Draws of all tasks as functions that can be evaluated anywhere, by Matheron's rule.

.. math:: f(x) = m(x) + \phi(x)^\top A + k(x, X) \, B + k(x, X') \, B'

A draw from the prior, by features :math:`\phi`, is shifted by the posterior mean of its difference
to the observed targets (Wilson et al. 2020). The shift uses the kernel itself, so that the error of
the features shows only away from the data. A point costs O(N + L), whatever has been drawn at other
points.

Letters: S draws, M points, T tasks, R features or rows of a term, D inputs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow import Parameter
from gpflow.base import TensorType
from gpflow.mean_functions import MeanFunction

from .. import checks
from .fourier import Features
from .kronecker import rows_last

CHUNK = 2**24
"""How many numbers an evaluation may hold at once, besides its result: 128 megabytes."""


class Weighted(NamedTuple):
    """A term of drawn functions."""

    features: Features
    """Takes inputs [batch..., M, D] to [batch..., M, R]."""

    weights: tf.Tensor
    """[S, R, T]."""


class Drawn(NamedTuple):
    """Drawn functions without mean function, as weights of features and cross-covariances."""

    prior: Weighted
    rows: tf.Tensor
    """[S, R, T], for the cross-covariance of the solution."""

    added: list[tuple[tf.Tensor, tf.Tensor]]
    """Points [q, D] and weights [S, q, T], for their covariance."""


def by_rows(cross: Callable[[TensorType], tf.Tensor], weights: tf.Tensor) -> Weighted:
    """A term from a cross-covariance, which has the rows first."""
    return Weighted(lambda X: rows_last(cross(X)), weights)


class SampledFunctions:
    """
    Functions drawn from a posterior: call them at any inputs, as often as you like.

    The result is always that of the same functions. They hold for the parameters and the training
    inputs at the time of the draw: after a change of these a call is refused. Gradients with
    respect to the inputs pass.

    :param terms: Their sum without the mean function.
    :param parameters: Those of the kernel and of the mean function, and inputs that may change.
    """

    def __init__(
        self,
        terms: list[Weighted],
        mean_function: MeanFunction,
        num_inputs: int,
        parameters: Sequence[Parameter | tf.Variable],
    ) -> None:
        drawn = parameters if tf.executing_eagerly() else ()  # a graph sees no values
        self._parameters = [(parameter, parameter.numpy()) for parameter in drawn]
        weights = terms[0].weights
        self.num_samples, self.num_tasks = int(weights.shape[0]), int(weights.shape[2])
        self.num_inputs, self.dtype = num_inputs, weights.dtype
        self._terms, self._mean_function = terms, mean_function
        size = sum(int(term.weights.shape[1]) for term in terms)
        self._chunk = max(1, CHUNK // (size + self.num_samples * self.num_tasks))
        points = tf.TensorSpec([None, num_inputs], self.dtype)
        batches = tf.TensorSpec([self.num_samples, None, num_inputs], self.dtype)
        self._compiled = tf.function(self._in_chunks, input_signature=[points], autograph=False)
        self._compiled_each = tf.function(self.values, input_signature=[batches], autograph=False)

    def __call__(self, X: TensorType) -> tf.Tensor:
        """
        Values of all functions at the same points.

        :param X: [..., M, D].
        :return: [num_samples, ..., M, T].
        """
        self._check_parameters()
        X = checks.inputs(X, self.num_inputs, self.dtype)
        values = self._compiled(tf.reshape(X, [-1, self.num_inputs]))
        shape = [[self.num_samples], tf.shape(X)[:-1], [self.num_tasks]]
        return tf.reshape(values, tf.concat(shape, axis=0))

    def each(self, X: TensorType) -> tf.Tensor:
        """
        Values of each function at points of its own.

        :param X: [num_samples, M, D].
        :return: [num_samples, M, T].
        """
        self._check_parameters()
        return self._compiled_each(checks.inputs(X, self.num_inputs, self.dtype))

    def _check_parameters(self) -> None:
        """Raise if the kernel is not the one of the draw; a graph that calls this cannot tell."""
        if not tf.executing_eagerly():
            return
        if any(not np.array_equal(p.numpy(), value) for p, value in self._parameters):
            raise ValueError(
                "The model's parameters or inputs have changed since these functions were drawn:"
                " draw anew with sample_functions."
            )

    @check_shapes("X: [M, D]", "return: [S, M, T]")
    def _in_chunks(self, X: TensorType) -> tf.Tensor:
        """The values at some points after the other."""
        count = tf.shape(X)[0]
        size = tf.clip_by_value(count, 1, self._chunk)
        num_chunks = tf.maximum((count + size - 1) // size, 1)
        padded = tf.pad(X, [[0, num_chunks * size - count], [0, 0]])
        chunks = tf.reshape(padded, [num_chunks, size, self.num_inputs])
        values = tf.map_fn(
            self.values, chunks, fn_output_signature=self.dtype, parallel_iterations=1
        )  # [chunks, S, size, T]
        values = tf.transpose(values, [1, 0, 2, 3])
        return tf.reshape(values, [self.num_samples, -1, self.num_tasks])[:, :count]

    @check_shapes("X: [batch..., M, D]", "return: [S, M, T]")
    def values(self, X: TensorType) -> tf.Tensor:
        """The values at points [M, D] that all functions share, or at points [S, M, D]."""
        multiply = tf.matmul if X.shape.rank == 3 else product
        total = tf.add_n([multiply(features(X), weights) for features, weights in self._terms])
        return total + self._mean_function(X)


@check_shapes("features: [M, R]", "weights: [S, R, T]", "return: [S, M, T]")
def product(features: TensorType, weights: TensorType) -> tf.Tensor:
    """One product of two matrices, for all functions at once."""
    S, R, T = weights.shape
    flat = tf.reshape(tf.transpose(weights, [1, 0, 2]), [R, S * T])
    return tf.transpose(tf.reshape(tf.matmul(features, flat), [-1, S, T]), [1, 0, 2])
