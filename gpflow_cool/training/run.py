"""What a fit keeps: its history, and the best parameters seen."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray

from ..callbacks import CallbackList


class Evaluation(NamedTuple):
    """Loss, its gradient with respect to the outer variables, and the objective's terms."""

    loss: float
    gradients: list[AnyNDArray]
    terms: AnyNDArray
    rounding: float = 0.0
    """What the loss may be off by, where that is known."""


class TrainingStopped(Exception):
    """A callback, or the user, asked for an end."""


@dataclass(repr=False)
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
    if they are too many), its "score" (the evidence with the prior, or else the objective), by
    which the best round is chosen, and by how much that "change"d."""

    converged: bool = False
    message: str = ""

    def __repr__(self) -> str:
        """
        >>> History({}, {"loss": [3.0, 2.0]}, [0, 1], converged=True, message="done")
        History(2 steps, best loss 2, converged: done)
        """
        best = f", best loss {min(self.history['loss']):.6g}" if self.history.get("loss") else ""
        state = "converged" if self.converged else "not converged"
        steps = "1 step" if len(self.epoch) == 1 else f"{len(self.epoch)} steps"
        return f"History({steps}{best}, {state}: {self.message})"

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
        score = score if np.isfinite(score) else -np.inf
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
        restore(self.state, self.best_weights)

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


def state_variables(model: Any) -> list[tf.Variable]:
    """All that training changes: the trainable variables and the completions."""
    completions = getattr(model, "completions", None)
    return [*model.trainable_variables, *([] if completions is None else [completions])]


def snapshot(variables: list[tf.Variable]) -> list[AnyNDArray]:
    return [variable.numpy() for variable in variables]


def restore(variables: list[tf.Variable], values: list[AnyNDArray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
