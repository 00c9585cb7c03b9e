"""Where a fit starts: lengthscales of the size of the data, and others where those see nothing."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product

import numpy as np
import tensorflow as tf
from gpflow import Parameter
from gpflow.base import AnyNDArray
from gpflow.kernels import Constant, Kernel, Linear, Periodic, RationalQuadratic, Sum

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
from .vector import ParameterVector

LONG_LENGTHSCALE = 4.0
"""A lengthscale this many times half the median distance is tried as a start as well."""

LADDER = (0.03, 0.1, 0.25, 4.0, 16.0, 64.0, 2048.0, 1e9)
"""Times half the median distance: what is tried after training, if that seems worthwhile. With the
longest a function is constant, which may be all that targets far from zero ask for."""

ALONE = 0.5
"""Times half the median distance: where each input has a lengthscale, what one of them has while
the others have the longest in `LADDER`, of which half is tried then."""

MOST_ALONE = 16
"""More inputs than this are not tried alone."""

LONG_PERIOD = 1e4
"""Times half the median distance: a period that the data do not see."""

PERIODS, WITHIN_PERIOD = (0.5, 1.0, 2.0, 4.0), 0.5
"""Times half the median distance: periods that are tried, and the lengthscale with them, in units
of the sine."""

FEW_ROWS = 50
"""Up to so many rows it is tried after every fit."""

UNBALANCED = 10.0
"""Terms of a sum whose mean variances differ by more are tried with equal ones as well. Constant
terms are tried in the size of the targets' means, if squares are so many times their variances."""

BESIDE = 100.0
"""How many times the variance of a term of a sum those have that are constant beside it."""

LARGE_ALPHA = 1e6
"""With it a rational quadratic kernel is as good as a squared exponential one."""

