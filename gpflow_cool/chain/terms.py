r"""
The chain's terms with second derivatives, in NumPy: all tasks at shared b and sigma2, or one task.

For one pair of b and sigma2 a single Cholesky factor holds the terms of all tasks
(:func:`shared_terms`). That is how the inner problem of profiled training is searched. Where each
task has its own b and sigma2 (:func:`task_terms`) it needs a system of its own, of size min(n, t).

The terms and the gradient with respect to the kernel matrix are written twice: here, for profiled
training, and in TensorFlow in :mod:`.likelihood`, differentiable and on any device.
`benchmarks/twins.py` measures what the gradient in NumPy saves.

Letters: R eigenvectors, T tasks, S completions, n rows, P points (b, sigma2).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtri, dtrtrs

from ..linalg import LOG_2PI
from .likelihood import KernelGradient, ridge_of_systems
from .spectrum import Spectrum

MAX_RIDGES = 8
"""How often the diagonal may grow, tenfold each time, until there is a Cholesky factor."""

EPS = float(np.finfo(float).eps)

MAX_FACTORS = 4
"""More factors of the gradient than this times R become R, so that memory does not grow as T^2."""


class TaskProblems(NamedTuple):
    """
    What the terms depend on besides b and sigma2, as n independent rows.

    The rows are those of `Yr`. Targets outside the span of the eigenvectors, G0 = F^T F, add the
    rows of F, whose eigenvalue is 0. A row counts as often in log determinants as it stands for one
    of the N rows: 1 / S for completions, (N - R) / T for the rows of F.
    """

    lam: AnyNDArray  # [n], eigenvalues of the rows
    S: AnyNDArray  # [n, 2], derivatives of b lam + sigma2
    counts: AnyNDArray  # [n]
    Y: AnyNDArray  # [n, T]
    spectrum: Spectrum  # in NumPy arrays
    learning: str  # "hierarchical" or "approximate"

    def of_tasks(self, order: AnyNDArray) -> "TaskProblems":
        """The problems of the tasks in another order."""
        return self._replace(Y=self.Y[:, order], spectrum=self.spectrum.of_tasks(order))

    def tasks(self) -> "Iterator[Task]":
        """The problem of each task in turn."""
        n, num_tasks = self.Y.shape
        outer = None
        for t in range(num_tasks):
            earlier = self.Y[:, :t]
            if t > n:
                last = earlier[:, -1]
                outer = earlier @ earlier.T if outer is None else outer + np.outer(last, last)
            yield Task(self, self.Y[:, t], earlier, outer)


class Task(NamedTuple):
    """The problem of one task."""

    problems: TaskProblems
    y: AnyNDArray  # [n]
    earlier: AnyNDArray  # [n, t], targets of the tasks before
    outer: AnyNDArray | None  # [n, n], earlier earlier^T, where t > n


class Terms(NamedTuple):
    """The term of one task at (b, sigma2)."""

    value: float
    gradient: AnyNDArray  # [2]
    hessian: AnyNDArray  # [2, 2]
    w: AnyNDArray  # [t], weights of the tasks before
    a: AnyNDArray  # [n], the dual vector


def task_problems(spectrum: Spectrum, learning: str) -> TaskProblems:
    """The problems of a spectrum of NumPy arrays."""
    lam, Y = spectrum.lam, spectrum.Yr
    copies = len(Y) // len(lam)
    lam, counts = np.tile(lam, copies), np.full(len(Y), 1.0 / copies)
    empty = float(spectrum.num_rows) - spectrum.rank
    if empty or np.any(spectrum.G0):
        values, vectors = np.linalg.eigh(spectrum.G0)
        outside = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        lam = np.concatenate([lam, np.zeros(len(outside))])
        counts = np.concatenate([counts, np.full(len(outside), empty / len(outside))])
        Y = np.concatenate([Y, outside])
    S = np.stack([lam, np.ones_like(lam)], axis=1)
    return TaskProblems(lam, S, counts, np.ascontiguousarray(Y), spectrum, learning)


# All tasks at shared points -----------------------------------------------------------------------


class SharedTerms(NamedTuple):
    """Terms of all tasks at the same b and sigma2, [P, T], and how they depend on their size."""

    values: AnyNDArray

    residuals: AnyNDArray
    """What is left of the quadratic forms without the squared weights, r."""

    counts: AnyNDArray
    r"""The numbers c in the change :math:`-\tfrac{1}{2} [r (e^{-\delta} - 1) + c \delta]` of a term
    when log b and log sigma2 grow by :math:`\delta` and the weights stay: N, less how many of the
    weights the targets determine if approximate."""


@check_shapes("points: [P, 2]")
def shared_terms(
    problems: TaskProblems, points: AnyNDArray, orders: list[AnyNDArray] | None = None
) -> SharedTerms:
    r"""
    Terms of all tasks at the same b and sigma2, for each point.

    Let :math:`L L^\top = I + Y^\top K_x^{-1} Y`. Leading blocks of L are the factors of leading
    blocks, so that :math:`y_t^\top K_{xy,t}^{-1} y_t = L_{tt}^2 - 1` and

    .. math:: J_t = -\tfrac{1}{2} [L_{tt}^2 - 1 + \log |K_x| + N \log 2 \pi]
              \quad \left[ - \sum_{u<t} \log L_{uu} \text{ if approximate} \right]

    Row t of :math:`L_{tt} L^{-1}` is :math:`e_t - w_t`. The difference cancels where Gram matrices
    are large: this is precise enough to find a start.

    :param points: (b, sigma2) of each point.
    :param orders: Orders of the tasks, if there are several: another order permutes the same
        matrix. The result then holds the tasks of one order after the other, [P, orders T].
    """
    spectrum, (b, s) = problems.spectrum, points.T
    pairs = np.array([shared_factors(problems, *point, orders=orders) for point in points])
    diagonal, squares = np.moveaxis(pairs, 2, 0)  # [P, orders, T]
    log_det = np.log(np.outer(b, problems.lam) + s[:, None]) @ problems.counts
    rest = log_det + spectrum.num_rows * LOG_2PI + spectrum.slack * b / s
    quadratic = np.square(diagonal) - 1.0
    values = -0.5 * (quadratic + rest[:, None, None])
    residuals = np.square(diagonal) * (1.0 - squares)
    counts = np.full_like(values, float(spectrum.num_rows))
    if problems.learning == "approximate":
        values[..., 1:] -= np.cumsum(np.log(diagonal), axis=2)[..., :-1]
        counts[..., 1:] -= np.cumsum(1.0 - squares, axis=2)[..., :-1]
    return SharedTerms(*(part.reshape(len(points), -1) for part in (values, residuals, counts)))


def shared_factors(
    problems: TaskProblems, b: float, s: float, *, orders: list[AnyNDArray] | None
) -> list[tuple[AnyNDArray, AnyNDArray]]:
    """
    For each order: the diagonal of the Cholesky factor L of I + Y^T (b K + sigma2 I)^-1 Y, and
    |row|^2 of L^-1.
    """
    M = one_plus_gram(problems.Y, 1.0 / (b * problems.lam + s))
    ordered = [M] if orders is None else [M[np.ix_(order, order)] for order in orders]
    factors = []
    for L in map(cholesky, ordered):
        inverse = np.tril(dtrtri(L, lower=1)[0])
        factors.append((L.diagonal().copy(), np.einsum("tu,tu->t", inverse, inverse)))
    return factors


def one_plus_gram(Y: AnyNDArray, d: AnyNDArray) -> AnyNDArray:
    """I + Y^T diag(d) Y."""
    X = np.sqrt(d)[:, None] * Y
    M = X.T @ X
    M.flat[:: len(M) + 1] += 1.0
    return M


# One task at its own point ------------------------------------------------------------------------


class Residual(NamedTuple):
    """A task after regression on the tasks before it."""

    d: AnyNDArray  # [n], 1 / (b lam + sigma2)
    L: AnyNDArray  # Cholesky factor, lower, of I + G [t, t], or of K_xy [n, n] where t > n
    w: AnyNDArray  # [t], weights of the tasks before
    e: AnyNDArray  # [n], the residual y - Y_<t w
    a: AnyNDArray  # [n], the dual vector alpha, d e


def task_residual(task: Task, b: float, s: float) -> Residual:
    r"""
    Solve for the weights of the tasks before, by the smaller of two systems.

    .. math:: w_t = (I + Y_{<t}^\top K_{x,t}^{-1} Y_{<t})^{-1} Y_{<t}^\top K_{x,t}^{-1} y_t
                  = Y_{<t}^\top (K_{x,t} + Y_{<t} Y_{<t}^\top)^{-1} y_t, \qquad
              \alpha_t = K_{x,t}^{-1} (y_t - Y_{<t} w_t)
    """
    y, earlier = task.y, task.earlier
    v = b * task.problems.lam + s
    d = 1.0 / v
    if task.outer is None:
        L = cholesky(one_plus_gram(earlier, d))
        w = solve(L, earlier.T @ (d * y))
    else:
        M = task.outer.copy()
        M.flat[:: len(M) + 1] += v
        L = cholesky(M)
        w = earlier.T @ solve(L, y)
    e = y - earlier @ w
    return Residual(d, L, w, e, d * e)


def cholesky(M: AnyNDArray) -> AnyNDArray:
    """
    The Cholesky factor in the lower triangle of what is returned; M is overwritten.

    The diagonal grows by :func:`.likelihood.ridge_of_systems`, and by more where there is still no
    factor.
    """
    if not len(M):
        return M
    diagonal = M.diagonal().copy()
    M.flat[:: len(M) + 1] += ridge_of_systems(diagonal, len(M))
    for number in range(MAX_RIDGES):
        L, failed = dpotrf(M.T, lower=1, clean=0)
        if not failed:
            return L
        M.flat[:: len(M) + 1] += 10.0 ** (number + 1) * EPS * len(M) * diagonal
    raise np.linalg.LinAlgError("A system of the chain is not positive definite.")


def solve(L: AnyNDArray, B: AnyNDArray) -> AnyNDArray:
    """M^-1 B from the Cholesky factor of M."""
    return dpotrs(L, B, lower=1)[0] if len(L) else B


def task_terms(task: Task, b: float, s: float) -> Terms:
    r"""
    The term of one task, with exact first and second derivatives.

    With :math:`S_b = K, S_s = I` the hierarchical term has

    .. math::

        g_i = \tfrac{1}{2} (\alpha^\top S_i \alpha - \mathrm{tr}\, K_x^{-1} S_i), \qquad
        H_{ij} = \tfrac{1}{2} \mathrm{tr}\, K_x^{-1} S_i K_x^{-1} S_j
                 - \alpha^\top S_i K_{xy}^{-1} S_j \alpha

    and the slack :math:`\tau` of inducing points adds :math:`-\tfrac{1}{2} \tau b / \sigma^2`.
    """
    problems = task.problems
    counts, slack = problems.counts, float(problems.spectrum.slack)
    num_rows = float(problems.spectrum.num_rows)
    solved = task_residual(task, b, s)
    d, L, w, e, a = solved
    S = problems.S
    dS, aS = d[:, None] * S, a[:, None] * S
    quadratic = a @ e + w @ w - counts @ np.log(d) + num_rows * LOG_2PI + slack * b / s
    gradient = 0.5 * (a @ aS - counts @ dS + slack / s * np.array([-1.0, b / s]))
    hessian = 0.5 * (counts * dS.T) @ dS - inverse_form(task, solved, aS)
    hessian += slack / s**2 * np.array([[0.0, 0.5], [0.5, -b / s]])
    if problems.learning == "approximate" and len(w):
        value, by_parameters, curvature = log_determinant(task, solved, dS)
        quadratic += value
        gradient -= 0.5 * by_parameters
        hessian -= 0.5 * curvature
    return Terms(-0.5 * quadratic, gradient, hessian, w, a)


def inverse_form(task: Task, solved: Residual, X: AnyNDArray) -> AnyNDArray:
    r"""
    The form :math:`X^\top K_{xy}^{-1} X`, [2, 2], for X [n, 2].

    By the smaller system :math:`K_{xy}^{-1} = K_x^{-1} - K_x^{-1} Y_{<t} (I + G)^{-1} Y_{<t}^\top
    K_x^{-1}`.
    """
    if task.outer is not None:
        return X.T @ solve(solved.L, X)
    dX = solved.d[:, None] * X
    c = task.earlier.T @ dX
    return X.T @ dX - c.T @ solve(solved.L, c)


def log_determinant(
    task: Task, solved: Residual, dS: AnyNDArray
) -> tuple[float, AnyNDArray, AnyNDArray]:
    r"""
    The log determinant :math:`\log |I + G_t|` of the approximate term, its gradient and Hessian.

    With :math:`E_i = B \, \mathrm{diag}(d S_i) B^\top` and
    :math:`B = \mathrm{chol}(I + G)^{-1} Y_{<t}^\top K_x^{-1/2}`, the gradient is
    :math:`-\mathrm{tr}\, E_i`, the Hessian
    :math:`2 \sum_n |B_n|^2 (d S_i)_n (d S_j)_n - \mathrm{tr}\, E_i E_j`. Where t > n it is
    :math:`\log |K_{xy}| - \log |K_x|`.

    :param dS: [n, 2], diagonals of K_x^-1 K and K_x^-1.
    """
    d, L, S = solved.d, solved.L, task.problems.S
    value = 2.0 * np.sum(np.log(L.diagonal()))
    if task.outer is not None:
        P = np.tril(dpotri(L, lower=1)[0])  # K_xy^-1
        half = S.T @ np.square(P) @ S
        own = P.diagonal()[:, None] * S
        traces = half + half.T - own.T @ own
        return value + np.sum(np.log(d)), np.sum(own - dS, axis=0), dS.T @ dS - traces
    B = dtrtrs(L, (np.sqrt(d)[:, None] * task.earlier).T, lower=1)[0]
    squares = np.sum(np.square(B), axis=0)
    E = [B * part @ B.T for part in dS.T]
    traces = np.array([[np.vdot(one, other) for other in E] for one in E])
    return value, -squares @ dS, 2.0 * (squares * dS.T) @ dS - traces


# The gradient -------------------------------------------------------------------------------------


@check_shapes("parameters: [T, 2]", "W: [T, T]", "A: [n, T]")
def kernel_gradient(
    problems: TaskProblems, parameters: AnyNDArray, W: AnyNDArray, A: AnyNDArray
) -> KernelGradient:
    """
    Gradient of the sum of all terms with respect to the kernel matrix and the targets.

    The formula is that of :func:`.likelihood.contrast_gradient`, for a spectrum without G0.

    :param parameters: (b, sigma2) of all tasks.
    :param W: Row t holds the weights of the tasks before t.
    :param A: The dual vectors.
    """
    lam, (b, s) = problems.spectrum.lam, parameters.T
    diagonal = -0.5 * (1.0 / (np.outer(lam, b) + s)) @ b
    factors = [(np.sqrt(0.5 * b) * A).T.reshape(-1, len(lam))]
    by_Y = A @ W - A
    if problems.learning == "approximate":
        for t, task in enumerate(problems.tasks()):
            F, by_earlier = uncertainty_gradient(task, *parameters[t])
            factors.append(np.sqrt(0.5 * b[t]) * F.reshape(-1, len(lam)))
            by_Y[:, :t] += by_earlier
            if sum(map(len, factors)) > MAX_FACTORS * len(lam):
                factors = [few_factors(np.concatenate(factors))]
    stacked = np.concatenate(factors)
    return KernelGradient(diagonal, stacked, np.ones(len(stacked)), by_Y)


def uncertainty_gradient(task: Task, b: float, s: float) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    Factors F and the gradient by the tasks before of :math:`-\tfrac{1}{2} \log |I + G_t|`.

    .. math:: F^\top F = K_x^{-1} Y_{<t} (I + G_t)^{-1} Y_{<t}^\top K_x^{-1}, \qquad
              -K_x^{-1} Y_{<t} (I + G_t)^{-1} = -K_{xy}^{-1} Y_{<t}
    """
    Y, (d, L, *_) = task.earlier, task_residual(task, b, s)
    if not Y.size:
        return np.empty([0, len(d)]), Y
    if task.outer is not None:
        by_earlier = -solve(L, Y)
        Y = np.tril(cholesky(task.outer.copy()))  # n columns with the same products of rows
        L = cholesky(one_plus_gram(Y, d))
        return dtrtrs(L, (d[:, None] * Y).T, lower=1)[0], by_earlier
    F = dtrtrs(L, (d[:, None] * Y).T, lower=1)[0]
    return F, -dtrtrs(L, F, lower=1, trans=1)[0].T


def few_factors(F: AnyNDArray) -> AnyNDArray:
    """As many rows as columns, with the same F^T F up to rounding."""
    return np.tril(cholesky(F.T @ F)).T
