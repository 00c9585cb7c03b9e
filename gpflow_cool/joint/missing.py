r"""
The joint model given the observed targets, where others are missing.

.. math:: S_{oo} = (C \otimes K + \Sigma \otimes I)_{oo}

with o the observed targets. Vectors over all targets are matrices [N, T], zero where a target is
missing; :math:`S` takes V to :math:`K V C + V \Sigma`. Up to `MAX_DENSE` observed targets,
:math:`S_{oo}` is factorised. Beyond that, systems are solved by conjugate gradients
(:func:`smooth`), and nothing larger than N x N is formed. Everything is exact and in float64: one
system gives all means, and T systems give the covariance at one point.

Letters: N rows, T tasks, n observed targets, B right-hand sides, M test points.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..gaussian import LOG_2PI
from ..systems import products
from ..systems.products import (
    Eigenvectors,
    KernelMatrix,
    from_eigenbasis,
    in_precision,
    recompose,
    rows_of,
    to_eigenbasis,
)
from .kronecker import TaskBasis, task_basis

MAX_DENSE = 2000
"""Up to this many observed targets, their covariance is factorised."""

CG_TOLERANCE = 1e-9
"""A system is solved when its residual is this small, relative to its right-hand side."""

SMOOTHING_TOLERANCE = 1e-12
"""Conjugate gradients stop when every preconditioned residual has fallen by this factor."""

CG_MAX_ITERATIONS = 1000
MAX_REFINEMENTS = 5


class Smoother(NamedTuple):
    r"""
    What conjugate gradients need: S split into functions and noise.

    .. math:: S_{oo} = (C \otimes (K - \delta I))_{oo} + \oplus_n (\Sigma + \delta C)_{o_n o_n}

    with :math:`\delta` the smallest eigenvalue of K.
    """

    precision: tf.Tensor
    r"""[N, T, T], :math:`\Lambda_n`, each row's inverse noise, zero for missing targets."""

    basis: TaskBasis
    r"""That of C and the inverse of :math:`\bar \Lambda`, the mean of the precisions."""

    root: tf.Tensor
    """[N, T], square roots of (lam_n - delta) d_j."""


class ObservedSystem(NamedTuple):
    """The covariance of the observed targets, ready for solving systems."""

    K: KernelMatrix
    """[N, N], the kernel matrix, or a Kronecker product."""

    U: Eigenvectors
    """[N, N], its eigenvectors, or those of a Kronecker product."""

    lam: tf.Tensor
    """[N], its eigenvalues."""

    C: tf.Tensor
    Sigma: tf.Tensor
    mask: AnyNDArray
    """[N, T], whether a target is observed."""

    L: tf.Tensor | None
    """[n, n], Cholesky factor of S_oo, targets in row-major order; None where they are many."""

    smoother: Smoother | None
    """None where the observed targets are few."""

    def entries(self) -> AnyNDArray:
        """[n, 2], row and task of the observed targets."""
        return np.argwhere(self.mask).astype(np.int32)

    def zero_elsewhere(self, V: tf.Tensor) -> tf.Tensor:
        """[N, B, T], V with zeros where a target is missing; V may be NaN there."""
        return tf.where(self.mask[:, None, :], V, tf.zeros([], V.dtype))


@check_shapes("lam: [N]", "C: [T, T]", "Sigma: [T, T]", "mask: [N, T]")
def observed_system(
    U: Eigenvectors, lam: TensorType, C: TensorType, Sigma: TensorType, mask: AnyNDArray
) -> ObservedSystem:
    """Prepare the covariance of the observed targets, factorised if they are few."""
    lam, C, Sigma = (tf.cast(part, tf.float64) for part in (lam, C, Sigma))
    U = in_precision(U, tf.float64)
    system = ObservedSystem(recompose(U, lam), U, lam, C, Sigma, mask, None, None)
    if np.count_nonzero(mask) > MAX_DENSE:
        return system._replace(smoother=prepare_smoother(lam, C, Sigma, mask))
    return system._replace(L=dense_factor(system))


def dense_factor(system: ObservedSystem) -> tf.Tensor:
    """[n, n], the Cholesky factor of S_oo; where there is none, TensorFlow would return NaN."""
    return tf.debugging.check_numerics(
        tf.linalg.cholesky(dense_covariance(system)),
        "The covariance of the observed targets has no Cholesky factor: give more noise (sigma2, or"
        " noise_covariance), or drop rows that are repeated.",
    )


