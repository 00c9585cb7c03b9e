r"""
The inner problem of profiled training: the best b and sigma2 for a fixed kernel matrix.

With the spectrum fixed the objective splits into T problems in two numbers each,
:math:`(\log b_t, \log \sigma^2_t)`. They are solved together by Newton's method with exact
derivatives, from several starts at once.

Letters: T tasks, Q problems (one task from one starting point each), S starts.
"""

from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from .terms import TaskProblems, Terms, task_terms

MAX_STEP = 3.0
"""Longest Newton step in log b and log sigma2."""

MAX_ITERATIONS = 60

GAIN_TOLERANCE = 1e-12
"""A step with a smaller expected gain, in nats, is not taken."""

STRICT_ITERATIONS, LOOSE_GAIN_TOLERANCE = 15, 1e-5
"""After this many steps the tolerance grows tenfold per step, up to the loose one: where the data
hardly tell b from sigma2, many steps would gain next to nothing."""

MAX_GAIN_RATIO = 10.0
"""A start is given up if this many times the expected gain of its next step would not lift it to
the best start of its task. Near an optimum a step expects twice the gain that is left."""

MERGE_DISTANCE = 0.01
"""A start is given up if it is this close, in log b and log sigma2, to a better start of its task:
both would end at the same optimum."""

SHORTENING, MAX_SHORTENINGS = 0.3, 8
"""A step that does not climb is shortened by this factor, up to so many times."""


class Box(NamedTuple):
    """Bounds of log b and log sigma2, [T, 2] each; equal bounds hold a number fixed."""

    lower: AnyNDArray
    upper: AnyNDArray


class InnerSolution(NamedTuple):
    """The best of all starts for each task, [T] each."""

    b: AnyNDArray
    sigma2: AnyNDArray
    terms: AnyNDArray


class Search(NamedTuple):
    """Q problems on their way to an optimum; the arrays change in place."""

    tasks: AnyNDArray  # [Q], all tasks from the first start, then all from the second, and so on
    x: AnyNDArray  # [Q, 2], (log b, log sigma2)
    terms: Terms
    box: Box  # bounds of the Q problems, not of the T tasks

    def best(self) -> AnyNDArray:
        """[T], the problem that is best for each task."""
        values = self.terms.value.reshape(-1, self.tasks[-1] + 1)
        num_tasks = values.shape[1]
        return np.nanargmax(values, axis=0) * num_tasks + np.arange(num_tasks)


@check_shapes("starts: [S, T, 2]")
def solve(problems: TaskProblems, starts: AnyNDArray, box: Box) -> InnerSolution:
    """
    Maximise every task's term from every start, and keep the best.

    :param starts: (b, sigma2) for each start and task.
    """
    num_starts, num_tasks, _ = starts.shape
    tasks = np.tile(np.arange(num_tasks), num_starts)
    bounds = Box(box.lower[tasks], box.upper[tasks])
    x = np.clip(np.log(starts.reshape(-1, 2)), bounds.lower, bounds.upper)
    search = Search(tasks, x, task_terms(problems, tasks, np.exp(x)), bounds)
    active = np.arange(len(tasks))
    for iteration in range(MAX_ITERATIONS):
        looser = 10.0 ** max(0, iteration - STRICT_ITERATIONS)
        step, gain = newton_step(search, active)
        worthwhile = gain > min(GAIN_TOLERANCE * looser, LOOSE_GAIN_TOLERANCE)
        worthwhile &= may_become_best(search, active, gain)
        active = active[worthwhile]
        if not len(active):
            break
        active = climb(problems, search, active, step[worthwhile])
    best = search.best()
    b, sigma2 = np.exp(x[best]).T
    return InnerSolution(b, sigma2, search.terms.value[best])


def newton_step(search: Search, active: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """
    Ascent step of the active problems: Newton with the absolute value of the curvature.

    A number at its bound whose gradient points outside stays where it is.

    :return: The steps in (log b, log sigma2), and what each would gain if the problem were linear.
    """
    x = search.x[active]
    p = np.exp(x)
    gradient = p * search.terms.gradient[active]
    hessian = p[:, :, None] * p[:, None, :] * search.terms.hessian[active]
    hessian[:, [0, 1], [0, 1]] += gradient
    held = (x <= search.box.lower[active]) & (gradient <= 0)
    held |= (x >= search.box.upper[active]) & (gradient >= 0)
    gradient = np.where(held, 0.0, gradient)
    hessian = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
    values, vectors = np.linalg.eigh(hessian)
    steepest = np.max(np.abs(values), axis=1, keepdims=True)
    curvature = np.maximum(np.abs(values), 1e-9 * steepest + 1e-12)
    step = np.einsum("qij,qj->qi", vectors, np.einsum("qji,qj->qi", vectors, gradient) / curvature)
    length = np.max(np.abs(step), axis=1, keepdims=True)
    step *= np.minimum(1.0, MAX_STEP / np.maximum(length, MAX_STEP))
    return step, np.sum(step * gradient, axis=1)


def may_become_best(search: Search, active: AnyNDArray, gain: AnyNDArray) -> AnyNDArray:
    """
    Whether an active problem is the best of its task, or may still end above it.

    See `MAX_GAIN_RATIO` and `MERGE_DISTANCE`.
    """
    x, values = search.x, search.terms.value
    best = search.best()[search.tasks[active]]
    far = np.max(np.abs(x[active] - x[best]), axis=1) > MERGE_DISTANCE
    return (active == best) | (far & (values[active] + MAX_GAIN_RATIO * gain >= values[best]))


def climb(
    problems: TaskProblems, search: Search, active: AnyNDArray, direction: AnyNDArray
) -> AnyNDArray:
    """
    Take the step of every active problem, shortened until it climbs.

    :return: The problems that moved; the others are as high as rounding lets them get.
    """
    tasks, x, terms, box = search.tasks, search.x, search.terms, search.box
    pending = np.arange(len(active))
    for _ in range(MAX_SHORTENINGS):
        rows = active[pending]
        trial = np.clip(x[rows] + direction[pending], box.lower[rows], box.upper[rows])
        new = task_terms(problems, tasks[rows], np.exp(trial))
        better = new.value > terms.value[rows]
        x[rows[better]] = trial[better]
        for old, part in zip(terms, new, strict=True):
            old[rows[better]] = part[better]
        pending = pending[~better]
        if not len(pending):
            break
        direction[pending] *= SHORTENING
    return np.delete(active, pending)
