"""Optimisers of a model's loss: one function each, and how a user's choice becomes one."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.keras import tf_keras

from .. import checks
from ..graphs import compiled
from .model import Evaluation, ExpectationMaximisation, TrainableModel
from .run import Outcome, Run, state_variables
from .vector import ParameterVector

OPTIMIZERS = ("profile", "scipy", "adam", "em")
ADAM_RATE = 0.05
LBFGS_OPTIONS = {"ftol": 1e-10, "maxcor": 20}
GRADIENT_TOLERANCE = 1e-3
EM_TOLERANCE = 1e-4
FAILURES = (tf.errors.InvalidArgumentError, np.linalg.LinAlgError, FloatingPointError)
"""What a factorisation raises when it fails."""

FIRST_STEP = {"profile": 0.5, "scipy": 1.0}
"""Length of L-BFGS's first step. In logarithms it is a half: good lengthscales are rarely far."""

PENALTY_FACTOR = 3.0
"""A point without a finite loss gets the loss of the last step plus this many times the change that
the gradient predicted."""

LONGEST_MOVE = 5.0
"""A search moves no logarithm by more than this, a factor of 150: beyond a valley of the loss there
may be a plain where nothing leads back."""

CACHED_EVALUATIONS = 3
"""How many evaluations are kept: as many as there are starting points to choose from."""

Evaluate = Callable[[], Evaluation]
"""A function that evaluates the loss at the model's present parameters."""


class Optimizer(NamedTuple):
    """An optimiser and the loss that it minimises."""

    name: str
    evaluate: Evaluate
    minimise: Callable[[Run, int, Evaluate], Outcome]
    keras_optimizer: Any = None
    trains_kernel: bool = True
    prepare: Callable[[], None] | None = None
    """What to do before each attempt."""


def resolve_optimizer(model: TrainableModel, optimizer: Any) -> Optimizer:
    """How to evaluate and how to minimise, from what the user passed as `optimizer`."""
    if isinstance(optimizer, str):
        checks.option(optimizer, "optimizer", OPTIMIZERS)
        profile = model.profile() if optimizer == "profile" else None
        if profile is not None:
            vector = ParameterVector(profile.parameters, logarithms=True)
            minimise = partial(lbfgs, vector, FIRST_STEP["profile"])
            return Optimizer("profile", cached(model, profile.evaluate), minimise)
        if optimizer == "em":
            em = model.expectation_maximisation()
            return Optimizer("em", em.evaluate, partial(minimise_em, em), trains_kernel=False)
        if optimizer != "adam":  # "scipy", or nothing to solve for
            vector = ParameterVector(model.trainable_parameters, logarithms=True)
            minimise = partial(lbfgs, vector, FIRST_STEP["scipy"])
            return Optimizer("scipy", cached(model, loss_function(model)), minimise)
        optimizer = tf_keras.optimizers.Adam(ADAM_RATE)
    evaluate = cached(model, loss_function(model))
    if isinstance(optimizer, gpflow.optimizers.Scipy):
        return Optimizer("scipy", evaluate, partial(minimise_gpflow, optimizer))
    if hasattr(optimizer, "apply_gradients") and not isinstance(optimizer, type):
        name = type(optimizer).__name__.lower()
        keras_steps = KerasSteps(optimizer, model.trainable_variables)
        return Optimizer(name, evaluate, partial(minimise_keras, keras_steps), optimizer)
    raise ValueError(
        f"optimizer={optimizer!r} is not known. Pass one of {', '.join(map(repr, OPTIMIZERS))}, a"
        " gpflow.optimizers.Scipy, or a Keras optimizer object."
    )


def loss_function(model: TrainableModel) -> Evaluate:
    """Loss, gradients and terms: over chunks of data if there are any, else in one graph."""
    streamed = model.streamed_loss()
    return compiled_loss(model) if streamed is None else streamed.evaluate


def compiled_loss(model: TrainableModel) -> Evaluate:
    """Loss, gradients with respect to all trainable variables, and terms, in one graph."""
    variables = model.trainable_variables

    def compute() -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            terms = model.objective_terms()
            loss = -(tf.reduce_sum(terms) + model.log_prior_density())
        return loss, tape.gradient(loss, variables, unconnected_gradients="zero"), terms

    graph: list[Callable[..., Any]] = []

    def evaluate() -> Evaluation:
        if not graph:
            graph.append(compiled(compute))
        loss, gradients, terms = graph[0]()
        return Evaluation(float(loss), [g.numpy() for g in gradients], terms.numpy())

    return evaluate


