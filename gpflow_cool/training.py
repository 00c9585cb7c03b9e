"""
Training: `fit` for every model of the package, in Keras's manner.

It knows a model by GPflow's interface, the terms of its objective, and, for profiled training, by
:class:`gpflow_cool.profile.ProfiledChain`. After a fit the parameters are those of the best loss
seen, whatever happened on the way.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray
from gpflow.keras import tf_keras

from . import checks
from .callbacks import CallbackList, KerasView, ProgressBar, check_callbacks
from .outer import OuterVector
from .profile import Evaluation
from .rounds import (
    DEFAULT_ROUND_STEPS,
    DRAWS,
    ROUND_STEPS,
    ROUNDS,
    TOLERANCE,
    Completer,
    check_rounds,
    snapshot,
    state_variables,
    train_in_rounds,
)
from .starting import half_median_distance

OPTIMIZERS = ("profile", "scipy", "adam", "em")
MAX_STEPS = 1000
DEFAULT_STEPS = {"profile": 200}
ADAM_RATE = 0.05
LBFGS_OPTIONS = {"ftol": 1e-10, "gtol": 1e-3, "maxcor": 20}
EM_TOLERANCE = 1e-4
FAILURES = (tf.errors.InvalidArgumentError, np.linalg.LinAlgError, FloatingPointError)
"""What a factorisation raises that cannot be done."""


Evaluate = Callable[[], Evaluation]
"""Evaluates the loss at the model's present parameters."""


class Profile(Protocol):
    """A loss with some of its parameters solved for."""

    parameters: list[Parameter]

    def evaluate(self) -> Evaluation: ...


class TrainingStopped(Exception):
    """A callback, or the user, asked for an end."""


@dataclass
class History:
    """
    What happened during a fit, in the form of Keras's History.

    `history` has one entry a step under "loss", "gradient_norm", "seconds" (since the start),
    "restart" (0 for the first attempt), and one of "terms/NAME" for each term of the objective.
    Where targets are missing there is also "round", and `rounds` has one entry a round.
    """

    params: dict[str, Any]
    history: dict[str, list[float]] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    """How each attempt ended."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    """For each round: "round", "restart", "loss", "evidence" of the observed targets after it (NaN
    if they are too many), and by how much that (or the objective) changed."""

    converged: bool = False
    message: str = ""

    def append(self, logs: dict[str, float]) -> None:
        self.epoch.append(len(self.epoch))
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)


class Kept(NamedTuple):
    """What the best round led to."""

    score: float
    restart: int
    weights: list[AnyNDArray]


class Run:
    """One fit: counts steps, remembers the best parameters, and tells the callbacks."""

    def __init__(self, model: Any, history: History, callbacks: CallbackList) -> None:
        self.model = model
        self.history = history
        self.callbacks = callbacks
        self.restart = 0
        self.started = time.perf_counter()
        self.interrupted = False
        self.variables = model.trainable_variables  # once: looking them up takes milliseconds
        self.state = state_variables(model)
        self.best_loss = np.inf
        self.best_weights = snapshot(self.state)
        self.round: int | None = None
        self.kept: Kept | None = None
        self.last_logs: dict[str, float] = {}

    def observe(self, loss: float) -> None:
        """Remember the model's present parameters if they are the best so far."""
        if loss < self.best_loss:  # never for NaN
            self.best_loss = loss
            self.best_weights = snapshot(self.state)

    def forget(self) -> None:
        """Start anew with the present parameters: losses of other completions do not compare."""
        self.best_loss = np.inf
        self.best_weights = snapshot(self.state)

    def keep(self, score: float, *, always: bool) -> None:
        """
        Keep a round that scored best; or, with `always`, any but one that another attempt beats.
        """
        here = Kept(score, self.restart, snapshot(self.state))
        kept = self.kept
        if kept is None or score > kept.score or (always and kept.restart == self.restart):
            self.kept = here

    def settle(self) -> None:
        """Make the best round of all attempts the best."""
        if self.kept is not None:
            self.best_loss, self.best_weights = -self.kept.score, self.kept.weights

    def restore_best(self) -> None:
        """Set the parameters to the best seen; without a finite loss, to those at the start."""
        for variable, value in zip(self.state, self.best_weights, strict=True):
            variable.assign(value)

    def step(self, evaluation: Evaluation) -> None:
        """Record a step whose parameters the model has now; stop if anybody asked for it."""
        self.observe(evaluation.loss)
        squares = [float(np.sum(np.square(g))) for g in evaluation.gradients]
        logs = {
            "loss": evaluation.loss,
            "gradient_norm": float(np.sqrt(sum(squares))),
            "seconds": time.perf_counter() - self.started,
            "restart": float(self.restart),
        }
        if self.round is not None:
            logs["round"] = float(self.round)
        names = self.model.objective_term_names
        logs.update({f"terms/{n}": float(v) for n, v in zip(names, evaluation.terms, strict=True)})
        number = len(self.history.epoch)
        self.callbacks.step_begin(number)
        self.last_logs = self.callbacks.step_end(number, logs)
        self.history.append(self.last_logs)
        if self.model.stop_training:
            by = "Ctrl-C" if self.interrupted else "a callback"
            raise TrainingStopped(f"stopped by {by} at step {number}")
        if not np.isfinite(evaluation.loss):
            raise FloatingPointError(f"the loss became {evaluation.loss}")


