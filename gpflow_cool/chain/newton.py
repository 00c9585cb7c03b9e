r"""
The inner problem of profiled training: the best b and sigma2 for a fixed kernel matrix.

With the spectrum fixed the objective splits into T problems in two numbers each,
:math:`(\log b_t, \log \sigma^2_t)`. They are solved together by Newton's method with exact
derivatives, in NumPy: an evaluation costs far less than one call into TensorFlow, and there are
dozens. The same terms, differentiable and on any device, are in :mod:`.likelihood`.

Letters: R eigenvectors, T tasks, Q problems (a task from one starting point).
"""

from typing import NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from ..linalg import LOG_2PI

MAX_STEP = 3.0
"""Longest Newton step in log b and log sigma2."""

GAIN_TOLERANCE = 1e-12
"""A step that promises less, in nats, is not taken."""

HUGE = 1e14
"""Where the diagonal of I + G is larger than this, I is hardly there any more."""

PROMISE = 10.0
"""A start is given up where this many times what its next step promises would not bring it up to
the best of its task: near an optimum a step promises twice what there is to gain."""

SAME = 0.01
"""A start that has come this close to a better one of its task, in log b and log sigma2, would end
where that one ends."""

MAX_ITERATIONS = 60
PATIENCE, ENOUGH = 15, 1e-5
"""After so many steps the tolerance grows tenfold a step, up to this: where b and sigma2 cannot be
told apart, there is a long way to go for nothing."""

BLOCK = 16
"""Tasks that are evaluated together: each is given all tasks up to the last of them, not all T."""

SHORTENING, MAX_SHORTENINGS = 0.3, 8
"""A step that does not climb is tried again as this fraction of itself, so many times."""


