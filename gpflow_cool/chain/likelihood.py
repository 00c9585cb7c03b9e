r"""
The chain of conditional one-output likelihoods: both objectives, and their gradients by hand.

Task t is a Gaussian process that has seen the tasks before it, :math:`Y_{<t}`:

.. math::

    K_{x,t} = b_t K + \sigma^2_t I, \qquad K_{xy,t} = K_{x,t} + Y_{<t} Y_{<t}^\top

    \text{approximate:} \quad \log N(y_t \,|\, 0, K_{xy,t}), \qquad
    \text{hierarchical:} \quad
    \log N(y_t - Y_{<t} w_t \,|\, 0, K_{x,t}) - \tfrac{1}{2} |w_t|^2

with :math:`w_t = (I + G_t)^{-1} Y_{<t}^\top K_{x,t}^{-1} y_t` and
:math:`G_t = Y_{<t}^\top K_{x,t}^{-1} Y_{<t}`. Both share one dual vector,
:math:`\alpha_t = K_{xy,t}^{-1} y_t = K_{x,t}^{-1} (y_t - Y_{<t} w_t)`, so that neither needs a
second factorisation. The spectral engine needs one eigendecomposition for all tasks, the Cholesky
engine one Cholesky factorisation per task.

Letters: N rows, R eigenvectors (R = N for an exact kernel matrix), T tasks, P = T (T - 1) / 2, S
completions of the targets (S = 1 unless entries are missing, see :mod:`.spectrum`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..gaussian import LOG_2PI
from .eigenbasis import KernelGradient
from .spectrum import Spectrum

LEARNING = ("hierarchical", "approximate")

ROUNDING_UNITS = 10.0
"""Rounding of G, in units of machine precision, per task. Of 400 random systems of copied tasks
all had a Cholesky factor with this much added to the diagonal."""

SMALLEST_RIDGE = 0.01
"""Rounding below this does not endanger I, and nothing is added."""

MAX_NUMBERS = 2**22
"""Systems are solved in blocks of tasks: their matrices, of T x T each, have up to so many numbers
(32 MB, 161 tasks at once); arrays over a block's tasks, all tasks and R rows have up to eight times
as many."""

MANY_BLOCKS = 8
"""If one block is not enough there are at least so many: the systems of early tasks are small."""


class TaskSystems(NamedTuple):
    """The systems of a block of B tasks, of size E x E: E tasks come up to its last one."""

    W: tf.Tensor  # [B, E], row t holds the weights of the tasks before t, then zeros
    L: tf.Tensor  # [B, E, E], Cholesky factors of I + G_t, padded with the identity

    @property
    def log_det(self) -> tf.Tensor:
        r""":math:`\log |I + G_t|`, [B]."""
        return 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(self.L)), axis=1)


class Chain(NamedTuple):
    """The chain solved on a spectrum."""

    terms: tf.Tensor  # [T], the conditional log likelihoods
    W: tf.Tensor  # [T, T], row t holds the weights of the tasks before t; strictly lower triangular
    d: tf.Tensor  # [R, T], 1 / (b_t lam + sigma2_t)
    A: tf.Tensor  # [S R, T], the dual vectors alpha_t in the eigenbasis
    outside: tf.Tensor | float = 0.0  # [T], squared length of the dual vectors outside the span


class ChainGradient(NamedTuple):
    """The gradient of the weighted terms."""

    kernel: KernelGradient
    b: tf.Tensor
    sigma2: tf.Tensor


def ridge_of_systems(diagonal: Any, count: Any) -> Any:
    """
    What is added to the diagonal of I + G, so that it has an inverse.

    Where G is beyond 1e14, rounding swallows I; and tasks that are copies of each other make G
    singular. Each task gets its share of rounding, and none where that is far below one.

    :param diagonal: [..., T], the diagonal of I + G, in TensorFlow or in NumPy.
    :param count: [..., 1] or one for all, the number of tasks that a system has.
    """
    rounding = ROUNDING_UNITS * np.finfo(np.float64).eps * count * diagonal
    where = np.where if isinstance(diagonal, np.ndarray) else tf.where
    return where(rounding > SMALLEST_RIDGE, rounding, np.float64(0.0))


@check_shapes("G: [B, E, E]", "tasks: [B]")
def solve_task_systems(G: TensorType, tasks: TensorType) -> TaskSystems:
    r"""
    MAP weights of the earlier tasks.

    .. math:: w_t = (I + G_t[{<}t, {<}t])^{-1} \, G_t[{<}t, t]

    :param G: Y^T K_{x,t}^{-1} Y of the first E tasks, for each t of a block.
    """
    mask = tf.sequence_mask(tasks, tf.shape(G)[1], tf.float64)  # [B, E], which tasks come before
    M = tf.eye(tf.shape(G)[1], dtype=tf.float64) + mask[:, :, None] * mask[:, None, :] * G
    diagonal = tf.linalg.diag_part(M)
    ridge = mask * ridge_of_systems(diagonal, tf.reduce_sum(mask, axis=1, keepdims=True))
    L = tf.linalg.cholesky(tf.linalg.set_diag(M, diagonal + ridge))
    right = mask * tf.gather(G, tasks, axis=2, batch_dims=1)
    W = tf.linalg.cholesky_solve(L, right[..., None])[..., 0]
    return TaskSystems(W=W, L=L)


@check_shapes("quadratic: [T]", "log_det_x: [T]", "W: [T, T]", "log_det: [T]", "return: [T]")
def log_likelihood_terms(
    quadratic: TensorType,
    log_det_x: TensorType,
    W: TensorType,
    log_det: TensorType,
    num_rows: TensorType,
    learning: str,
) -> tf.Tensor:
    r"""
    The T terms of either objective.

    .. math::

        -\tfrac{1}{2} (q_t + |w_t|^2) - \tfrac{1}{2} \log |K_{x,t}| - \tfrac{N}{2} \log 2 \pi
        \quad \left[ - \tfrac{1}{2} \log |I + G_t| \text{ if approximate} \right]

    :param quadratic: :math:`q_t = (y_t - Y_{<t} w_t)^\top K_{x,t}^{-1} (y_t - Y_{<t} w_t)`: of the
        residual, because :math:`y_t^\top K_{x,t}^{-1} y_t` minus what w explains would cancel.
    :param log_det: :math:`\log |I + G_t|`.
    """
    squared_weights = tf.reduce_sum(tf.square(W), axis=1)
    terms = -0.5 * (quadratic + squared_weights + log_det_x + num_rows * LOG_2PI)
    if learning == "approximate":
        terms -= 0.5 * log_det
    return terms


@check_shapes("b: [T]", "sigma2: [T]")
def solve_chain(spectrum: Spectrum, b: TensorType, sigma2: TensorType, learning: str) -> Chain:
    """Solve the chain on a spectrum: diagonal algebra and T systems of size T x T, O(R T^3)."""
    lam, Yr, G0, num_rows = spectrum.lam, spectrum.Yr, spectrum.G0, spectrum.num_rows
    num_tasks = Yr.shape[1]
    v = lam[:, None] * b + sigma2  # [R, T], eigenvalues of K_x
    d = 1.0 / v
    W, log_det = solve_systems(spectrum, d, sigma2)
    residual_map = np.eye(num_tasks) - W  # row t takes Y to the residual of task t
    E = tf.matmul(Yr, residual_map, transpose_b=True)
    A = tf.reshape(d * spectrum.split(E), [-1, num_tasks])
    outside = outside_energy(residual_map, G0)
    quadratic = tf.reduce_sum(A * E, axis=0) + outside / sigma2
    log_det_x = tf.reduce_sum(tf.math.log(v), axis=0) + (num_rows - spectrum.rank) * tf.math.log(
        sigma2
    )
    terms = log_likelihood_terms(quadratic, log_det_x, W, log_det, num_rows, learning)
    terms -= 0.5 * spectrum.slack * b / sigma2
    outside = tf.maximum(outside, tf.zeros_like(outside)) / tf.square(sigma2)
    return Chain(terms, W, d, A, outside)


@check_shapes("d: [R, T]", "sigma2: [T]", "return[0]: [T, T]", "return[1]: [T]")
def solve_systems(spectrum: Spectrum, d: TensorType, sigma2: TensorType) -> tuple[tf.Tensor, ...]:
    r"""W, and :math:`\log |I + G_t|` of each task."""
    num_tasks = spectrum.Yr.shape[1]

    def part(tasks: tf.Tensor) -> tuple[tf.Tensor, ...]:
        systems = block_systems(spectrum, d, sigma2, tasks)
        rows = [tasks[0], num_tasks - 1 - tasks[-1]]
        W = tf.pad(systems.W, [rows, [0, rows[1]]])
        return tf.ensure_shape(W, [num_tasks, num_tasks]), tf.pad(systems.log_det, [rows])

    return sum_over_blocks(part, num_tasks, block_size(spectrum))


@check_shapes("d: [R, T]", "sigma2: [T]", "tasks: [B]")
def block_systems(
    spectrum: Spectrum, d: TensorType, sigma2: TensorType, tasks: TensorType
) -> TaskSystems:
    """The systems of tasks that follow each other."""
    E = tasks[-1] + 1
    Yr, G0 = spectrum.Yr[:, :E], spectrum.G0[:E, :E]
    weights = tf.tile(tf.gather(tf.transpose(d), tasks), [1, spectrum.copies])  # [B, S R]
    scaled = tf.reshape(weights[:, None, :] * tf.transpose(Yr), [-1, tf.shape(Yr)[0]])  # [B E, S R]
    G = tf.reshape(tf.matmul(scaled, Yr), [-1, E, E])
    return solve_task_systems(G + G0 / tf.gather(sigma2, tasks)[:, None, None], tasks)


def block_size(spectrum: Spectrum) -> int:
    """How many tasks make a block; all of them if they are few."""
    num_rows, num_tasks = spectrum.Yr.shape
    size = min(MAX_NUMBERS // num_tasks**2, 8 * MAX_NUMBERS // (num_tasks * (num_rows or 1)))
    return num_tasks if size >= num_tasks else max(1, min(size, num_tasks // MANY_BLOCKS))


def sum_over_blocks(
    part: Callable[[tf.Tensor], tuple[tf.Tensor, ...]], num_tasks: int, size: int
) -> tuple[tf.Tensor, ...]:
    """
    The sum of what a function returns for blocks of tasks, one block after the other.

    :param size: How many tasks make a block.
    """
    first = part(tf.range(min(size, num_tasks)))
    if size >= num_tasks:
        return first

    def add(start: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tasks = tf.range(start, tf.minimum(start + size, num_tasks))
        new = [total + more for total, more in zip(sums, part(tasks), strict=True)]
        shaped = (tf.ensure_shape(one, total.shape) for one, total in zip(new, sums, strict=True))
        return start + size, *shaped

    state = (tf.constant(size), *first)
    _, *sums = tf.while_loop(lambda start, *_: start < num_tasks, add, state, parallel_iterations=1)
    return tuple(sums)


@check_shapes("V: [V, T]", "G0: [T, T]", "return: [V]")
def outside_energy(V: TensorType, G0: TensorType) -> tf.Tensor:
    r"""Squared length of Y v outside the span, :math:`v^\top G_0 v`, for the rows v of V."""
    return tf.reduce_sum(tf.matmul(V, G0) * V, axis=1)


def contrasts(W: TensorType) -> tuple[tf.Tensor, AnyNDArray]:
    r"""
    Vectors v, [V, T], and the task of each, [V], that give the hierarchical objective's derivative
    with respect to the matrix :math:`Y^\top K_{x,t}^{-1} Y` of each task:
    :math:`-\tfrac{1}{2} \sum_v v v^\top`. They are :math:`e_t - w_t`.
    """
    return np.eye(W.shape[0]) - W, np.arange(W.shape[0])


@check_shapes("W: [T, T]", "tasks: [B]")
def block_contrasts(
    W: TensorType, systems: TaskSystems, tasks: TensorType
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    The vectors of the approximate objective for a block of tasks: :math:`e_t - w_t` and the rows of
    :math:`\mathrm{chol}(I + G_t)^{-1}`, because the derivative of
    :math:`-\tfrac{1}{2} \log |I + G_t|` is :math:`-\tfrac{1}{2} (I + G_t)^{-1}`.
    """
    num_tasks, E = W.shape[0], tf.shape(systems.L)[1]
    eye = tf.eye(E, batch_shape=[tf.size(tasks)], dtype=tf.float64)
    mask = tf.sequence_mask(tasks, E)
    rows = tf.boolean_mask(tf.linalg.triangular_solve(systems.L, eye), mask)
    rows = tf.pad(rows, [[0, 0], [0, num_tasks - E]])
    own = tf.gather(np.eye(num_tasks) - W, tasks)
    owners = tf.cast(tf.where(mask)[:, 0], tasks.dtype)
    return tf.concat([own, rows], axis=0), tf.concat([tasks, tf.gather(tasks, owners)], axis=0)