@dataclass
class Outcome:
    """How one attempt ended."""

    converged: bool
    message: str
    failed: bool = False


def fit(
    model: Any,
    optimizer: Any = "profile",
    *,
    steps: int | None = None,
    callbacks: Sequence[Any] = (),
    restarts: int = 0,
    seed: int | None = None,
    verbose: int = 1,
    tensorboard: str | os.PathLike[str] | None = None,
    rounds: int = ROUNDS,
    draws: int = DRAWS,
    tolerance: float = TOLERANCE,
) -> History:
    """Train a model; see :meth:`gpflow_cool.models.base.JointGPModel.fit`."""
    if steps is not None:
        checks.positive_integer(steps, "steps")
    checks.whole_number(restarts, "restarts")
    checks.seed(seed)
    check_rounds(rounds, draws, tolerance)
    callbacks = check_callbacks(callbacks)
    method = resolve_optimizer(model, optimizer)
    if tensorboard is not None:
        from .monitoring import TensorBoardCallback  # only who asks for it waits for it

        callbacks = [*callbacks, TensorBoardCallback(tensorboard)]
    if verbose:
        callbacks = [*callbacks, ProgressBar()]
    limit = steps or DEFAULT_STEPS.get(method.name, MAX_STEPS)
    if model.observed is not None:
        limit = steps or ROUND_STEPS.get(method.name, DEFAULT_ROUND_STEPS)
        completer = Completer(model, draws, seed)
        method = in_rounds(method, completer, rounds, tolerance)
    params = {"optimizer": method.name, "steps": limit, "epochs": limit * (restarts + 1)}
    params |= {"restarts": restarts, "seed": seed, "verbose": verbose}
    if model.observed is not None:
        epochs = limit * (restarts + 1) * rounds
        params |= {"rounds": rounds, "draws": draws, "tolerance": tolerance, "epochs": epochs}
    history = History(params)
    model.stop_training = False
    view = KerasView(model, method.keras_optimizer)
    run = Run(model, history, CallbackList(callbacks, view, params))
    run.callbacks.train_begin()
    try:
        with stop_at_interrupt(run):
            attempt_all(run, method, limit, restarts, np.random.default_rng(seed))
    finally:
        run.restore_best()
        try:
            run.callbacks.train_end(run.last_logs)
        finally:  # Keras's EarlyStopping restores the best step, which is not all that was seen
            run.restore_best()
    return history