def cached(model: TrainableModel, evaluate: Evaluate) -> Evaluate:
    """The same function, which returns one of its last results where no parameter has changed."""
    variables = state_variables(model)
    results: deque[tuple[AnyNDArray, Evaluation]] = deque(maxlen=CACHED_EVALUATIONS)

    def evaluate_if_new() -> Evaluation:
        state = flattened(variables)
        for before, evaluation in results:
            if unchanged(state, before):
                return evaluation
        evaluation = evaluate()
        results.appendleft((flattened(variables), evaluation))  # it may solve for some of them
        return evaluation

    return evaluate_if_new


def unchanged(now: AnyNDArray, before: AnyNDArray) -> bool:
    return now.shape == before.shape and np.allclose(now, before, rtol=1e-13, atol=0.0)


def flattened(variables: Sequence[tf.Variable]) -> AnyNDArray:
    """All variables in one vector."""
    parts = [np.ravel(variable.numpy()) for variable in variables]
    return np.concatenate([np.zeros(0), *parts])


class RoundingReached(Exception):
    """A line search looks for a gain that is smaller than the rounding error of the loss."""


class Point(NamedTuple):
    """A point that a line search has evaluated."""

    x: AnyNDArray
    evaluation: Evaluation
    gradient: AnyNDArray


class LineSearch:
    """
    The loss for a line search, defined also at points where the model has none.

    A step may go so far that K has no factorisation or the loss overflows. Such a point gets a loss
    well above that of the last step, and a gradient of zero: the search then tries a shorter step.

    :param unit: The search's vector times this is the parameter vector: the search's first step has
        length one.
    """

    def __init__(self, vector: ParameterVector, unit: float, run: Run, evaluate: Evaluate) -> None:
        self.vector = vector
        self.unit = unit
        self.run = run
        self.evaluate = evaluate
        self.last: Point | None = None
        self.start: Point | None = None
        self.num_shortened = 0
        self.num_tried = 0

    def __call__(self, x: AnyNDArray) -> tuple[float, AnyNDArray]:
        if self.is_too_far(x):
            return self.penalty(x)
        self.stop_at_rounding(x)
        self.num_tried += 1
        try:
            self.vector.assign(self.unit * x)
            evaluation = self.evaluate()
            gradient = self.unit * self.vector.gradient(evaluation.gradients)
            if not (np.isfinite(evaluation.loss) and np.all(np.isfinite(gradient))):
                raise FloatingPointError(f"the loss became {evaluation.loss}")
        except FAILURES:
            if self.start is None:
                raise
            self.num_shortened += 1
            return self.penalty(x)
        self.run.keep_if_best(evaluation.loss)
        self.last = Point(np.copy(x), evaluation, gradient)
        if self.start is None:
            self.start, self.num_tried = self.last, 0
        return evaluation.loss, gradient

    def is_too_far(self, x: AnyNDArray) -> bool:
        """Whether a logarithm moves by more than `LONGEST_MOVE` from the start of the search."""
        if self.start is None:
            return False
        moves = self.unit * np.abs(x - self.start.x)[self.vector.is_logarithm]
        return bool(np.any(moves > LONGEST_MOVE))

    def stop_at_rounding(self, x: AnyNDArray) -> None:
        """End a search whose longer steps failed and that now looks for less than rounding."""
        if self.start is not None and self.num_tried:
            if abs(self.predicted_change(x)) < self.start.evaluation.rounding:
                raise RoundingReached

    def predicted_change(self, x: AnyNDArray) -> float:
        """How much the loss would change from the start of the search to x, if it were linear."""
        assert self.start is not None
        return float(self.start.gradient @ (x - self.start.x))

    def penalty(self, x: AnyNDArray) -> tuple[float, AnyNDArray]:
        """Loss and gradient for a point where the model has none, or that is too far away."""
        assert self.start is not None
        rise = PENALTY_FACTOR * abs(self.predicted_change(x))
        return self.start.evaluation.loss + rise, np.zeros_like(x)

    def accept(self, _: AnyNDArray) -> None:
        """Record a step: the search has ended at the last point, and the next one starts there."""
        assert self.last is not None
        self.start, self.num_tried = self.last, 0
        self.run.record_step(self.last.evaluation)


