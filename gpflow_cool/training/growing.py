r"""
L-BFGS on samples of the rows that grow by a factor, and then on all rows.

An evaluation costs as much as it has rows, so that most of the way is gone with few of them. Each
sample starts where the one before has ended, or where the last two point to: the best parameters of
n rows move with log n. It also starts with their curvature. With the BFGS estimate H of the inverse
Hessian after n rows, :math:`S S^\top = (n / N) H` and :math:`\theta = S z` the loss of N rows has a
Hessian near the identity, and the first step is that of Newton's method.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from ..callbacks import CallbackList, KerasView
from .lbfgs import FAILURES, Evaluate, Point, lbfgs
from .run import History, Outcome, Run, restore, snapshot
from .vector import ParameterVector

FACTOR = 4
"""A sample has so many times the rows of the one before."""

SMALLEST_SAMPLE, ROWS_PER_POINT = 400, 1.5
"""The first sample has at least so many rows, also per inducing point."""

MAX_PARAMETERS = 300
"""With more parameters the curvature is not carried along: all rows are used from the start."""

GAIN = 1e-5
"""Training on all rows ends when a step promises less than this, in nats."""

SAMPLE_GAIN = 0.3
"""The same for a sample, whose optimum is not that of all rows."""

MOST_TRIES = 5
"""Evaluations of a line search: with a known curvature one or two are enough, unless rounding makes
the gradient noise."""

LARGEST_MOVE = 1.0
"""Two samples do not move the start of the next one, in logarithms, by more than this."""


def sample_sizes(num_rows: int, largest: int, num_points: int) -> list[int]:
    """
    Numbers of rows of the samples, growing.

    >>> sample_sizes(7463, 10_000, 300), sample_sizes(1_000_000, 50_000, 200)
    ([466, 1865], [781, 3125, 12500, 50000])
    >>> sample_sizes(1000, 10_000, 300)
    []

    :param largest: How many rows there are to choose samples from.
    """
    sizes, size = [], min(num_rows // FACTOR, largest)
    while size >= max(SMALLEST_SAMPLE, ROWS_PER_POINT * num_points):
        sizes.append(size)
        size //= FACTOR
    return sizes[::-1]


class Curvature:
    """The BFGS estimate of the inverse Hessian of a loss, [P, P]."""

    def __init__(self, H: AnyNDArray) -> None:
        self.H = H

    def add(self, s: AnyNDArray, y: AnyNDArray) -> None:
        r"""
        Learn from a step s, after which the gradient has changed by y.

        .. math:: H \leftarrow (I - \rho s y^\top) H (I - \rho y s^\top) + \rho s s^\top,
                  \qquad \rho = 1 / y^\top s
        """
        if s @ y <= 1e-10 * np.linalg.norm(s) * np.linalg.norm(y):
            return  # not convex along s
        A = np.eye(len(s)) - np.outer(s, y) / (s @ y)
        self.H = A @ self.H @ A.T + np.outer(s, s) / (s @ y)

    def root(self) -> AnyNDArray:
        """S with S S^T = H, even if rounding has made H indefinite."""
        lam, U = np.linalg.eigh(self.H)
        return np.asarray(U * np.sqrt(np.maximum(lam, 1e-12 * lam[-1])))


def extrapolated(ends: Sequence[AnyNDArray], sizes: Sequence[int], size: int) -> AnyNDArray:
    r"""
    Where the parameters of a larger sample may be, from those of the last two.

    .. math:: \theta_2 + (\theta_2 - \theta_1) \log(n / n_2) / \log(n_2 / n_1)

    >>> extrapolated([np.array([3.0]), np.array([2.5])], [100, 400], 1600)
    array([2.])

    A trend that has become weaker does so again, and one that has turned is none.

    >>> extrapolated([np.array([4.0]), np.array([3.0]), np.array([2.5])], [25, 100, 400], 1600)
    array([2.25])
    """
    if len(ends) < 2:
        return ends[-1]
    steps = np.log(size / sizes[-1]) / np.log(sizes[-1] / sizes[-2])
    last = ends[-1] - ends[-2]
    if len(ends) > 2:
        before = ends[-2] - ends[-3]
        weaker = np.divide(last, before, out=np.ones_like(last), where=before != 0.0)
        last = last * np.clip(weaker, 0.0, 1.0)
    move = min(1.0, steps) * last  # a trend does not last for ever
    return np.asarray(ends[-1] + np.clip(move, -LARGEST_MOVE, LARGEST_MOVE))


class Sample(NamedTuple):
    """Number of rows of a sample, and the loss on it at the model's present parameters."""

    size: int
    evaluate: Evaluate


