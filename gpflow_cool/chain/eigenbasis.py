"""
Gradients with respect to the kernel matrix and the targets, from the eigenbasis back to the rows.

Letters: N rows, R eigenvectors, T tasks, S completions of the targets.
"""

from typing import NamedTuple

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from .products import Eigenvectors, KroneckerVectors, for_copies, from_eigenbasis, outer_product


class KernelGradient(NamedTuple):
    r"""
    A gradient with respect to the kernel matrix and the targets, in the eigenbasis.

    .. math:: \partial_K = U [\mathrm{diag}(a) + F^\top \mathrm{diag}(w) F] U^\top
    """

    diagonal: TensorType  # [R], a
    factors: TensorType  # [F, R]
    weights: TensorType  # [F], w
    Yr: TensorType  # [S R, T]


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
