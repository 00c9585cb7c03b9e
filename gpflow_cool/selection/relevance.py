"""Which inputs matter: how much of the variance of predicted means each of them moves."""

from collections.abc import Callable, Sequence

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

NUM_ROWS = 4096
"""About so many rows are predicted, besides those of the data."""

MIN_PAIRS = 64
"""At least so many pairs of rows exchange each input, where there are as many."""

CONSTANT = 1e-6
"""Means that vary by less than this part of the targets' variance do not vary."""


@check_shapes("X: [N, D]", "scale: [T]")
def input_relevance(
    mean: Callable[[AnyNDArray], AnyNDArray],
    X: AnyNDArray,
    scale: AnyNDArray,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
) -> AnyNDArray:
    r"""
    How much of the variance of predicted means one input moves, if it alone is exchanged.

    .. math:: r_g = \frac{\mathrm{E} \sum_t (m_t(x) - m_t(x'))^2 / s_t^2}
                         {\mathrm{E} \sum_t (m_t(x) - m_t(x''))^2 / s_t^2}

    m are the predicted means of the tasks, x and x'' are two rows, and x' is the row x with the
    input g of the row x'': for inputs that vary independently, this is the total effect of an input
    in an analysis of variance. It is 0 for an input that does not move any prediction, and 1 for
    one that alone decides everything. Several inputs may be near 1, because they act together, and
    above it, if they vary together and their effects cancel. Where means are constant, all are 0.

    >>> X = np.indices([2, 2, 2]).reshape(3, -1).T  # all combinations of 0 and 1
    >>> r = input_relevance(lambda X: 2.0 * X[:, :1] + X[:, 1:2], X, np.ones(1))
    >>> r.round(2).tolist()
    [0.8, 0.2, 0.0]

    :param mean: Takes inputs [M, D] to means [M, T].
    :param X: Rows that exchange their inputs; a sample of them if they are many.
    :param scale: s, deviations of the targets, in whose units errors are.
    :param groups: Columns of X that make up one input, for each of them; by default one each.
    :return: [number of groups].
    """
    groups = [[d] for d in range(X.shape[1])] if groups is None else groups
    first, second, rows = row_pairs(len(X), max(MIN_PAIRS, NUM_ROWS // max(1, len(groups))), seed)
    rows, here = X[rows], mean(X[rows]) / scale
    level = squares(here[first] - here[second])
    if len(first) == 0 or level <= CONSTANT * len(first):
        return np.zeros(len(groups))
    moved = []
    at_once = max(1, NUM_ROWS // (2 * len(first)))
    for n in range(0, len(groups), at_once):
        some = groups[n : n + at_once]
        changed = np.concatenate([exchanged(rows[first], rows[second], group) for group in some])
        there = (mean(changed) / scale).reshape(len(some), len(first), -1)
        moved += [squares(here[first] - means) for means in there]
    return np.array(moved) / level


def row_pairs(num_rows: int, most: int, seed: int) -> tuple[AnyNDArray, AnyNDArray, AnyNDArray]:
    """
    Pairs of two different rows, all of them if they are no more than `most`.

    >>> first, second, rows = row_pairs(3, 100, seed=0)
    >>> sorted(zip(rows[first].tolist(), rows[second].tolist()))
    [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]

    :return: Numbers of the first and of the second rows of the pairs among the rows that were drawn
        at random, and these.
    """
    rows = np.random.default_rng(seed).permutation(num_rows)[: most + 1]
    count = len(rows)
    pair = np.arange(min(most, count * (count - 1)))
    first = pair % max(1, count)
    return first, (first + 1 + pair // max(1, count)) % max(1, count), rows


def squares(differences: AnyNDArray) -> float:
    return float(np.sum(np.square(differences)))


@check_shapes("x: [P, D]", "other: [P, D]", "return: [P, D]")
def exchanged(x: AnyNDArray, other: AnyNDArray, columns: Sequence[int]) -> AnyNDArray:
    """Rows x with some of their columns from other rows."""
    changed = x.copy()
    changed[:, list(columns)] = other[:, list(columns)]
    return changed