def attempt_all(
    run: Run, method: "Method", steps: int, restarts: int, rng: np.random.Generator
) -> None:
    """Train from the present parameters, then from random ones; the best loss wins."""
    centre = starting_points(run.model)
    best, failures = Outcome(False, ""), 0
    attempts = run.history.attempts
    for run.restart in range(restarts + 1):
        before = run.best_loss
        outcome = attempt(run, method, steps, centre, rng)
        attempts.append(outcome.message)
        failures += outcome.failed
        if run.restart == 0 or run.best_loss < before:
            best = outcome
        if run.model.stop_training:
            break
    if failures == len(attempts):
        tried = "\n".join(f"  attempt {n}: {text}" for n, text in enumerate(attempts))
        raise RuntimeError(
            f"Training failed in every one of {len(attempts)} attempts; the parameters are"
            f" the best seen.\n{tried}\nTry other starting values, restarts=5, or a larger sigma2."
        )
    run.history.converged = best.converged
    parts = [best.message]
    if run.model.stop_training and outcome is not best:
        parts.append(outcome.message)
    if failures:
        parts.append(f"{failures} of {len(attempts)} attempts failed, see History.attempts")
    run.history.message = "; ".join(parts)


def attempt(
    run: Run, method: "Method", steps: int, centre: list[AnyNDArray], rng: np.random.Generator
) -> Outcome:
    """Train once: from the present parameters, or in a restart from random ones."""
    try:
        if method.prepare is not None:
            method.prepare()
        if not run.variables and method.prepare is None:
            run.step(method.evaluate())
            return Outcome(True, "nothing to do: no parameter is trainable")
        if run.restart > 0:
            perturb(run.model, centre, rng)
        elif method.trains_kernel:
            choose_start(run, centre, method.evaluate)
        return method.minimise(run, steps, method.evaluate)
    except TrainingStopped as stop:
        return Outcome(False, str(stop))
    except FAILURES as failure:
        return Outcome(False, f"failed: {failure_message(failure)}", failed=True)
    finally:
        run.settle()


def failure_message(failure: Exception) -> str:
    """The first line of what went wrong, without TensorFlow's stack."""
    return str(failure).strip().splitlines()[0][:300]


@contextmanager
def stop_at_interrupt(run: Run) -> Iterator[None]:
    """Let the first Ctrl-C end training after the step it is in, and the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        if run.model.stop_training:
            raise KeyboardInterrupt
        run.model.stop_training = run.interrupted = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:  # None is a handler that was not installed from Python
        signal.signal(signal.SIGINT, signal.default_int_handler if previous is None else previous)


# Starting points -----------------------------------------------------------------------------


def starting_points(model: Any) -> list[AnyNDArray]:
    """Constrained values of all trainable parameters, lengthscales at half the median distance."""
    lengthscales = trainable_lengthscales(model)
    values = []
    for p in model.trainable_parameters:
        value = p.numpy()
        if id(p) in lengthscales:
            scale = np.full(p.shape, lengthscales[id(p)], value.dtype)
            value = scale if is_admissible(p, scale) else value
        values.append(value)
    return values


def is_admissible(parameter: Parameter, value: AnyNDArray) -> bool:
    """Whether the parameter's bounds allow the value."""
    transform = parameter.transform
    return transform is None or bool(np.isfinite(transform.inverse(value)).all())


def trainable_lengthscales(model: Any) -> dict[int, float]:
    """Half the median distance in its inputs for each trainable lengthscale parameter, by id."""
    X = model.data[0].numpy()
    found = {}
    for kernel in (model.kernel, *model.kernel.submodules):
        parameter = getattr(kernel, "lengthscales", None)
        if isinstance(parameter, Parameter) and parameter.trainable and hasattr(kernel, "slice"):
            columns = kernel.slice(tf.constant(X), None)[0].numpy()
            found[id(parameter)] = half_median_distance(columns)
    return found


def choose_start(run: Run, centre: list[AnyNDArray], evaluate: Evaluate) -> None:
    """Start from the present parameters, or from other lengthscales where those are better."""
    parameters = run.model.trainable_parameters
    if not trainable_lengthscales(run.model):
        return
    present = [p.numpy() for p in parameters]
    losses = []
    for values in (present, centre):
        assign_all(parameters, values)
        losses.append(evaluate().loss)
        run.observe(losses[-1])
    if losses[0] <= losses[1] or np.isnan(losses[1]):
        assign_all(parameters, present)


