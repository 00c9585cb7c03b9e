r"""
Probabilities that correlated normal variables exceed limits.

One variable has the normal distribution. Several are taken one after the other, each given those
before it (Genz, Numerical Computation of Multivariate Normal Probabilities, 1992):

.. math:: P(z \ge a) = E \prod_j \Phi(-t_j), \qquad
          t_j = \frac{a_j - \sum_{i<j} L_{ji} w_i}{L_{jj}}, \qquad S = L L^\top

where :math:`w_i` is standard normal above :math:`t_i`. The expectation is a mean over quasi-random
points in k - 1 dimensions, and its error is told by points that are scrambled anew.

Letters: M rows, k variables, P points, R times that points are scrambled.
"""

from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from .. import checks

WAYS = ("any", "all", "each")

SCRAMBLED = 8
"""How many times points are scrambled, so that their spread tells the error."""

POINTS = (128, 1024, 4096)
"""Numbers of points, tried in this order until the error is small."""

TOLERANCE = 2e-4
"""An error that is small enough, absolute."""

NUMBERS_AT_ONCE = 2**21
"""How many numbers an array may have."""


class Exceedance(NamedTuple):
    """Probabilities, and how exact they are."""

    probability: AnyNDArray
    """[M]."""

    error: AnyNDArray
    """[M], standard errors; zero for a single variable."""


def checked_limits(limits: Any, num_tasks: int) -> AnyNDArray:
    """[T], one limit per task, NaN for a task that does not count; at least one must."""
    values = checks.numbers(limits, "limits")
    if values.shape != (num_tasks,):
        raise ValueError(
            f"limits has shape {values.shape}, but there are {num_tasks} tasks: pass one limit per"
            " task, NaN for a task that does not count."
        )
    if np.isnan(values).all():
        raise ValueError("limits is NaN for every task, but one limit at least is needed.")
    return values


@check_shapes("mean: [M, k]", "cov: [M, k, k]", "limits: [k]")
def exceedance(
    mean: AnyNDArray, cov: AnyNDArray, limits: AnyNDArray, which: str = "any"
) -> Exceedance:
    r"""
    Probability that any, or that all, of k normal variables exceed their limits, for each row.

    .. math:: P(\exists t : y_t > c_t) = 1 - P(-y \ge -c), \qquad P(\forall t : y_t > c_t)

    >>> mean, cov = np.zeros([1, 2]), np.eye(2)[None]
    >>> exceedance(mean, cov, np.zeros(2), "all").probability.round(4).tolist()
    [0.25]
    >>> exceedance(mean, cov, np.zeros(2), "any").probability.round(4).tolist()
    [0.75]

    :param cov: Covariances; singular ones are allowed.
    """
    a = limits - mean
    if a.shape[1] == 1:
        return Exceedance(above(a[:, 0], np.sqrt(cov[:, 0, 0])), np.zeros(len(a)))
    if which == "all":
        return orthant(a, cov)
    below = orthant(-a, cov)
    return Exceedance(1.0 - below.probability, below.error)


@check_shapes("a: [broadcast rows...]", "deviation: [broadcast rows...]", "return: [rows...]")
def above(a: AnyNDArray, deviation: AnyNDArray) -> AnyNDArray:
    r""":math:`P(z \ge a)` for a centred normal variable; without deviation, whether 0 >= a."""
    return ndtr(-standardised(a, deviation))


def standardised(a: AnyNDArray, deviation: AnyNDArray) -> AnyNDArray:
    """a / deviation; without deviation, infinite with the sign of a, and -inf for 0."""
    sure = np.where(a > 0, np.inf, -np.inf)
    return np.where(deviation > 0, a / np.where(deviation > 0, deviation, 1.0), sure)


@check_shapes("a: [M, k]", "cov: [M, k, k]")
def orthant(a: AnyNDArray, cov: AnyNDArray) -> Exceedance:
    """P(z >= a) for z ~ N(0, cov), with more points where the error is not small."""
    a, L = ordered_factors(a, cov)
    result = Exceedance(np.zeros(len(a)), np.full(len(a), np.inf))
    for count in POINTS:
        rows = np.flatnonzero(result.error > TOLERANCE)
        estimates = scrambled_estimates(a[rows], L[rows], count)  # [R, rows]
        result.probability[rows] = estimates.mean(axis=0)
        result.error[rows] = estimates.std(axis=0, ddof=1) / np.sqrt(SCRAMBLED)
    return result


@check_shapes("a: [M, k]", "cov: [M, k, k]", "return[0]: [M, k]", "return[1]: [M, k, k]")
def ordered_factors(a: AnyNDArray, cov: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """
    Limits and Cholesky factors, with the variables in an order that lowers the error: those that
    are least likely to exceed their limits come first.
    """
    deviation = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    order = np.argsort(-standardised(a, deviation), axis=1, kind="stable")
    S = np.take_along_axis(cov, order[:, :, None], axis=1)
    S = np.take_along_axis(S, order[:, None, :], axis=2)
    return np.take_along_axis(a, order, axis=1), semidefinite_cholesky(S)


@check_shapes("S: [M, k, k]", "return: [M, k, k]")
def semidefinite_cholesky(S: AnyNDArray) -> AnyNDArray:
    """Cholesky factors of matrices that may be singular: a pivot of rounding error becomes 0."""
    L, rest = np.zeros_like(S), np.array(S, dtype=float)
    smallest = 1e-13 * np.diagonal(S, axis1=1, axis2=2)  # [M, k]
    for j in range(S.shape[1]):
        pivot = rest[:, j, j]
        kept = pivot > smallest[:, j]
        column = rest[:, j:, j] / np.sqrt(np.where(kept, pivot, 1.0))[:, None]
        L[:, j:, j] = np.where(kept[:, None], column, 0.0)
        rest[:, j:, j:] -= L[:, j:, j, None] * L[:, None, j:, j]
    return L


@check_shapes("a: [M, k]", "L: [M, k, k]", "return: [R, M]")
def scrambled_estimates(a: AnyNDArray, L: AnyNDArray, count: int) -> AnyNDArray:
    """The probability of each row from `count` points, once for each time they are scrambled."""
    k = a.shape[1]
    block = max(1, NUMBERS_AT_ONCE // (count * k))
    estimates = np.zeros([SCRAMBLED, len(a)])
    for r in range(SCRAMBLED):
        points = qmc.Sobol(k - 1, scramble=True, seed=r).random(count)  # [P, k - 1]
        for n in range(0, len(a), block):
            some = slice(n, n + block)
            estimates[r, some] = mean_of_products(a[some], L[some], points)
    return estimates


@check_shapes("a: [M, k]", "L: [M, k, k]", "points: [P, last]", "return: [M]")
def mean_of_products(a: AnyNDArray, L: AnyNDArray, points: AnyNDArray) -> AnyNDArray:
    """The mean over points of the product of conditional probabilities."""
    num_rows, k = a.shape
    w = np.zeros([num_rows, len(points), k])
    product = np.ones([num_rows, len(points)])
    for j in range(k):
        rest = a[:, j, None] - np.einsum("mpi,mi->mp", w[:, :, :j], L[:, j, :j])
        exceeds = above(rest, L[:, j, j, None])
        product *= exceeds
        if j < k - 1:  # standard normal above t, through the upper tail, which keeps its digits
            tail = np.clip(exceeds * (1.0 - points[:, j]), 1e-300, 1.0 - 1e-16)
            w[:, :, j] = -ndtri(tail)
    return product.mean(axis=1)
