r"""
The system of one task at its (b, sigma2): weights of the tasks before it, and their derivatives.

It has as many rows as the smaller of two numbers: the tasks, or the rows of the targets.

Letters: n rows, t tasks before the one in question.
"""

from typing import NamedTuple

import numpy as np
from gpflow.base import AnyNDArray
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs

from .likelihood import ROUNDING_UNITS, SMALLEST_RIDGE, ridge_of_systems

MAX_RIDGES = 8
"""How often the diagonal may grow, tenfold each time, until there is a Cholesky factor."""

SMALLEST_SIZE = 1e-270
"""What an entry of the diagonal grows by may not underflow, where all targets are zero."""

EPS = float(np.finfo(float).eps)


class LogDeterminant(NamedTuple):
    r"""The log determinant :math:`\log |I + G_t|` of the approximate term."""

    value: float
    gradient: AnyNDArray  # [2]
    hessian: AnyNDArray  # [2, 2]


class System(NamedTuple):
    """What the system of one task gives at its point."""

    w: AnyNDArray  # [t], weights of the tasks before
    r: AnyNDArray  # [n], the residual y - Y_<t w over the root of b lam + sigma2
    slopes: AnyNDArray  # [2, t], derivatives of w by b and sigma2
    form: AnyNDArray  # [2, 2], alpha^T S_i K_xy^-1 S_j alpha
    log_det: LogDeterminant | None  # of the approximate term


def system_of_tasks(X: AnyNDArray, dS: AnyNDArray, approximate: bool) -> System:
    r"""
    The system of a task with the tasks before it.

    .. math:: L L^\top = I + X X^\top, \qquad e_t - w_t = L_{tt} L^{-\top} e_t, \qquad
              \partial_i w_t = -(I + G_t)^{-1} Y_{<t}^\top K_x^{-1} S_i \alpha_t

    :param X: [t + 1, n], the targets of these tasks over the root of b lam + sigma2.
    :param dS: [2, n], diagonals of K_x^-1 S.
    """
    L = cholesky(dsyrk(1.0, X.T, trans=1, lower=1), plus=1.0)
    t = len(X) - 1
    unit = np.zeros(t + 1)
    unit[t] = L[t, t]
    contrast = dtrtrs(L, unit, lower=1, trans=1)[0]
    r = contrast @ X
    F = r * dS
    g = dtrtrs(L, X @ F.T, lower=1)[0]
    g[t] = 0.0
    slopes = dtrtrs(L, g, lower=1, trans=1)[0]
    log_det = determinant_of_tasks(L[:t, :t], X[:t], dS) if approximate else None
    return System(-contrast[:t], r, -slopes[:t].T, F @ F.T - g.T @ g, log_det)


def system_of_rows(
    Y: AnyNDArray, outer: AnyNDArray, v: AnyNDArray, S: AnyNDArray, approximate: bool
) -> System:
    r"""
    The same where the tasks before are more than the rows.

    .. math:: K_{xy} = K_x + Y_{<t} Y_{<t}^\top, \qquad w_t = Y_{<t}^\top K_{xy}^{-1} y_t, \qquad
              \partial_i w_t = -Y_{<t}^\top K_{xy}^{-1} S_i \alpha_t

    :param Y: [t + 1, n], the targets of these tasks.
    :param outer: [n, n], products of the targets before, Y_<t Y_<t^T.
    :param v: [n], the diagonal of K_x.
    :param S: [2, n], its derivatives.
    """
    M = outer.copy()
    M.ravel()[:: len(M) + 1] += v
    L = cholesky(M.T)
    w = Y[:-1] @ solve(L, Y[-1])
    residual = Y[-1] - w @ Y[:-1]
    aS = residual / v * S
    solved = solve(L, aS.T)
    log_det = determinant_of_rows(L, v, S) if approximate else None
    return System(w, residual / np.sqrt(v), -(Y[:-1] @ solved).T, aS @ solved, log_det)


