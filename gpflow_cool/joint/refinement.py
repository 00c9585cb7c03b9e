r"""
C and Sigma, each as a chain of its own, by expectation maximisation for a fixed kernel matrix.

The chain of tasks has the same weights for functions and for noise. Where the two correlate
differently, its C and Sigma are too far from the data; exact maximum likelihood follows the data,
but has no answer with as many tasks as rows. Here the E-step is that of exact maximum likelihood
(:func:`expected_moments`). The M-step takes each of the two matrices of moments for that of a chain
of regressions, whose weights have a prior (:func:`covariance_of_moments`).

Letters: R eigenvectors of the N rows' kernel matrix, T tasks, S completions of missing targets, O
orders of the tasks, V values of the weights' prior variance.
"""

from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType
from scipy.linalg.lapack import dtrtri, dtrtrs

WEIGHT_VARIANCES = np.exp(np.linspace(-8.0, 6.0, 15))
"""
The grid. Against 37 values from e^-9 to e^9 the joint NLPD per task of new rows changed by .0001,
.0004, .0004, .0001 and .0007 (40 rows x 5 tasks, 40 x 20, 40 x 35, 80 x 40 and 40 x 60, 8 or 5
draws), that of gaps in series by .006 and .003 (300 x 8, 6 draws each) and their error by .0003 and
.0008 of the deviation. With a spacing of 1.5 it was up to .003 and .014, with 2 up to .007.
"""

NUM_ORDERS = 4
"""
How many orders to take the mean over. Against four, three cost up to .002 and .022 in the joint
NLPD of the same data, two up to .008, one up to .022 (new rows).
"""

CACHED_NUMBERS = 2**16
"""How many numbers are factorised at once. At 16 tasks, one call for each value of the grid takes
a tenth longer in all; at 100 tasks, one array of all values leaves the cache, and factorising it
takes twice as long."""

WEIGHT_SPREAD = 3.0
"""Standard deviation of the logarithm of a task's weight variance, as in the chain."""

SMALLEST_VARIANCE = 1e-8
"""Of a task given the tasks before it, relative to the task's variance. It keeps the result
positive definite, and nearly the digits that its Cholesky factor then has."""

NOISE_FLOOR = 1e-4
"""A noise variance is not less than this part of the task's mean square, as in the chain."""

INFORMATIVE = 1e-2
"""Least ratio of signal to noise at which a row counts for C. The others say nothing about it, and
slow expectation maximisation down: C stays where it was in as many rows of all."""


@check_shapes("S: [T, T]", "num_rows: []", "orders: [O, T]", "return: [T, T]")
def covariance_of_moments(
    S: TensorType, num_rows: TensorType, orders: TensorType, include_uncertainty: bool
) -> AnyNDArray:
    r"""
    Covariance of T tasks from the sum of their second moments over N rows: the M-step.

    S is scaled to tasks of mean square 1. For the tasks in one order,

    .. math:: y_t \sim N(Y_{<t} w_t, \, s_t I), \qquad w_t \sim N(0, \lambda_t s_t I)

    with the :math:`\lambda_t` of :func:`best_weight_variances`. The mean weights and the variance
    are

    .. math:: V_t = (S_{<t,<t} + I / \lambda_t)^{-1}, \qquad w_t = V_t S_{<t,t}, \qquad
              N s_t = v^\top S v + |w_t|^2 / \lambda_t, \qquad v = e_t - w_t

    and the covariance is built row by row:

    .. math:: C_{t,<t} = w_t^\top C_{<t,<t}, \qquad
              C_{tt} = s_t + w_t^\top C_{<t,<t} w_t + s_t \, \mathrm{tr}(V_t C_{<t,<t})

    The result is the mean over the orders.

    :param S: Sum over the rows of the second moments. A task with none gets variance 0.
    :param orders: Each row has the tasks in another order.
    :param include_uncertainty: Whether the trace is included, which is what is not known of the
        weights.
    """
    S, orders = np.asarray(S, np.float64), np.asarray(orders)
    return chain_covariance(S, float(num_rows), orders, include_uncertainty)