@check_shapes("sigma2: [T]", "W: [T, T]", "d: [R, T]", "weights: [T]")
def sum_over_contrasts(
    part: Callable[[tf.Tensor, TensorType, tf.Tensor], tuple[tf.Tensor, ...]],
    spectrum: Spectrum,
    sigma2: TensorType,
    W: TensorType,
    d: TensorType,
    learning: str,
    weights: TensorType,
) -> tuple[tf.Tensor, ...]:
    """
    A gradient that is a sum over contrasts. If approximate these are T^2 / 2, and taken in blocks.

    :param part: The gradient for contrasts V, their tasks, and weights, zero for other tasks.
    :param W: Row t holds the weights of the tasks before t.
    :param d: 1 / (b lam + sigma2).
    :param weights: g, the weights of the terms.
    """
    if learning == "hierarchical":
        return part(*contrasts(W), weights)
    num_tasks = W.shape[0]

    def of_block(tasks: tf.Tensor) -> tuple[tf.Tensor, ...]:
        systems = block_systems(spectrum, d, sigma2, tasks)
        own = tf.reduce_sum(tf.one_hot(tasks, num_tasks, dtype=tf.float64), axis=0)
        return part(*block_contrasts(W, systems, tasks), own * weights)

    return sum_over_blocks(of_block, num_tasks, block_size(spectrum))


