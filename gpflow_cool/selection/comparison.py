"""Candidates trained one after the other, and scored by leave-one-out."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from gpflow.keras import tf_keras
from gpflow.kernels import Kernel, Stationary

from ..training.relevance import kernels_with_lengthscales
from ..training.remarks import interpolates
from ..training.run import History
from ..training.starts import is_admissible
from .ranking import Candidate, Trained, charged

ROUGHLY = 0.1
"""Kernels are compared once two steps have gained no more than so many nats."""

FIT_FAILURES = (ValueError, RuntimeError, ArithmeticError, np.linalg.LinAlgError)
"""What a fit raises that fails; the other kernels are still to be had."""


def compare(
    kernels: dict[str, Kernel], make: Callable[[Kernel], Any], seed: int | None, bar: Any
) -> list[Trained]:
    """Fit every kernel and score it; one that fails is named with its reason."""
    trained: list[Trained] = []
    bar.reset(len(kernels))
    for number, (name, kernel) in enumerate(kernels.items()):
        bar.set_description(name)
        # What there is to warn of in the data is the same for every kernel.
        with warnings.catch_warnings() if number else nullcontext():
            if number:
                warnings.simplefilter("ignore")
            start_near(kernel, trained)
            trained.append(fit_and_score(name, kernel, make, seed))
        bar.update()
    return trained


def start_near(kernel: Kernel, trained: Sequence[Trained]) -> None:
    """
    Let lengthscales that nobody has set start from those that the same kernel, or else the first
    one, has ended with: a sum then starts where its terms are good.
    """
    fitted = [item.model.kernel for item in trained if item.failure is None]
    known = [other for other in fitted if other in with_one_lengthscale(other)]
    for part in with_one_lengthscale(kernel) if known else ():
        nearest = next((other for other in known if type(other) is type(part)), known[0])
        value = nearest.lengthscales.numpy()
        if part.lengthscales.numpy() == 1.0 and is_admissible(part.lengthscales, value):
            part.lengthscales.assign(value)


def with_one_lengthscale(kernel: Kernel) -> list[Stationary]:
    """The kernels inside that have one lengthscale for all inputs, which is trained."""
    parts = kernels_with_lengthscales(kernel)
    return [part for part in parts if part.lengthscales.shape.rank == 0]


def fit_and_score(
    name: str, kernel: Kernel, make: Callable[[Kernel], Any], seed: int | None
) -> Trained:
    """Fit a model with a kernel, and score it by leave-one-out; or tell why that failed."""
    started = time.perf_counter()
    try:
        model = make(kernel)
        return scored(name, model, train_roughly(model, seed), started)
    except FIT_FAILURES as error:
        return failed(name, started, error)


def train_roughly(model: Any, seed: int | None) -> History:
    """
    Train until two steps gain so little that the order of the kernels is likely to be clear; where
    targets are missing, so that losses vary by chance, until the end.
    """
    rough = model.observed is None
    stop = tf_keras.callbacks.EarlyStopping("loss", min_delta=ROUGHLY, patience=2)
    return uninterrupted(model.fit(seed=seed, verbose=0, callbacks=[stop] if rough else []))


def uninterrupted(history: History) -> History:
    """The history, unless the user has ended training: a half-trained model has no score."""
    if history.interrupted:
        raise KeyboardInterrupt(history.message)
    return history


def failed(name: str, started: float, error: Exception) -> Trained:
    """The row of the table for a kernel that could not be fitted."""
    seconds = time.perf_counter() - started
    return Trained(Candidate(name, -np.inf, np.nan, np.nan, 0, seconds, str(error)), failure=error)


def scored(name: str, model: Any, history: History, started: float) -> Trained:
    """A trained model with its scores."""
    left_out = model.leave_one_out(full_output_cov=False)
    log_evidence = float(model.log_marginal_likelihood())
    densities = left_out.log_density.numpy()
    if not np.isfinite(densities).all():
        raise FloatingPointError("a leave-one-out density is not finite")
    squares = np.square(left_out.mean.numpy() - model.data[1].numpy())
    num_parameters = sum(int(np.size(p)) for p in model.trainable_parameters)
    # Where targets are missing the objective is of completed ones, which no two kernels share.
    objective = log_evidence
    if model.observed is None:
        objective = float(model.maximum_log_likelihood_objective())
    row = Candidate(
        name,
        log_density=float(np.mean(densities)),
        rmse=float(np.mean(np.sqrt(np.nanmean(squares, axis=0)))),
        log_evidence=log_evidence,
        num_parameters=num_parameters,
        seconds=time.perf_counter() - started,
        score=charged(objective, num_parameters, len(densities)),
        interpolates=interpolates(model),
    )
    return Trained(row, model, history, densities, objective=objective)
