"""The loss of a model with features, in two passes over its rows."""

from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray

from ..chain.spectrum import Spectrum
from ..chain.terms import task_problems
from ..graphs import compiled
from ..lowrank.features import LinearFeatures
from ..lowrank.statistics import (
    Decomposition,
    Statistics,
    decompose,
    decompose_rows,
    statistics_log_likelihoods,
)
from ..lowrank.streaming import RowSums, RowWeights, row_weights, variance_gradient
from .model import Evaluation, TrainableChain
from .profiled import ProfiledChain


class StreamedLoss(ProfiledChain):
    """
    The loss of a model with features, in two passes over its rows.

    :param solve: Whether b and sigma2 are solved for, see :class:`ProfiledChain`; else they are
        parameters like the others.
    """

    def __init__(self, model: TrainableChain, *, solve: bool) -> None:
        super().__init__(model)
        if not solve:
            self.solves_b = self.solves_sigma2 = False
            self.parameters = list(model.trainable_parameters)
        self.variables = [p.unconstrained_variable for p in self.parameters]
        assert model.features is not None
        self.features = model.features
        self.sums = RowSums(
            self.features,
            model.mean_function,
            model.rows,
            model.strategy,
            self.variables,
            compile=bool(self.variables),  # without variables the loss is evaluated only once
        )
        self._between: Any = None if self.variables else self._between_passes

    def evaluate(self) -> Evaluation:
        W = self.features.whitening()
        statistics = self.sums.statistics(W)
        scales = tf.constant(self.model.scales, tf.float64)
        if self._between is None:
            self._between = compiled(self._between_passes, W, statistics, scales)
        with self.numpy_failures():
            loss, terms, gradients, weights = self._between(W, statistics, scales)
        self.num_decompositions += 1
        if self.variables:
            through_rows = self.sums.gradient(weights)
            gradients = [sum(pair) for pair in zip(gradients, through_rows, strict=True)]
        gradients = [np.asarray(g) for g in gradients]
        return Evaluation(float(loss), gradients, terms.numpy(), self.rounding)

    def _between_passes(
        self, W: tf.Tensor, statistics: Statistics, scales: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], RowWeights]:
        """
        Loss, terms, the part of the gradient that needs no rows, and weights of the rows for the
        other part. It sets b and sigma2.
        """
        model, variables = self.model, self.variables
        known = self.decomposition(statistics)
        present = self.present()
        inputs = [scales, present, *known.spectrum]
        best = self.in_numpy(self.solve_spectrum, inputs, tf.float64)
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
            Kmm = self.features.variance()
        through_Kmm = tape.gradient(
            Kmm,
            variables,
            output_gradients=tf.cast(variance_gradient(W, statistics, by_statistics), Kmm.dtype),
            unconnected_gradients="zero",
        )
        gradients = [sum(pair) for pair in zip(gradients, through_Kmm, strict=True)]
        return loss, terms, gradients, row_weights(W, by_statistics)

    def decomposition(self, statistics: Statistics) -> Decomposition:
        """From the rows themselves where the features are linear, and all rows are in memory."""
        if not isinstance(self.features, LinearFeatures):
            return decompose(statistics, python_callback=True)
        X, Y = self.model.rows.arrays()
        residual = Y - self.model.mean_function(X)
        return decompose_rows(self.features(X), residual, python_callback=True)

    def solve_spectrum(
        self, scales: AnyNDArray, present: AnyNDArray, *parts: AnyNDArray
    ) -> AnyNDArray:
        """The best b and sigma2 for a spectrum in parts."""
        problems = task_problems(Spectrum(*parts).numpy(), self.model.learning)
        return self.solve_inner(problems, scales, present.astype(np.float64)).parameters