@check_shapes("V: [V, T]", "tasks: [V]", "d: [R, T]", "b: [T]", "weights: [T]")
def contrast_gradient(
    spectrum: Spectrum,
    V: TensorType,
    tasks: TensorType,
    d: TensorType,
    b: TensorType,
    weights: TensorType,
) -> KernelGradient:
    r"""
    Gradient of weighted terms with respect to the kernel matrix and the targets.

    .. math:: \partial_K = \tfrac{1}{2} \sum_t g_t b_t \left( \sum_v \alpha_v \alpha_v^\top
              - K_{x,t}^{-1} \right), \qquad \partial_Y = -\sum_t g_t \sum_v \alpha_v v^\top,
              \qquad \alpha_v = K_{x,t}^{-1} Y v

    :param V: The vectors v, see :func:`contrasts`.
    :param tasks: The task of each vector.
    :param d: 1 / (b lam + sigma2).
    :param weights: g, the weights of the terms.
    """
    YV = tf.matmul(spectrum.Yr, V, transpose_b=True)
    A = tf.reshape(tf.gather(d, tasks, axis=1) * spectrum.split(YV), tf.shape(YV))  # [S R, V]
    return KernelGradient(
        diagonal=-0.5 * tf.linalg.matvec(d, weights * b),
        factors=tf.reshape(tf.transpose(A), [-1, tf.shape(spectrum.lam)[0]]),  # [V S, R]
        weights=0.5 * tf.repeat(tf.gather(weights * b, tasks), spectrum.copies),
        Yr=-tf.matmul(A * tf.gather(weights, tasks), V),
    )


