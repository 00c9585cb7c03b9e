"""
Training: `fit` for every model of the package, in Keras's manner.

It knows a model by GPflow's interface, the terms of its objective, and, for profiled training, by
:class:`.profiled.ProfiledChain`. After a fit the parameters are those of the best loss
seen, whatever happened on the way.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray

from .. import checks
from ..callbacks import CallbackList, KerasView, ProgressBar, check_callbacks
from ..chain.starting import half_median_distance
from .monte_carlo_em import (
    DEFAULT_ROUND_STEPS,
    DRAWS,
    ROUND_STEPS,
    ROUNDS,
    TOLERANCE,
    Completer,
    check_rounds,
    train_in_rounds,
)
from .optimizers import FAILURES, Evaluate, Method, resolve_optimizer
from .run import History, Outcome, Run, TrainingStopped, restore, snapshot
from .vector import OuterVector

FAR = 4.0
"""Lengthscales so many times longer than half the median distance are tried as well."""

MAX_STEPS = 1000
DEFAULT_STEPS = {"profile": 200}


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
    """Train a model; see :meth:`gpflow_cool.models.base.MultitaskModel.fit`."""
    if steps is not None:
        checks.positive_integer(steps, "steps")
    checks.whole_number(restarts, "restarts")
    checks.seed(seed)
    check_rounds(rounds, draws, tolerance)
    callbacks = check_callbacks(callbacks)
    method = resolve_optimizer(model, optimizer)
    if tensorboard is not None:
        from ..monitoring import TensorBoardCallback  # only who asks for it waits for it

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
    """What went wrong in a line, without TensorFlow's stack."""
    lines = str(failure).strip().splitlines() or [type(failure).__name__]
    named = (line.split("Error: ", 1)[1] for line in lines if "Error: " in line)  # from Python
    return next(named, lines[0])[:300]


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
    """
    Start from the present parameters, or from other lengthscales where those are better: those of
    the centre, or longer ones, with which a model is nearly linear and which has optima of its own.
    """
    present = [p.numpy() for p in run.model.trainable_parameters]
    candidates = zip(run.model.trainable_parameters, present, centre, strict=True)
    moved = [change for change in candidates if not np.array_equal(*change[1:])]
    if not moved:
        return
    parameters, here, there = zip(*moved, strict=True)
    far = [longer(parameter, value) for parameter, _, value in moved]
    outcomes: list[tuple[float, list[AnyNDArray]]] = []
    for values in (here, there, far):
        assign_all(parameters, values)
        with suppress(*FAILURES):  # as long as another one has a loss
            outcomes.append((evaluate().loss, snapshot(run.state)))
    finite = [outcome for outcome in outcomes if np.isfinite(outcome[0])]
    if not finite:
        assign_all(parameters, here)
        return
    restore(run.state, min(finite, key=lambda outcome: outcome[0])[1])


def longer(parameter: Parameter, lengthscales: AnyNDArray) -> AnyNDArray:
    """
    A single lengthscale times `FAR` where that may be. One for each input stays: each grows by
    itself where it should, and those that have grown too far have no gradient to come back by.
    """
    far = FAR * lengthscales
    return far if np.size(far) == 1 and is_admissible(parameter, far) else lengthscales


def perturb(model: Any, centre: list[AnyNDArray], rng: np.random.Generator) -> None:
    """Random starting parameters: positive ones within a factor of e or so of the centre."""
    vector = OuterVector(model.trainable_parameters, logarithms=True)
    assign_all(model.trainable_parameters, centre)
    vector.assign(vector.numpy() + rng.normal(size=vector.size))


def assign_all(parameters: Sequence[Parameter], values: Sequence[AnyNDArray]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.assign(value)


def in_rounds(method: Method, completer: Completer, rounds: int, tolerance: float) -> Method:
    """The same optimiser for targets of which some are missing, see :mod:`.monte_carlo_em`."""
    model = completer.model

    def prepare() -> None:
        model.completions.assign(completer.first)

    def minimise(run: Run, steps: int, evaluate: Evaluate) -> Outcome:
        def maximise() -> Outcome:
            if run.variables:
                return method.minimise(run, steps, evaluate)
            run.step(evaluate())
            return Outcome(True, "no parameter is trainable")

        converged, message, last = train_in_rounds(run, completer, maximise, rounds, tolerance)
        return Outcome(converged, f"{message}; in the last one: {last.message}")

    return method._replace(minimise=minimise, prepare=prepare)