class InnerSpectrum(NamedTuple):
    """A :class:`.spectrum.Spectrum` in NumPy, with the products of targets formed."""

    lam: AnyNDArray
    Yr: AnyNDArray
    G0: AnyNDArray
    num_rows: float
    pairs: AnyNDArray
    """[R, T (T + 1) / 2], the products of two columns of Yr, summed over completions, in the order
    of :func:`pairs_of_tasks`."""

    slack: float
    precision: float

    @property
    def rounding(self) -> float:
        """What an eigenvalue that should be zero may have become."""
        return self.precision * len(self.lam) * float(np.max(self.lam))

    def first(self, num_tasks: int) -> "InnerSpectrum":
        """The same of the first tasks alone."""
        return self._replace(
            Yr=self.Yr[:, :num_tasks],
            G0=self.G0[:num_tasks, :num_tasks],
            pairs=self.pairs[:, : num_tasks * (num_tasks + 1) // 2],
        )


class Box(NamedTuple):
    """Bounds of log b and log sigma2, each [T, 2]; equal ones hold a number fixed."""

    lower: AnyNDArray
    upper: AnyNDArray


class Terms(NamedTuple):
    """Value, gradient and Hessian of Q problems with respect to (b, sigma2)."""

    value: AnyNDArray
    gradient: AnyNDArray
    hessian: AnyNDArray


class InnerSolution(NamedTuple):
    """The best of all starts for each task."""

    b: AnyNDArray
    sigma2: AnyNDArray
    terms: AnyNDArray


@check_shapes("lam: [R]", "Yr: [rows, T]", "G0: [T, T]")
def inner_spectrum(
    lam: AnyNDArray,
    Yr: AnyNDArray,
    G0: AnyNDArray,
    num_rows: float,
    slack: float = 0.0,
    precision: float = float(np.finfo(np.float64).eps),
) -> InnerSpectrum:
    """Form the products of targets, once a kernel matrix."""
    copies = Yr.reshape(-1, len(lam), Yr.shape[1])
    early, late = pairs_of_tasks(Yr.shape[1])
    pairs = sum(Y[:, early] * Y[:, late] for Y in copies)
    return InnerSpectrum(lam, Yr, G0, float(num_rows), pairs, float(slack), float(precision))


def pairs_of_tasks(num_tasks: int) -> tuple[AnyNDArray, AnyNDArray]:
    """Pairs (t, u), t <= u, in the order of u: those of the first tasks alone come first."""
    late, early = np.tril_indices(num_tasks)
    return early, late


@check_shapes("lam: [N]", "U: [N, N]", "Y: [copies..., N, T]")
def exact_inner_spectrum(lam: AnyNDArray, U: AnyNDArray, Y: AnyNDArray) -> InnerSpectrum:
    """As :func:`gpflow_cool.chain.spectrum.exact_spectrum`, for targets or completions of them."""
    num_tasks = Y.shape[-1]
    Yr = (U.T @ Y).astype(np.float64).reshape(-1, num_tasks)
    Yr /= np.sqrt(len(Yr) / len(lam))
    nothing = np.zeros([num_tasks, num_tasks])
    precision = float(np.finfo(lam.dtype).eps)
    return inner_spectrum(lam.astype(np.float64), Yr, nothing, len(lam), precision=precision)


class Residuals(NamedTuple):
    """What is left of Q tasks when those before them have explained what they can."""

    d: AnyNDArray
    """[Q, R], 1 / (b lam + sigma2)."""

    mask: AnyNDArray
    """[Q, T], true for the tasks before."""

    M: AnyNDArray
    """[Q, T, T], I + G_t, padded with the identity."""

    w: AnyNDArray
    """[Q, T], weights of the tasks before."""

    contrast: AnyNDArray
    """[Q, T], e_t - w_t."""

    e: AnyNDArray
    """[Q, S, R], the residuals in the eigenbasis."""

    a: AnyNDArray
    """[Q, S, R], the dual vectors alpha_t in the eigenbasis, d e."""

    @property
    def both(self) -> AnyNDArray:
        """[Q, T, T], true for pairs of tasks before."""
        return self.mask[:, :, None] & self.mask[:, None, :]


@check_shapes("tasks: [Q]", "parameters: [Q, 2]")
def task_residuals(spectrum: InnerSpectrum, tasks: AnyNDArray, parameters: AnyNDArray) -> Residuals:
    r"""
    Solve for the weights of the tasks before.

    .. math:: w_t = (I + G_t)^{-1} Y_{<t}^\top K_{x,t}^{-1} y_t, \qquad
              e_t = y_t - Y_{<t} w_t, \qquad \alpha_t = K_{x,t}^{-1} e_t
    """
    lam, Yr, G0 = spectrum[:3]
    num_tasks = Yr.shape[1]
    b, s = parameters.T
    d = 1.0 / (b[:, None] * lam + s[:, None])
    mask = np.arange(num_tasks) < tasks[:, None]
    G = gram(spectrum, d, G0 / s[:, None, None])
    M = invertible(np.eye(num_tasks) + (mask[:, :, None] & mask[:, None, :]) * G, mask)
    own_column = np.take_along_axis(G, tasks[:, None, None], 1)[:, 0]
    w = np.linalg.solve(M, (mask * own_column)[..., None])[..., 0]
    contrast = (np.arange(num_tasks) == tasks[:, None]) - w
    e = (contrast @ Yr.T).reshape(len(tasks), -1, len(lam))
    return Residuals(d, mask, M, w, contrast, e, d[:, None] * e)


@check_shapes("tasks: [Q]", "parameters: [Q, 2]")
def evaluate(
    spectrum: InnerSpectrum, tasks: AnyNDArray, parameters: AnyNDArray, learning: str
) -> Terms:
    """
    Terms of the chain for single tasks, with exact first and second derivatives.

    A task needs those before it: problems of early tasks are evaluated without the late ones.

    :param tasks: The task of each problem.
    :param parameters: (b, sigma2) of each problem.
    """
    num_problems = len(tasks)
    terms = Terms(*(np.empty([num_problems, *shape]) for shape in ((), (2,), (2, 2))))
    for block in np.unique(tasks // BLOCK):
        members = np.flatnonzero(tasks // BLOCK == block)
        known = spectrum.first(min((block + 1) * BLOCK, spectrum.Yr.shape[1]))
        found = evaluate_block(known, tasks[members], parameters[members], learning)
        for whole, part in zip(terms, found, strict=True):
            whole[members] = part
    return terms


def evaluate_block(
    spectrum: InnerSpectrum, tasks: AnyNDArray, parameters: AnyNDArray, learning: str
) -> Terms:
    r"""
    Terms of the tasks of a spectrum.

    With :math:`S_b = K, S_s = I`, in the eigenbasis diagonal with entries :math:`l_b = \lambda,
    l_s = 1`, and :math:`c_i = Y_{<t}^\top K_{x,t}^{-1} S_i \alpha_t`, the hierarchical term has

    .. math::

        g_i = \tfrac{1}{2} (\alpha^\top S_i \alpha - \mathrm{tr}\, K_x^{-1} S_i), \qquad
        H_{ij} = \tfrac{1}{2} \mathrm{tr}\, K_x^{-1} S_i K_x^{-1} S_j
                 - \alpha^\top S_i K_x^{-1} S_j \alpha + c_i^\top (I + G)^{-1} c_j

    and the slack :math:`\tau` of inducing points adds :math:`-\tfrac{1}{2} \tau b / \sigma^2`.
    """
    lam, Yr, G0, num_rows, _, slack, _ = spectrum
    b, s = parameters.T
    residuals = task_residuals(spectrum, tasks, parameters)
    d, mask, M, w, contrast, e, a = residuals
    outside = np.einsum("qi,ij,qj->q", contrast, G0, contrast)
    empty = num_rows - len(lam)
    value = -0.5 * (
        np.einsum("qr,qr->q", *(part.reshape(len(tasks), -1) for part in (a, e)))
        + outside / s
        + np.sum(np.square(w), axis=1)
        - np.sum(np.log(d), axis=1)
        + empty * np.log(s)
        + num_rows * LOG_2PI
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
    by_b, by_s = ((w[:, None] * a).reshape(len(tasks), -1) @ Yr for w in (d * lam, d))
    c = np.stack([by_b, by_s + contrast @ G0 / s[:, None] ** 2], axis=2)
    c *= mask[..., None]  # [Q, T, 2]
    gradient = np.stack([g_b, g_s], axis=1)
    hessian = symmetric_pairs(curvature) + np.swapaxes(c, 1, 2) @ np.linalg.solve(M, c)
    terms = Terms(value, gradient, hessian)
    return (
        add_weight_uncertainty(spectrum, terms, residuals, s)
        if learning == "approximate"
        else terms
    )


def invertible(M: AnyNDArray, mask: AnyNDArray) -> AnyNDArray:
    """
    Matrices I + G, [Q, T, T], with so much added to the diagonal that they have an inverse: where G
    is beyond 1e16, rounding swallows I, and tasks that are copies leave nothing else.

    :param mask: [Q, T], where M is more than padding, which stays as it is.
    """
    sizes = np.max(np.diagonal(M, axis1=1, axis2=2), axis=1)
    ridge = np.where(sizes > HUGE, np.sum(mask, axis=1) * np.finfo(M.dtype).eps * sizes, 0.0)
    return M + (ridge[:, None] * mask)[:, :, None] * np.eye(M.shape[1])


def gram(spectrum: InnerSpectrum, weights: AnyNDArray, outside: AnyNDArray) -> AnyNDArray:
    """[Q, T, T], Yr^T diag(weights_q) Yr plus what lies outside the span."""
    num_tasks = spectrum.Yr.shape[1]
    early, late = pairs_of_tasks(num_tasks)
    place = np.empty([num_tasks, num_tasks], int)
    place[early, late] = place[late, early] = np.arange(len(early))
    return (weights @ spectrum.pairs)[:, place] + outside


def symmetric_pairs(entries: AnyNDArray) -> AnyNDArray:
    """[Q, 2, 2] in the order (b, sigma2), from its entries (sigma2 sigma2, b sigma2, b b)."""
    return entries[:, [[2, 1], [1, 0]]]


def add_weight_uncertainty(
    spectrum: InnerSpectrum,
    terms: Terms,
    residuals: Residuals,
    s: AnyNDArray,
) -> Terms:
    r"""
    What :math:`-\tfrac{1}{2} \log |I + G_t|` adds in the approximate objective.

    With :math:`H_i = Y_{<t}^\top K_x^{-1} S_i K_x^{-1} Y_{<t}` and
    :math:`H_{ij} = Y_{<t}^\top K_x^{-1} S_i K_x^{-1} S_j K_x^{-1} Y_{<t}`: gradient
    :math:`\tfrac{1}{2} \mathrm{tr}\, M^{-1} H_i`, Hessian
    :math:`\tfrac{1}{2} \mathrm{tr}\, M^{-1} H_i M^{-1} H_j - \mathrm{tr}\, M^{-1} H_{ij}`.
    """
    lam, G0 = spectrum.lam, spectrum.G0
    d, M = residuals.d, residuals.M
    inverse = np.linalg.inv(M) * residuals.both
    scale = s[:, None, None]
    first = [
        gram(spectrum, d**2 * lam, 0.0) @ inverse,
        gram(spectrum, d**2, G0 / scale**2) @ inverse,
    ]
    second = [
        np.einsum("qij,qji->q", gram(spectrum, d**3 * lam**power, outside), inverse)
        for power, outside in ((0, G0 / scale**3), (1, 0.0), (2, 0.0))
    ]
    trace = 0.5 * np.stack([np.trace(part, axis1=1, axis2=2) for part in first], axis=1)
    product = np.stack([[np.einsum("qij,qji->q", x, y) for y in first] for x in first])  # [2, 2, Q]
    return Terms(
        value=terms.value - 0.5 * np.linalg.slogdet(M)[1],
        gradient=terms.gradient + trace,
        hessian=terms.hessian
        + 0.5 * np.moveaxis(product, -1, 0)
        - symmetric_pairs(np.stack(second, axis=1)),
    )


class KernelGradient(NamedTuple):
    r"""
    The gradient of the sum of all terms by the kernel matrix and the targets, in the eigenbasis:
    dJ/dK = U [diag(diagonal) + F^T diag(weights) F] U^T with F = factors.
    """

    diagonal: AnyNDArray
    """[R]."""

    factors: AnyNDArray
    """[F, R]."""

    weights: AnyNDArray
    """[F]."""

    Yr: AnyNDArray
    """[S R, T]."""


@check_shapes("parameters: [T, 2]")
def kernel_gradient(
    spectrum: InnerSpectrum, parameters: AnyNDArray, learning: str
) -> KernelGradient:
    r"""
    What the chain adds up to at (b, sigma2) of all tasks.

    .. math::

        \partial_K = \tfrac{1}{2} \sum_t b_t (\alpha_t \alpha_t^\top - Q_t), \qquad
        \partial_Y = -\sum_t \alpha_t (e_t - w_t)^\top
                    \left[ - \sum_t K_{x,t}^{-1} Y_{<t} (I + G_t)^{-1} \right]

    with :math:`Q_t = K_{x,t}^{-1}` (hierarchical) or, with the bracket, :math:`K_{x,t}^{-1} -
    F_t^\top F_t` (approximate), :math:`F_t = \mathrm{chol}(I + G_t)^{-1} Y_{<t}^\top K_{x,t}^{-1}`.
    """
    num_tasks = len(parameters)
    b = parameters[:, 0]
    tasks = np.arange(num_tasks)
    d, mask, M, _, contrast, _, a = task_residuals(spectrum, tasks, parameters)
    num_copies, rank = a.shape[1:]
    factors, weights = a.reshape(-1, rank), np.repeat(0.5 * b, num_copies)
    gYr = -(a.reshape(num_tasks, -1).T @ contrast)
    if learning == "approximate":
        L_inverse = np.linalg.inv(np.linalg.cholesky(M))
        F = mask[:, :, None] * d[:, None] * (L_inverse @ spectrum.Yr.T)  # [T, T, R]
        factors = np.concatenate([factors, F[mask]])
        weights = np.concatenate([weights, 0.5 * b[np.nonzero(mask)[0]]])
        gYr -= np.sum(np.swapaxes(F, 1, 2) @ L_inverse, axis=0)
    return KernelGradient(-0.5 * b @ d, factors, weights, gYr)


class Step(NamedTuple):
    """A step in (log b, log sigma2) for Q problems."""

    direction: AnyNDArray
    """[Q, 2]."""

    gain: AnyNDArray
    """[Q], what the step would gain if the problem were linear."""


def newton_step(x: AnyNDArray, terms: Terms, lower: AnyNDArray, upper: AnyNDArray) -> Step:
    """
    Ascent step: Newton with the curvature's absolute value.

    A number at its bound whose gradient points outside stays where it is.
    """
    p = np.exp(x)
    gradient = p * terms.gradient
    hessian = p[:, :, None] * p[:, None, :] * terms.hessian
    hessian[:, [0, 1], [0, 1]] += gradient
    held = ((x <= lower) & (gradient <= 0)) | ((x >= upper) & (gradient >= 0))
    gradient = np.where(held, 0.0, gradient)
    hessian = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
    values, vectors = np.linalg.eigh(hessian)
    steepest = np.max(np.abs(values), axis=1, keepdims=True)
    curvature = np.maximum(np.abs(values), 1e-9 * steepest + 1e-12)
    step = np.einsum("qij,qj->qi", vectors, np.einsum("qji,qj->qi", vectors, gradient) / curvature)
    length = np.max(np.abs(step), axis=1, keepdims=True)
    step *= np.minimum(1.0, MAX_STEP / np.maximum(length, MAX_STEP))
    return Step(step, np.sum(step * gradient, axis=1))


@check_shapes("starts: [S, T, 2]")
def solve(spectrum: InnerSpectrum, starts: AnyNDArray, box: Box, learning: str) -> InnerSolution:
    """
    Maximise every task's term from every start, and keep the best.

    :param starts: (b, sigma2) for each start and task.
    """
    num_starts, num_tasks, _ = starts.shape
    tasks = np.tile(np.arange(num_tasks), num_starts)
    lower, upper = box.lower[tasks], box.upper[tasks]
    x = np.clip(np.log(starts.reshape(-1, 2)), lower, upper)
    terms = evaluate(spectrum, tasks, np.exp(x), learning)
    active = np.arange(len(tasks))
    for iteration in range(MAX_ITERATIONS):
        tolerance = min(GAIN_TOLERANCE * 10.0 ** max(0, iteration - PATIENCE), ENOUGH)
        here = Terms(*(part[active] for part in terms))
        step = newton_step(x[active], here, lower[active], upper[active])
        worth = (step.gain > tolerance) & has_a_chance(
            x, terms.value, tasks, num_tasks, active, step.gain
        )
        active, direction = active[worth], step.direction[worth]
        if not len(active):
            break
        active = climb(spectrum, tasks, x, terms, Box(lower, upper), active, direction, learning)
    chosen = best_starts(terms.value, num_tasks)
    b, sigma2 = np.exp(x[chosen]).T
    return InnerSolution(b, sigma2, terms.value[chosen])


def best_starts(values: AnyNDArray, num_tasks: int) -> AnyNDArray:
    """[T], the problem that is best for each task."""
    return np.nanargmax(values.reshape(-1, num_tasks), axis=0) * num_tasks + np.arange(num_tasks)


def has_a_chance(
    x: AnyNDArray,
    values: AnyNDArray,
    tasks: AnyNDArray,
    num_tasks: int,
    active: AnyNDArray,
    gain: AnyNDArray,
) -> AnyNDArray:
    """
    Whether an active problem may still end above the present best of its task, see `PROMISE` and
    `SAME`; the best itself may.
    """
    best = best_starts(values, num_tasks)[tasks[active]]
    far = np.max(np.abs(x[active] - x[best]), axis=1) > SAME
    return (active == best) | (far & (values[active] + PROMISE * gain >= values[best]))


def climb(
    spectrum: InnerSpectrum,
    tasks: AnyNDArray,
    x: AnyNDArray,
    terms: Terms,
    box: Box,
    active: AnyNDArray,
    direction: AnyNDArray,
    learning: str,
) -> AnyNDArray:
    """
    Take the step of every active problem in place, shortened until it climbs.

    :param box: Bounds of the Q problems, not of the T tasks.
    :return: The problems that moved; the others are as high as rounding lets them get.
    """
    pending = np.arange(len(active))
    for _ in range(MAX_SHORTENINGS):
        rows = active[pending]
        trial = np.clip(x[rows] + direction[pending], box.lower[rows], box.upper[rows])
        new = evaluate(spectrum, tasks[rows], np.exp(trial), learning)
        better = new.value > terms.value[rows]
        x[rows[better]] = trial[better]
        for old, part in zip(terms, new, strict=True):
            old[rows[better]] = part[better]
        pending = pending[~better]
        if not len(pending):
            break
        direction[pending] *= SHORTENING
    return np.delete(active, pending)
