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
from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from scipy.linalg.lapack import dtrtri, dtrtrs

from ..gaussian import LOG_2PI
from .eigenbasis import KernelGradient
from .spectrum import Spectrum
from .systems import (
    System,
    cholesky,
    solve,
    system_of_rows,
    system_of_tasks,
    uncertainty_of_rows,
    uncertainty_of_tasks,
)

MAX_NUMBERS = 2**22
"""Problems are solved in blocks whose arrays have so many numbers (32 MB), see `block_terms`."""

MANY_TASKS, MIN_BLOCK = 3, 64
"""With more tasks than so many times the rows, blocks of tasks are faster than one system of all of
them, see `factors_by_rows`; a block has at least so many tasks."""

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


class Terms(NamedTuple):
    """Terms of P problems, each of one task at its own (b, sigma2)."""

    values: AnyNDArray  # [P]
    gradients: AnyNDArray  # [P, 2]
    hessians: AnyNDArray  # [P, 2, 2]
    W: AnyNDArray  # [P, T], weights of the tasks before, then zeros
    slopes: AnyNDArray  # [P, 2, T], derivatives of the weights by b and sigma2
    fits: AnyNDArray  # [P, 2], the part q > 0 of the gradients (q - n) / 2, see `task_terms`
    fit_slopes: AnyNDArray  # [P, 2, 2], derivatives of q by b and sigma2

    def of(self, chosen: Any) -> "Terms":
        """Those of some problems."""
        return Terms(*(part[chosen] for part in self))


def task_problems(spectrum: Spectrum, learning: str) -> TaskProblems:
    """The problems of a spectrum of NumPy arrays."""
    lam, Y = spectrum.lam, spectrum.Yr
    copies = len(Y) // len(lam)
    lam, counts = np.tile(lam, copies), np.full(len(Y), 1.0 / copies)
    empty = float(spectrum.num_rows) - spectrum.rank
    if empty or np.any(spectrum.G0):
        outside = factor_of_products(spectrum.G0)
        lam = np.concatenate([lam, np.zeros(len(outside))])
        counts = np.concatenate([counts, np.full(len(outside), empty / len(outside))])
        Y = np.concatenate([Y, outside])
    S = np.stack([lam, np.ones_like(lam)], axis=1)
    return TaskProblems(lam, S, counts, np.ascontiguousarray(Y), spectrum, learning)


@check_shapes("G: [T, T]", "return: [T, T]")
def factor_of_products(G: AnyNDArray) -> AnyNDArray:
    """
    F with G = F^T F, for products G of targets that may be singular.

    Each target is in units of its own length, so that those in small units are not lost in the
    rounding of the others.
    """
    lengths = np.sqrt(np.maximum(np.diag(G), 0.0))
    units = np.where(lengths > 0.0, lengths, np.inf)
    cosines = np.clip(G / units[:, None] / units, -1.0, 1.0)
    values, vectors = np.linalg.eigh(cosines)
    return np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T * lengths


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
    diagonal, rests = np.moveaxis(pairs, 2, 0)  # [P, orders, T]
    log_det = np.log(np.outer(b, problems.lam) + s[:, None]) @ problems.counts
    rest = log_det + spectrum.num_rows * LOG_2PI + spectrum.slack * b / s
    quadratic = np.square(diagonal) - 1.0
    values = -0.5 * (quadratic + rest[:, None, None])
    residuals = np.square(diagonal) * rests
    counts = np.full_like(values, float(spectrum.num_rows))
    if problems.learning == "approximate":
        values[..., 1:] -= np.cumsum(np.log(diagonal), axis=2)[..., :-1]
        counts[..., 1:] -= np.cumsum(rests, axis=2)[..., :-1]
    return SharedTerms(*(part.reshape(len(points), -1) for part in (values, residuals, counts)))