UNEQUAL = (1e-4, 1e4)
"""Times its variance: what a term of a sum has where no task has a signal with equal terms."""

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
    Start from the present parameters, or from others if their loss is lower: lengthscales of the
    centre, longer ones, with which a model is nearly linear and may have another optimum, both of
    them with balanced variances, and constants of the size of the targets' means.
    """
    trainable = list(run.model.trainable_parameters)
    present = [p.numpy() for p in trainable]
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
            value = parameter.numpy() * (first / size)
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
    return {id(p): size * np.ones_like(p.numpy()) for p in constants if is_admissible(p, size)}


def try_others(
    run: Run, centre: list[AnyNDArray], evaluate: Evaluate, *, no_signal: bool = False
) -> bool:
    """
    Move to the best of other lengthscales, if one of them has a lower loss.

    Where no task has a signal the loss does not depend on the lengthscales, so that no gradient
    leads away from there. Yet with a long lengthscale a trend may be there to learn, and with a
    short one that neighbours are alike.

    :param evaluate: If it solves for b, it must look everywhere: where b is next to nothing, a
        maximum with more signal may be out of sight.
    :param no_signal: Whether to try other variances of the terms of a sum, too.
    :return: Whether a lower loss was found.
    """
    lowest, best = run.best_loss - WORTHWHILE, None
    others = [*other_lengthscales(run.model, centre)]
    others += [*unequal_terms(run.model.kernel)] if no_signal else []
    for parameters, values in others:
        if run.model.stop_training:
            break
        with suppress(*FAILURES):
            run.restore_best()
            assign_all(parameters, values)
            loss = evaluate().loss
            if loss < lowest:
                lowest, best = loss, snapshot(run.state)
    if best is None:
        run.restore_best()
        return False
    restore(run.state, best)
    evaluate()  # what is solved for starts from here again
    return True


def other_lengthscales(
    model: TrainableModel, centre: list[AnyNDArray]
) -> Iterator[tuple[list[Parameter], list[AnyNDArray]]]:
    """
    Lengthscales in `LADDER`, all of them together; then other periods and alphas, if any; where
    inputs have lengthscales of their own, without a prior that pulls them together, or variances of
    a linear kernel, then each input alone; then each term of a sum alone.
    """
    lengthscales = trainable_lengthscales(model)
    pairs = zip(model.trainable_parameters, centre, strict=True)
    moved = {id(p): (p, value) for p, value in pairs if id(p) in lengthscales}
    several = [(p, value) for p, value in moved.values() if may_be_alone(p, value)]
    ladder = LADDER[1::2] if several else LADDER
    for factor in ladder if moved else ():
        parameters, values = zip(*moved.values(), strict=True)
        yield list(parameters), [factor * value for value in values]
    yield from other_periods(model.kernel, moved, lengthscales, ladder)
    yield from large_alphas(model.kernel, moved)
    for parameter, value in several:
        for column in range(value.size):
            alone = LADDER[-1] * value
            alone[column] = ALONE * value[column]
            yield [parameter], [alone]
    present = {id(p): v for p, v in zip(model.trainable_parameters, centre, strict=True)}
    yield from linear_inputs_alone(model.kernel, present)
    if isinstance(model.kernel, Sum):
        yield from terms_alone(model.kernel, moved, present)


def may_be_alone(parameter: Parameter, value: AnyNDArray) -> bool:
    """Whether each of the inputs of a parameter is tried alone: not if they are many."""
    return 1 < np.size(value) <= MOST_ALONE and parameter.prior is None


def other_periods(
    kernel: Kernel,
    moved: dict[int, tuple[Parameter, AnyNDArray]],
    half_distances: dict[int, float],
    ladder: Sequence[float],
) -> Iterator[tuple[list[Parameter], list[AnyNDArray]]]:
    r"""
    Where there are periodic kernels, lengthscales in a ladder with a long period, and `PERIODS`.

    The distance :math:`\sin(\pi r / p) / \ell` is :math:`r / (\ell p / \pi)` for a period p far
    beyond the data: a kernel that need not repeat itself.

    :param moved: Lengthscales with their starts, by id.
    :param half_distances: Half the median distance in their inputs, by id.
    """
    periodic = [
        part
        for part in (kernel, *kernel.submodules)
        if isinstance(part, Periodic)
        and part.period.trainable
        and id(part.base_kernel.lengthscales) in moved
    ]
    for long, factor in [*product([True], ladder), *product([False], PERIODS)] if periodic else ():
        changes = {key: (p, factor * value if long else value) for key, (p, value) in moved.items()}
        for part in periodic:
            key = id(part.base_kernel.lengthscales)
            period = (LONG_PERIOD if long else factor) * half_distances[key]
            changes[id(part.period)] = part.period, np.full(part.period.shape, period)
            lengthscale, value = changes[key]
            inside = value * (np.pi / period) if long else np.full_like(value, WITHIN_PERIOD)
            changes[key] = lengthscale, inside
        parameters, values = zip(*changes.values(), strict=True)
        yield list(parameters), list(values)


def large_alphas(
    kernel: Kernel, moved: dict[int, tuple[Parameter, AnyNDArray]]
) -> Iterator[tuple[list[Parameter], list[AnyNDArray]]]:
    """
    Rational quadratic kernels that are as good as squared exponential, with two lengthscales.

    :param moved: Lengthscales with their starts, by id.
    """
    parts = (kernel, *kernel.submodules)
    alphas = [part.alpha for part in parts if isinstance(part, RationalQuadratic)]
    alphas = [p for p in alphas if p.trainable and p.prior is None]
    for factor in (1.0, LONG_LENGTHSCALE) if alphas else ():
        changes = [(p, factor * value) for p, value in moved.values()]
        changes += [(p, np.full_like(p.numpy(), LARGE_ALPHA)) for p in alphas]
        if all(is_admissible(*change) for change in changes):
            parameters, values = zip(*changes, strict=True)
            yield list(parameters), list(values)


def linear_inputs_alone(
    kernel: Kernel, present: dict[int, AnyNDArray]
) -> Iterator[tuple[list[Parameter], list[AnyNDArray]]]:
    """
    Each input of a linear kernel alone, where each has a variance.

    :param present: Values of trainable parameters before training, by id.
    """
    for part in (kernel, *kernel.submodules):
        value = present.get(id(part.variance)) if isinstance(part, Linear) else None
        if value is not None and may_be_alone(part.variance, value):
            for column in range(value.size):
                others = np.arange(value.size) != column
                alone = np.where(others, value / LADDER[-1], value)
                if is_admissible(part.variance, alone):
                    yield [part.variance], [alone]


def terms_alone(
    kernel: Sum,
    moved: dict[int, tuple[Parameter, AnyNDArray]],
    present: dict[int, AnyNDArray],
) -> Iterator[tuple[list[Parameter], list[AnyNDArray]]]:
    """
    Each term of a sum with a short and a long lengthscale, while the others are constant and large:
    what they are for where some tasks are far from zero and others vary.

    :param moved: Lengthscales with their starts, by id.
    :param present: Values of trainable parameters before training, by id.
    """
    own = [{id(p) for p in term.trainable_parameters} & moved.keys() for term in kernel.kernels]
    if sum(map(bool, own)) < 2:
        return
    scales = [None, *term_scales(kernel)]
    for number, factor in product(range(len(own)), (1.0, LONG_LENGTHSCALE)):
        changes = [
            (p, value * (factor if key in own[number] else LADDER[-1]))
            for key, (p, value) in moved.items()
        ]
        for other, scale in enumerate(scales):
            if scale is not None and number in (0, other):
                times = BESIDE if number == 0 else 1.0 / BESIDE
                changes.append((scale, present[id(scale)] * times))
        if own[number] and all(is_admissible(*change) for change in changes):
            parameters, values = zip(*changes, strict=True)
            yield list(parameters), list(values)


def unequal_terms(kernel: Kernel) -> Iterator[tuple[list[Parameter], list[AnyNDArray]]]:
    """The variance of each term of a sum but the first, times those in `UNEQUAL`."""
    scales = term_scales(kernel) if isinstance(kernel, Sum) else []
    for parameter in (p for p in scales if p is not None):
        for factor in UNEQUAL:
            value = factor * parameter.numpy()
            if is_admissible(parameter, value):
                yield [parameter], [value]


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
