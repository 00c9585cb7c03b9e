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

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..linalg import LOG_2PI
from .products import Eigenvectors, KroneckerVectors, for_copies, from_eigenbasis, outer_product
from .spectrum import Spectrum

LEARNING = ("hierarchical", "approximate")

ROUNDING_UNITS = 10.0
"""Rounding of G, in units of machine precision, per task. Of 400 random systems of copied tasks
all had a Cholesky factor with this much added to the diagonal."""

SMALLEST_RIDGE = 0.01
"""Rounding below this does not endanger I, and nothing is added."""

MAX_NUMBERS = 2**22
"""Arrays of T^3 numbers are formed up to this size (32 MB, 161 tasks), those of R T^2 up to eight
times as many. Beyond that the systems of the tasks are solved one after the other."""


class TaskSystems(NamedTuple):
    """The T systems of size T x T that both engines share."""

    W: tf.Tensor  # [T, T], row t holds the weights of the tasks before t; strictly lower triangular
    L: tf.Tensor | None  # [T, T, T], Cholesky factors of I + G_t, padded with the identity; None
    # where the tasks are many and the objective needs none of it


class Chain(NamedTuple):
    """The chain solved on a spectrum."""

    terms: tf.Tensor  # [T], the conditional log likelihoods
    systems: TaskSystems
    d: tf.Tensor  # [R, T], 1 / (b_t lam + sigma2_t)
    A: tf.Tensor  # [S R, T], the dual vectors alpha_t in the eigenbasis
    outside: tf.Tensor | float = 0.0  # [T], squared length of the dual vectors outside the span


class KernelGradient(NamedTuple):
    r"""
    A gradient with respect to the kernel matrix and the targets, in the eigenbasis.

    .. math:: \partial_K = U [\mathrm{diag}(a) + F^\top \mathrm{diag}(w) F] U^\top
    """

    diagonal: TensorType  # [R], a
    factors: TensorType  # [F, R]
    weights: TensorType  # [F], w
    Yr: TensorType  # [S R, T]


class ChainGradient(NamedTuple):
    """The gradient of the weighted terms."""

    kernel: KernelGradient
    b: tf.Tensor
    sigma2: tf.Tensor


def earlier_tasks(num_tasks: int) -> AnyNDArray:
    """[T, T], one at [t, u] where task u comes before task t."""
    return np.tril(np.ones([num_tasks, num_tasks]), -1)


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


@check_shapes("G: [T, T, T]")
def solve_task_systems(G: TensorType) -> TaskSystems:
    r"""
    MAP weights of the earlier tasks.

    .. math:: w_t = (I + G_t[{<}t, {<}t])^{-1} \, G_t[{<}t, t]

    :param G: Y^T K_{x,t}^{-1} Y for every t.
    """
    num_tasks = G.shape[0]
    mask = earlier_tasks(num_tasks)
    M = np.eye(num_tasks) + mask[:, :, None] * mask[:, None, :] * G
    diagonal = tf.linalg.diag_part(M)
    ridge = mask * ridge_of_systems(diagonal, np.sum(mask, axis=1, keepdims=True))
    L = tf.linalg.cholesky(tf.linalg.set_diag(M, diagonal + ridge))
    own_column = tf.linalg.diag_part(tf.transpose(G, [1, 0, 2]))  # [u, t] -> G[t, u, t]
    right = mask * tf.transpose(own_column)
    W = tf.linalg.cholesky_solve(L, right[..., None])[..., 0]
    return TaskSystems(W=W, L=L)


