"""The loss of a model with features: at once where K_mn fits into memory, else in two passes."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, TensorType

from ..chain.likelihood import sum_over_contrasts
from ..chain.newton import InnerSolution
from ..chain.terms import task_problems
from ..graphs import compiled
from ..linalg import inverse_root
from ..lowrank.features import LinearFeatures
from ..lowrank.rows import Rows
from ..lowrank.statistics import (
    Decomposition,
    Statistics,
    decompose,
    decompose_rows,
    statistics_gradient,
)
from ..lowrank.streaming import (
    ChunkParts,
    RowSums,
    RowWeights,
    chunk_parts,
    parts_gradient,
    row_weights,
    statistics_of_parts,
    variance_gradient,
)
from .growing import MAX_PARAMETERS, sample_sizes
from .model import Evaluation, TrainableChain
from .profiled import ProfiledChain

KEPT_NUMBERS = 2_500_000
"""Up to this many entries, K_mn stays in memory until its gradient is taken: 20 MB, and what the
gradient needs besides takes about four times as much."""

Graph = Callable[..., list[tf.Tensor]]


class StreamedLoss(ProfiledChain):
    """
    The loss of a model with features.

    Where K_mn is small, one graph computes it, calls NumPy for the loss and its derivatives by
    K_mn, and takes the gradient from there. Else there are two passes over chunks of the rows, and
    each computes the K_mn of a chunk.

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
        self.features, self.num_rows = model.features, model.num_rows
        self.sums = RowSums(
            self.features, model.mean_function, model.rows, model.strategy, self.variables
        )
        self.num_passed = 0
        """Rows that were passed, each time: for the sums once, and once for the gradient."""

    @property
    def rows(self) -> Rows:
        """The rows that the loss sees."""
        return self.sums.rows

    def samples(self) -> list[tuple[int, Rows]]:
        """
        Samples of the rows, growing, of which each has those of the one before.

        None where there are too many parameters for their curvature to be carried along.
        """
        if sum(int(tf.size(variable)) for variable in self.variables) > MAX_PARAMETERS:
            return []
        points = self.features.num_features
        sizes = sample_sizes(self.model.num_rows, self.model.num_sampled, points)
        return [(size, self.model.sampled_rows(size)) for size in sizes]

    def unsolved(self) -> "StreamedLoss":
        """That of "scipy", to the last digit: so few rows with features cost little."""
        return StreamedLoss(self.model, solve=False)

    def evaluate_on(self, rows: Rows) -> Evaluation:
        """The loss of some rows."""
        everything, self.sums.rows = self.sums.rows, rows
        strategy, self.sums.strategy = self.sums.strategy, None
        try:
            return self.evaluate()
        finally:
            self.sums.rows, self.sums.strategy = everything, strategy

    def evaluate(self) -> Evaluation:
        """Loss and gradient; it sets b and sigma2 where they are solved for."""
        count = self.rows.num_rows
        if count is None or self.sums.strategy is not None or count > self.kept_rows:
            return self._evaluate_in_passes()
        return self._evaluate_at_once()

    @property
    def kept_rows(self) -> int:
        """So many rows stay in memory; of data that does not, a sample of no more than a chunk."""
        kept = KEPT_NUMBERS // self.features.num_features
        is_stream = self.model.rows.num_rows is None
        return min(kept, self.model.rows.chunk_rows) if is_stream else kept

    def _evaluate_at_once(self) -> Evaluation:
        X, Y = map(tf.convert_to_tensor, self.rows.arrays())
        self.num_passed += 2 * len(X)
        with self.numpy_failures():
            loss, terms, *gradients = self._at_once(X, Y)
        return Evaluation(float(loss), [g.numpy() for g in gradients], terms.numpy(), self.rounding)

    def _evaluate_in_passes(self) -> Evaluation:
        Kmm, present, prior = self._state()
        W = self.whitening(Kmm)
        statistics = self.sums.training_statistics(W)
        self.num_passed += int(statistics.num_rows)
        decomposition = self.decomposition(statistics, None)
        best, by_statistics = self.solve_statistics(decomposition, present.numpy())
        self._assign(tf.constant(best.parameters))
        loss = -(float(np.sum(best.values)) + float(prior))
        if not self.variables:
            return Evaluation(loss, [], best.values, self.rounding)
        through_rows = self.sums.gradient(row_weights(W, by_statistics))
        self.num_passed += int(statistics.num_rows)
        by_Kmm = variance_gradient(W, statistics, by_statistics)
        others = self._state_gradient(by_Kmm, tf.constant(best.gradients))
        gradients = [(a - b).numpy() for a, b in zip(others, through_rows, strict=True)]
        return Evaluation(loss, gradients, best.values, self.rounding)

    # Graphs ---------------------------------------------------------------------------------------

    def state(self) -> list[tf.Tensor]:
        """What the loss depends on besides the rows: K_mm, b and sigma2 [T, 2], the log prior."""
        prior = self.model.log_prior_density() if self.has_prior else 0.0
        others = [tf.cast(part, tf.float64) for part in (self.present(), prior)]
        return [tf.convert_to_tensor(self.features.variance()), *others]

    @cached_property
    def _state(self) -> Graph:
        return compiled(self.state)

    @cached_property
    def _state_gradient(self) -> Graph:
        """Gradients of the loss through the state, given those of the terms by K_mm and [T, 2]."""
        like = self._state()[:2]

        def gradient(by_Kmm: tf.Tensor, by_present: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self.variables)
                state = self.state()
            return self.loss_gradient(tape, state, [by_Kmm, by_present])

        return compiled(gradient, *(tf.TensorSpec(part.shape, tf.float64) for part in like))

    @cached_property
    def _assign(self) -> Callable[[tf.Tensor], None]:
        """:meth:`assign` as a graph."""
        shape, dtype = [*self.model.b.shape, 2], self.model.b.dtype
        spec = tf.TensorSpec(shape, tf.float64)
        return compiled(lambda best: self.assign(tf.cast(best, dtype)), spec)

    @cached_property
    def _at_once(self) -> Graph:
        """Loss, terms and gradients for X and Y."""

        def compute(X: tf.Tensor, Y: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self.variables)
                state = self.state()
                parts = chunk_parts(self.features, self.model.mean_function, X, Y)
            Kmm, present, prior = state
            inputs = [Kmm, present, *parts]
            best, terms, *by_inputs = self.in_numpy(
                self.solve_parts, inputs, [tf.float64] * (2 + len(inputs))
            )
            self.assign(tf.cast(tf.ensure_shape(best, present.shape), self.model.b.dtype))
            shaped = zip(by_inputs, inputs, strict=True)
            upstream = [tf.ensure_shape(by, source.shape) for by, source in shaped]
            gradients = self.loss_gradient(tape, [*inputs, prior], upstream)
            return [-(tf.reduce_sum(terms) + prior), terms, *gradients]

        # without variables the loss is evaluated only once
        return compiled(compute, *self.sums.chunk_spec) if self.variables else compute

    def loss_gradient(
        self, tape: tf.GradientTape, sources: list[tf.Tensor], upstream: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        """
        Gradients of the loss by the variables.

        :param sources: What the objective depends on; the last one is the log prior.
        :param upstream: Derivatives of the terms by the others.
        """
        upstream = [*upstream, tf.ones_like(sources[-1])]
        gradients = tape.gradient(
            sources,
            self.variables,
            output_gradients=[
                tf.cast(-by, x.dtype) for by, x in zip(upstream, sources, strict=True)
            ],
            unconnected_gradients="zero",
        )
        return [tf.convert_to_tensor(g) for g in gradients]  # some kernels gather

    # Computations without a graph -----------------------------------------------------------------

    def solve_parts(
        self, Kmm: AnyNDArray, present: AnyNDArray, *parts: AnyNDArray
    ) -> tuple[AnyNDArray, ...]:
        """
        The best b and sigma2 [T, 2], the terms there, and their derivatives by K_mm, by b and
        sigma2, and by the parts of the rows.

        :param parts: See :class:`.ChunkParts`.
        """
        rows = ChunkParts(*parts)
        W = self.whitening(Kmm).numpy()
        F = np.asarray(rows.Kmn).T @ W
        statistics = statistics_of_parts(F, rows)
        decomposition = self.decomposition(statistics, rows)
        best, by_statistics = self.solve_statistics(decomposition, present)
        weights = RowWeights(*map(np.asarray, row_weights(W, by_statistics)))
        by_Kmm = variance_gradient(W, statistics, by_statistics).numpy()
        by_parts = parts_gradient(weights, F, rows)
        return best.parameters, best.values, by_Kmm, best.gradients, *by_parts

    def whitening(self, Kmm: TensorType) -> tf.Tensor:
        """W of the features; the identity where they are linear, as K_mm is."""
        is_linear = isinstance(self.features, LinearFeatures)
        return tf.convert_to_tensor(Kmm) if is_linear else inverse_root(Kmm)

    def solve_statistics(
        self, known: Decomposition, present: AnyNDArray
    ) -> tuple[InnerSolution, Statistics]:
        """The best b and sigma2, and the gradient of all terms by the statistics."""
        learning = self.model.learning
        self.num_decompositions += 1
        problems = task_problems(known.spectrum.numpy(), learning)
        best = self.solve_inner(problems, np.asarray(self.model.scales, np.float64), present)
        b, sigma2 = best.parameters.T
        d = 1.0 / (np.outer(known.spectrum.lam, b) + sigma2)

        def part(V: TensorType, tasks: TensorType, weights: TensorType) -> Statistics:
            return statistics_gradient(known, V, tasks, d, b, sigma2, weights)

        by_statistics = sum_over_contrasts(
            part, known.spectrum, sigma2, best.W, d, learning, np.ones_like(b)
        )
        return best, Statistics(*by_statistics)

    def decomposition(self, statistics: Statistics, parts: ChunkParts | None) -> Decomposition:
        """
        From the rows themselves where the features are linear, since nothing cancels there.

        :param parts: All rows, where they are known.
        """
        if not isinstance(self.features, LinearFeatures):
            return decompose(statistics)
        parts = parts or chunk_parts(self.features, self.model.mean_function, *self.rows.arrays())
        return decompose_rows(tf.transpose(parts.Kmn), parts.R)
