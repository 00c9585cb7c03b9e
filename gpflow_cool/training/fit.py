"""
Training in the manner of Keras: :func:`fit` is the method `fit` of every model of the package.

After a fit the parameters are those of the best loss seen, whatever happened on the way.
"""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray

from .. import checks
from ..callbacks import CallbackList, KerasView, ProgressBar, check_callbacks
from ..linalg import threads_for
from ..monitoring import TensorBoardCallback
from .lbfgs import FAILURES
from .model import TrainableModel
from .monte_carlo_em import (
    DEFAULT_ROUND_STEPS,
    DRAWS,
    ROUND_STEPS,
    ROUNDS,
    TOLERANCE,
    Completer,
    check_rounds,
    in_rounds,
)
from .optimizers import Optimizer, resolve_optimizer
from .relevance import RELEVANCE, free_lengthscales, share_lengthscales
from .remarks import is_all_noise, note_of_data, note_of_floor, note_of_noise
from .run import (
    History,
    Outcome,
    Run,
    TrainingFailed,
    TrainingStopped,
    joined,
    restore,
    snapshot,
    state_variables,
)
from .starts import choose_start, perturb, starting_points
from .trials import (
    EXPLORED_ROWS,
    FEW_ROWS,
    WORTHWHILE,
    set_lengthscales_of_one_input,
    try_others,
)

TENSORFLOW_WORDS = re.compile(r"\{\{.*?\}\}|\s*: Tensor had .*$| \[Op:.*$")
"""What TensorFlow puts around the message of a check."""

STEPS = {"profile": 200}
DEFAULT_STEPS = 1000

EXPLORED_STEPS = 10
"""Steps after which the loss tells from which lengthscales it is worth to go on."""

EXPLORED_WITH_LENGTHSCALES = 500
"""Up to so many rows that is tried: with 16 inputs it takes 36 more evaluations of the loss."""


def fit(
    self: TrainableModel,
    optimizer: Any = "profile",
    *,
    relevance: str = "given",
    steps: int | None = None,
    callbacks: Sequence[Any] | None = (),
    restarts: int = 0,
    seed: int | None = None,
    verbose: int = 1,
    tensorboard: str | os.PathLike[str] | None = None,
    rounds: int = ROUNDS,
    draws: int = DRAWS,
    tolerance: float = TOLERANCE,
) -> History:
    """
    Train the model, and leave it with the best parameters seen.

    Where targets are missing this is Monte Carlo expectation maximisation: each round draws the
    missing targets given all that is observed, and then the optimizer takes some steps on the mean
    of the objective over the draws. The first round starts from the predictions of one Gaussian
    process per task.

    :param optimizer: "profile" solves for b and sigma2 and runs L-BFGS over the other parameters,
        with about ten eigendecompositions; "scipy" is L-BFGS over all parameters, and so is
        "profile" where nothing can be solved for; "adam" is Adam; "em" is expectation maximisation
        over full C and Sigma, for :class:`gpflow_cool.KroneckerMTGP`. A `gpflow.optimizers.Scipy`
        or a Keras optimizer is used as it is.
    :param relevance: "given" trains the lengthscales that the kernel has. "shrunk" first trains one
        lengthscale for all inputs, then one per input, pulled towards the common one (see
        :mod:`gpflow_cool.training.relevance`): it shows which inputs matter, and overfits less than
        free lengthscales. Sums and products do this in each of their kernels; kernels that share a
        parameter go on sharing it. Lengthscales that are not trainable, or have a prior, stay as
        they are.
    :param steps: The largest number of steps; in each round, where targets are missing.
    :param callbacks: Keras callbacks, which see each step as an epoch. Setting `stop_training` of
        the model ends training with any optimizer.
    :param restarts: How many times to start again from random parameters; the best loss wins.
    :param seed: Seed of the restarts, and of the draws of missing targets. None is 0: two fits of
        the same model are the same.
    :param verbose: 1 for a progress bar where there is a terminal or a notebook, 0 for none.
    :param tensorboard: Folder for `tensorboard --logdir`, one per fit: it gets the loss, its terms
        and the evidence, every parameter, and pictures of C, Sigma, their correlations and, for one
        input, the predictions; see :mod:`gpflow_cool.monitoring`.
    :param rounds: The largest number of rounds, where targets are missing.
    :param draws: How many completions of the missing targets, an even number: they come in pairs
        on both sides of the mean.
    :param tolerance: Training ends when a round raises the log evidence of the observed targets by
        less than this per target; if they are too many for the evidence, when a round changes the
        objective by less.
    :return: Loss, terms, gradient norm and seconds of every step, and how training ended.
    """
    checks.option(relevance, "relevance", RELEVANCE)
    train = partial(
        train_once,
        self,
        optimizer,
        steps=steps,
        callbacks=callbacks,
        restarts=restarts,
        seed=seed,
        verbose=verbose,
        rounds=rounds,
        draws=draws,
        tolerance=tolerance,
    )
    with threads_for(max(tf.shape(self.data[1]).numpy())):
        if relevance == "given":
            return train(tensorboard)
        return train_shrunk(self, train, tensorboard)


