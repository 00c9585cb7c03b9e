r"""
A model's loss, its gradients and its terms, as one graph, or in two passes over chunks of rows.

Where the chain's prior of the weights is "scaled", the best b and sigma2 of every task cost next to
nothing (:mod:`gpflow_cool.chain.optimum`), and the loss is a function of the kernel, the mean
function and lambda alone. L-BFGS then needs about ten factorisations.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow import Parameter
from gpflow.base import PriorOn

from ..chain.optimum import ProfileGradient, profile_gradient, profiled_chain
from ..chain.terms import conditional_log_likelihoods
from ..graphs import compiled
from ..systems.eigen import exact_spectrum, from_eigenbasis_both, targets_gradient
from ..systems.products import decompose
from ..systems.spectrum import Spectrum
from ..systems.statistics import FeatureSystem, Statistics
from ..systems.streaming import RowSums, row_weights, variance_gradient
from .model import Evaluation, Loss, TrainableChain, TrainableModel
from .vector import assign, has_logarithm

SMALL_GAIN = 1e-4
"""lambda is solved for until another step would gain less than this many nats."""

LONGEST_STEP, MOST_STEPS = 2.0, 12
"""Of log lambda; after this many the last slope has to do."""


def is_free(parameter: Parameter) -> bool:
    """Whether a parameter is trained for the likelihood alone."""
    return parameter.trainable and parameter.prior is None


def can_profile(model: TrainableModel) -> bool:
    """Whether b and sigma2 are trained for the likelihood alone, and have a best value to find."""
    is_chain = isinstance(model, TrainableChain) and model.weight_prior == "scaled"
    return is_chain and is_free(model.b) and is_free(model.sigma2)


def loss_of(model: TrainableModel, *, profile: bool) -> Loss:
    """
    The loss that an optimiser minimises.

    :param profile: Whether b and sigma2 are solved for, where that is possible.
    """
    profile = profile and can_profile(model)
    if model.reads_chunks:
        return LossInChunks(model, profile=profile)
    if profile and model.features is None and not model.is_on_grid:
        return ProfiledLoss(model)
    return LossInMemory(model, profile=profile)


class ChainTerms:
    """
    The terms of a chain as a function of its system and its variables; b and sigma2 are solved for,
    or taken as they are.
    """

    def __init__(self, model: TrainableModel, *, profile: bool) -> None:
        self.model, self.profile = model, profile
        solved = [model.b, model.sigma2] if profile else []
        self.parameters = [
            p for p in model.trainable_parameters if all(p is not other for other in solved)
        ]
        self.variables = [p.unconstrained_variable for p in self.parameters]
        self.floor = np.asarray(model.noise_floor, np.float64) if profile else None

    def __call__(self, system: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Terms [T], and the b and sigma2 that belong to them, [2, T]."""
        model = self.model
        if self.profile:
            variance = tf.cast(model.weight_variance, tf.float64)
            found = profiled_chain(system, variance, self.floor, model.learning)
            return found.terms, tf.stack([found.b, found.sigma2])
        terms = conditional_log_likelihoods(system, model.chain, model.learning)
        return terms, tf.stack([model.chain.b, model.chain.sigma2])

    def assign(self, solution: tf.Tensor) -> None:
        """Set b and sigma2 of the model, if they are solved for."""
        if self.profile:
            dtype = self.model.b.dtype.as_numpy_dtype
            for parameter, value in zip(
                (self.model.b, self.model.sigma2), solution.numpy().astype(dtype), strict=True
            ):
                assign(parameter, value)


