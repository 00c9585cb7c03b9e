"""
Training in the manner of Keras: :func:`fit` is the method `fit` of every model of the package.

After a fit the parameters are those of the best loss seen, whatever happened on the way.
"""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

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
from .remarks import note_of_data, note_of_floor, note_of_noise
from .run import (
    History,
    Outcome,
    Run,
    TrainingFailed,
    TrainingStopped,
    joined,
)
from .starts import choose_start, starting_values

TENSORFLOW_WORDS = re.compile(r"\{\{.*?\}\}|\s*: Tensor had .*$| \[Op:.*$")
"""What TensorFlow puts around the message of a check."""

STEPS = {"profile": 200}
DEFAULT_STEPS = 1000


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

    Training starts at whichever of these has the lowest loss: the present parameters, lengthscales
    of half the median distance between rows, lengthscales four times as long, terms of a sum of
    equal size, and `restarts` random ones.

    :param optimizer: "profile" solves for b and sigma2 and runs L-BFGS over the other parameters,
        with about ten eigendecompositions; "scipy" is L-BFGS over all parameters, and so is
        "profile" where b and sigma2 have no best value to solve for: with
        `weight_prior="unit"`, with priors of their own, and for
        :class:`gpflow_cool.KroneckerMTGP`; "adam" is Adam; "em" is expectation maximisation
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
    :param restarts: How many random parameters to try as a start.
    :param seed: Seed of these, and of the draws of missing targets. None is 0: two fits of
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
    epochs = limit * params.get("rounds", 1)
    params |= {"optimizer": chosen.name, "steps": limit, "epochs": epochs}
    model.stop_training = False
    view = KerasView(model, chosen.keras_optimizer)
    run = Run(model, History(params), CallbackList(callbacks, view, params))
    run.callbacks.train_begin()
    try:
        with stop_at_interrupt(run):
            outcome = train_from_best_start(run, chosen, limit, restarts, seed)
            run.history.converged, run.history.message = outcome.converged, outcome.message
    finally:
        run.history.interrupted = run.interrupted
        run.restore_best()
        try:
            run.callbacks.train_end(run.last_logs)
        finally:  # Keras's EarlyStopping restores the best step, but an evaluation may be better
            run.restore_best()
    run.history.message += note_of_floor(model) + note_of_noise(model) + note_of_data(model)
    return run.history


def train_from_best_start(
    run: Run, optimizer: Optimizer, steps: int, restarts: int, seed: int
) -> Outcome:
    """
    Minimise from the best of some starts.

    :raises TrainingFailed: If no start has a loss.
    """
    try:
        if optimizer.prepare is not None:
            optimizer.prepare()
        if not run.variables and optimizer.prepare is None:
            run.record_step(optimizer.evaluate())
            return Outcome(True, "nothing to do: no parameter is trainable")
        if optimizer.value is not None:
            rng = np.random.default_rng(seed)
            starts = starting_values(run.model, restarts, rng)
            choose_start(run.model, optimizer.value, starts)
        return optimizer.minimise(run, steps, optimizer.evaluate)
    except TrainingStopped as stop:
        return Outcome(False, str(stop))
    except FAILURES as failure:
        if failure is run.callbacks.error:
            raise
        if not np.isfinite(run.best_loss):
            raise TrainingFailed(
                f"Training failed: {failure_message(failure)} The parameters are those before. Try"
                " other starting values, restarts=5, or a larger sigma2."
            ) from failure
        return Outcome(False, f"failed: {failure_message(failure)}")
    finally:
        run.use_best_round()


def train_shrunk(
    model: TrainableModel,
    train: Callable[[str | os.PathLike[str] | None], History],
    tensorboard: str | os.PathLike[str] | None,
) -> History:
    """
    Train one lengthscale for all inputs, then one per input with a prior around the common one.

    The history is that of both, and TensorBoard shows the second part. The prior is gone
    afterwards: the model's objective is again what it was.
    """
    share_lengthscales(model.kernel)
    first = train(None)
    freed = [] if first.interrupted else free_lengthscales(model.kernel, model.data[0].shape[1])
    if not freed:
        return first
    try:
        return joined(first, train(tensorboard))
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
