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
from gpflow.base import AnyNDArray, PriorOn

from ..chain.optimum import Profile, SpectrumProfile, profiled_chain
from ..chain.terms import conditional_log_likelihoods
from ..gaussian import LOG_2PI
from ..graphs import compiled
from ..systems.eigen import exact_spectrum, from_eigenbasis_both, targets_gradient
from ..systems.features import InducingFeatures
from ..systems.products import decompose
from ..systems.statistics import FeatureSystem, Statistics
from ..systems.streaming import RowSums, row_weights, variance_gradient
from .model import Evaluation, Loss, TrainableChain, TrainableModel
from .vector import assign, has_logarithm

SMALL_GAIN = 1e-6
"""Nats per target: lambda is solved for until another step would gain less. Fits of 40 x 2 to 200 x
400 targets ended within .001 nats of those with 1e-4 nats in all, after a fifth fewer steps."""

EAGER = 12
"""Evaluations of the kernel before it is traced, which takes as long as eight to twenty of them do
with three kernels and 40 rows."""

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
    The loss of a kernel matrix with b, sigma2 and, if its prior is log-normal, lambda solved for.

    Some ten evaluations are a fit, and tracing takes longer than these where rows are few. So the
    chain with its gradient is a graph that all models share, and the kernel is a graph only where
    there are many evaluations.
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
        self.with_prior = [p for p in self.parameters if p.prior is not None]
        self.last: float | None = None
        self.bend = -1.0
        self.num_evaluations = 0
        self.kept: Decomposition | None = None

    def value(self) -> float:
        """The loss alone; what is factorised for the lowest one is kept for :meth:`evaluate`."""
        inputs = self._inputs()
        found = self._decompose(inputs.K)
        profile = SpectrumProfile(
            exact_spectrum(found.lam, found.U, inputs.Y), self.chain.floor, self.model.learning
        )
        loss = self._solve(profile, inputs)[1]
        if self.kept is None or loss < self.kept.loss:
            self.kept = found._replace(loss=loss)
        return loss

    def evaluate(self) -> Evaluation:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.variables)
            inputs = self._inputs()
        _, _, lam, U = self._decompose(inputs.K)
        self.kept = None
        spectrum = exact_spectrum(lam, U, inputs.Y)
        profile = SpectrumProfile(spectrum, self.chain.floor, self.model.learning)
        found, loss = self._solve(profile, inputs)
        inside, by_Yr = profile.gradient(found)
        by_inputs = [
            -from_eigenbasis_both(U, inside, inputs.K.dtype),
            -targets_gradient(by_Yr, U, inputs.Y),
            -tf.cast(found.weight_variance, inputs.K.dtype),
            -tf.ones_like(inputs.log_prior),
        ]
        gradients = tape.gradient(
            list(inputs), self.variables, output_gradients=by_inputs, unconnected_gradients="zero"
        )
        gradients = [tf.convert_to_tensor(g).numpy() for g in gradients]
        return Evaluation(loss, gradients, found.chain.terms.numpy())

    def _decompose(self, K: tf.Tensor) -> "Decomposition":
        """The eigenvectors of the kernel matrix; those that are kept, if it is the same."""
        at = [variable.numpy() for variable in self.variables]
        if self.kept is not None and all(map(np.array_equal, at, self.kept.variables)):
            return self.kept
        return Decomposition(np.inf, at, *decompose(K))

    def _solve(self, profile: SpectrumProfile, inputs: "LossInputs") -> tuple[Profile, float]:
        """
        The chain at the best b, sigma2 and lambda, which it sets, and the loss.

        lambda by Newton's method, with the second derivative from the last two slopes.
        """
        u = self.last if self.last is not None else np.log(float(inputs.weight_variance))
        found, slope = self._slope(profile, u)
        small = SMALL_GAIN * float(tf.size(inputs.Y))
        for _ in range(MOST_STEPS if self.prior else 0):
            if 0.5 * slope**2 / -self.bend < small:
                break
            step = float(np.clip(-slope / self.bend, -LONGEST_STEP, LONGEST_STEP))
            found, after = self._slope(profile, u + step)
            if (after - slope) / step < 0.0:
                self.bend = (after - slope) / step
            u, slope = u + step, after
        self.chain.assign(tf.stack([found.chain.b, found.chain.sigma2]))
        loss = -(float(tf.reduce_sum(found.chain.terms)) + float(inputs.log_prior))
        if self.prior:
            self.last = u
            self.weight_variance.unconstrained_variable.assign(u)  # its logarithm
            loss += self.prior.loss(u)
        return found, loss

    def _slope(self, profile: SpectrumProfile, u: float) -> tuple[Profile, float]:
        """The chain at a log lambda, and the derivative of its log posterior by that."""
        found = profile(np.exp(u))
        prior = self.prior.slope(u) if self.prior else 0.0
        slope = float(found.weight_variance) * np.exp(u) - prior
        if not np.isfinite(slope):  # lambda would stay so
            raise FloatingPointError(f"the slope of the loss by lambda became {slope}")
        return found, slope

    def _inputs(self) -> "LossInputs":
        """What the loss depends on."""
        self.num_evaluations += 1
        compute = self._compute_inputs
        return LossInputs(*(compute() if self.num_evaluations <= EAGER else self._graph()))

    def _compute_inputs(self) -> list[tf.Tensor]:
        parts = (
            self.model.kernel_matrix(),
            self.model.centred_completions(),
            self.weight_variance,
            tf.add_n(
                [tf.zeros([], tf.float64)]
                + [tf.cast(p.log_prior_density(), tf.float64) for p in self.with_prior]
            ),
        )
        return [tf.convert_to_tensor(part) for part in parts]

    @cached_property
    def _graph(self) -> Callable[..., Any]:
        return compiled_if_possible(self._compute_inputs)


class LossInputs(NamedTuple):
    """What a profiled loss depends on."""

    K: tf.Tensor
    Y: tf.Tensor
    weight_variance: tf.Tensor
    log_prior: tf.Tensor


class Decomposition(NamedTuple):
    """The eigenvectors of a kernel matrix, and for which parameters and loss they were needed."""

    loss: float
    variables: list[AnyNDArray]
    lam: tf.Tensor
    U: tf.Tensor


class LogNormal(NamedTuple):
    """A prior of lambda, as a loss of u = log lambda; the density is that of lambda."""

    loc: float
    scale: float

    def loss(self, u: float) -> float:
        r""":math:`(u - m)^2 / 2 s^2 + u + \log(s \sqrt{2 \pi})`."""
        constant = np.log(self.scale) + 0.5 * LOG_2PI
        return 0.5 * (u - self.loc) ** 2 / self.scale**2 + u + constant

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
        assert isinstance(model.features, InducingFeatures)
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