def dense_covariance(system: ObservedSystem) -> tf.Tensor:
    """[n, n], S_oo by its definition."""
    rows, tasks = system.entries().T
    K = rows_of(system.K, np.arange(len(system.mask)))

    def pick(matrix: tf.Tensor, index: AnyNDArray) -> tf.Tensor:
        return tf.gather(tf.gather(matrix, index, axis=0), index, axis=1)

    same_row = (rows[:, None] == rows[None, :]).astype(np.float64)
    return pick(system.C, tasks) * pick(K, rows) + pick(system.Sigma, tasks) * same_row


@check_shapes("lam: [N]", "C: [T, T]", "Sigma: [T, T]", "mask: [N, T]")
def prepare_smoother(
    lam: TensorType, C: TensorType, Sigma: TensorType, mask: AnyNDArray
) -> Smoother:
    """Split S into functions and noise, and average the inverse noise over the rows."""
    known = tf.constant(mask, lam.dtype)
    both = known[:, :, None] * known[:, None, :]
    floor = tf.reduce_min(lam)
    # Missing targets become independent with unit variance, so that all rows have the same size.
    padded = both * (Sigma + floor * C) + tf.linalg.diag(1.0 - known)
    precision = both * tf.linalg.inv(padded)
    basis = task_basis(C, tf.linalg.inv(tf.reduce_mean(precision, axis=0)))
    return Smoother(precision, basis, tf.sqrt((lam - floor)[:, None] * basis.d))