def shared_factors(
    problems: TaskProblems, b: float, s: float, *, orders: list[AnyNDArray] | None
) -> list[tuple[AnyNDArray, AnyNDArray]]:
    """
    For each order: the diagonal of the Cholesky factor L of I + Y^T (b K + sigma2 I)^-1 Y, and
    1 - |row|^2 of L^-1.
    """
    X = problems.Y / np.sqrt(b * problems.lam + s)[:, None]
    if X.shape[1] > MANY_TASKS * len(X):
        return [factors_by_rows(X[:, o]) for o in orders or [np.arange(X.shape[1])]]
    M = X.T @ X
    ordered = [M] if orders is None else [M.take(order, 0).take(order, 1) for order in orders]
    factors = []
    for G in ordered:
        L = cholesky(G.T, plus=1.0)
        inverse = dtrtri(L, lower=1)[0]
        factors.append((L.diagonal().copy(), 1.0 - np.einsum("tu,tu->t", inverse, inverse)))
    return factors


def factors_by_rows(X: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    The same where the tasks are many more than the rows, in blocks of as many tasks as rows.

    With :math:`A = I + X_0 X_0^\top` of the tasks before a block X, the block's Schur complement is
    :math:`L L^\top = I + X^\top A^{-1} X`, and :math:`|\mathrm{row}|^2` of
    :math:`L^{-1} X^\top A^{-1}` is what is asked for.

    :param X: [n, T], the targets over the root of b lam + sigma2.
    """
    size, A = max(len(X), MIN_BLOCK), np.eye(len(X))
    diagonal, rests = [], []
    for start in range(0, X.shape[1], size):
        block = X[:, start : start + size]
        solved = solve(cholesky(A.T.copy(order="F")), block)
        L = cholesky(np.asfortranarray(block.T @ solved), plus=1.0)
        R = dtrtrs(L, solved.T, lower=1)[0]
        diagonal.append(L.diagonal())
        rests.append(np.einsum("tn,tn->t", R, R))
        A += block @ block.T
    return np.concatenate(diagonal), np.concatenate(rests)


# Tasks at their own points ------------------------------------------------------------------------


def task_terms(problems: TaskProblems, tasks: AnyNDArray, points: AnyNDArray) -> Terms:
    r"""
    Terms of tasks at points of their own, with exact first and second derivatives.

    With :math:`S_b = K, S_s = I` the hierarchical term has

    .. math::

        g_i = \tfrac{1}{2} (\alpha^\top S_i \alpha - \mathrm{tr}\, K_x^{-1} S_i), \qquad
        H_{ij} = \tfrac{1}{2} \mathrm{tr}\, K_x^{-1} S_i K_x^{-1} S_j
                 - \alpha^\top S_i K_{xy}^{-1} S_j \alpha

    and the slack :math:`\tau` of inducing points adds :math:`-\tfrac{1}{2} \tau b / \sigma^2`. Of a
    gradient :math:`\tfrac{1}{2} (q - n)`, q is what wants b and sigma2 to grow.

    :param tasks: [P], ascending.
    :param points: [P, 2], (b, sigma2) of each.
    """
    size = max(1, MAX_NUMBERS // len(problems.lam))
    blocks = range(0, len(tasks), size)
    parts = [block_terms(problems, tasks[i : i + size], points[i : i + size]) for i in blocks]
    return parts[0] if len(parts) == 1 else Terms(*map(np.concatenate, zip(*parts, strict=True)))


def block_terms(problems: TaskProblems, tasks: AnyNDArray, points: AnyNDArray) -> Terms:
    """As :func:`task_terms`, in arrays of P times n numbers."""
    counts, slack = problems.counts, float(problems.spectrum.slack)
    b, s = points.T
    v = b[:, None] * problems.lam + s[:, None]  # [P, n], diagonals of K_x
    dS = problems.S.T / v[:, None]  # [P, 2, n], diagonals of K_x^-1 S
    W = np.zeros([len(tasks), problems.Y.shape[1]])
    slopes = np.zeros([len(tasks), 2, problems.Y.shape[1]])
    r, forms = np.empty_like(v), np.empty([len(tasks), 2, 2])
    determinants = []
    for p, system in enumerate(solve_systems(problems, tasks, v, dS)):
        t = tasks[p]
        W[p, :t], r[p], slopes[p, :, :t], forms[p] = system[:4]
        determinants.append(system.log_det)
    quadratic = np.einsum("pn,pn->p", r, r) + np.einsum("pt,pt->p", W, W)
    quadratic += np.log(v) @ counts + float(problems.spectrum.num_rows) * LOG_2PI + slack * b / s
    fits, fit_slopes = np.einsum("pn,pin->pi", np.square(r), dS), -2.0 * forms
    costs, cost_slopes = dS @ counts, -(counts * dS) @ dS.transpose(0, 2, 1)
    fits[:, 1] += slack * b / s**2
    costs[:, 0] += slack / s
    fit_slopes[:, 1] += slack * np.stack([1.0 / s**2, -2.0 * b / s**3], axis=1)
    cost_slopes[:, 0, 1] -= slack / s**2
    if problems.learning == "approximate":
        value, gradient, hessian = map(np.array, zip(*determinants, strict=True))
        quadratic, costs, cost_slopes = quadratic + value, costs + gradient, cost_slopes + hessian
    gradients, hessians = 0.5 * (fits - costs), 0.5 * (fit_slopes - cost_slopes)
    return Terms(-0.5 * quadratic, gradients, hessians, W, slopes, fits, fit_slopes)


def solve_systems(
    problems: TaskProblems, tasks: AnyNDArray, v: AnyNDArray, dS: AnyNDArray
) -> Iterator[System]:
    """
    The system of each task, of as many rows as the smaller of n and t + 1.

    :param tasks: [P], ascending.
    :param v: [P, n], diagonals of K_x.
    :param dS: [P, 2, n], diagonals of K_x^-1 S.
    """
    columns, approximate = np.ascontiguousarray(problems.Y.T), problems.learning == "approximate"
    for p, (t, outer) in enumerate(running_products(problems.Y, tasks)):
        if outer is None:
            yield system_of_tasks(columns[: t + 1] / np.sqrt(v[p]), dS[p], approximate)
        else:
            yield system_of_rows(columns[: t + 1], outer, v[p], problems.S.T, approximate)


def running_products(Y: AnyNDArray, tasks: AnyNDArray) -> Iterator[tuple[int, AnyNDArray | None]]:
    """For tasks that ascend: each, and Y_<t Y_<t^T, [n, n], if there are n tasks before or more."""
    num_rows, done, outer = len(Y), 0, None
    for t in tasks.tolist():
        if t >= num_rows:
            new = Y[:, done:t]
            outer, done = new @ new.T + (0.0 if outer is None else outer), t
        yield t, outer


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
        for t, (F, by_earlier) in enumerate(uncertainty_gradients(problems, parameters)):
            factors.append(np.sqrt(0.5 * b[t]) * F.reshape(-1, len(lam)))
            by_Y[:, :t] += by_earlier
            if sum(map(len, factors)) > MAX_FACTORS * len(lam):
                factors = [few_factors(np.concatenate(factors))]
    stacked = np.concatenate(factors)
    return KernelGradient(diagonal, stacked, np.ones(len(stacked)), by_Y)


def uncertainty_gradients(
    problems: TaskProblems, parameters: AnyNDArray
) -> Iterator[tuple[AnyNDArray, AnyNDArray]]:
    r"""
    For each task, factors F and the gradient by the tasks before of
    :math:`-\tfrac{1}{2} \log |I + G_t|`, see :func:`.uncertainty_of_tasks`.
    """
    v = np.outer(parameters[:, 0], problems.lam) + parameters[:, 1:]  # [T, n]
    for t, outer in running_products(problems.Y, np.arange(len(v))):
        earlier = problems.Y[:, :t]
        if outer is None:
            yield uncertainty_of_tasks(earlier, v[t])
        else:
            yield uncertainty_of_rows(earlier, outer, v[t])


def few_factors(F: AnyNDArray) -> AnyNDArray:
    """As many rows as columns, with the same F^T F up to rounding."""
    return cholesky((F.T @ F).T).T