def cholesky(M: AnyNDArray, plus: float = 0.0) -> AnyNDArray:
    """
    The Cholesky factor of M + plus I; the diagonal of M is overwritten.

    The diagonal grows by :func:`.likelihood.ridge_of_systems`, and by more where there is still no
    factor. An entry may be zero, as that of a row in which all targets are.

    :param M: In Fortran's order; the lower triangle counts.
    """
    diagonal = M.ravel(order="K")[:: len(M) + 1]
    diagonal += plus
    if np.max(diagonal, initial=0.0) * ROUNDING_UNITS * EPS * len(M) > SMALLEST_RIDGE:
        diagonal += ridge_of_systems(diagonal, len(M))
    sizes = np.maximum(diagonal, max(EPS * np.max(diagonal, initial=0.0), SMALLEST_SIZE))
    L, failed = dpotrf(M, lower=1)
    for number in range(MAX_RIDGES):
        if not failed:
            return L
        diagonal += 10.0 ** (number + 1) * EPS * len(M) * sizes
        L, failed = dpotrf(M, lower=1)
    raise np.linalg.LinAlgError("A system of the chain is not positive definite.")


def solve(L: AnyNDArray, B: AnyNDArray) -> AnyNDArray:
    """M^-1 B from the Cholesky factor of M."""
    return dpotrs(L, B, lower=1)[0]


def determinant_of_tasks(L: AnyNDArray, X: AnyNDArray, dS: AnyNDArray) -> LogDeterminant:
    r"""
    With :math:`E_i = B \, \mathrm{diag}(d S_i) B^\top` and
    :math:`B = \mathrm{chol}(I + G)^{-1} Y_{<t}^\top K_x^{-1/2}`, the gradient is
    :math:`-\mathrm{tr}\, E_i`, the Hessian
    :math:`2 \sum_n |B_n|^2 (d S_i)_n (d S_j)_n - \mathrm{tr}\, E_i E_j`.

    :param X: [t, n], the targets of the tasks before over the root of b lam + sigma2.
    :param dS: [2, n], diagonals of K_x^-1 S.
    """
    if not len(X):
        return LogDeterminant(0.0, np.zeros(2), np.zeros([2, 2]))
    B = dtrtrs(L, X, lower=1)[0]
    squares = np.sum(np.square(B), axis=0)
    E = [B * part @ B.T for part in dS]
    traces = np.array([[np.vdot(one, other) for other in E] for one in E])
    value = 2.0 * np.sum(np.log(L.diagonal()))
    return LogDeterminant(value, -dS @ squares, 2.0 * (squares * dS) @ dS.T - traces)


def determinant_of_rows(L: AnyNDArray, v: AnyNDArray, S: AnyNDArray) -> LogDeterminant:
    r"""
    The same as :math:`\log |K_{xy}| - \log |K_x|`.

    :param L: Cholesky factor of K_xy.
    :param v: [n], the diagonal of K_x.
    :param S: [2, n], its derivatives.
    """
    P = np.tril(dpotri(L, lower=1)[0])  # K_xy^-1
    half = S @ np.square(P) @ S.T
    own, dS = P.diagonal() * S, S / v
    value = 2.0 * np.sum(np.log(L.diagonal())) - np.sum(np.log(v))
    traces = half + half.T - own @ own.T
    return LogDeterminant(value, np.sum(own - dS, axis=1), dS @ dS.T - traces)


# The gradient -------------------------------------------------------------------------------------


def uncertainty_of_tasks(earlier: AnyNDArray, v: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    Factors F and the gradient by the tasks before of :math:`-\tfrac{1}{2} \log |I + G_t|`.

    .. math:: F^\top F = K_x^{-1} Y_{<t} (I + G_t)^{-1} Y_{<t}^\top K_x^{-1}, \qquad
              -K_x^{-1} Y_{<t} (I + G_t)^{-1} = -K_{xy}^{-1} Y_{<t}

    :param earlier: [n, t], targets of the tasks before.
    :param v: [n], the diagonal of K_x.
    """
    if not earlier.size:
        return earlier.T, earlier
    X = earlier / np.sqrt(v)[:, None]
    L = cholesky(dsyrk(1.0, X.T, lower=1), plus=1.0)
    F = dtrtrs(L, (earlier / v[:, None]).T, lower=1)[0]
    return F, -dtrtrs(L, F, lower=1, trans=1)[0].T


def uncertainty_of_rows(
    earlier: AnyNDArray, outer: AnyNDArray, v: AnyNDArray
) -> tuple[AnyNDArray, AnyNDArray]:
    """
    The same where the tasks before are more than the rows.

    :param outer: [n, n], products of the targets before, Y_<t Y_<t^T.
    """
    few = cholesky(outer.T.copy(order="F"))  # n columns with the same products of rows
    F, _ = uncertainty_of_tasks(few, v)
    L = cholesky(np.asfortranarray(outer + np.diag(v)))
    return F, -solve(L, earlier)
