r"""
The inner problem of profiled training: the best b and sigma2 for a fixed kernel matrix.

With the spectrum fixed the objective splits into T problems in two numbers each,
:math:`(\log b_t, \log \sigma^2_t)`. A grid that all tasks share shows where the maxima are, and
Newton's method with exact derivatives goes there, from all starts at once.

Letters: T tasks, n rows of a task's problem, P points of the grid, or starts.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from .search import (
    COARSE,
    FINE,
    SAME,
    Box,
    Starts,
    highest,
    margin_of_rows,
    search,
    search_orders,
    together,
)
from .terms import TaskProblems, Terms, task_terms

MAX_STEP, MAX_ITERATIONS = 3.0, 1000
"""Longest Newton step in log b and log sigma2, and how many there may be: where K is nearly I, the
maxima are the end of a bent ridge."""

TOLERANCE, TOLERANCE_OF_ORDERS = 1e-10, 1e-7
"""The last step is not evaluated but expanded: its gain, in nats, times its length is below this.
What the expansion leaves out of the value is about a sixth of that. Averages over orders do not
need the value: steps of 0.002 miss the optimum by less than 1e-5."""

LAST_STEP, MANY_STEPS = 0.1, 100.0
"""No longer step is expanded, and so many more may follow one that is."""

SHORTENING, MAX_SHORTENINGS = 0.3, 8
"""A step that does not climb is shortened by this factor, up to so many times."""

MAX_GAIN_RATIO = 10.0
"""A start is given up if this many times the expected gain of its next step would not lift it to
the best start of its task. Near an optimum a step expects twice the gain that is left."""

RIVAL = 5.0
"""Other maxima of a task are kept for the next kernel matrix if they are so many nats lower."""

MUCH_CHANGE = 2.0
"""The grid is looked at again when the term of a task has changed by so many nats."""

BELIEVED = 1.0
"""The gain that a longer step expects says nothing."""

LINEAR = 0.1
"""A term is as good as linear in b where its slope changes by this fraction towards zero."""

LITTLE_SIGNAL = 1e-3
"""Where b has vanished, it returns to this much signal relative to noise."""


class InnerSolution(NamedTuple):
    """The optimum of each task."""

    parameters: AnyNDArray  # [T, 2], b and sigma2
    values: AnyNDArray  # [T], the terms
    gradients: AnyNDArray  # [T, 2], of the terms by b and sigma2
    W: AnyNDArray  # [T, T], row t holds the weights of the tasks before t
    maxima: Starts  # this optimum and others that are not much lower
    searched: AnyNDArray  # [T], the terms when the grid was last looked at


class Optima(NamedTuple):
    """Where Newton's method ended."""

    starts: Starts
    terms: Terms

    def leaders(self) -> AnyNDArray:
        """[P], the best of each one's task."""
        tasks = self.starts.tasks
        order = np.lexsort([-self.terms.values, tasks])
        firsts = order[np.diff(tasks[order], prepend=-1) > 0]
        return firsts[np.searchsorted(tasks[firsts], tasks)]

    def best(self) -> "Optima":
        """The best of each task."""
        firsts = np.unique(self.leaders())
        return Optima(self.starts.of(firsts), self.terms.of(firsts))


def solve(
    problems: TaskProblems, box: Box, last: InnerSolution | None = None, *, anew: bool = False
) -> InnerSolution:
    """
    Maximise the term of every task.

    :param last: The solution for a kernel matrix before this one, whose maxima are the starts.
        Where the terms have changed much since, the grid is looked at again, a coarse one, and its
        maxima are starts as well where they are higher.
    :param anew: Whether all maxima on the coarse grid are starts as well, for a kernel matrix that
        is far from the last one.
    """
    margin = margin_of_rows(float(problems.spectrum.num_rows))
    if last is None or anew:
        found = highest(*search(problems, box, FINE if last is None else COARSE), margin)
        return solve_from(problems, box, together(last.maxima, found) if last else found)
    present = evaluated(problems, box, last.maxima)
    values = present.best().terms.values
    if np.max(np.abs(values - last.searched)) < MUCH_CHANGE:
        return solution(maximise(problems, box, present))._replace(searched=last.searched)
    maxima, x = search(problems, box, COARSE)
    maxima[maxima <= hoped_for(problems, box, present)] = -np.inf
    higher = highest(maxima, x, margin)
    if len(higher.tasks):
        present = joined(present, evaluated(problems, box, higher))
    return solution(maximise(problems, box, present))