def grown_lbfgs(
    samples: Sequence[Sample],
    num_rows: int,
    vector: ParameterVector,
    unit: float,
    run: Run,
    steps: int,
    evaluate: Evaluate,
) -> Outcome:
    """
    L-BFGS on samples, then on all rows.

    Steps on samples are not recorded: their losses cannot be compared.

    :param samples: Growing.
    """
    curvature = Curvature(unit**2 * np.eye(vector.size))
    start, before = vector.numpy(), snapshot(run.state)
    sizes: list[int] = []
    ends: list[AnyNDArray] = []
    for sample in [*samples, Sample(num_rows, evaluate)]:
        is_last = sample.evaluate is evaluate
        if ends:
            further = extrapolated(ends, sizes, sample.size)
            vector.assign(further)
            curvature.H *= sizes[-1] / sample.size
        if is_last:
            first = Start(start, before)
            others = [Start(theta, snapshot(run.state)) for theta in (further, ends[-1])]
            begin_at_best(first, others, vector, run, evaluate)
        on_sample = run if is_last else rehearsal_of(run)
        gain = GAIN if is_last else SAMPLE_GAIN
        outcome = search(
            vector, curvature, on_sample, steps, sample.evaluate, gain, is_first=not ends
        )
        on_sample.restore_best()
        sizes.append(sample.size)
        ends.append(vector.numpy())
    return outcome


class Start(NamedTuple):
    """Where a search may begin."""

    theta: AnyNDArray
    state: list[AnyNDArray]
    """Of all that training changes; what is solved for starts there."""


def begin_at_best(
    first: Start, others: Sequence[Start], vector: ParameterVector, run: Run, evaluate: Evaluate
) -> None:
    """
    Set the parameters to the first start, or to one of the others that has a lower loss.

    The others are tried in turn until one has. Each start may be the best that is ever seen: a fit
    that goes on from a checkpoint never ends above it.
    """
    lowest, best = np.inf, first.state
    for number, (theta, state) in enumerate([first, *others]):
        restore(run.state, state)
        vector.assign(theta)
        try:
            loss = evaluate().loss
        except FAILURES:
            if not number:
                raise
            continue
        run.keep_if_best(loss)
        if loss <= lowest:
            lowest, best = loss, snapshot(run.state)
            if number:
                break
    restore(run.state, best)


def rehearsal_of(run: Run) -> Run:
    """A run whose steps nobody sees; Ctrl-C and callbacks end it with the other."""
    return Run(run.model, History({}), CallbackList([], KerasView(run.model), {}))


def search(
    vector: ParameterVector,
    curvature: Curvature,
    run: Run,
    steps: int,
    evaluate: Evaluate,
    gain: float,
    *,
    is_first: bool,
) -> Outcome:
    """
    L-BFGS in coordinates in which the Hessian is near the identity; it adds to the curvature.

    :param gain: It ends when a step promises less than this, or less than rounding hides.
    """
    S = curvature.root()
    scale = 1.0
    if not is_first:  # SciPy's first step has length one: here it is Newton's step
        start = evaluate()
        gain = max(gain, start.rounding)
        scale = float(np.linalg.norm(S.T @ vector.gradient(start.gradients)))
        if 0.5 * scale**2 < gain:
            run.record_step(start)
            return Outcome(True, f"converged: a step promises less than {gain:g} nats")
    tolerance = scale * float(np.sqrt(2.0 * gain / vector.size))
    unit = scale * S

    def learn(before: Point, after: Point) -> None:
        s = unit @ (after.x - before.x)
        curvature.add(s, np.linalg.solve(unit.T, after.gradient - before.gradient))

    return lbfgs(
        vector,
        unit,
        run,
        steps,
        evaluate,
        tolerance=tolerance,
        most_tries=MOST_TRIES,
        learn=learn,
    )
