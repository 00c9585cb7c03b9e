r"""
The chain's terms, one task at a time and with second derivatives, in NumPy.

The terms and the gradient with respect to the kernel matrix are written twice: here, for profiled
training, and in TensorFlow in :mod:`.likelihood`, differentiable and on any device. The inner
problem needs second derivatives, and dozens of small computations per kernel matrix. What the
gradient in NumPy saves is measured by `benchmarks/twins.py` with T = 4 and 16 tasks: with that of
TensorFlow, run eagerly, an evaluation of profiled training would take 1.4 to 1.9 times as long at
N = 200 and 1.1 times as long at N = 800. Compiled, an evaluation would take as long as now, but
compiling takes as long as 4 to 13 evaluations at N = 200, where a fit needs about ten.

Letters: R eigenvectors, T tasks, Q problems (one task at one b and sigma2 each), S completions.
"""

from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from ..linalg import LOG_2PI
from .likelihood import KernelGradient, ridge_of_systems
from .spectrum import Spectrum

TASKS_PER_BLOCK = 16
"""Tasks whose terms are computed together, without the tasks that come after the block."""


class TaskProblems(NamedTuple):
    """The T problems of a spectrum, with the products of targets that all of them need."""

    spectrum: Spectrum
    """In NumPy arrays."""

    pairs: AnyNDArray
    """[R, T (T + 1) / 2], products of two columns of Yr, summed over completions, in the order of
    :func:`pairs_of_tasks`."""

    learning: str
    """"hierarchical" or "approximate"."""

    def first(self, num_tasks: int) -> "TaskProblems":
        """The problems of the first tasks alone."""
        num_pairs = num_tasks * (num_tasks + 1) // 2
        spectrum = self.spectrum.of_tasks(slice(num_tasks))
        return self._replace(spectrum=spectrum, pairs=self.pairs[:, :num_pairs])


class Terms(NamedTuple):
    """Value [Q], gradient [Q, 2] and Hessian [Q, 2, 2] with respect to (b, sigma2)."""

    value: AnyNDArray
    gradient: AnyNDArray
    hessian: AnyNDArray


def task_problems(spectrum: Spectrum, learning: str) -> TaskProblems:
    """The problems of a spectrum of NumPy arrays; products of targets are formed once."""
    Yr = spectrum.Yr
    early, late = pairs_of_tasks(Yr.shape[1])
    copies = Yr.reshape(-1, len(spectrum.lam), Yr.shape[1])
    pairs: AnyNDArray = sum(Y[:, early] * Y[:, late] for Y in copies)
    return TaskProblems(spectrum, pairs, learning)


def pairs_of_tasks(num_tasks: int) -> tuple[AnyNDArray, AnyNDArray]:
    """Pairs (t, u), t <= u, in the order of u: those of the first tasks alone come first."""
    late, early = np.tril_indices(num_tasks)
    return early, late


class Residuals(NamedTuple):
    """Q tasks after regression on the tasks before them."""

    d: AnyNDArray  # [Q, R], 1 / (b lam + sigma2)
    mask: AnyNDArray  # [Q, T], true for the tasks before
    M: AnyNDArray  # [Q, T, T], I + G_t, padded with the identity
    w: AnyNDArray  # [Q, T], weights of the tasks before
    contrast: AnyNDArray  # [Q, T], e_t - w_t
    e: AnyNDArray  # [Q, S, R], the residuals in the eigenbasis
    a: AnyNDArray  # [Q, S, R], the dual vectors alpha_t in the eigenbasis, d e

    @property
    def both(self) -> AnyNDArray:
        """[Q, T, T], true for pairs of tasks before."""
        return self.mask[:, :, None] & self.mask[:, None, :]


@check_shapes("tasks: [Q]", "parameters: [Q, 2]")
def task_residuals(problems: TaskProblems, tasks: AnyNDArray, parameters: AnyNDArray) -> Residuals:
    r"""
    Solve for the weights of the tasks before.

    .. math:: w_t = (I + G_t)^{-1} Y_{<t}^\top K_{x,t}^{-1} y_t, \qquad
              e_t = y_t - Y_{<t} w_t, \qquad \alpha_t = K_{x,t}^{-1} e_t
    """
    lam, Yr = problems.spectrum.lam, problems.spectrum.Yr
    num_tasks = Yr.shape[1]
    b, s = parameters.T
    d = 1.0 / (b[:, None] * lam + s[:, None])
    mask = np.arange(num_tasks) < tasks[:, None]
    G = gram(problems, d, problems.spectrum.G0 / s[:, None, None])
    M = invertible(np.eye(num_tasks) + (mask[:, :, None] & mask[:, None, :]) * G, mask)
    own_column = np.take_along_axis(G, tasks[:, None, None], 1)[:, 0]
    w = np.linalg.solve(M, (mask * own_column)[..., None])[..., 0]
    contrast = (np.arange(num_tasks) == tasks[:, None]) - w
    e = (contrast @ Yr.T).reshape(len(tasks), -1, len(lam))
    return Residuals(d, mask, M, w, contrast, e, d[:, None] * e)