def perturb(model: Any, centre: list[AnyNDArray], rng: np.random.Generator) -> None:
    """Random starting parameters: positive ones within a factor of e or so of the centre."""
    vector = OuterVector(model.trainable_parameters, logarithms=True)
    assign_all(model.trainable_parameters, centre)
    vector.assign(vector.numpy() + rng.normal(size=vector.size))


def assign_all(parameters: Sequence[Parameter], values: Sequence[AnyNDArray]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.assign(value)


# Optimisers ----------------------------------------------------------------------------------


class Method(NamedTuple):
    """An optimiser, resolved."""

    name: str
    evaluate: Evaluate
    minimise: Callable[[Run, int, Evaluate], Outcome]
    keras_optimizer: Any = None
    trains_kernel: bool = True
    prepare: Callable[[], None] | None = None
    """What to do before each attempt."""


def in_rounds(method: Method, completer: Completer, rounds: int, tolerance: float) -> Method:
    """The same optimiser for targets of which some are missing, see :mod:`gpflow_cool.rounds`."""
    model = completer.model

    def prepare() -> None:
        model.completions.assign(completer.first)
        model.has_drawn = True

    def minimise(run: Run, steps: int, evaluate: Evaluate) -> Outcome:
        def maximise() -> Outcome:
            if run.variables:
                return method.minimise(run, steps, evaluate)
            run.step(evaluate())
            return Outcome(True, "no parameter is trainable")

        converged, message, last = train_in_rounds(run, completer, maximise, rounds, tolerance)
        return Outcome(converged, f"{message}; in the last one: {last.message}")

    return method._replace(minimise=minimise, prepare=prepare)


def resolve_optimizer(model: Any, optimizer: Any) -> Method:
    """How to evaluate and how to minimise, from what the user passed as `optimizer`."""
    if isinstance(optimizer, str):
        checks.option(optimizer, "optimizer", OPTIMIZERS)
        profile = model.profile() if optimizer == "profile" else None
        if profile is not None:
            vector = OuterVector(profile.parameters, logarithms=True)
            return Method("profile", remember(model, profile.evaluate), partial(lbfgs, vector))
        if optimizer == "em":
            em = model.expectation_maximisation()
            return Method("em", em.evaluate, partial(minimise_em, em), trains_kernel=False)
        if optimizer != "adam":  # "scipy", or nothing to solve for
            vector = OuterVector(model.trainable_parameters)
            return Method("scipy", remember(model, compiled_loss(model)), partial(lbfgs, vector))
        optimizer = tf_keras.optimizers.Adam(ADAM_RATE)
    evaluate = remember(model, compiled_loss(model))
    if isinstance(optimizer, gpflow.optimizers.Scipy):
        return Method("scipy", evaluate, partial(minimise_gpflow, optimizer))
    if hasattr(optimizer, "apply_gradients") and not isinstance(optimizer, type):
        name = type(optimizer).__name__.lower()
        keras_steps = KerasSteps(optimizer, model.trainable_variables)
        return Method(name, evaluate, partial(minimise_keras, keras_steps), optimizer)
    raise ValueError(
        f"optimizer={optimizer!r} is not known. Pass one of {', '.join(map(repr, OPTIMIZERS))}, a"
        " gpflow.optimizers.Scipy, or a Keras optimizer object."
    )


def compiled_loss(model: Any) -> Evaluate:
    """Loss, gradient with respect to all trainable variables, and terms, in one compiled pass."""
    variables = model.trainable_variables

    @tf.function(autograph=False)  # nothing to convert, and converting takes seconds
    def compute() -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            terms = model.objective_terms()
            loss = -(tf.reduce_sum(terms) + model.log_prior_density())
        return loss, tape.gradient(loss, variables, unconnected_gradients="zero"), terms

    def evaluate() -> Evaluation:
        loss, gradients, terms = compute()
        return Evaluation(float(loss), [g.numpy() for g in gradients], terms.numpy())

    return evaluate


def remember(model: Any, evaluate: Evaluate) -> Evaluate:
    """The same, without evaluating twice in a row at the same parameters."""
    variables = state_variables(model)
    state = np.full(1, np.nan)
    last: Evaluation | None = None

    def remembered() -> Evaluation:
        nonlocal state, last
        if last is None or not unchanged(weights(variables), state):
            last = evaluate()
            state = weights(variables)
        return last

    return remembered


def unchanged(now: AnyNDArray, before: AnyNDArray) -> bool:
    return now.shape == before.shape and np.allclose(now, before, rtol=1e-13, atol=0.0)


def weights(variables: Sequence[tf.Variable]) -> AnyNDArray:
    """All variables in one vector."""
    parts = [np.ravel(variable.numpy()) for variable in variables]
    return np.concatenate([np.zeros(0), *parts])


def lbfgs(vector: OuterVector, run: Run, steps: int, evaluate: Evaluate) -> Outcome:
    """SciPy's L-BFGS-B: each iteration is a step, each evaluation may be the best."""
    last: list[Evaluation] = []

    def loss_and_gradient(x: AnyNDArray) -> tuple[float, AnyNDArray]:
        vector.assign(x)
        evaluation = evaluate()
        if not np.isfinite(evaluation.loss):
            raise FloatingPointError(f"the loss became {evaluation.loss}")
        run.observe(evaluation.loss)
        last[:] = [evaluation]
        return evaluation.loss, vector.gradient(evaluation.gradients)

    if vector.size == 0:
        run.step(evaluate())
        return Outcome(True, "solved: no parameter is left to iterate over")
    num_steps = len(run.history.epoch)
    result = scipy.optimize.minimize(
        loss_and_gradient,
        vector.numpy(),
        jac=True,
        method="L-BFGS-B",
        callback=lambda _: run.step(last[0]),
        options={**LBFGS_OPTIONS, "maxiter": steps, "maxfun": 20 * steps},
    )
    if len(run.history.epoch) == num_steps:  # converged where it started
        run.step(last[0])
    return Outcome(bool(result.success), str(result.message))


def minimise_em(em: Any, run: Run, steps: int, evaluate: Evaluate) -> Outcome:
    """Expectation maximisation until a step gains less than `EM_TOLERANCE` nats."""
    em.prepare()
    previous = evaluate().loss
    for _ in range(steps):
        em.step()
        evaluation = evaluate()
        run.step(evaluation)
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
        run.model.training_loss,
        run.variables,
        step_callback=lambda *_: run.step(evaluate()),
        options={"maxiter": steps},
    )
    if len(run.history.epoch) == num_steps:  # converged where it started
        run.step(evaluate())
    return Outcome(bool(result.success), str(result.message))


