r"""
The joint model conditioned on some entries of Y only.

.. math:: S_{oo} = (C \otimes K + \Sigma \otimes I)_{oo}

with o the observed entries. Vectors over all entries are matrices [N, T], zero where nothing is
observed; :math:`S` takes V to :math:`K V C + V \Sigma`. While the observed entries are few,
:math:`S_{oo}` is factorised; beyond `MAX_DENSE` of them systems are solved by conjugate gradients,
preconditioned with the inverse for complete data, and nothing larger than N x N is formed.

Letters: N rows, T tasks, n observed entries, B right-hand sides, M test points.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from .kronecker import TaskBasis, task_basis
from .linalg import LOG_2PI

MAX_DENSE = 2000
"""Up to this many observed entries their covariance is factorised."""

CG_TOLERANCE = 1e-9
"""Conjugate gradients stop when every residual is this small, relative to its right-hand side."""

CG_MAX_ITERATIONS = 500


class ObservedSystem(NamedTuple):
    """The covariance of the observed entries, ready to be solved with."""

    U: tf.Tensor
    """[N, N], eigenvectors of K."""

    lam: tf.Tensor
    """[N], eigenvalues of K."""

    C: tf.Tensor
    Sigma: tf.Tensor
    basis: TaskBasis
    mask: AnyNDArray
    """[N, T], whether an entry is observed."""

    L: tf.Tensor | None
    """[n, n], Cholesky factor of S_oo in row-major order of the entries, if they are few."""

    def entries(self) -> AnyNDArray:
        """[n, 2], row and task of the observed entries."""
        return np.argwhere(self.mask)


@check_shapes("U: [N, N]", "lam: [N]", "C: [T, T]", "Sigma: [T, T]", "mask: [N, T]")
def observed_system(
    U: TensorType, lam: TensorType, C: TensorType, Sigma: TensorType, mask: AnyNDArray
) -> ObservedSystem:
    """Prepare the covariance of the observed entries, factorised if they are few."""
    system = ObservedSystem(U, lam, C, Sigma, task_basis(C, Sigma), mask, None)
    if np.count_nonzero(mask) > MAX_DENSE:
        return system
    return system._replace(L=tf.linalg.cholesky(dense_covariance(system)))


def dense_covariance(system: ObservedSystem) -> tf.Tensor:
    """[n, n], S_oo by its definition."""
    rows, tasks = system.entries().T
    K = tf.matmul(system.U * system.lam, system.U, transpose_b=True)

    def pick(matrix: tf.Tensor, index: AnyNDArray) -> tf.Tensor:
        return tf.gather(tf.gather(matrix, index, axis=0), index, axis=1)

    same_row = (rows[:, None] == rows[None, :]).astype(np.float64)
    return pick(system.C, tasks) * pick(K, rows) + pick(system.Sigma, tasks) * same_row


@check_shapes("V: [B, N, T]", "return: [B, N, T]")
def multiply(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    r"""S_oo times vectors: :math:`K V C + V \Sigma`, restricted to the observed entries."""
    rotated = tf.matmul(system.U, V, transpose_a=True) * system.lam[:, None]
    KV = tf.matmul(system.U, rotated)
    return system.mask * (tf.matmul(KV, system.C) + tf.matmul(V, system.Sigma))


@check_shapes("V: [B, N, T]", "return: [B, N, T]")
def precondition(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    """The inverse for complete data, restricted to the observed entries."""
    P_inverse, d = system.basis.P_inverse, system.basis.d
    Z = tf.matmul(tf.matmul(system.U, V, transpose_a=True), P_inverse, transpose_b=True)
    Z = Z / (system.lam[:, None] * d + 1.0)
    return system.mask * tf.matmul(tf.matmul(system.U, Z), P_inverse)


@check_shapes("V: [B, N, T]", "return: [B, N, T]")
def solve(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    """Solve with S_oo; what V holds at entries that are not observed is ignored."""
    V = system.mask * V
    if system.L is None:
        return conjugate_gradients(system, V)
    entries = system.entries()
    right = tf.gather_nd(tf.transpose(V, [1, 2, 0]), entries)  # [n, B]
    return scatter(system, tf.linalg.cholesky_solve(system.L, right))


@check_shapes("values: [n, B]", "return: [B, N, T]")
def scatter(system: ObservedSystem, values: TensorType) -> tf.Tensor:
    """Values of the observed entries back into their places."""
    shape = tf.concat([system.mask.shape, tf.shape(values)[1:]], axis=0)
    return tf.transpose(tf.scatter_nd(system.entries(), values, shape), [2, 0, 1])


def conjugate_gradients(system: ObservedSystem, V: tf.Tensor) -> tf.Tensor:
    """
    Preconditioned conjugate gradients for all right-hand sides at once.

    :raises tf.errors.InvalidArgumentError: If a residual stays above `CG_TOLERANCE`.
    """

    def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(a * b, axis=[1, 2], keepdims=True)

    goal = CG_TOLERANCE**2 * dot(V, V)

    def unfinished(step: tf.Tensor, x: tf.Tensor, r: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return (step < CG_MAX_ITERATIONS) & tf.reduce_any(dot(r, r) > goal)

    def advance(
        step: tf.Tensor, x: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rz: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        Sp = multiply(system, p)
        a = tf.math.divide_no_nan(rz, dot(p, Sp))
        x, r = x + a * p, r - a * Sp
        z = precondition(system, r)
        rz_next = dot(r, z)
        return step + 1, x, r, z + tf.math.divide_no_nan(rz_next, rz) * p, rz_next

    z = precondition(system, V)
    start = (tf.constant(0), tf.zeros_like(V), V, z, dot(V, z))
    steps, x, *_ = tf.while_loop(unfinished, advance, start)
    residual = V - multiply(system, x)
    worst = tf.reduce_max(tf.math.divide_no_nan(dot(residual, residual), dot(V, V)))
    check = tf.debugging.assert_less(
        tf.sqrt(worst),
        tf.constant(10.0 * CG_TOLERANCE, V.dtype),
        message="Conjugate gradients did not converge: the noise is too small for this kernel,"
        " raise its lower bound.",
    )
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(x)


@check_shapes("Y: [N, T]", "return: []")
def observed_log_evidence(system: ObservedSystem, Y: TensorType) -> tf.Tensor:
    """Log density of the observed entries; they must be few enough to be factorised."""
    if system.L is None:
        raise ValueError(
            f"The evidence of more than {MAX_DENSE} observed entries among missing ones has no"
            " determinant that is cheap: use the objective instead."
        )
    y = tf.gather_nd(Y, system.entries())[:, None]
    z = tf.linalg.triangular_solve(system.L, y)
    log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(system.L)))
    size = tf.cast(tf.size(y), z.dtype)
    return -0.5 * tf.reduce_sum(tf.square(z)) - log_det - 0.5 * size * LOG_2PI


@check_shapes("Y: [N, T]", "noise: [S, N, T]", "return: [S, N, T]")
def draw_completions(system: ObservedSystem, Y: TensorType, noise: TensorType) -> tf.Tensor:
    r"""
    Draw the missing entries given the observed ones (Matheron's rule).

    .. math:: Y_0 + S_{\cdot o} S_{oo}^{-1} (y_o - Y_{0,o}), \qquad
              Y_0 = U [\sqrt{\lambda_n d_j + 1} \, \epsilon_{nj}] P^\top

    :param noise: Standard normal, epsilon. Zero gives the mean completion.
    """
    basis = system.basis
    scaled = tf.sqrt(system.lam[:, None] * basis.d + 1.0) * noise
    prior = tf.matmul(tf.matmul(system.U, scaled), basis.P, transpose_b=True)
    observed = tf.where(system.mask, Y, tf.zeros_like(Y))
    weights = solve(system, observed - prior)
    everywhere = system._replace(mask=np.ones_like(system.mask))
    drawn = prior + multiply(everywhere, weights)
    return tf.where(system.mask, observed, drawn)