def chain_covariance(
    S: AnyNDArray, num_rows: float, orders: AnyNDArray, include_uncertainty: bool
) -> AnyNDArray:
    r"""
    :func:`covariance_of_moments` of arrays.

    With row t of W holding :math:`w_t`, the rows make up :math:`C = A \, \mathrm{diag}(z) A^\top`,
    :math:`A = (I - W)^{-1}`, where z is s without the traces. One Cholesky factor L of
    :math:`I + \lambda S` has the weights of all tasks: :math:`e_t - w_t = L_{tt} L^{-\top} e_t`.
    """
    num_rows = max(num_rows, 1.0)
    deviation = np.sqrt(np.maximum(np.diag(S), 0.0) / num_rows)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0.0)
    scaled = (S * np.outer(scale, scale))[orders[:, :, None], orders[:, None, :]]  # [O, T, T]
    weights = chain_weights(scaled, num_rows)
    A = np.array([dtrtri(contrasts.T, unitdiag=1)[0].T for contrasts in weights.contrasts])
    z = uncertain_variances(weights, A) if include_uncertainty else weights.s
    half = A * np.sqrt(z)[:, None, :]
    C = half @ np.swapaxes(half, 1, 2)
    back = np.argsort(orders, axis=1)
    C = C[np.arange(len(orders))[:, None, None], back[:, :, None], back[:, None, :]]
    return np.mean(C, axis=0) * np.outer(deviation, deviation)


class Factor(NamedTuple):
    """A Cholesky factor L, up to the last of the tasks whose weight variance it has."""

    order: int
    tasks: AnyNDArray
    inverse: AnyNDArray  # of L, [last + 1, last + 1]


class ChainWeights(NamedTuple):
    """The weights of the tasks before each one, for O orders."""

    contrasts: AnyNDArray  # [O, T, T], I - W
    s: AnyNDArray  # [O, T], variances given the tasks before
    weight_variance: AnyNDArray  # [O, T]
    factors: list[Factor]