@check_shapes("V: [V, T]", "tasks: [V]", "d: [R, T]", "b: [T]", "sigma2: [T]", "weights: [T]")
def chain_gradient(
    spectrum: Spectrum,
    V: TensorType,
    tasks: TensorType,
    d: TensorType,
    b: TensorType,
    sigma2: TensorType,
    weights: TensorType,
) -> ChainGradient:
    r"""
    Gradient of the weighted sum of the terms.

    .. math:: dJ = \tfrac{1}{2} \sum_t g_t \left[ \sum_v \alpha_v^\top (dS_t) \alpha_v
              - \mathrm{tr}(K_{x,t}^{-1} \, dS_t) \right], \qquad
              dS_t = b_t \, dK, \; K \, db_t \; \text{or} \; I \, d\sigma^2_t

    with v and :math:`\alpha_v` as in :func:`contrast_gradient`.

    :param d: 1 / (b lam + sigma2).
    :param weights: g, the weights of the terms.
    """
    lam, slack = spectrum.lam, spectrum.slack
    kernel = contrast_gradient(spectrum, V, tasks, d, b, weights)
    own = tf.one_hot(tasks, spectrum.Yr.shape[1], dtype=tf.float64)  # [V, T], adds up each task's
    factors = tf.reshape(kernel.factors, [tf.shape(V)[0], -1, tf.shape(lam)[0]])  # [V, S, R]
    squares = tf.reduce_sum(tf.square(factors), axis=1)
    excess = tf.matmul(squares, own, transpose_a=True) - d  # [R, T]
    outside = tf.linalg.matvec(own, outside_energy(V, spectrum.G0), transpose_a=True)
    by_b = tf.linalg.matvec(excess, lam, transpose_a=True) - slack / sigma2
    by_sigma2 = (
        tf.reduce_sum(excess, axis=0)
        + (outside + slack * b) / tf.square(sigma2)
        - (spectrum.num_rows - spectrum.rank) / sigma2
    )
    return ChainGradient(kernel, b=0.5 * weights * by_b, sigma2=0.5 * weights * by_sigma2)
