"""Optimisers of a model's loss: one function each, and how a user's choice becomes one."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.keras import tf_keras

from .. import checks
from ..graphs import compiled
from .growing import Sample, grown_lbfgs
from .lbfgs import Evaluate, descend, lbfgs
from .model import Evaluation, ExpectationMaximisation, Loss, TrainableModel
from .run import Outcome, Run, restore, state_variables
from .starts import choose_start
from .vector import ParameterVector

OPTIMIZERS = ("profile", "scipy", "adam", "em")
ADAM_RATE = 0.05
EM_TOLERANCE = 1e-4
FIRST_STEP = {"profile": 0.5, "scipy": 1.0}
"""Length of L-BFGS's first step. In logarithms it is a half: good lengthscales are rarely far."""

UNSOLVED_STEPS = 200
"""How many steps L-BFGS takes over all parameters, where it is tried after training."""

CACHED_EVALUATIONS = 5
"""How many evaluations are kept: as many as there are starting points to choose from."""


class Optimizer(NamedTuple):
    """An optimiser and the loss that it minimises."""

    name: str
    evaluate: Evaluate
    minimise: Callable[[Run, int, Evaluate], Outcome]
    keras_optimizer: Any = None
    trains_kernel: bool = True
    prepare: Callable[[], None] | None = None
    """What to do before each attempt."""

    compare: Evaluate | None = None
    """The loss by which a start is chosen, where a cheaper one will do."""

    evaluate_anew: Evaluate | None = None
    """The loss, where solving for b and sigma2 must not start from the last solution."""

    descend: Callable[[Run, int, Evaluate], None] | None = None
    """Steps from other places, which are not recorded."""

    descend_unsolved: Callable[[Run, list[AnyNDArray], list[AnyNDArray]], None] | None = None
    """The same over all parameters, from the state at the start."""


def resolve_optimizer(model: TrainableModel, optimizer: Any) -> Optimizer:
    """How to evaluate and how to minimise, from what the user passed as `optimizer`."""
    if isinstance(optimizer, str):
        checks.option(optimizer, "optimizer", OPTIMIZERS)
        profile = model.profile() if optimizer == "profile" else None
        if profile is not None:
            return profiled_optimizer(model, profile)
        if optimizer == "em":
            em = model.expectation_maximisation()
            return Optimizer("em", em.evaluate, partial(minimise_em, em), trains_kernel=False)
        if optimizer != "adam":  # "scipy", or nothing to solve for
            vector = ParameterVector(model.trainable_parameters, logarithms=True)
            minimise = partial(lbfgs, vector, FIRST_STEP["scipy"])
            return Optimizer("scipy", cached(model, loss_function(model)), minimise)
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
    evaluate = cached(model, loss_function(model))
    if isinstance(optimizer, gpflow.optimizers.Scipy):
        return Optimizer("scipy", evaluate, partial(minimise_gpflow, optimizer))
    if hasattr(optimizer, "apply_gradients") and not isinstance(optimizer, type):
        name = type(optimizer).__name__.lower()
        keras_steps = KerasSteps(optimizer, model.trainable_variables)
        return Optimizer(name, evaluate, partial(minimise_keras, keras_steps), optimizer)
    raise ValueError(f"optimizer={optimizer!r} is not known. {known}")


def profiled_optimizer(model: TrainableModel, profile: Loss) -> Optimizer:
    """L-BFGS over what is not solved for; on samples of the rows first, where they are many."""
    vector = ParameterVector(profile.parameters, logarithms=True)
    searched = vector, FIRST_STEP["profile"]
    samples = [
        Sample(size, cached(model, partial(profile.evaluate_on, rows)))
        for size, rows in profile.samples()
    ]
    evaluate, anew = cached_both(model, profile)
    return Optimizer(
        "profile",
        evaluate,
        minimise=partial(grown_lbfgs, samples, profile.num_rows, *searched)
        if samples
        else partial(lbfgs, *searched),
        compare=samples[0].evaluate if samples else None,
        evaluate_anew=anew,
        descend=partial(descend, *searched) if vector.size else None,
        descend_unsolved=partial(descend_unsolved, model, profile) if vector.size else None,
    )


def descend_unsolved(
    model: TrainableModel,
    profile: Loss,
    run: Run,
    start: list[AnyNDArray],
    centre: list[AnyNDArray],
) -> None:
    """
    L-BFGS over all parameters from a start, as "scipy" does it; steps are not recorded.

    Where b is solved for it may vanish, and no gradient leads to a kernel with which there is a
    signal. From a b that is not the best one, there may be such a gradient. Near the best
    parameters it goes on, as a valley may lead away from there.
    """
    loss = profile.unsolved()
    restore(run.state, start)
    evaluate = cached(model, loss.evaluate)
    choose_start(run, centre, evaluate)
    vector = ParameterVector(loss.parameters, logarithms=True)
    descend(vector, FIRST_STEP["scipy"], run, UNSOLVED_STEPS, evaluate, near=0.0)


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


Results = deque[tuple[AnyNDArray, Evaluation]]
"""The last evaluations and their parameters."""


def cached(
    model: TrainableModel, evaluate: Evaluate, results: Results | None = None, *, anew: bool = False
) -> Evaluate:
    """
    The same function, which returns one of its last results where no parameter has changed.

    :param results: Where they are kept, if another function shares them.
    :param anew: Whether it is always called, and its results are for the other function alone.
    """
    variables = state_variables(model)
    results = deque(maxlen=CACHED_EVALUATIONS) if results is None else results

    def evaluate_if_new() -> Evaluation:
        state = flattened(variables)
        for before, evaluation in () if anew else results:
            if unchanged(state, before):
                return evaluation
        evaluation = evaluate()
        results.appendleft((flattened(variables), evaluation))  # it may solve for some of them
        return evaluation

    return evaluate_if_new


def cached_both(model: TrainableModel, loss: Loss) -> tuple[Evaluate, Evaluate]:
    """A loss from its last solution and anew, where the former knows the results of the latter."""
    results: Results = deque(maxlen=CACHED_EVALUATIONS)
    anew = cached(model, loss.evaluate_anew, results, anew=True)
    return cached(model, loss.evaluate, results), anew


def unchanged(now: AnyNDArray, before: AnyNDArray) -> bool:
    return now.shape == before.shape and np.allclose(now, before, rtol=1e-13, atol=0.0)


def flattened(variables: Sequence[tf.Variable]) -> AnyNDArray:
    """All variables in one vector."""
    parts = [np.ravel(variable.numpy()) for variable in variables]
    return np.concatenate([np.zeros(0), *parts])


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
