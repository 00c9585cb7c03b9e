"""
Rounds of Monte Carlo expectation maximisation, around any optimiser, where targets are missing.

A round draws the missing targets given all observed ones at the present parameters, and then lets
the optimiser maximise the mean of the objective over the draws. The random numbers are the same in
every round, so that the rounds converge to a point and not only in distribution.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .. import checks
from ..joint import missing
from ..joint.missing import ObservedSystem, observed_log_evidence
from ..joint.sampling import draw_pairs
from .lbfgs import Evaluate
from .model import TrainableModel
from .optimizers import Optimizer
from .run import BestRound, Outcome, Run, snapshot, state_variables

ROUNDS = 8
DRAWS = 16

TOLERANCE = 1e-3
"""Rounds end when one gains less than this many nats per observed target."""

FIRST_ROUNDS = 2
"""These are always followed by another round: one on first guesses, one on the first draws."""

ROUND_STEPS = {"profile": 10, "scipy": 30, "em": 20}
DEFAULT_ROUND_STEPS = 50


class Completer:
    """
    Completes a model's targets, always from the same random numbers.

    :param draws: How many completions, in pairs on both sides of the mean.
    """

    def __init__(self, model: TrainableModel, draws: int, seed: int) -> None:
        assert model.observed is not None and model.completions is not None
        self.model, self.completions = model, model.completions
        self.num_observed = int(np.count_nonzero(model.observed))
        shape = [2, draws // 2, *model.observed.shape]
        self.signal, self.noise = np.random.default_rng(seed).normal(size=shape)
        system = model.observed_system() if model.has_drawn else None
        self.start = None if system is None else self._present(system)
        first = model.independent_completion() if system is None else self.draw(system)
        self.first = first.numpy()
        """The completions that training starts from."""

    def _present(self, system: ObservedSystem) -> BestRound | None:
        """The model as it is before training, with its score, if the evidence is cheap."""
        score = self.score(self.evidence(system))
        if score is None or not np.isfinite(score):
            return None
        return BestRound(score, snapshot(state_variables(self.model)))

    def draw(self, system: ObservedSystem) -> tf.Tensor:
        """[S, N, T], the targets with the missing ones drawn given the others."""
        model = self.model
        residual = tf.cast(model.centred_targets(), tf.float64)
        drawn = draw_pairs(system, residual, self.signal, self.noise)
        mean = model.mean_function(model.data[0])
        completed = tf.cast(drawn, mean.dtype) + mean
        return tf.where(model.observed, model.data[1], completed)

    @property
    def knows_evidence(self) -> bool:
        """Whether the observed targets are few enough for their evidence to be cheap."""
        return self.num_observed <= missing.MAX_DENSE

    def evidence(self, system: ObservedSystem) -> float | None:
        """Log evidence of the observed targets, if it is cheap."""
        if not self.knows_evidence:
            return None
        return float(observed_log_evidence(system, self.model.centred_targets()))

    def score(self, evidence: float | None) -> float | None:
        """The evidence with the prior, by which rounds compare."""
        return None if evidence is None else evidence + float(self.model.log_prior_density())


def check_rounds(rounds: int, draws: int, tolerance: Any) -> None:
    """Raise unless the options of rounds make sense."""
    checks.positive_integer(rounds, "rounds")
    if checks.positive_integer(draws, "draws") % 2:
        raise ValueError(f"draws={draws} must be even: draws come in pairs around the mean.")
    number = isinstance(tolerance, float | np.floating) or checks.is_whole(tolerance)
    if not number or not 0 <= tolerance < np.inf:
        raise ValueError(f"tolerance={tolerance!r} must be a number of at least 0.")


def in_rounds(
    optimizer: Optimizer, completer: Completer, rounds: int, tolerance: float
) -> Optimizer:
    """
    The same optimiser, in rounds, for targets of which some are missing.

    The start counts like a round where it has a score, so that training again harms no model.
    """

    def prepare() -> None:
        completer.completions.assign(completer.first)

    def minimise(run: Run, steps: int, evaluate: Evaluate) -> Outcome:
        def maximise() -> Outcome:
            if run.variables:
                return optimizer.minimise(run, steps, evaluate)
            run.record_step(evaluate())
            return Outcome(True, "no parameter is trainable")

        run.best_round = completer.start
        outcome = train_in_rounds(run, completer, maximise, rounds, tolerance)
        if run.best_round is not None and run.best_round is completer.start:
            outcome.message += "; no round was better than the start, which is kept"
        return outcome

    return optimizer._replace(minimise=minimise, prepare=prepare)


def train_in_rounds(
    run: Run,
    completer: Completer,
    maximise: Callable[[], Outcome],
    rounds: int,
    tolerance: float,
) -> Outcome:
    """
    Maximise the objective, draw the missing targets anew, and so on, until a round gains little.

    The gain is that of the evidence of the observed targets. It may be negative near the end, since
    the optimiser maximises the objective and not this evidence: the best round is kept.

    :param maximise: Lets the optimiser take its steps at the present completions.
    """
    previous = np.inf
    for run.round in range(rounds):
        run.forget_best()
        try:
            last = maximise()
        except Exception:  # what the round has reached counts, however it ended
            if np.isfinite(run.best_loss):
                finish_round(run, completer, previous)
            raise
        system, score = finish_round(run, completer, previous)
        gain = score - previous
        if not completer.knows_evidence:  # losses of different completions may go either way
            gain = abs(gain)
        if run.round >= FIRST_ROUNDS and gain < tolerance * completer.num_observed:
            message = f"round {run.round} gained less than {tolerance:g} nats per observed target"
            return Outcome(True, f"{message}; in the last one: {last.message}")
        previous = score
        run.model.has_drawn = True  # a fit that follows starts from draws of this round's model
        if run.round + 1 < rounds:
            completer.completions.assign(completer.draw(system))
        del system  # several N x N matrices, which need not stay beside those of the next round
    return Outcome(False, f"took all {rounds} rounds; in the last one: {last.message}")


def finish_round(run: Run, completer: Completer, previous: float) -> tuple[ObservedSystem, float]:
    """Set the best parameters of the round, score them, and record the round."""
    assert run.round is not None
    run.restore_best()
    system = run.model.observed_system()
    evidence = completer.evidence(system)
    score = completer.score(evidence)
    score = -run.best_loss if score is None else score
    run.history.rounds.append(
        {
            "round": run.round,
            "loss": run.best_loss,
            "evidence": np.nan if evidence is None else evidence,
            "score": score,
            "change": score - previous if np.isfinite(previous) else np.nan,
        }
    )
    # Losses of different completions do not compare: without the evidence, the last round counts.
    run.keep_round_if_best(score, prefer_last=evidence is None)
    return system, score