@check_shapes("quadratic: [T]", "log_det_x: [T]", "W: [T, T]", "L: [T, T, T]", "return: [T]")
def log_likelihood_terms(
    quadratic: TensorType,
    log_det_x: TensorType,
    W: TensorType,
    L: TensorType | None,
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
    """
    squared_weights = tf.reduce_sum(tf.square(W), axis=1)
    terms = -0.5 * (quadratic + squared_weights + log_det_x + num_rows * LOG_2PI)
    if learning == "approximate":
        terms -= tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)), axis=1)
    return terms


@check_shapes("b: [T]", "sigma2: [T]")
def solve_chain(spectrum: Spectrum, b: TensorType, sigma2: TensorType, learning: str) -> Chain:
    """Solve the chain on a spectrum: diagonal algebra and T systems of size T x T, O(R T^3)."""
    lam, Yr, G0, num_rows = spectrum.lam, spectrum.Yr, spectrum.G0, spectrum.num_rows
    num_tasks = Yr.shape[1]
    v = lam[:, None] * b + sigma2  # [R, T], eigenvalues of K_x
    d = 1.0 / v
    many = num_tasks**3 > MAX_NUMBERS or (lam.shape[0] or 0) * num_tasks**2 > 2**3 * MAX_NUMBERS
    systems = (
        solve_one_by_one(spectrum, d, sigma2, learning)
        if many
        else solve_task_systems(all_grams(spectrum, d) + G0 / sigma2[:, None, None])
    )
    residual_map = np.eye(num_tasks) - systems.W  # row t takes Y to the residual of task t
    E = tf.matmul(Yr, residual_map, transpose_b=True)
    A = tf.reshape(d * spectrum.split(E), [-1, num_tasks])
    outside = outside_energy(residual_map, G0)
    quadratic = tf.reduce_sum(A * E, axis=0) + outside / sigma2
    log_det_x = tf.reduce_sum(tf.math.log(v), axis=0) + (num_rows - spectrum.rank) * tf.math.log(
        sigma2
    )
    terms = log_likelihood_terms(quadratic, log_det_x, systems.W, systems.L, num_rows, learning)
    terms -= 0.5 * spectrum.slack * b / sigma2
    outside = tf.maximum(outside, tf.zeros_like(outside)) / tf.square(sigma2)
    return Chain(terms, systems, d, A, outside)


@check_shapes("d: [R, T]", "return: [T, T, T]")
def all_grams(spectrum: Spectrum, d: TensorType) -> tf.Tensor:
    """Yr^T diag(d_t) Yr for every t."""
    copies, num_tasks = spectrum.split(spectrum.Yr), d.shape[1]
    pairs = tf.reshape(tf.einsum("srt,sru->rtu", copies, copies), [-1, num_tasks**2])
    return tf.reshape(tf.matmul(d, pairs, transpose_a=True), [num_tasks] * 3)


@check_shapes("d: [R, T]", "sigma2: [T]")
def solve_one_by_one(
    spectrum: Spectrum, d: TensorType, sigma2: TensorType, learning: str
) -> TaskSystems:
    """As :func:`solve_task_systems`, one task after the other. Only "approximate" keeps L."""
    Yr, keep = spectrum.Yr, learning == "approximate"
    num_tasks = Yr.shape[1]

    def solve(t: tf.Tensor) -> tuple[tf.Tensor, ...]:
        weights = tf.tile(d[:, t], [spectrum.copies])[:, None]
        G = tf.matmul(weights * Yr, Yr, transpose_a=True) + spectrum.G0 / sigma2[t]
        mask = tf.cast(tf.range(num_tasks) < t, tf.float64)
        M = np.eye(num_tasks) + mask[:, None] * mask * G
        diagonal = tf.linalg.diag_part(M)
        ridge = mask * ridge_of_systems(diagonal, tf.cast(t, tf.float64))
        L = tf.linalg.cholesky(tf.linalg.set_diag(M, diagonal + ridge))
        w = tf.linalg.cholesky_solve(L, (mask * G[:, t])[:, None])[:, 0]
        return (w, L) if keep else (w,)

    found = tf.map_fn(
        solve,
        tf.range(num_tasks),
        fn_output_signature=(tf.float64,) * (1 + keep),
        parallel_iterations=1,
    )
    shaped = [tf.ensure_shape(part, [num_tasks] * (2 + i)) for i, part in enumerate(found)]
    return TaskSystems(shaped[0], shaped[1] if keep else None)


@check_shapes("V: [V, T]", "G0: [T, T]", "return: [V]")
def outside_energy(V: TensorType, G0: TensorType) -> tf.Tensor:
    r"""Squared length of Y v outside the span, :math:`v^\top G_0 v`, for the rows v of V."""
    return tf.reduce_sum(tf.matmul(V, G0) * V, axis=1)


def contrasts(systems: TaskSystems, learning: str) -> tuple[tf.Tensor, AnyNDArray]:
    r"""
    Vectors v, [V, T], and the task of each, [V], that give the objective's derivative with respect
    to the matrix :math:`Y^\top K_{x,t}^{-1} Y` of each task: :math:`-\tfrac{1}{2} \sum_v v v^\top`.

    They are :math:`e_t - w_t` and, if approximate, the rows of :math:`\mathrm{chol}(I + G_t)^{-1}`:
    the derivative of :math:`-\tfrac{1}{2} \log |I + G_t|` is :math:`-\tfrac{1}{2} (I + G_t)^{-1}`.
    """
    num_tasks = systems.W.shape[0]
    V, tasks = np.eye(num_tasks) - systems.W, np.arange(num_tasks)
    if learning == "approximate":
        mask = earlier_tasks(num_tasks)
        eye = tf.eye(num_tasks, batch_shape=[num_tasks], dtype=tf.float64)
        rows = tf.linalg.triangular_solve(systems.L, eye) * mask[:, None, :]
        V = tf.concat([V, tf.gather_nd(rows, np.argwhere(mask))], axis=0)
        tasks = np.concatenate([tasks, np.nonzero(mask)[0]])
    return V, tasks


@check_shapes("V: [V, T]", "tasks: [V]", "d: [R, T]", "b: [T]", "weights: [T]")
def contrast_gradient(
    spectrum: Spectrum,
    V: TensorType,
    tasks: AnyNDArray,
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


@check_shapes("b: [T]", "sigma2: [T]", "weights: [T]")
def chain_gradient(
    spectrum: Spectrum,
    b: TensorType,
    sigma2: TensorType,
    chain: Chain,
    learning: str,
    weights: TensorType,
) -> ChainGradient:
    r"""
    Gradient of the weighted sum of the terms.

    .. math:: dJ = \tfrac{1}{2} \sum_t g_t \left[ \sum_v \alpha_v^\top (dS_t) \alpha_v
              - \mathrm{tr}(K_{x,t}^{-1} \, dS_t) \right], \qquad
              dS_t = b_t \, dK, \; K \, db_t \; \text{or} \; I \, d\sigma^2_t

    with v and :math:`\alpha_v` as in :func:`contrast_gradient`.

    :param weights: g, the weights of the terms.
    """
    lam, slack, d = spectrum.lam, spectrum.slack, chain.d
    V, tasks = contrasts(chain.systems, learning)
    kernel = contrast_gradient(spectrum, V, tasks, d, b, weights)
    own = np.eye(spectrum.Yr.shape[1])[tasks]  # [V, T], adds up the vectors of each task
    factors = tf.reshape(kernel.factors, [len(tasks), -1, tf.shape(lam)[0]])  # [V, S, R]
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


@check_shapes("Y: [copies..., N, T]")
def leave_eigenbasis(
    gradient: KernelGradient, U: Eigenvectors, Y: TensorType
) -> tuple[tf.Tensor, ...]:
    """
    Gradients with respect to K and Y: one product of N x N matrices, and thin ones.

    :param U: Eigenvectors of K. Those of a Kronecker product give gradients by its matrices.
    :param Y: The targets, or completions of them; the results have its dtype.
    """
    g = KernelGradient(*(tf.cast(part, Y.dtype) for part in gradient))
    if isinstance(U, KroneckerVectors):
        return *leave_kronecker_basis(g, U), targets_gradient(g, U, Y)
    F = tf.matmul(U, g.factors, transpose_b=True)  # [N, F]
    low_rank = tf.matmul(F * g.weights, F, transpose_b=True)
    gK = tf.matmul(U * g.diagonal, U, transpose_b=True) + low_rank
    return gK, targets_gradient(g, U, Y)


def targets_gradient(gradient: KernelGradient, U: Eigenvectors, Y: TensorType) -> tf.Tensor:
    """The gradient with respect to Y, in its shape."""
    if Y.shape.rank == 2:
        return from_eigenbasis(U, gradient.Yr)
    weight = tf.sqrt(tf.cast(tf.shape(Y)[0], Y.dtype))
    copies = tf.reshape(gradient.Yr, tf.shape(Y))
    return for_copies(from_eigenbasis, U, copies) / weight


def leave_kronecker_basis(gradient: KernelGradient, U: KroneckerVectors) -> list[tf.Tensor]:
    r"""
    Gradients with respect to the matrices of a Kronecker product.

    .. math:: \partial_{K_1} = U_1 \Big[ \mathrm{diag}(a \lambda_2)
              + \sum_f w_f F_f \, \mathrm{diag}(\lambda_2) F_f^\top \Big] U_1^\top

    for two axes, with a and :math:`F_f` as matrices [n_1, n_2]; likewise for the others, where
    :math:`\lambda_2` is the product of the eigenvalues of all other axes.
    """
    found = []
    diagonal = tf.reshape(gradient.diagonal, U.shape)
    factors = tf.reshape(gradient.factors, [-1, *U.shape])
    for axis, vectors in enumerate(U.vectors):
        others = outer_product(U.values[:axis] + U.values[axis + 1 :])
        size, rest = U.shape[axis], [a for a in range(len(U.shape)) if a != axis]
        a = tf.reshape(tf.transpose(diagonal, [axis, *rest]), [size, -1])
        F = tf.transpose(factors, [axis + 1, 0, *(other + 1 for other in rest)])
        F = tf.reshape(F, [size, -1])
        weights = tf.reshape(gradient.weights[:, None] * others, [-1])
        inside = tf.matmul(F * weights, F, transpose_b=True)
        inside += tf.linalg.diag(tf.linalg.matvec(a, others))
        found.append(tf.matmul(tf.matmul(vectors, inside), vectors, transpose_b=True))
    return found