class KerasSteps:
    """Steps of a Keras optimizer, compiled: as they are they take longer than the gradient."""

    def __init__(self, optimizer: Any, variables: Sequence[tf.Variable]) -> None:
        if variables and hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
            optimizer.build(variables)
        state = optimizer.variables
        state = list(state() if callable(state) else state)  # a method in older ones
        rate = getattr(optimizer, "learning_rate", None)
        self.state = [*state, rate] if isinstance(rate, tf.Variable) else state
        self.start = [variable.numpy() for variable in self.state]

        @tf.function(autograph=False)
        def apply(gradients: list[tf.Tensor]) -> None:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        self.apply = apply

    def reset(self) -> None:
        """Forget momentum and rate of the last attempt."""
        for variable, value in zip(self.state, self.start, strict=True):
            variable.assign(value)


def minimise_keras(optimizer: KerasSteps, run: Run, steps: int, evaluate: Evaluate) -> Outcome:
    """A Keras optimizer, one gradient a step, recorded before the parameters change."""
    optimizer.reset()
    for _ in range(steps):
        evaluation = evaluate()
        run.step(evaluation)
        optimizer.apply([tf.constant(g) for g in evaluation.gradients])
    run.observe(evaluate().loss)
    flat = run.last_logs["gradient_norm"] <= 1e-3 * max(1.0, abs(run.last_logs["loss"]))
    return Outcome(flat, f"took all {steps} steps")
