"""Where a fit starts: lengthscales of the size of the data, and others where those see nothing."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray

from ..chain.starting import half_median_distance
from ..laplacian import Laplacian
from .lbfgs import FAILURES, Evaluate
from .model import TrainableModel
from .run import Run, restore, snapshot
from .vector import ParameterVector

LONG_LENGTHSCALE = 4.0
"""A lengthscale this many times half the median distance is tried as a start as well."""

LADDER = (0.25, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""Times half the median distance: what is tried where everything looks like noise."""

WORTHWHILE = 1e-3
"""Nats that another start must gain."""


def starting_points(model: TrainableModel) -> list[AnyNDArray]:
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


def trainable_lengthscales(model: TrainableModel) -> dict[int, float]:
    """Half the median distance in its inputs for each trainable lengthscale parameter, by id."""
    X = model.data[0].numpy()
    found = {}
    for kernel in (model.kernel, *model.kernel.submodules):
        parameter = getattr(kernel, "lengthscales", None)
        if isinstance(parameter, Parameter) and parameter.trainable and hasattr(kernel, "slice"):
            columns = kernel.slice(tf.constant(X), None)[0].numpy()
            metric = "cityblock" if isinstance(kernel, Laplacian) else "euclidean"
            found[id(parameter)] = half_median_distance(columns, metric=metric)
    return found


def choose_start(run: Run, centre: list[AnyNDArray], evaluate: Evaluate) -> None:
    """
    Start from the present parameters, or from other lengthscales if their loss is lower: those of
    the centre, or longer ones, with which a model is nearly linear and may have another optimum.
    """
    present = [p.numpy() for p in run.model.trainable_parameters]
    candidates = zip(run.model.trainable_parameters, present, centre, strict=True)
    moved = [change for change in candidates if not np.array_equal(*change[1:])]
    if not moved:
        return
    parameters, here, there = zip(*moved, strict=True)
    long = [longer(parameter, value) for parameter, _, value in moved]
    outcomes: list[tuple[float, list[AnyNDArray]]] = []
    for values in (here, there, long):
        assign_all(parameters, values)
        with suppress(*FAILURES):  # another start may have a loss
            outcomes.append((evaluate().loss, snapshot(run.state)))
    finite = [outcome for outcome in outcomes if np.isfinite(outcome[0])]
    if not finite:
        assign_all(parameters, here)
        return
    restore(run.state, min(finite, key=lambda outcome: outcome[0])[1])


def leave_noise(run: Run, centre: list[AnyNDArray], evaluate: Evaluate) -> bool:
    """
    Move to the best of the lengthscales in `LADDER`, if one of them has a lower loss.

    Where no task has a signal the loss does not depend on the lengthscales, so that no gradient
    leads away from there. Yet with a long lengthscale a trend may be there to learn.

    :return: Whether a lower loss was found.
    """
    lengthscales = trainable_lengthscales(run.model)
    pairs = zip(run.model.trainable_parameters, centre, strict=True)
    moved = [(p, value) for p, value in pairs if id(p) in lengthscales]
    lowest, best = run.best_loss - WORTHWHILE, None
    for factor in LADDER if moved else ():
        with suppress(*FAILURES):
            assign_all([p for p, _ in moved], [factor * value for _, value in moved])
            loss = evaluate().loss
            if loss < lowest:
                lowest, best = loss, snapshot(run.state)
    if best is None:
        run.restore_best()
        return False
    restore(run.state, best)
    return True


def longer(parameter: Parameter, lengthscales: AnyNDArray) -> AnyNDArray:
    """
    A single lengthscale times `LONG_LENGTHSCALE`, if its bounds allow that. Where each input has a
    lengthscale, they stay: each grows by itself where it should, but one that is too long has no
    gradient by which it could shrink.
    """
    long = LONG_LENGTHSCALE * lengthscales
    return long if np.size(long) == 1 and is_admissible(parameter, long) else lengthscales


def perturb(model: TrainableModel, centre: list[AnyNDArray], rng: np.random.Generator) -> None:
    """Random starting parameters: positive ones mostly within a factor of e of the centre."""
    vector = ParameterVector(model.trainable_parameters, logarithms=True)
    assign_all(model.trainable_parameters, centre)
    vector.assign(vector.numpy() + rng.normal(size=vector.size))


def assign_all(parameters: Sequence[Parameter], values: Sequence[AnyNDArray]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.assign(value)