class ProfiledLoss(Loss):
    """
    The loss of a kernel matrix with b, sigma2 and, if it has its own prior, lambda solved for.

    Some ten evaluations are a fit, and tracing takes longer than these where rows are few. So the
    chain with its gradient is a graph that all models share, and only the kernel is traced.
    """

    def __init__(self, model: TrainableChain) -> None:
        self.model, self.chain = model, ChainTerms(model, profile=True)
        assert model.weight_variance is not None
        self.weight_variance = model.weight_variance
        self.prior = log_normal_prior(self.weight_variance)
        self.parameters = [
            p for p in self.chain.parameters if p is not self.weight_variance or not self.prior
        ]
        self.variables = [p.unconstrained_variable for p in self.parameters]
        self.bend = -1.0

    def evaluate(self) -> Evaluation:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.variables)
            K, Y, weight_variance, prior = inputs = self._inputs()
        lam, U = decompose(K)
        spectrum = exact_spectrum(lam, U, Y)
        before = np.log(float(weight_variance))
        found, after = self.best_gradient(spectrum, before)
        self.chain.assign(tf.stack([found.chain.b, found.chain.sigma2]))
        by_inputs = [
            -from_eigenbasis_both(U, found.inside, K.dtype),
            -targets_gradient(found.Yr, U, Y),
            -tf.cast(found.weight_variance, K.dtype),
            -tf.ones_like(prior),
        ]
        gradients = tape.gradient(
            inputs, self.variables, output_gradients=by_inputs, unconnected_gradients="zero"
        )
        terms = found.chain.terms.numpy()
        loss = -(float(np.sum(terms)) + float(prior))
        if self.prior:
            loss += self.prior.loss(after) - self.prior.loss(before)
        return Evaluation(loss, [tf.convert_to_tensor(g).numpy() for g in gradients], terms)

    def best_gradient(self, spectrum: Spectrum, u: float) -> tuple[ProfileGradient, float]:
        """
        The chain, its gradient, and log lambda; the best one, which it sets, if that is solved for.

        Newton's method, with the second derivative from the last two slopes.

        :param u: The present log lambda.
        """
        found, slope = self.slope(spectrum, u)
        for _ in range(MOST_STEPS if self.prior else 0):
            if 0.5 * slope**2 / -self.bend < SMALL_GAIN:
                break
            step = float(np.clip(-slope / self.bend, -LONGEST_STEP, LONGEST_STEP))
            found, after = self.slope(spectrum, u + step)
            if (after - slope) / step < 0.0:
                self.bend = (after - slope) / step
            u, slope = u + step, after
        if self.prior:
            self.weight_variance.unconstrained_variable.assign(u)  # its logarithm
        return found, u

    def slope(self, spectrum: Spectrum, u: float) -> tuple[ProfileGradient, float]:
        """The chain at a log lambda, and the derivative of its log posterior by that."""
        found = profile_gradient(spectrum, np.exp(u), self.chain.floor, self.model.learning)
        prior = self.prior.slope(u) if self.prior else 0.0
        return found, float(found.weight_variance) * np.exp(u) - prior

    @cached_property
    def _inputs(self) -> Callable[..., Any]:
        """What the loss depends on: kernel matrix, targets, lambda, log prior."""
        model = self.model

        def inputs() -> list[tf.Tensor]:
            parts = (
                model.kernel_matrix(),
                model.centred_completions(),
                model.weight_variance,
                model.log_prior_density(),
            )
            return [tf.convert_to_tensor(part) for part in parts]

        return compiled_if_possible(inputs)


class LogNormal(NamedTuple):
    """A prior of lambda, as a loss of u = log lambda; the density is that of lambda."""

    loc: float
    scale: float

    def loss(self, u: float) -> float:
        r""":math:`(u - m)^2 / 2 s^2 + u`, up to a constant."""
        return 0.5 * (u - self.loc) ** 2 / self.scale**2 + u

    def slope(self, u: float) -> float:
        """Derivative of the loss by u."""
        return (u - self.loc) / self.scale**2 + 1.0


def log_normal_prior(parameter: Parameter) -> LogNormal | None:
    """The prior of a trained parameter whose variable is its logarithm, if it is log-normal."""
    prior: Any = parameter.prior
    if not parameter.trainable or type(prior) is not tfp.distributions.LogNormal:
        return None
    if parameter.prior_on is not PriorOn.CONSTRAINED or not has_logarithm(parameter):
        return None
    return LogNormal(float(prior.loc), float(prior.scale))