def chain_weights(S: AnyNDArray, num_rows: float) -> ChainWeights:
    """
    Weights and variances at the best weight variance of each task.

    :param S: [O, T, T], the scaled moments in each order.
    """
    at_once = max(1, CACHED_NUMBERS // S.size)
    L = [
        factor
        for start in range(0, len(WEIGHT_VARIANCES), at_once)
        for factor in cholesky_factors(S, WEIGHT_VARIANCES[start : start + at_once])
    ]
    diagonals = np.array([factor.diagonal(axis1=1, axis2=2) for factor in L])
    best = best_weight_variances(diagonals, num_rows)
    factors = []
    contrasts = np.zeros_like(S)
    for order, chosen in enumerate(best):
        for value in set(chosen.tolist()):
            (tasks,) = (chosen == value).nonzero()
            end = tasks[-1] + 1
            inverse = dtrtri(L[value][order, :end, :end].T)[0].T
            contrasts[order, tasks, :end] = inverse[tasks]
            factors.append(Factor(order, tasks, inverse))
    contrasts /= np.diagonal(contrasts, axis1=1, axis2=2)[:, :, None]

    weight_variance = WEIGHT_VARIANCES[best]
    squares = np.sum((contrasts @ S) * contrasts, axis=2)
    squares += np.sum(np.square(np.tril(contrasts, -1)), axis=2) / weight_variance
    s = np.maximum(squares / num_rows, SMALLEST_VARIANCE)
    return ChainWeights(contrasts, s, weight_variance, factors)


def cholesky_factors(S: AnyNDArray, variances: AnyNDArray) -> AnyNDArray:
    """Of I + lambda S, for several values of lambda: [V, O, T, T]."""
    tasks = np.arange(S.shape[1])
    shifted = variances[:, None, None, None] * S
    shifted[..., tasks, tasks] += 1.0
    return np.linalg.cholesky(shifted)


def best_weight_variances(diagonals: AnyNDArray, num_rows: float) -> AnyNDArray:
    r"""
    Each task's weight variance, as an index into the grid: [O, T].

    It has the best evidence, the variance given the tasks before at its best value
    :math:`q_t / N`, together with a prior:

    .. math:: -\tfrac{N}{2} \log q_t - \sum_{u<t} \log L_{uu}
              - \tfrac{1}{2} (\log \lambda / 3)^2, \qquad q_t = (L_{tt}^2 - 1) / \lambda

    :param diagonals: [V, O, T], of the Cholesky factor L of I + lambda S.
    """
    variance = WEIGHT_VARIANCES[:, None, None]
    q = np.maximum((np.square(diagonals) - 1.0) / variance, SMALLEST_VARIANCE * num_rows)
    log_L = np.log(diagonals)
    cost = np.cumsum(log_L, axis=2) - log_L
    prior = -0.5 * np.square(np.log(variance) / WEIGHT_SPREAD)
    return np.argmax(-0.5 * num_rows * np.log(q) - cost + prior, axis=0)


def uncertain_variances(weights: ChainWeights, A: AnyNDArray) -> AnyNDArray:
    r"""
    Variances z [O, T] for :math:`C = A \, \mathrm{diag}(z) A^\top` with the weights' uncertainty.

    .. math:: z_t = s_t + s_t \, \mathrm{tr}(V_t C_{<t,<t})
                  = s_t + s_t \lambda_t \sum_{k<t} z_k \sum_{i<t} (L^{-1} A)_{ik}^2

    since :math:`V_t = \lambda_t (L_{<t,<t} L_{<t,<t}^\top)^{-1}` and both factors are triangular.
    """
    system = np.zeros_like(A)
    for order, tasks, inverse in weights.factors:
        end = len(inverse)
        before = np.zeros_like(inverse)
        squares = np.square(inverse @ A[order, :end, :end])
        np.cumsum(squares[:-1], axis=0, out=before[1:])
        system[order, tasks, :end] = before[tasks]
    system *= -(weights.s * weights.weight_variance)[:, :, None]
    return np.array(
        [dtrtrs(rows, s, lower=1, unitdiag=1)[0] for rows, s in zip(system, weights.s, strict=True)]
    )


class Moments(NamedTuple):
    """Sums of expected second moments over rows, given the targets."""

    signal: AnyNDArray  # [T, T], over the informative rows
    num_informative: float
    noise: AnyNDArray  # [T, T], over all rows


def expected_moments(
    lam: AnyNDArray, Yr: AnyNDArray, G0: AnyNDArray, C: AnyNDArray, Sigma: AnyNDArray
) -> Moments:
    r"""
    Expected second moments of functions and of noise: the E-step.

    A row of :math:`U^\top Y` is :math:`y_n = \sqrt{\lambda_n} g_n + e_n` with
    :math:`g_n \sim N(0, C)` and :math:`e_n \sim N(0, \Sigma)`. In the basis P of
    :math:`\Sigma = P P^\top` and :math:`C = P \, \mathrm{diag}(d) P^\top`, with
    :math:`z_n = P^{-1} y_n` and :math:`h_n = 1 / (\lambda_n d + 1)`, all products elementwise,

    .. math::

        S_f &= \sum_n E[g_n g_n^\top] = P \sum_n \bigl[ \lambda_n (d h_n z_n) (d h_n z_n)^\top
               + \mathrm{diag}(d h_n) \bigr] P^\top \\
        S_n &= \sum_n E[e_n e_n^\top] = P \sum_n \bigl[ (h_n z_n) (h_n z_n)^\top
               + \mathrm{diag}(\lambda_n d h_n) \bigr] P^\top + G_0

    :math:`S_f` has the rows with :math:`\lambda_n \max_j d_j > 0.01` only.
    """
    P, P_inverse, d = task_basis_of_arrays(C, Sigma)
    H = 1.0 / (lam[:, None] * d + 1.0)
    Z = (Yr @ P_inverse.T).reshape(-1, *H.shape)  # [S, R, T]
    informative = lam * np.max(d) > INFORMATIVE

    def second_moment(mean: AnyNDArray, variance: AnyNDArray) -> AnyNDArray:
        mean = mean.reshape(-1, len(d))
        return P @ (mean.T @ mean + np.diag(np.sum(variance, axis=0))) @ P.T

    noise = second_moment(H * Z, lam[:, None] * d * H) + G0
    lam, H, Z = lam[informative], H[informative], Z[:, informative]
    signal = second_moment(np.sqrt(lam)[:, None] * d * H * Z, d * H)
    return Moments(signal, float(len(lam)), noise)


def task_basis_of_arrays(C: AnyNDArray, Sigma: AnyNDArray) -> tuple[AnyNDArray, ...]:
    """P, its inverse and d, see :class:`.kronecker.TaskBasis`; from arrays."""
    L = np.linalg.cholesky(Sigma)
    L_inverse = dtrtri(L.T)[0].T
    d, V = np.linalg.eigh(L_inverse @ C @ L_inverse.T)
    return L @ V, V.T @ L_inverse, np.maximum(d, 0.0)


@check_shapes(
    "lam: [R]",
    "Yr: [rows, T]",
    "G0: [T, T]",
    "num_rows: []",
    "C: [T, T]",
    "Sigma: [T, T]",
    "orders: [O, T]",
    "return[0]: [T, T]",
    "return[1]: [T, T]",
)
def refined_covariances(
    lam: TensorType,
    Yr: TensorType,
    G0: TensorType,
    num_rows: TensorType,
    C: TensorType,
    Sigma: TensorType,
    orders: TensorType,
    steps: int,
) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    C and Sigma after some steps of expectation maximisation, C and Sigma each as a chain.

    A step is :func:`expected_moments`, then :func:`covariance_of_moments` of each of them: C
    without the weights' uncertainty, with which gaps are filled too timidly, and Sigma with it.

    Sixty steps for 200 rows and four orders took 52, 69, 94, 255 and 1100 ms at 2, 8, 16, 50 and
    100 tasks, on one core of a busy machine. The same as one compiled TensorFlow graph took 13, 22,
    63, 395 and 2260 ms, after 300 ms for the graph.

    :param lam: Eigenvalues of the kernel matrix.
    :param Yr: Targets in the eigenbasis. S completions of them stand below each other, divided by
        the square root of S.
    :param G0: Gram matrix of the targets outside the span of the eigenvectors: noise alone.
    :param num_rows: N; outside the span are N - R rows.
    :param orders: Orders of the tasks to take the mean over, see `NUM_ORDERS`.
    :param steps: 60 are enough for a start at the chain's C and Sigma.
    :return: C and Sigma. A task whose targets are all zero has variance 0 in C, and in Sigma the
        `NOISE_FLOOR` of a task of variance 1; if that are all tasks, nothing is refined.
    """
    lam, Yr, G0, C, Sigma = (np.asarray(part, np.float64) for part in (lam, Yr, G0, C, Sigma))
    orders, num_rows = np.asarray(orders), float(num_rows)
    mean_square = (np.sum(np.square(Yr), axis=0) + np.diag(G0)) / num_rows
    varies = mean_square > 0.0
    if not np.any(varies):
        return C, Sigma
    both = np.outer(varies, varies)
    floor = NOISE_FLOOR * np.where(varies, mean_square, 1.0)
    for _ in range(steps):
        moments = expected_moments(lam, Yr, G0, C, Sigma)
        C = both * C
        if moments.num_informative:  # else nothing is said about C
            C = chain_covariance(both * moments.signal, moments.num_informative, orders, False)
        Sigma = chain_covariance(both * moments.noise, num_rows, orders, True)
        np.fill_diagonal(Sigma, np.maximum(np.diag(Sigma), floor))
    return C, Sigma
