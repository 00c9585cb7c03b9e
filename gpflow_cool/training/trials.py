"""
What a fit tries after training, where the loss has several optima: other lengthscales, periods and
variances, and what L-BFGS reaches from there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product

import numpy as np
from gpflow import Parameter
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel, Linear, Periodic, RationalQuadratic, Sum

from .lbfgs import FAILURES, Evaluate
from .model import TrainableModel
from .run import Run, restore, snapshot, state_variables
from .starts import (
    LONG_LENGTHSCALE,
    assign_all,
    is_admissible,
    term_scales,
    trainable_lengthscales,
)

LADDER = (0.03, 0.1, 0.25, 4.0, 16.0, 64.0, 2048.0, 1e9)
"""Times half the median distance: what is tried after training, if that seems worthwhile. With the
longest a function is constant, which may be all that targets far from zero ask for."""

ALONE, UNSEEN = 0.5, 16.0
"""Times half the median distance: where each input has a lengthscale, what one of them has, and
what the others have meanwhile. Half of `LADDER` is tried then."""

MOST_ALONE = 16
"""More inputs than this are not tried alone."""

LONG_PERIOD = 1e4
"""Times half the median distance: a period that the data do not see."""

PERIODS, WITHIN_PERIOD = (0.5, 1.0, 2.0, 4.0), (0.5, 100.0)
"""Times half the median distance: periods that are tried, and the lengthscales with them, in units
of the sine. With the longer one there is a constant and one wave."""

FEW_ROWS = 50
"""Up to so many rows, others are tried after every fit."""

EXPLORED_ROWS, FEW_STEPS = 25, 10
"""Up to 25 rows, L-BFGS takes ten steps from whatever is tried."""

BESIDE = 100.0
"""How many times the variance of a term of a sum those have that are constant beside it, and of an
input of a linear kernel one that is tried alone."""

LARGE_ALPHA = 1e6
"""With it a rational quadratic kernel is as good as a squared exponential one."""

UNEQUAL = (1e-4, 1e4)
"""Times its variance: what a term of a sum has where no task has a signal with equal terms."""

WORTHWHILE = 1e-3
"""Nats that another start must gain."""


Changes = tuple[list[Parameter], list[AnyNDArray]]
"""Parameters, and what they are changed to."""

Descend = Callable[[Run, int, Evaluate], None]
"""Takes a few steps from the model's present parameters, and keeps the best in the run."""


def try_others(
    run: Run,
    centre: list[AnyNDArray],
    evaluate: Evaluate,
    descend: Descend | None = None,
    descend_first: Callable[[], None] | None = None,
    *,
    no_signal: bool = False,
) -> bool:
    """
    Move to the best of other lengthscales, or of what is reached from there, if its loss is lower.

    Where no task has a signal the loss does not depend on the lengthscales, so that no gradient
    leads away from there. Yet with a long lengthscale a trend may be there to learn, and with a
    short one that neighbours are alike.

    :param evaluate: If it solves for b, it must look everywhere: where b is next to nothing, a
        maximum with more signal may be out of sight.
    :param descend: How to take steps from each trial; None if the trials themselves are enough.
    :param descend_first: Other steps, with which to begin; those of `descend` follow.
    :param no_signal: Whether to try other variances of the terms of a sum, too.
    :return: Whether a lower loss was found.
    """
    before = run.best_loss, run.best_weights
    others = [*other_lengthscales(run.model, centre)]
    others += [*unequal_terms(run.model.kernel)] if no_signal else []
    if descend is not None and descend_first is not None:
        with suppress(*FAILURES):
            descend_first()
            descend(run, FEW_STEPS, evaluate)
    for parameters, values in others:
        if run.model.stop_training:
            break
        with suppress(*FAILURES):
            restore(run.state, before[1])
            assign_all(parameters, values)
            if descend is None:
                run.keep_if_best(evaluate().loss)
            else:
                descend(run, FEW_STEPS, evaluate)
    found = run.best_loss < before[0] - WORTHWHILE
    if not found:
        run.best_loss, run.best_weights = before
    run.restore_best()
    if found:
        evaluate()  # what is solved for starts from here again
    return found