def hoped_for(problems: TaskProblems, box: Box, present: Optima) -> AnyNDArray:
    """
    [T], the terms after a step, if it is short enough to be believed, else before it. Close to a
    maximum a step gains half of what the gradient promises.
    """
    (_, x), terms = present.best()
    _, gains, lengths = newton_steps(x, terms, box, largest_eigenvalue(problems))
    return terms.values + 0.5 * np.where(lengths < BELIEVED, gains, 0.0)


def solve_orders(
    problems: TaskProblems, orders: list[AnyNDArray], box: Box
) -> Iterator[InnerSolution]:
    """
    Maximise the terms of all tasks in each of some orders, which share the search.

    :param box: In the tasks' own order.
    """
    starts = search_orders(problems, orders, box)
    for order, own in zip(orders, starts, strict=True):
        ordered, bounds = problems.of_tasks(order), box.of_tasks(order)
        yield solve_from(ordered, bounds, own, TOLERANCE_OF_ORDERS)


def solve_from(
    problems: TaskProblems, box: Box, starts: Starts, tolerance: float = TOLERANCE
) -> InnerSolution:
    """Maximise the term of every task from given starts."""
    return solution(maximise(problems, box, evaluated(problems, box, starts), tolerance))


def unsolved(problems: TaskProblems, parameters: AnyNDArray) -> InnerSolution:
    """What there is at given b and sigma2, [T, 2], in place of the optimum of each task."""
    tasks = np.arange(len(parameters))
    terms = task_terms(problems, tasks, parameters)
    found = solution(Optima(Starts(tasks, np.log(parameters)), terms))
    return found._replace(parameters=parameters)  # exactly: sigma2 may be at its bound


def joined(one: Optima, other: Optima) -> Optima:
    """Both, in the order of the tasks."""
    pairs = zip((*one.starts, *one.terms), (*other.starts, *other.terms), strict=True)
    parts = [np.concatenate(pair) for pair in pairs]
    order = np.argsort(parts[0], kind="stable")
    tasks, x, *terms = (part[order] for part in parts)
    return Optima(Starts(tasks, x), Terms(*terms))


def solution(found: Optima) -> InnerSolution:
    """The best of each task's optima."""
    best, leaders = found.best(), found.leaders()
    values, x = found.terms.values, found.starts.x
    others = (values > values[leaders] - RIVAL) & are_apart(x, x[leaders])
    kept = others | (leaders == np.arange(len(values)))
    return InnerSolution(
        np.exp(best.starts.x),
        best.terms.values,
        best.terms.gradients,
        best.terms.W,
        found.starts.of(kept),
        best.terms.values,
    )


def are_apart(x: AnyNDArray, y: AnyNDArray) -> AnyNDArray:
    return np.max(np.abs(x - y), axis=1) > SAME


# Newton's method ----------------------------------------------------------------------------------


def evaluated(problems: TaskProblems, box: Box, starts: Starts) -> Optima:
    """The terms at starts, which are moved into the box."""
    x = np.clip(starts.x, *box.of_tasks(starts.tasks))
    return Optima(Starts(starts.tasks, x), task_terms(problems, starts.tasks, np.exp(x)))