@check_shapes("tasks: [Q]", "parameters: [Q, 2]")
def task_terms(problems: TaskProblems, tasks: AnyNDArray, parameters: AnyNDArray) -> Terms:
    """
    Terms of the chain for single tasks, with exact first and second derivatives.

    A task needs only those before it: blocks of early tasks are computed without the late ones.

    :param tasks: The task of each problem.
    :param parameters: (b, sigma2) of each problem.
    """
    terms = Terms(*(np.empty([len(tasks), *shape]) for shape in ((), (2,), (2, 2))))
    blocks = tasks // TASKS_PER_BLOCK
    for block in np.unique(blocks):
        members = np.flatnonzero(blocks == block)
        known = problems.first((block + 1) * TASKS_PER_BLOCK)
        found = block_terms(known, tasks[members], parameters[members])
        for whole, part in zip(terms, found, strict=True):
            whole[members] = part
    return terms


def block_terms(problems: TaskProblems, tasks: AnyNDArray, parameters: AnyNDArray) -> Terms:
    r"""
    Terms of a block of tasks.

    With :math:`S_b = K, S_s = I`, in the eigenbasis diagonal with entries :math:`l_b = \lambda,
    l_s = 1`, and :math:`c_i = Y_{<t}^\top K_{x,t}^{-1} S_i \alpha_t`, the hierarchical term has

    .. math::

        g_i = \tfrac{1}{2} (\alpha^\top S_i \alpha - \mathrm{tr}\, K_x^{-1} S_i), \qquad
        H_{ij} = \tfrac{1}{2} \mathrm{tr}\, K_x^{-1} S_i K_x^{-1} S_j
                 - \alpha^\top S_i K_x^{-1} S_j \alpha + c_i^\top (I + G)^{-1} c_j

    and the slack :math:`\tau` of inducing points adds :math:`-\tfrac{1}{2} \tau b / \sigma^2`.
    """
    spectrum = problems.spectrum
    lam, Yr, G0, slack = spectrum.lam, spectrum.Yr, spectrum.G0, spectrum.slack
    b, s = parameters.T
    solved = task_residuals(problems, tasks, parameters)
    d, e, a, contrast = solved.d, solved.e, solved.a, solved.contrast
    outside = np.einsum("qi,ij,qj->q", contrast, G0, contrast)
    empty = spectrum.num_rows - spectrum.rank
    value = -0.5 * (
        np.einsum("qr,qr->q", *(part.reshape(len(tasks), -1) for part in (a, e)))
        + outside / s
        + np.sum(np.square(solved.w), axis=1)
        - np.sum(np.log(d), axis=1)
        + empty * np.log(s)
        + spectrum.num_rows * LOG_2PI
        + slack * b / s
    )
    powers = np.stack([np.ones_like(lam), lam, np.square(lam)])  # sigma2 sigma2, b sigma2, b b
    a2 = np.sum(np.square(a), axis=1)  # [Q, R]
    g_s, g_b = 0.5 * ((a2 - d) @ powers[:2].T).T
    g_b -= 0.5 * slack / s
    g_s += 0.5 * ((outside + slack * b) / s**2 - empty / s)
    curvature = (0.5 * np.square(d) - d * a2) @ powers.T  # [Q, 3]
    curvature[:, 0] += 0.5 * empty / s**2 - (outside + slack * b) / s**3
    curvature[:, 1] += 0.5 * slack / s**2
    by_b, by_s = ((v[:, None] * a).reshape(len(tasks), -1) @ Yr for v in (d * lam, d))
    c = np.stack([by_b, by_s + contrast @ G0 / s[:, None] ** 2], axis=2)
    c *= solved.mask[..., None]  # [Q, T, 2]
    gradient = np.stack([g_b, g_s], axis=1)
    hessian = symmetric_pairs(curvature) + np.swapaxes(c, 1, 2) @ np.linalg.solve(solved.M, c)
    terms = Terms(value, gradient, hessian)
    if problems.learning == "approximate":
        return add_weight_uncertainty(problems, terms, solved, s)
    return terms


