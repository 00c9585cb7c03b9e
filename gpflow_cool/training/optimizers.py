"""Optimisers of a model's loss: one function each, and how a user's choice becomes one."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gpflow
import tensorflow as tf
from gpflow.keras import tf_keras

from .. import checks
from ..graphs import compiled
from .lbfgs import Evaluate, lbfgs
from .losses import loss_of
from .model import ExpectationMaximisation, TrainableModel
from .run import Outcome, Run
from .vector import ParameterVector

OPTIMIZERS = ("profile", "scipy", "adam", "em")
ADAM_RATE = 0.05
EM_TOLERANCE = 1e-4
FIRST_STEP = {"profile": 0.5, "scipy": 1.0}
"""Length of L-BFGS's first step. In logarithms it is a half: good lengthscales are rarely far."""


class Optimizer(NamedTuple):
    """An optimiser and the loss that it minimises."""

    name: str
    evaluate: Evaluate
    minimise: Callable[[Run, int, Evaluate], Outcome]
    value: Callable[[], float] | None = None
    """The loss alone, by which starts compare; None where the kernel is not trained."""
    keras_optimizer: Any = None
    prepare: Callable[[], None] | None = None
    """What to do before training."""


def resolve_optimizer(model: TrainableModel, optimizer: Any) -> Optimizer:
    """How to evaluate and how to minimise, from what the user passed as `optimizer`."""
    if isinstance(optimizer, str):
        checks.option(optimizer, "optimizer", OPTIMIZERS)
        if optimizer in ("profile", "scipy"):
            loss = loss_of(model, profile=optimizer == "profile")
            vector = ParameterVector(loss.parameters, logarithms=True)
            solves = len(loss.parameters) < len(model.trainable_parameters)
            name = "profile" if solves else "scipy"
            minimise = partial(lbfgs, vector, FIRST_STEP[name])
            return Optimizer(name, loss.evaluate, minimise, loss.value)
        if optimizer == "em":
            em = model.expectation_maximisation()
            return Optimizer("em", em.evaluate, partial(minimise_em, em))
        optimizer = tf_keras.optimizers.Adam(ADAM_RATE)
    known = (
        f"Pass one of {', '.join(map(repr, OPTIMIZERS))}, a gpflow.optimizers.Scipy, or a Keras"
        " optimizer object."
    )
    if isinstance(optimizer, gpflow.optimizers.NaturalGradient):
        raise ValueError(
            "NaturalGradient is for variational distributions (q_mu, q_sqrt), which this model does"
            f" not have. {known}"
        )
    loss = loss_of(model, profile=False)
    if isinstance(optimizer, gpflow.optimizers.Scipy):
        minimise = partial(minimise_gpflow, optimizer)
        return Optimizer("scipy", loss.evaluate, minimise, loss.value)
    if hasattr(optimizer, "apply_gradients") and not isinstance(optimizer, type):
        name = type(optimizer).__name__.lower()
        keras_steps = KerasSteps(optimizer, model.trainable_variables)
        minimise = partial(minimise_keras, keras_steps)
        return Optimizer(name, loss.evaluate, minimise, loss.value, optimizer)
    raise ValueError(f"optimizer={optimizer!r} is not known. {known}")


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
        """Set momentum and learning rate to what they were before the last round."""
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
    flat = run.last_logs["gradient_norm"] <= 1e-3 * max(1.0, abs(run.last_logs["loss"]))
    slope = "is small" if flat else "is not small yet"
    return Outcome(flat, f"the gradient {slope} after all {steps} steps")
