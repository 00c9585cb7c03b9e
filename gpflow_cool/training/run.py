"""What a fit keeps: its history, and the best parameters seen."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray

from ..callbacks import CallbackList
from .model import Evaluation, TrainableModel


class TrainingStopped(Exception):
    """A callback or the user asked training to end."""


class TrainingFailed(RuntimeError, ValueError):
    """No start has a loss: these data with these starting values have no loss."""


@dataclass(repr=False)
class History:
    """
    What happened during a fit, in the form of Keras's History.

    `history` has one entry per step under "loss", "gradient_norm", "seconds" (since the start),
    and under "terms/NAME" for each term of the objective. Where targets are missing there is also
    "round", and `rounds` has one entry per round.
    """

    params: dict[str, Any]
    history: dict[str, list[float]] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=list)
    rounds: list[dict[str, float]] = field(default_factory=list)
    """For each round: "round", "loss", "evidence" of the observed targets after it (NaN
    if they are too many), its "score", by which the best round is chosen (the evidence with the
    prior, or else the objective), and the "change" of the score since the round before."""

    converged: bool = False
    message: str = ""
    interrupted: bool = False
    """Whether Ctrl-C ended training before its end; the parameters are the best seen."""

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


def joined(first: History, second: History) -> History:
    """Two fits of a model, one after the other, as one; the second tells how training ended."""
    seconds = first.history["seconds"][-1] if first.epoch else 0.0
    later = {**second.history, "seconds": [seconds + s for s in second.history["seconds"]]}
    return History(
        params=second.params,
        history={name: first.history.get(name, []) + values for name, values in later.items()},
        epoch=list(range(len(first.epoch) + len(second.epoch))),
        rounds=first.rounds + second.rounds,
        converged=second.converged,
        message=second.message,
        interrupted=second.interrupted,
    )


class BestRound(NamedTuple):
    """Score and parameters of the best round so far."""

    score: float
    weights: list[AnyNDArray]


class Run:
    """One fit: it counts steps, keeps the best parameters, and tells the callbacks."""

    def __init__(self, model: TrainableModel, history: History, callbacks: CallbackList) -> None:
        self.model = model
        self.history = history
        self.callbacks = callbacks
        self.started = time.perf_counter()
        self.interrupted = False
        self.variables = model.trainable_variables  # once: looking them up takes milliseconds
        self.state = state_variables(model)
        self.round: int | None = None
        self.best_round: BestRound | None = None
        self.last_logs: dict[str, float] = {}
        self.forget_best()

    def forget_best(self) -> None:
        """Forget all losses so far: with other completions, the loss is another function."""
        self.best_loss = np.inf
        self.best_weights = snapshot(self.state)

    def keep_if_best(self, loss: float) -> None:
        """Keep the model's present parameters if their loss is the lowest so far."""
        if loss < self.best_loss:  # never for NaN
            self.best_loss = loss
            self.best_weights = snapshot(self.state)

    def keep_round_if_best(self, score: float, *, prefer_last: bool) -> None:
        """
        Keep the model's present parameters if their round has the highest score so far.

        :param prefer_last: Whether a later round is preferred in any case.
        """
        score = score if np.isfinite(score) else -np.inf
        if self.best_round is None or prefer_last or score > self.best_round.score:
            self.best_round = BestRound(score, snapshot(self.state))

    def use_best_round(self) -> None:
        """Let :meth:`restore_best` restore the best round, if there are rounds."""
        if self.best_round is not None:
            self.best_loss, self.best_weights = -self.best_round.score, self.best_round.weights

    def restore_best(self) -> None:
        """Set the parameters to the best seen; without a finite loss, to those at the start."""
        restore(self.state, self.best_weights)

    def record_step(self, evaluation: Evaluation) -> None:
        """Record a step that led to the model's present parameters; stop if anybody asked to."""
        self.keep_if_best(evaluation.loss)
        squares = [float(np.sum(np.square(g))) for g in evaluation.gradients]
        logs = {
            "loss": evaluation.loss,
            "gradient_norm": float(np.sqrt(sum(squares))),
            "seconds": time.perf_counter() - self.started,
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
    """How training ended."""

    converged: bool
    message: str


def state_variables(model: TrainableModel) -> list[tf.Variable]:
    """All that training changes: the trainable variables and the completions."""
    return [*model.trainable_variables, *([] if model.completions is None else [model.completions])]


def snapshot(variables: list[tf.Variable]) -> list[AnyNDArray]:
    return [variable.numpy() for variable in variables]


def restore(variables: list[tf.Variable], values: list[AnyNDArray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