@check_shapes("V: [N, B, T]", "return: [N, B, T]")
def multiply(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    r"""The covariance of all targets times vectors: :math:`K V C + V \Sigma`."""
    KV = products.multiply(system.K, as_columns(V))
    return tf.matmul(tf.reshape(KV, tf.shape(V)), system.C) + tf.matmul(V, system.Sigma)


@check_shapes("V: [N, B, T]", "return: [N, columns]")
def as_columns(V: TensorType) -> tf.Tensor:
    """Right-hand sides as a matrix with one row for each row of the data."""
    return tf.reshape(V, [tf.shape(V)[0], tf.shape(V)[1] * V.shape[2]])


@check_shapes("V: [N, B, T]", "return: [N, B, T]")
def to_basis(U: Eigenvectors, V: TensorType) -> tf.Tensor:
    """U^T V."""
    return tf.reshape(to_eigenbasis(U, as_columns(V)), tf.shape(V))


@check_shapes("V: [N, B, T]", "return: [N, B, T]")
def from_basis(U: Eigenvectors, V: TensorType) -> tf.Tensor:
    """U V."""
    return tf.reshape(from_eigenbasis(U, as_columns(V)), tf.shape(V))


@check_shapes("V: [B, N, T]", "return: [B, N, T]")
def solve(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    """Solve with S_oo; V is ignored where a target is missing, and may be NaN there."""
    if V.shape[0] == 0:  # no test points: TensorFlow gathers nothing from nothing only
        return tf.zeros_like(V)
    if system.smoother is not None:
        return tf.transpose(solve_iteratively(system, tf.transpose(V, [1, 0, 2])), [1, 0, 2])
    right = tf.gather_nd(tf.transpose(V, [1, 2, 0]), system.entries())  # [n, B]
    return scatter(system, tf.linalg.cholesky_solve(system.L, right))


@check_shapes("values: [n, B]", "return: [B, N, T]")
def scatter(system: ObservedSystem, values: TensorType) -> tf.Tensor:
    """Put values of the observed targets into their places."""
    shape = tf.concat([system.mask.shape, tf.shape(values)[1:]], axis=0)
    return tf.transpose(tf.scatter_nd(system.entries(), values, shape), [2, 0, 1])


@check_shapes("a: [N, B, T]", "b: [N, B, T]", "return: [1, B, 1]")
def dot(a: TensorType, b: TensorType) -> tf.Tensor:
    """Inner product of two vectors, for each right-hand side."""
    return tf.reduce_sum(a * b, axis=[0, 2], keepdims=True)


@check_shapes("V: [N, B, T]", "return: [N, B, T]")
def solve_iteratively(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    """
    Solve by conjugate gradients, and then again for the residual, until it is small.

    :raises tf.errors.InvalidArgumentError: If a residual stays above `CG_TOLERANCE`.
    """
    V = system.zero_elsewhere(V)
    scale = dot(V, V)

    def error(residual: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(tf.reduce_max(tf.math.divide_no_nan(dot(residual, residual), scale)))

    def unsolved(step: tf.Tensor, x: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        return (step < MAX_REFINEMENTS) & (error(residual) > CG_TOLERANCE)

    def refine(step: tf.Tensor, x: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, ...]:
        x += smooth(system, residual)
        return step + 1, x, V - system.zero_elsewhere(multiply(system, x))

    _, x, residual = tf.while_loop(unsolved, refine, (tf.constant(0), tf.zeros_like(V), V))
    check = tf.debugging.assert_less_equal(
        error(residual),
        tf.constant(CG_TOLERANCE, V.dtype),
        message="Conjugate gradients did not converge: the noise is too small for this kernel,"
        " raise its lower bound (a larger sigma2 to start from), or use fewer rows.",
    )
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(x)


@check_shapes("V: [N, B, T]", "return: [N, B, T]")
def smooth(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    r"""
    Solve with S_oo by conjugate gradients for the functions' values, f = R v.

    .. math:: (I + R^\top \Lambda R) \, v = R^\top \Lambda V, \qquad
              S_{oo}^{-1} V = \Lambda (V - R v), \qquad R R^\top = C \otimes (K - \delta I)

    The preconditioner :math:`I + R^\top \bar \Lambda R` is diagonal in the basis used here. It is
    good where functions are smooth, because then only the mean of :math:`\Lambda` over rows counts.
    Convergence is slow where functions are rough and the noise is small. An iteration is two
    products N x N by N x T, or two per axis of a grid.
    """
    assert system.smoother is not None
    precision, basis, root = system.smoother
    root = root[:, None, :]

    def functions(v: tf.Tensor) -> tf.Tensor:
        return tf.matmul(from_basis(system.U, root * v), basis.P, transpose_b=True)

    def functions_adjoint(f: tf.Tensor) -> tf.Tensor:
        return root * tf.matmul(to_basis(system.U, f), basis.P)

    def weigh(f: tf.Tensor) -> tf.Tensor:
        return tf.matmul(f, precision)

    diagonal = 1.0 + tf.square(root)
    right = functions_adjoint(weigh(V))
    z = right / diagonal
    start = dot(right, z)

    def unfinished(
        step: tf.Tensor, v: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rz: tf.Tensor
    ) -> tf.Tensor:
        return (step < CG_MAX_ITERATIONS) & tf.reduce_any(rz > SMOOTHING_TOLERANCE**2 * start)

    def advance(
        step: tf.Tensor, v: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rz: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        Ap = p + functions_adjoint(weigh(functions(p)))
        a = tf.math.divide_no_nan(rz, dot(p, Ap))
        v, r = v + a * p, r - a * Ap
        z = r / diagonal
        rz_next = dot(r, z)
        return step + 1, v, r, z + tf.math.divide_no_nan(rz_next, rz) * p, rz_next

    begin = (tf.constant(0), tf.zeros_like(right), right, z, start)
    _, v, *_ = tf.while_loop(unfinished, advance, begin)
    return weigh(V - functions(v))


@check_shapes("Y: [N, T]", "return: []")
def observed_log_evidence(system: ObservedSystem, Y: TensorType) -> tf.Tensor:
    """
    Log density of the observed targets.

    Their covariance is factorised for its determinant, also beyond `MAX_DENSE` targets.
    """
    L = dense_factor(system) if system.L is None else system.L
    y = tf.gather_nd(tf.cast(Y, L.dtype), system.entries())[:, None]
    z = tf.linalg.triangular_solve(L, y)
    log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)))
    size = tf.cast(tf.size(y), z.dtype)
    return -0.5 * tf.reduce_sum(tf.square(z)) - log_det - 0.5 * size * LOG_2PI


class ObservedSolution(NamedTuple):
    """All that predictions need of the observed targets."""

    system: ObservedSystem

    weights: tf.Tensor
    """[N, T], S_oo solved for the observed targets, zero elsewhere."""

    @property
    def P(self) -> tf.Tensor:
        """[T, T], a root of the noise covariance, as in the solution for complete data."""
        return task_basis(self.system.C, self.system.Sigma).P

    @property
    def d(self) -> tf.Tensor:
        """[T], signal variances in that basis: C = P diag(d) P^T."""
        return task_basis(self.system.C, self.system.Sigma).d


@check_shapes("Y: [N, T]")
def solve_observed(system: ObservedSystem, Y: TensorType) -> ObservedSolution:
    """
    Solve for the observed targets.

    :param Y: The mean function is subtracted already; NaN where a target is missing.
    """
    return ObservedSolution(system, solve(system, tf.cast(Y, tf.float64)[None])[0])
