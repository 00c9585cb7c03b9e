"""Where a fit starts: lengthscales of the size of the data, and variances that balance a sum."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray
from gpflow.kernels import Constant, Kernel, Sum

from ..chain.laplacian import Laplacian
from ..chain.starting import (
    half_median_distance,
    mean_kernel_diagonal,
    mean_squares,
    scale_parameters,
    task_scales,
)
from .lbfgs import FAILURES, Evaluate
from .model import TrainableModel
from .run import Run, restore, snapshot
from .vector import ParameterVector, assign, constrained, rounding_at, softplus_floor

LONG_LENGTHSCALE = 4.0
"""A lengthscale this many times half the median distance is tried as a start as well."""

UNBALANCED = 10.0
"""Terms of a sum whose mean variances differ by more are tried with equal ones as well. Constant
terms are tried in the size of the targets' means, if squares are so many times their variances."""


def starting_points(model: TrainableModel) -> list[AnyNDArray]:
    """Constrained values of all trainable parameters, lengthscales at half the median distance."""
    lengthscales = trainable_lengthscales(model)
    values = []
    for p in model.trainable_parameters:
        value = constrained(p)
        if id(p) in lengthscales:
            scale = np.full(p.shape, lengthscales[id(p)], value.dtype)
            value = scale if is_admissible(p, scale) else value
        values.append(value)
    return values


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


def choose_start(run: Run, centre: list[AnyNDArray], evaluate: Evaluate) -> None:
    """
    Start from the present parameters, or from others if their loss is lower: lengthscales of the
    centre, longer ones, with which a model is nearly linear and may have another optimum, both of
    them with balanced variances, and constants of the size of the targets' means.
    """
    trainable = list(run.model.trainable_parameters)
    present = [constrained(p) for p in trainable]
    changes = zip(trainable, present, centre, strict=True)
    near = {id(p): there for p, here, there in changes if not np.array_equal(here, there)}
    long = {id(p): longer(p, near[id(p)]) for p in trainable if id(p) in near}
    balanced = balanced_variances(run.model.kernel, run.model.data[0].numpy())
    starts = [{}, near, long] if near else [{}]
    starts += [{**lengths, **balanced} for lengths in starts[-2:] if balanced]
    constants = constants_for_means(run.model)
    starts += [{**starts[-1], **constants}] if constants else []
    changed = {*near, *balanced, *constants}
    moved = [n for n, p in enumerate(trainable) if id(p) in changed]
    parameters = [trainable[n] for n in moved]
    values = [[start.get(id(trainable[n]), present[n]) for n in moved] for start in starts]
    if moved:
        start_from_best(run, parameters, values, evaluate)


def start_from_best(
    run: Run,
    parameters: Sequence[Parameter],
    starts: Sequence[Sequence[AnyNDArray]],
    evaluate: Evaluate,
) -> None:
    """Assign those of some values that have the lowest loss; the first ones if none has a loss."""
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


def balanced_variances(kernel: Kernel, X: AnyNDArray) -> dict[int, AnyNDArray]:
    """
    Variances, by id, with which every term of a sum has the mean variance of the first one; none
    where their mean variances differ by less than a factor of `UNBALANCED`.

    Where one term is far larger than the others, such as a linear kernel at inputs far from zero, b
    follows that one. The others vanish in the noise, and no gradient leads back to them.
    """
    if not isinstance(kernel, Sum):
        return {}
    first, *others = (mean_kernel_diagonal(term, X) for term in kernel.kernels)
    if max(first, *others) < UNBALANCED * min(first, *others):
        return {}
    found = {}
    for parameter, size in zip(term_scales(kernel), others, strict=True):
        if parameter is not None:
            value = constrained(parameter) * (first / size)
            if is_admissible(parameter, value):
                found[id(parameter)] = value
    return found


def term_scales(kernel: Sum) -> list[Parameter | None]:
    """The scale of each term of a sum but the first, None where it is not to be changed."""
    firsts = [next(iter(scale_parameters(term)), None) for term in kernel.kernels[1:]]
    return [p if p is not None and p.trainable and p.prior is None else None for p in firsts]


def constants_for_means(model: TrainableModel) -> dict[int, AnyNDArray]:
    """
    Variances, by id, with which constant terms of a sum explain the targets' means while the others
    explain how they vary; none where means are not large.

    The loss is flat between there and constants that are small: far from zero, rounding hides the
    slope.
    """
    kernel, (X, Y) = model.kernel, model.data
    if not isinstance(kernel, Sum):
        return {}
    residual = (Y - model.mean_function(X)).numpy()
    ratio = float(np.max(mean_squares(residual) / task_scales(residual)))
    if ratio < UNBALANCED:
        return {}
    varying = [term for term in kernel.kernels if not isinstance(term, Constant)]
    size = ratio * sum(mean_kernel_diagonal(term, X.numpy()) for term in varying)
    pairs = zip(kernel.kernels[1:], term_scales(kernel), strict=True)
    constants = [p for term, p in pairs if isinstance(term, Constant) and p is not None]
    return {id(p): size * np.ones_like(constrained(p)) for p in constants if is_admissible(p, size)}


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
        assign(parameter, value)