def maximise(
    problems: TaskProblems, box: Box, present: Optima, tolerance: float = TOLERANCE
) -> Optima:
    """Maximise terms by Newton's method, from all starts at once; they are overwritten."""
    (tasks, x), terms = present
    bounds = box.of_tasks(tasks)
    largest = largest_eigenvalue(problems)
    steps, gains, lengths = newton_steps(x, terms, bounds, largest)
    shortenings = np.zeros(len(tasks))
    active = np.arange(len(tasks))
    for _ in range(MAX_ITERATIONS):
        open_ones = has_prospects(present, gains) & is_worthwhile(gains, lengths, tolerance)
        active = active[((shortenings > 0) | open_ones)[active]]
        if not len(active):
            break
        trial = np.clip(x[active] + steps[active], *bounds.of_tasks(active))
        found = task_terms(problems, tasks[active], np.exp(trial))
        climbs = found.values > terms.values[active]
        higher, lower = active[climbs], active[~climbs]
        x[higher] = trial[climbs]
        for part, new in zip(terms, found, strict=True):
            part[higher] = new[climbs]
        steps[higher], gains[higher], lengths[higher] = newton_steps(
            x[higher], terms.of(higher), bounds.of_tasks(higher), largest
        )
        shortenings[higher] = 0
        shortenings[lower] += 1
        steps[lower] *= SHORTENING
        stuck = lower[shortenings[lower] == MAX_SHORTENINGS]  # as high as rounding lets it
        steps[stuck], gains[stuck], shortenings[stuck] = 0.0, 0.0, 0
    steps[(lengths > LAST_STEP) | is_worthwhile(gains, lengths, tolerance)] = 0.0
    return expanded(present, np.clip(x + steps, *bounds))


def largest_eigenvalue(problems: TaskProblems) -> float:
    return float(np.max(problems.lam, initial=np.finfo(float).tiny))


def has_prospects(present: Optima, gains: AnyNDArray) -> AnyNDArray:
    """[P], whether another step may lead to the best optimum of a task."""
    leaders, values, x = present.leaders(), present.terms.values, present.starts.x
    leads = leaders == np.arange(len(leaders))
    may_win = (values + MAX_GAIN_RATIO * gains > values[leaders]) & are_apart(x, x[leaders])
    return leads | may_win


def is_worthwhile(gains: AnyNDArray, lengths: AnyNDArray, tolerance: float) -> AnyNDArray:
    """[P], whether a step must be taken and evaluated; after a long one there may be others."""
    return gains * np.where(lengths > LAST_STEP, MANY_STEPS, lengths) > tolerance


def expanded(present: Optima, x: AnyNDArray) -> Optima:
    """The terms at points close to those where they are known, by their Taylor series."""
    (tasks, old), (values, gradients, hessians, W, slopes, *others) = present
    change = np.exp(x) - np.exp(old)  # [P, 2], of b and sigma2
    bend = np.einsum("pij,pj->pi", hessians, change)
    values = values + np.sum((gradients + 0.5 * bend) * change, axis=1)
    W = W + np.einsum("pi,pit->pt", change, slopes)
    return Optima(Starts(tasks, x), Terms(values, gradients + bend, hessians, W, slopes, *others))


def newton_steps(
    x: AnyNDArray, terms: Terms, bounds: Box, largest: float
) -> tuple[AnyNDArray, AnyNDArray, AnyNDArray]:
    """
    Ascent steps: Newton with the absolute value of the curvature.

    A number at its bound whose gradient points outside stays where it is. In log b alone, Newton's
    method would lower b by a factor of e per step where a task wants no signal, and not see that it
    wants some where b has vanished: there b jumps.

    :param x: [P, 2], (log b, log sigma2).
    :param largest: The largest eigenvalue.
    :return: The steps [P, 2], what they would gain if the problems were linear, [P], and how long
        they are, [P]. A jump is longer than any step: it must be evaluated.
    """
    scale = np.exp(x)
    g = scale * terms.gradients
    H = scale[:, :, None] * terms.hessians * scale[:, None, :]
    slope = g[:, 0]
    held = ((x <= bounds.lower) & (g <= 0)) | ((x >= bounds.upper) & (g >= 0))
    target = jump_of_b(x, slope, H[:, 0, 0], bounds, largest)
    jumps = ~held[:, 0] & (target != x[:, 0])
    jump_gain = np.where(jumps, slope * np.expm1(target - x[:, 0]), 0.0)
    free = ~held & ~(jumps[:, None] & [True, False])
    g = g * free
    bb, bs, ss = (H[:, i, j] * free[:, i] * free[:, j] for i, j in ((0, 0), (0, 1), (1, 1)))
    step = newton_step(g, bb + g[:, 0], bs, ss + g[:, 1]) * free
    balanced = balancing_steps(scale, terms, free)
    better = np.sum(balanced * g, axis=1) > 0.0
    step[better] = balanced[better]
    step *= (MAX_STEP / np.maximum(np.max(np.abs(step), axis=1), MAX_STEP))[:, None]
    gains = np.sum(step * g, axis=1) + jump_gain
    lengths = np.max(np.abs(step), axis=1)
    step[jumps, 0] = (target - x[:, 0])[jumps]
    return step, gains, np.where(jumps, np.inf, lengths)


