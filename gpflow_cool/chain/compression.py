r"""
Rows of a task's problem that hardly differ, as few that stand for all of them.

The terms see the rows through :math:`\sum_n f(\lambda_n) \, y_n y_n^\top` and
:math:`\sum_n c_n f(\lambda_n)` alone, with smooth functions f such as 1 / (b lam + sigma2) and its
logarithm. Eigenvalues are sorted into bins that span a factor e. Within a bin, f is nearly a
polynomial of low degree in the logarithm of lam. Gauss quadrature with `DEGREE` nodes per task has
the same sums for all polynomials of degree below 2 `DEGREE`: its nodes are the new eigenvalues, its
weights the new rows. This is the block Lanczos method, stopped after `DEGREE` steps.

The poles of 1 / (b lam + sigma2) are at least pi away from the logarithms of eigenvalues. The error
of the best polynomial of degree 2 q - 1 in a bin of width one is therefore below
4 (2 pi + (4 pi^2 + 1)^(1/2))^(-2 q) of f, which is 4e-13 for q = 6; so is that of every quadratic
form. Eigenvalues below `SMALLEST` of the largest one become zero, which adds at most that many
times b lam / sigma2.

Letters: n rows, T tasks, q nodes per task.
"""

from collections.abc import Iterator

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from .terms import TaskProblems

DEGREE = 6
"""Nodes of the quadrature, per task and bin."""

SMALLEST = 1e-22
"""Eigenvalues below this, relative to the largest one, become zero."""

MIN_ROWS = 20_000
"""Fewer rows than this are left as they are."""

MIN_GAIN = 4
"""Compression must leave fewer rows than one in so many."""

BLOCK = 4096
"""Rows that are compressed at once; what comes out is compressed again."""


def compressed(problems: TaskProblems) -> TaskProblems:
    """The problems with fewer rows, if there are many; the spectrum in it stays as it is."""
    lam, (num_rows, num_tasks) = problems.lam, problems.Y.shape
    num_bins = 2 - np.log(SMALLEST)
    if num_rows < max(MIN_ROWS, MIN_GAIN * DEGREE * num_tasks * num_bins):
        return problems
    parts = [
        part
        for rows in bins_of(lam)
        for part in quadratures(lam[rows], problems.counts[rows], problems.Y[rows])
    ]
    lam, counts, Y = (np.concatenate(part) for part in zip(*parts, strict=True))
    S = np.stack([lam, np.ones_like(lam)], axis=1)
    return problems._replace(lam=lam, S=S, counts=counts, Y=Y)


@check_shapes("parameters: [T, 2]", "W: [T, T]", "return: [n, T]")
def dual_vectors(problems: TaskProblems, parameters: AnyNDArray, W: AnyNDArray) -> AnyNDArray:
    r"""
    The dual vectors :math:`\alpha_t = K_{x,t}^{-1} (y_t - Y_{<t} w_t)` of all rows.

    :param parameters: (b, sigma2) of all tasks.
    :param W: Row t holds the weights of the tasks before t.
    """
    b, s = parameters.T
    return (problems.Y - problems.Y @ W.T) / (np.outer(problems.lam, b) + s)


def bins_of(lam: AnyNDArray) -> Iterator[AnyNDArray]:
    """Rows whose eigenvalues are within a factor e of each other; those that become zero first."""
    floor = max(SMALLEST * np.max(lam), np.finfo(float).tiny)
    numbers = np.zeros(len(lam), np.int64)
    useful = lam > floor
    numbers[useful] = 1 + np.floor(np.log(lam[useful] / floor)).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    yield from np.split(order, ends)


Rows = tuple[AnyNDArray, AnyNDArray, AnyNDArray]
"""Eigenvalues [n], counts [n] and targets [n, T]."""


@check_shapes("lam: [n]", "counts: [n]", "Y: [n, T]")
def quadratures(lam: AnyNDArray, counts: AnyNDArray, Y: AnyNDArray) -> list[Rows]:
    """
    Rows of one bin as rows with counts but no targets, and rows with targets but no counts.

    A bin whose eigenvalues all are the same needs one node.
    """
    low, high = np.min(lam), np.max(lam)
    if low == 0.0 or high > 3.0 * low:  # the bin of those that become zero
        low = high = 0.0
    middle, half = np.log(low or 1.0), 0.0
    if high > low:
        middle, half = 0.5 * np.log(high * low), 0.5 * np.log(high / low)
    x = (np.log(lam) - middle) / half if half else np.zeros_like(lam)
    degree = DEGREE if half else 1
    root = np.sqrt(counts)[:, None]
    nodes, weights = nodes_and_weights(x, root, degree)
    at, targets = nodes_and_weights(x, Y, degree)
    scale = 1.0 if high else 0.0

    def values(u: AnyNDArray) -> AnyNDArray:
        return scale * np.exp(middle + half * u)

    return [
        (values(nodes), np.square(weights[:, 0]), np.zeros([len(nodes), Y.shape[1]])),
        (values(at), np.zeros(len(at)), targets),
    ]


@check_shapes("x: [n]", "Y: [n, T]")
def nodes_and_weights(x: AnyNDArray, Y: AnyNDArray, degree: int) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    Nodes z, [k], and rows w, [k, T], for sums over many x in [-1, 1].

    .. math:: \sum_k p(z_k) \, w_k w_k^\top = \sum_n p(x_n) \, y_n y_n^\top

    for all polynomials p of degree below twice the given one.
    """
    size = degree * Y.shape[1]
    step = max(BLOCK, 4 * size)
    while len(x) > step:
        parts = [
            ritz(x[start : start + step], Y[start : start + step], degree)
            for start in range(0, len(x), step)
        ]
        x, Y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return ritz(x, Y, degree) if len(x) > size else (x, Y)


def ritz(x: AnyNDArray, Y: AnyNDArray, degree: int) -> tuple[AnyNDArray, AnyNDArray]:
    """
    The same for rows that are not too many, from an orthonormal basis Q of p(x) Y for all
    polynomials p below a degree: eigenvalues of Q^T diag(x) Q, and Y in its eigenvectors.
    """
    if len(x) <= degree * Y.shape[1]:
        return x, Y
    chebyshev = np.polynomial.chebyshev.chebvander(x, degree - 1)  # [n, degree]
    Q, _ = np.linalg.qr((chebyshev[:, :, None] * Y[:, None, :]).reshape(len(x), -1))
    nodes, vectors = np.linalg.eigh(Q.T @ (x[:, None] * Q))
    return nodes, vectors.T @ (Q.T @ Y)