def other_lengthscales(model: TrainableModel, centre: list[AnyNDArray]) -> Iterator[Changes]:
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
            alone = UNSEEN * value
            alone[column] = ALONE * value[column]
            yield [parameter], [alone]
    present = {id(p): v for p, v in zip(model.trainable_parameters, centre, strict=True)}
    yield from linear_inputs_alone(model.kernel, present)
    if isinstance(model.kernel, Sum):
        yield from terms_alone(model.kernel, moved, present)


def may_be_alone(parameter: Parameter, value: AnyNDArray) -> bool:
    """Whether each of the inputs of a parameter is tried alone: not if they are many."""
    return 1 < np.size(value) <= MOST_ALONE and parameter.prior is None


def set_lengthscales_of_one_input(model: TrainableModel, parameters: Sequence[Parameter]) -> None:
    """
    Set lengthscales, one per input, to half the median distance of the rows; or, if the loss is
    lower there, to half of that for one input and `LONG_LENGTHSCALE` times that for the others.

    Along one input the targets may change quickly, and along others slowly or not at all. Where all
    have the same lengthscale, nothing is to be seen of that.
    """
    distances, state = trainable_lengthscales(model), state_variables(model)
    own = [p for p in parameters if id(p) in distances]
    half = [np.full(p.shape, distances[id(p)]) for p in own]
    tries, loss = [half], model.profile()
    for number, value in enumerate(half if loss is not None else []):
        for column in range(value.size if value.size <= MOST_ALONE else 0):
            alone = LONG_LENGTHSCALE * value
            alone[column] = ALONE * value[column]
            tries.append([*half[:number], alone, *half[number + 1 :]])
    outcomes = []
    for values in tries[:1] if loss is None else tries:
        assign_all(own, values)
        with suppress(*FAILURES):
            found = np.inf if loss is None else loss.evaluate_anew().loss
            outcomes.append((found, snapshot(state)))
    if outcomes:
        restore(state, min(outcomes, key=lambda outcome: outcome[0])[1])


def other_periods(
    kernel: Kernel,
    moved: dict[int, tuple[Parameter, AnyNDArray]],
    half_distances: dict[int, float],
    ladder: Sequence[float],
) -> Iterator[Changes]:
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
    tried = [(LONG_PERIOD, factor) for factor in ladder] + [*product(PERIODS, WITHIN_PERIOD)]
    for times, factor in tried if periodic else ():
        is_long = times == LONG_PERIOD
        changes = {key: (p, factor * v if is_long else v) for key, (p, v) in moved.items()}
        for part in periodic:
            key = id(part.base_kernel.lengthscales)
            period = times * half_distances[key]
            changes[id(part.period)] = part.period, np.full(part.period.shape, period)
            lengthscale, value = changes[key]
            inside = value * (np.pi / period) if is_long else np.full_like(value, factor)
            changes[key] = lengthscale, inside
        parameters, values = zip(*changes.values(), strict=True)
        yield list(parameters), list(values)


def large_alphas(
    kernel: Kernel, moved: dict[int, tuple[Parameter, AnyNDArray]]
) -> Iterator[Changes]:
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


def linear_inputs_alone(kernel: Kernel, present: dict[int, AnyNDArray]) -> Iterator[Changes]:
    """
    Each input of a linear kernel alone, where each has a variance.

    :param present: Values of trainable parameters before training, by id.
    """
    for part in (kernel, *kernel.submodules):
        value = present.get(id(part.variance)) if isinstance(part, Linear) else None
        if value is not None and may_be_alone(part.variance, value):
            for column in range(value.size):
                others = np.arange(value.size) != column
                alone = np.where(others, value / BESIDE, value)
                if is_admissible(part.variance, alone):
                    yield [part.variance], [alone]


def terms_alone(
    kernel: Sum,
    moved: dict[int, tuple[Parameter, AnyNDArray]],
    present: dict[int, AnyNDArray],
) -> Iterator[Changes]:
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


def unequal_terms(kernel: Kernel) -> Iterator[Changes]:
    """The variance of each term of a sum but the first, times those in `UNEQUAL`."""
    scales = term_scales(kernel) if isinstance(kernel, Sum) else []
    for parameter in (p for p in scales if p is not None):
        for factor in UNEQUAL:
            value = factor * parameter.numpy()
            if is_admissible(parameter, value):
                yield [parameter], [value]
