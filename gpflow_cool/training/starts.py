"""Where a fit starts: at the best of a few lengthscales of the size of the data."""

from contextlib import suppress

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray

from ..chain.starting import half_median_distance
from ..kernels import Laplacian
from .lbfgs import FAILURES, Evaluate
from .model import TrainableModel
from .run import Run, restore, snapshot
from .vector import ParameterVector, assign, constrained, rounding_at, softplus_floor

LONG_LENGTHSCALE = 4.0
"""A lengthscale this many times half the median distance is tried as a start as well: with it a
model is nearly linear, and may have another optimum. Where each input has a lengthscale they stay:
one that is too long has no gradient by which it could shrink."""


def starting_values(
    model: TrainableModel, restarts: int, rng: np.random.Generator
) -> list[list[AnyNDArray]]:
    """Constrained values of all trainable parameters at each start; the present ones first."""
    trainable = list(model.trainable_parameters)
    present = [constrained(p) for p in trainable]
    scales = trainable_lengthscales(model)
    starts, near = [present], present
    if scales:
        pairs = list(zip(trainable, present, strict=True))
        near = [with_scale(p, value, scales.get(id(p))) for p, value in pairs]
        longer = {key: LONG_LENGTHSCALE * scale for key, scale in scales.items()}
        long = [
            with_scale(p, value, longer.get(id(p)) if p.shape.rank == 0 else None)
            for p, value in zip(trainable, near, strict=True)
        ]
        starts += [near, long]
    vector = ParameterVector(trainable, logarithms=True)
    for _ in range(restarts):
        assign_all(trainable, near)
        vector.assign(vector.numpy() + rng.normal(size=vector.size))
        starts.append([constrained(p) for p in trainable])
    assign_all(trainable, present)
    return starts


def with_scale(parameter: Parameter, value: AnyNDArray, scale: float | None) -> AnyNDArray:
    """A parameter's value, or this lengthscale, if there is one and the bounds allow it."""
    if scale is None:
        return value
    proposed = np.full(parameter.shape, scale, value.dtype)
    return proposed if is_admissible(parameter, proposed) else value


def is_admissible(parameter: Parameter, value: AnyNDArray | float) -> bool:
    """Whether the parameter's bounds allow the value."""
    transform = parameter.transform
    value = np.asarray(value, parameter.dtype.as_numpy_dtype)  # a float would become float32
    floor = softplus_floor(parameter)
    if floor is not None:
        excess, least = value - floor, rounding_at(floor, parameter.dtype)
        return bool(np.isfinite(value).all() and np.all((excess > 0) | (excess > -least)))
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


def choose_start(run: Run, evaluate: Evaluate, starts: list[list[AnyNDArray]]) -> None:
    """Set the parameters to the start with the lowest loss; to the first one if none has a loss."""
    parameters = list(run.model.trainable_parameters)
    if len(starts) == 1:
        return
    outcomes: list[tuple[float, list[AnyNDArray]]] = []
    for values in starts:
        assign_all(parameters, values)
        with suppress(*FAILURES):  # another start may have a loss
            outcomes.append((evaluate().loss, snapshot(run.state)))
    finite = [outcome for outcome in outcomes if np.isfinite(outcome[0])]
    if not finite:
        assign_all(parameters, starts[0])
        return
    restore(run.state, min(finite, key=lambda outcome: outcome[0])[1])


def assign_all(parameters: list[Parameter], values: list[AnyNDArray]) -> None:
    """Set parameters to constrained values."""
    for parameter, value in zip(parameters, values, strict=True):
        assign(parameter, value)
