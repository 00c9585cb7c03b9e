"""Where a fit starts: at the best of a few kernels of the size of the data."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray
from gpflow.kernels import Sum

from ..chain.starting import half_median_distance, mean_kernel_diagonal, scale_parameters
from ..kernels import Laplacian
from .lbfgs import FAILURES
from .losses import loss_of
from .model import TrainableModel
from .run import restore, snapshot
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
    scales, balanced = trainable_lengthscales(model), balanced_variances(model)
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
    if balanced:
        pairs = list(zip(trainable, near, strict=True))
        starts.append([balanced.get(id(p), value) for p, value in pairs])
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


def balanced_variances(model: TrainableModel) -> dict[int, AnyNDArray]:
    """
    Variances, by id, with which every term of a sum has the mean variance of the first one.

    Where one term is far larger than the others, such as a linear kernel of years beside a
    constant, the others vanish in the noise, and no gradient leads back to them.
    """
    if not isinstance(model.kernel, Sum):
        return {}
    X, (first, *others) = model.data[0].numpy(), model.kernel.kernels
    size, found = mean_kernel_diagonal(first, X), {}
    for term in others:
        for parameter in scale_parameters(term)[:1]:
            value = constrained(parameter) * (size / mean_kernel_diagonal(term, X))
            is_free = parameter.trainable and parameter.prior is None
            if is_free and is_admissible(parameter, value):
                found[id(parameter)] = value
    return found


def choose_start(
    model: TrainableModel, loss: Callable[[], float], starts: list[list[AnyNDArray]]
) -> None:
    """Set the parameters to the start with the lowest loss; to the first one if none has a loss."""
    parameters, variables = list(model.trainable_parameters), model.trainable_variables
    if len(starts) == 1:
        return
    outcomes: list[tuple[float, list[AnyNDArray]]] = []
    for values in starts:
        assign_all(parameters, values)
        with suppress(*FAILURES):  # another start may have a loss
            outcomes.append((loss(), snapshot(variables)))
    finite = [outcome for outcome in outcomes if np.isfinite(outcome[0])]
    if not finite:
        assign_all(parameters, starts[0])
        return
    restore(variables, min(finite, key=lambda outcome: outcome[0])[1])


def start_at_best(model: TrainableModel) -> None:
    """Set the parameters to where a fit would start."""
    loss = loss_of(model, profile=True)
    starts = starting_values(model, 0, np.random.default_rng(0))
    choose_start(model, loss.value, starts)


def assign_all(parameters: list[Parameter], values: list[AnyNDArray]) -> None:
    """Set parameters to constrained values."""
    for parameter, value in zip(parameters, values, strict=True):
        assign(parameter, value)