def train_once(
    model: TrainableModel,
    optimizer: Any,
    tensorboard: str | os.PathLike[str] | None,
    *,
    steps: int | None,
    callbacks: Sequence[Any] | None,
    restarts: int,
    seed: int | None,
    verbose: int,
    rounds: int,
    draws: int,
    tolerance: float,
) -> History:
    """Train the parameters that the model has; see :func:`fit`."""
    check_built_outside_of_strategies(model)
    model.check_targets()
    if steps is not None:
        checks.positive_integer(steps, "steps")
    checks.whole_number(restarts, "restarts")
    seed = 0 if seed is None else checks.whole_number(seed, "seed")
    check_rounds(rounds, draws, tolerance)
    callbacks = check_callbacks(callbacks)
    chosen = resolve_optimizer(model, optimizer)
    if tensorboard is not None:
        callbacks.append(TensorBoardCallback(tensorboard))
    if verbose:
        callbacks.append(ProgressBar())
    limit = steps or STEPS.get(chosen.name, DEFAULT_STEPS)
    params: dict[str, Any] = {"restarts": restarts, "seed": seed, "verbose": verbose}
    if model.observed is not None:
        limit = steps or ROUND_STEPS.get(chosen.name, DEFAULT_ROUND_STEPS)
        chosen = in_rounds(chosen, Completer(model, draws, seed), rounds, tolerance)
        params |= {"rounds": rounds, "draws": draws, "tolerance": tolerance}
    epochs = limit * (restarts + 1) * params.get("rounds", 1)
    params |= {"optimizer": chosen.name, "steps": limit, "epochs": epochs}
    model.stop_training = False
    view = KerasView(model, chosen.keras_optimizer)
    run = Run(model, History(params), CallbackList(callbacks, view, params))
    run.callbacks.train_begin()
    try:
        with stop_at_interrupt(run):
            attempt_all(run, chosen, limit, restarts, np.random.default_rng(seed))
    finally:
        run.history.interrupted = run.interrupted
        run.restore_best()
        try:
            run.callbacks.train_end(run.last_logs)
        finally:  # Keras's EarlyStopping restores the best step, but an evaluation may be better
            run.restore_best()
    run.history.message += note_of_floor(model) + note_of_noise(model) + note_of_data(model)
    return run.history


def train_shrunk(
    model: TrainableModel,
    train: Callable[[str | os.PathLike[str] | None], History],
    tensorboard: str | os.PathLike[str] | None,
) -> History:
    """
    Train one lengthscale for all inputs, then one per input with a prior around the common one.

    The history is that of both, and TensorBoard shows the second part. The prior is gone
    afterwards: the model's objective is again what it was. The second part begins with
    :func:`explore_lengthscales`, where that costs little.
    """
    share_lengthscales(model.kernel)
    first = train(None)
    freed = [] if first.interrupted else free_lengthscales(model.kernel, model.data[0].shape[1])
    if not freed:
        return first
    try:
        if may_explore_lengthscales(model):
            first = joined(first, explore_lengthscales(model, freed, train))
        return first if first.interrupted else joined(first, train(tensorboard))
    finally:
        for parameter in freed:
            parameter.prior = None


def check_built_outside_of_strategies(model: TrainableModel) -> None:
    """Raise if the parameters are copied to several devices: our graphs know one copy of each."""
    if any(isinstance(variable, tf.distribute.DistributedValues) for variable in model.variables):
        raise ValueError(
            "The model was built inside the scope of a tf.distribute.Strategy, which copies every"
            " parameter to every device. Build it outside, and pass the strategy to"
            " SparseCoolMTGP(..., strategy=strategy), which spreads the rows over the devices."
        )


def may_explore_lengthscales(model: TrainableModel) -> bool:
    """Whether rows are few, all of them in one kernel matrix, and no target is missing."""
    few = len(model.data[0].numpy()) <= EXPLORED_WITH_LENGTHSCALES
    return few and model.observed is None and model.streamed_loss() is None