def jump_of_b(
    x: AnyNDArray, slope: AnyNDArray, curvature: AnyNDArray, bounds: Box, largest: float
) -> AnyNDArray:
    """
    Where log b should jump to, [P]; else where it is.

    :param slope: b times the derivative by b.
    :param curvature: b^2 times the second derivative.
    """
    vanishes = (slope < 0.0) & (np.abs(curvature) < LINEAR * -slope)
    little = np.minimum(x[:, 1] + np.log(LITTLE_SIGNAL / largest), bounds.upper[:, 0])
    returns = (slope > 0.0) & (x[:, 0] < little - 1.0)  # closer by, a Newton step is no smaller
    return np.where(vanishes, bounds.lower[:, 0], np.where(returns, little, x[:, 0]))


def balancing_steps(scale: AnyNDArray, terms: Terms, free: AnyNDArray) -> AnyNDArray:
    r"""
    Newton's steps for :math:`h_i = \log q_i - \log n_i = 0`, where the gradient is (q - n) / 2.

    If only the size of b and sigma2 is wrong, or of b where it outweighs the noise, h is linear in
    their logarithms, and one step is enough. Near an optimum it is the step for the gradient.

    :param scale: [P, 2], b and sigma2.
    :param free: [P, 2], which of them may move.
    :return: [P, 2]; zero where the determinant of h's Jacobian matrix is not positive, as it is at
        a maximum, and where both move and one goes far: h hardly depends on it, and the other would
        be led astray.
    """
    q, dq = terms.fits, terms.fit_slopes
    n, dn = q - 2.0 * terms.gradients, dq - 2.0 * terms.hessians
    with np.errstate(all="ignore"):
        h = np.where(free, np.log(q / n), 0.0)
        J = scale[:, None, :] * (dq / q[:, :, None] - dn / n[:, :, None])
        bb, ss = np.where(free, J[:, [0, 1], [0, 1]], -1.0).T
        both = free.all(axis=1)
        bs, sb = J[:, 0, 1] * both, J[:, 1, 0] * both
        det = bb * ss - bs * sb
        step = np.stack([bs * h[:, 1] - ss * h[:, 0], sb * h[:, 0] - bb * h[:, 1]], axis=1)
        step /= det[:, None]
        near = ~both | (np.max(np.abs(step), axis=1) <= MAX_STEP)
    good = (det > 0.0) & np.isfinite(step).all(axis=1) & near
    return np.where(good[:, None], step, 0.0)


def newton_step(g: AnyNDArray, bb: AnyNDArray, bs: AnyNDArray, ss: AnyNDArray) -> AnyNDArray:
    """|H|^-1 g, [P, 2], for gradients g [P, 2] and the entries of H, [P] each."""
    middle, half = 0.5 * (bb + ss), 0.5 * (bb - ss)
    radius, angle = np.hypot(half, bs), 0.5 * np.arctan2(bs, half)
    cos, sin = np.cos(angle), np.sin(angle)  # first eigenvector
    smallest = 1e-9 * (np.abs(middle) + radius) + 1e-12
    along = (cos * g[:, 0] + sin * g[:, 1]) / np.maximum(np.abs(middle + radius), smallest)
    across = (cos * g[:, 1] - sin * g[:, 0]) / np.maximum(np.abs(middle - radius), smallest)
    return np.stack([cos * along - sin * across, sin * along + cos * across], axis=1)