def invertible(M: AnyNDArray, mask: AnyNDArray) -> AnyNDArray:
    """
    Matrices I + G, [Q, T, T], with a ridge where they might have no inverse.

    The ridge is that of :func:`.likelihood.ridge_of_systems`.

    :param mask: [Q, T], false for the padding, which stays as it is.
    """
    diagonal = np.diagonal(M, axis1=1, axis2=2)
    ridge = mask * ridge_of_systems(diagonal, np.sum(mask, axis=1, keepdims=True))
    return M + ridge[:, :, None] * np.eye(M.shape[1])


def gram(problems: TaskProblems, weights: AnyNDArray, outside: AnyNDArray | float) -> AnyNDArray:
    """[Q, T, T], Yr^T diag(weights_q) Yr, and the part outside the span."""
    num_tasks = problems.spectrum.Yr.shape[1]
    early, late = pairs_of_tasks(num_tasks)
    place = np.empty([num_tasks, num_tasks], int)
    place[early, late] = place[late, early] = np.arange(len(early))
    return (weights @ problems.pairs)[:, place] + outside


def symmetric_pairs(entries: AnyNDArray) -> AnyNDArray:
    """[Q, 2, 2] in the order (b, sigma2), from its entries (sigma2 sigma2, b sigma2, b b)."""
    return entries[:, [[2, 1], [1, 0]]]


def add_weight_uncertainty(
    problems: TaskProblems, terms: Terms, solved: Residuals, s: AnyNDArray
) -> Terms:
    r"""
    Add the term :math:`-\tfrac{1}{2} \log |I + G_t|` of the approximate objective.

    With :math:`H_i = Y_{<t}^\top K_x^{-1} S_i K_x^{-1} Y_{<t}` and
    :math:`H_{ij} = Y_{<t}^\top K_x^{-1} S_i K_x^{-1} S_j K_x^{-1} Y_{<t}`: gradient
    :math:`\tfrac{1}{2} \mathrm{tr}\, M^{-1} H_i`, Hessian
    :math:`\tfrac{1}{2} \mathrm{tr}\, M^{-1} H_i M^{-1} H_j - \mathrm{tr}\, M^{-1} H_{ij}`.
    """
    lam, G0 = problems.spectrum.lam, problems.spectrum.G0
    d = solved.d
    inverse = np.linalg.inv(solved.M) * solved.both
    scale = s[:, None, None]
    first = [
        gram(problems, d**2 * lam, 0.0) @ inverse,
        gram(problems, d**2, G0 / scale**2) @ inverse,
    ]
    second = [
        np.einsum("qij,qji->q", gram(problems, d**3 * lam**power, outside), inverse)
        for power, outside in ((0, G0 / scale**3), (1, 0.0), (2, 0.0))
    ]
    trace = 0.5 * np.stack([np.trace(part, axis1=1, axis2=2) for part in first], axis=1)
    product = np.stack([[np.einsum("qij,qji->q", x, y) for y in first] for x in first])  # [2, 2, Q]
    return Terms(
        value=terms.value - 0.5 * np.linalg.slogdet(solved.M)[1],
        gradient=terms.gradient + trace,
        hessian=terms.hessian
        + 0.5 * np.moveaxis(product, -1, 0)
        - symmetric_pairs(np.stack(second, axis=1)),
    )


@check_shapes("parameters: [T, 2]")
def kernel_gradient(problems: TaskProblems, parameters: AnyNDArray) -> KernelGradient:
    """
    Gradient of the sum of all terms with respect to the kernel matrix and the targets.

    The formula is that of :func:`.likelihood.contrast_gradient`.

    :param parameters: (b, sigma2) of all tasks.
    """
    b, tasks = parameters[:, 0], np.arange(len(parameters))
    solved = task_residuals(problems, tasks, parameters)
    V = solved.contrast
    if problems.learning == "approximate":
        V = np.concatenate([V, np.linalg.inv(np.linalg.cholesky(solved.M))[solved.mask]])
        tasks = np.concatenate([tasks, np.nonzero(solved.mask)[0]])
    rank = solved.d.shape[1]
    A = solved.d[tasks, None] * (V @ problems.spectrum.Yr.T).reshape(len(V), -1, rank)  # [V, S, R]
    return KernelGradient(
        diagonal=-0.5 * b @ solved.d,
        factors=A.reshape(-1, rank),
        weights=np.repeat(0.5 * b[tasks], A.shape[1]),
        Yr=-A.reshape(len(V), -1).T @ V,
    )