def explore_lengthscales(
    model: TrainableModel, freed: list[Parameter], train: Callable[..., History]
) -> History:
    """
    Take some steps from the common lengthscale, and as many from the most promising of others; the
    model stays where the loss is lower.

    Where targets change quickly along one input of several, one lengthscale for all may explain
    them by noise alone. No gradient leads from there to a short lengthscale for that input.
    """
    state = state_variables(model)
    common = train(None, steps=EXPLORED_STEPS, callbacks=(), restarts=0)
    lowest, weights = min(common.history["loss"]), snapshot(state)
    if common.interrupted:
        return common
    set_lengthscales_of_one_input(model, freed)
    with suppress(TrainingFailed):
        other = train(None, steps=EXPLORED_STEPS, callbacks=(), restarts=0)
        if other.interrupted or min(other.history["loss"]) < lowest - WORTHWHILE:
            return other
    restore(state, weights)
    return common


def attempt_all(
    run: Run, optimizer: Optimizer, steps: int, restarts: int, rng: np.random.Generator
) -> None:
    """Train from the present parameters, then from random ones; the best loss wins."""
    centre = starting_points(run.model)
    best, failures = Outcome(False, ""), 0
    attempts = run.history.attempts
    for run.restart in range(restarts + 1):
        before = run.best_loss
        outcome = attempt(run, optimizer, steps, centre, rng)
        attempts.append(outcome.message)
        failures += outcome.failed
        if run.restart == 0 or run.best_loss < before:
            best = outcome
        if run.model.stop_training:
            break
    if failures == len(attempts):
        tried = "\n".join(f"  attempt {n}: {text}" for n, text in enumerate(attempts))
        raise TrainingFailed(
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
    run: Run, optimizer: Optimizer, steps: int, centre: list[AnyNDArray], rng: np.random.Generator
) -> Outcome:
    """Train once: from the present parameters, or in a restart from random ones."""
    anew = optimizer.evaluate_anew or optimizer.evaluate
    start = snapshot(run.state)
    try:
        if optimizer.prepare is not None:
            optimizer.prepare()
        if not run.variables and optimizer.prepare is None:
            run.record_step(optimizer.evaluate())
            return Outcome(True, "nothing to do: no parameter is trainable")
        if run.restart > 0:
            perturb(run.model, centre, rng)
            if optimizer.evaluate_anew is not None:
                anew()
        elif optimizer.trains_kernel:
            choose_start(run, centre, optimizer.compare or anew)
        outcome = optimizer.minimise(run, steps, optimizer.evaluate)
        if run.restart == 0 and may_try_others(run, optimizer):
            left = steps - len(run.history.epoch)
            if left > 0 and explore(run, optimizer, centre, start):
                return optimizer.minimise(run, left, optimizer.evaluate)
            if run.model.stop_training:
                raise TrainingStopped("stopped by Ctrl-C while other parameters were tried")
        return outcome
    except TrainingStopped as stop:
        return Outcome(False, str(stop))
    except FAILURES as failure:
        if failure is run.callbacks.error:
            raise
        return Outcome(False, f"failed: {failure_message(failure)}", failed=True)
    finally:
        run.use_best_round()


def explore(
    run: Run, optimizer: Optimizer, centre: list[AnyNDArray], start: list[AnyNDArray]
) -> bool:
    """
    Look for a lower loss after training, see :func:`.try_others`.

    :param start: The state before training.
    :return: Whether it was found.
    """
    anew, noise = optimizer.evaluate_anew or optimizer.evaluate, is_all_noise(run.model)
    if len(run.model.data[0].numpy()) > EXPLORED_ROWS or optimizer.descend is None:
        return try_others(run, centre, anew, no_signal=noise)
    unsolved = optimizer.descend_unsolved
    first = None if unsolved is None else partial(unsolved, run, start, centre)
    return try_others(run, centre, anew, optimizer.descend, first, no_signal=noise)


def may_try_others(run: Run, optimizer: Optimizer) -> bool:
    """
    Whether other lengthscales can be tried after training, and should be: where everything looks
    like noise, so that they have no gradient, and where they are solved for among few rows, as
    losses of few rows have several optima, and cost little.
    """
    run.restore_best()
    if not optimizer.trains_kernel or optimizer.prepare is not None:
        return False
    few = optimizer.evaluate_anew is not None and len(run.model.data[0].numpy()) <= FEW_ROWS
    return few or is_all_noise(run.model)


def failure_message(failure: Exception) -> str:
    """What went wrong in one line, without TensorFlow's stack."""
    lines = str(failure).strip().splitlines() or [type(failure).__name__]
    named = (line.split("Error: ", 1)[1] for line in lines if "Error: " in line)  # from Python
    return TENSORFLOW_WORDS.sub("", next(named, lines[0]))[:300].strip()


@contextmanager
def stop_at_interrupt(run: Run) -> Iterator[None]:
    """Let the first Ctrl-C end training after the present step, and the second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        if run.model.stop_training:
            raise KeyboardInterrupt
        run.model.stop_training = run.interrupted = run.history.interrupted = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:  # None: the handler was not installed from Python
        signal.signal(signal.SIGINT, signal.default_int_handler if previous is None else previous)