def lbfgs(
    vector: ParameterVector, unit: float, run: Run, steps: int, evaluate: Evaluate
) -> Outcome:
    """SciPy's L-BFGS-B: each iteration is a step, and each evaluation may be the best."""
    if vector.size == 0:
        run.record_step(evaluate())
        return Outcome(True, "solved: no parameter is left to iterate over")
    num_steps = len(run.history.epoch)
    search = LineSearch(vector, unit, run, evaluate)
    limits = {"gtol": unit * GRADIENT_TOLERANCE, "maxiter": steps, "maxfun": 20 * steps}
    try:
        result = scipy.optimize.minimize(
            search,
            vector.numpy() / unit,
            jac=True,
            method="L-BFGS-B",
            callback=search.accept,
            options={**LBFGS_OPTIONS, **limits},
        )
        converged, message = bool(result.success), str(result.message)
    except RoundingReached:
        converged, message = True, "converged: what is left to gain is lost in rounding"
    if len(run.history.epoch) == num_steps:  # no step was better than the start
        run.restore_best()
        run.record_step(evaluate())
    if search.num_shortened:
        message += f"; {search.num_shortened} times a step was shortened: no finite loss there"
    return Outcome(converged, message)


def minimise_em(em: ExpectationMaximisation, run: Run, steps: int, evaluate: Evaluate) -> Outcome:
    """Expectation maximisation until a step gains less than `EM_TOLERANCE` nats."""
    em.prepare()
    previous = evaluate().loss
    for _ in range(steps):
        em.step()
        evaluation = evaluate()
        run.record_step(evaluation)
        if previous - evaluation.loss < EM_TOLERANCE:
            return Outcome(True, f"a step gained less than {EM_TOLERANCE} nats")
        previous = evaluation.loss
    return Outcome(False, f"took all {steps} steps")


def minimise_gpflow(
    optimizer: gpflow.optimizers.Scipy, run: Run, steps: int, evaluate: Evaluate
) -> Outcome:
    """GPflow's own optimiser object; recording a step costs one more evaluation."""
    num_steps = len(run.history.epoch)
    result = optimizer.minimize(
        run.model._training_loss,  # training_loss warns where targets are missing
        run.variables,
        step_callback=lambda *_: run.record_step(evaluate()),
        options={"maxiter": steps},
    )
    if len(run.history.epoch) == num_steps:  # no step was better than the start
        run.record_step(evaluate())
    return Outcome(bool(result.success), str(result.message))


class KerasSteps:
    """Steps of a Keras optimizer, compiled: otherwise they take longer than the gradient."""

    def __init__(self, optimizer: Any, variables: Sequence[tf.Variable]) -> None:
        if variables and hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
            optimizer.build(variables)
        state = optimizer.variables
        state = list(state() if callable(state) else state)  # a method in older versions
        rate = getattr(optimizer, "learning_rate", None)
        self.state = [*state, rate] if isinstance(rate, tf.Variable) else state
        self.start = [variable.numpy() for variable in self.state]
        self.optimizer, self.variables = optimizer, variables
        self._graph: Callable[..., Any] | None = None

    def apply(self, gradients: list[tf.Tensor]) -> None:
        """Take a step."""
        if self._graph is None:
            self._graph = compiled(self._apply, gradients)
        self._graph(gradients)

    def _apply(self, gradients: list[tf.Tensor]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))

    def reset(self) -> None:
        """Set momentum and learning rate to what they were before the last attempt."""
        for variable, value in zip(self.state, self.start, strict=True):
            variable.assign(value)


def minimise_keras(optimizer: KerasSteps, run: Run, steps: int, evaluate: Evaluate) -> Outcome:
    """A Keras optimizer: each step is recorded with the loss of the parameters that it leads to."""
    optimizer.reset()
    evaluation = evaluate()
    run.keep_if_best(evaluation.loss)
    for _ in range(steps):
        optimizer.apply([tf.constant(g) for g in evaluation.gradients])
        evaluation = evaluate()
        run.record_step(evaluation)
        evaluation = evaluate()  # free, unless a callback has changed the parameters
    flat = run.last_logs["gradient_norm"] <= 1e-3 * max(1.0, abs(run.last_logs["loss"]))
    slope = "is small" if flat else "is not small yet"
    return Outcome(flat, f"the gradient {slope} after all {steps} steps")