class LossInMemory(Loss):
    """The loss of a model whose data is in memory, as one graph."""

    def __init__(self, model: TrainableModel, *, profile: bool) -> None:
        self.model = model
        self.chain = ChainTerms(model, profile=True) if profile else None
        self.parameters = list(model.trainable_parameters)
        if self.chain is not None:
            self.parameters = self.chain.parameters
        self.variables = [p.unconstrained_variable for p in self.parameters]

    def evaluate(self) -> Evaluation:
        loss, gradients, terms, solution = self._graph()
        if self.chain is not None:
            self.chain.assign(solution)
        return Evaluation(float(loss), [g.numpy() for g in gradients], terms.numpy())

    @cached_property
    def _graph(self) -> Callable[..., Any]:
        return compiled_if_possible(self._compute)

    def _compute(self) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor, tf.Tensor]:
        model = self.model
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.variables)
            if self.chain is None:
                terms = tf.cast(model.objective_terms(), tf.float64)
                solution = tf.zeros([2, 0], tf.float64)
            else:
                terms, solution = self.chain(model.system(python_callback=True))
            loss = -(tf.reduce_sum(terms) + tf.cast(model.log_prior_density(), tf.float64))
        gradients = tape.gradient(loss, self.variables, unconnected_gradients="zero")
        gradients = [tf.convert_to_tensor(g) for g in gradients]  # some kernels gather
        return loss, gradients, terms, solution


class LossInChunks(Loss):
    """
    The loss of a model with inducing points, in two passes over chunks of the rows.

    The first pass sums statistics of the features, and the second the gradient that flows through
    the rows; between them is T x T and M x M algebra.
    """

    def __init__(self, model: TrainableChain, *, profile: bool) -> None:
        self.model, self.chain = model, ChainTerms(model, profile=profile)
        self.parameters, self.variables = self.chain.parameters, self.chain.variables
        assert model.features is not None
        self.features = model.features
        self.sums = RowSums(
            model.features, model.mean_function, model.rows, model.strategy, self.variables
        )

    def evaluate(self) -> Evaluation:
        W = self.features.whitening()
        statistics = self.sums.training_statistics(W)
        loss, terms, solution, by_statistics, others = self._middle(*statistics)
        self.chain.assign(solution)
        by_statistics = Statistics(*by_statistics)
        through_rows = self.sums.gradient(row_weights(W, by_statistics))
        by_Kmm = variance_gradient(W, statistics, by_statistics)
        through_points = self._through_points(by_Kmm)
        parts = zip(others, through_rows, through_points, strict=True)
        gradients = [(a + b + c).numpy() for a, b, c in parts]
        return Evaluation(float(loss), gradients, terms.numpy())

    @cached_property
    def _middle(self) -> Callable[..., Any]:
        """Loss, terms, b and sigma2, and the gradients by the statistics and the variables."""
        R, T = self.features.num_features, len(self.model.task_names)

        def compute(*parts: tf.Tensor) -> tuple[Any, ...]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*parts, *self.variables])
                system = FeatureSystem(Statistics(*parts), python_callback=True)
                terms, solution = self.chain(system)
                prior = tf.cast(self.model.log_prior_density(), tf.float64)
                loss = -(tf.reduce_sum(terms) + prior)
            sources = [list(parts), self.variables]
            by_parts, by_variables = tape.gradient(loss, sources, unconnected_gradients="zero")
            return loss, terms, solution, by_parts, by_variables

        shapes: list[list[int]] = [[R, R], [R, T], [T, T], [], []]
        return compiled(compute, *(tf.TensorSpec(shape, tf.float64) for shape in shapes))

    @cached_property
    def _through_points(self) -> Callable[..., Any]:
        """The gradient that flows through the covariance of the inducing variables."""

        def gradient(by_Kmm: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self.variables)
                Kmm = tf.convert_to_tensor(self.features.variance())
            gradients = tape.gradient(
                Kmm,
                self.variables,
                output_gradients=tf.cast(by_Kmm, Kmm.dtype),
                unconnected_gradients="zero",
            )
            return [tf.convert_to_tensor(g) for g in gradients]

        size = self.features.num_features
        return compiled(gradient, tf.TensorSpec([size, size], tf.float64))


def compiled_if_possible(
    computation: Callable[..., Any], *signature: tf.TensorSpec
) -> Callable[..., Any]:
    """A computation as a graph; as it is, if its kernel cannot be compiled."""
    try:
        return compiled(computation, *signature)
    except (tf.errors.OperatorNotAllowedInGraphError, NotImplementedError):
        return computation
