r"""
Kernel matrices that are Kronecker products, and the eigenvectors of any kernel matrix.

.. math:: K = K_1 \otimes K_2 \otimes \dots = U \, \mathrm{diag}(\lambda) \, U^\top, \qquad
          \lambda = \lambda_1 \otimes \lambda_2 \otimes \dots, \qquad
          U = U_1 \otimes U_2 \otimes \dots

The rows of a grid have such a kernel matrix. Nothing of size N x N is formed: a product with U is
one product of matrices per axis. A kernel matrix and its eigenvectors may be tensors [N, N] as
well: the functions here take Kronecker products and tensors.

Letters: N rows, n points of an axis, B columns, T tasks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, TensorType

from ..linalg import eigh


class KroneckerProduct(NamedTuple):
    """The kernel matrix of rows on a grid."""

    matrices: tuple[TensorType, ...]
    """[n, n] for each axis; the last one's points run fastest."""

    rows: AnyNDArray
    """[N], the rows in the order of the product."""


class KroneckerVectors(NamedTuple):
    """The eigenvectors of a Kronecker product."""

    vectors: tuple[TensorType, ...]
    """[n, n] for each axis."""

    values: tuple[TensorType, ...]
    """[n] for each axis, eigenvalues."""

    rows: AnyNDArray
    """[N], the rows in the order of the product."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points of each axis."""
        return tuple(values.shape[0] for values in self.values)


KernelMatrix: TypeAlias = TensorType | KroneckerProduct
Eigenvectors: TypeAlias = TensorType | KroneckerVectors


def kernel_tensors(K: KernelMatrix) -> list[tf.Tensor]:
    """The tensors of a kernel matrix: one, or one per axis."""
    return list(K.matrices) if isinstance(K, KroneckerProduct) else [tf.convert_to_tensor(K)]


def with_tensors(K: KernelMatrix, tensors: Any) -> KernelMatrix:
    """The same kind of kernel matrix with other tensors."""
    return K._replace(matrices=tuple(tensors)) if isinstance(K, KroneckerProduct) else tensors[0]


def decompose(K: KernelMatrix, *, python_callback: bool = False) -> tuple[tf.Tensor, Eigenvectors]:
    """
    Eigenvalues [N], clipped at zero, and eigenvectors of a kernel matrix.

    :param python_callback: As for :func:`gpflow_cool.linalg.eigh`.
    """
    if not isinstance(K, KroneckerProduct):
        return eigh(K, python_callback=python_callback)
    parts = [eigh(part, python_callback=python_callback) for part in K.matrices]
    values = tuple(lam for lam, _ in parts)
    return outer_product(values), KroneckerVectors(tuple(U for _, U in parts), values, K.rows)


def outer_product(values: tuple[TensorType, ...]) -> tf.Tensor:
    """[N], all products of one number per axis, the last axis running fastest."""
    result = values[0]
    for more in values[1:]:
        result = tf.reshape(result[:, None] * more, [-1])
    return result


def to_eigenbasis(U: Eigenvectors, V: TensorType) -> tf.Tensor:
    """U^T V, for V [N, B]."""
    if not isinstance(U, KroneckerVectors):
        return tf.matmul(U, V, transpose_a=True)
    return along_axes(U.vectors, tf.gather(V, U.rows))


def from_eigenbasis(U: Eigenvectors, A: TensorType) -> tf.Tensor:
    """U A, for A [N, B]."""
    if not isinstance(U, KroneckerVectors):
        return tf.matmul(U, A)
    transposed = [tf.transpose(V) for V in U.vectors]
    return tf.gather(along_axes(transposed, A), np.argsort(U.rows))


def for_copies(
    product: Callable[[Eigenvectors, TensorType], tf.Tensor], U: Eigenvectors, V: TensorType
) -> tf.Tensor:
    """
    A product with eigenvectors for each of several matrices, V [S, N, B].

    :param product: :func:`to_eigenbasis` or :func:`from_eigenbasis`.
    """
    if not isinstance(U, KroneckerVectors):
        return product(U, V)
    num_rows, num_columns = int(np.prod(U.shape)), V.shape[2]
    beside = tf.reshape(tf.transpose(V, [1, 0, 2]), [num_rows, -1])  # [N, S B]
    result = tf.reshape(product(U, beside), [num_rows, -1, num_columns])
    return tf.transpose(result, [1, 0, 2])


def squared(U: Eigenvectors) -> Eigenvectors:
    """The squares of all entries; those of a Kronecker product are one too."""
    if not isinstance(U, KroneckerVectors):
        return tf.square(U)
    return U._replace(vectors=tuple(V * V for V in U.vectors))


def recompose(U: Eigenvectors, lam: TensorType) -> KernelMatrix:
    """The kernel matrix of eigenvectors and eigenvalues."""
    if not isinstance(U, KroneckerVectors):
        return tf.matmul(U * lam, U, transpose_b=True)
    parts = zip(U.vectors, U.values, strict=True)
    return KroneckerProduct(
        tuple(tf.matmul(V * values, V, transpose_b=True) for V, values in parts), U.rows
    )


def in_precision(U: Eigenvectors, dtype: tf.DType) -> Eigenvectors:
    """The same eigenvectors in another precision."""
    if not isinstance(U, KroneckerVectors):
        return tf.cast(U, dtype)
    vectors, values = (tuple(tf.cast(part, dtype) for part in parts) for parts in U[:2])
    return KroneckerVectors(vectors, values, U.rows)


def multiply(K: KernelMatrix, V: TensorType) -> tf.Tensor:
    """K V, for V [N, B]."""
    if not isinstance(K, KroneckerProduct):
        return tf.matmul(K, V)
    return tf.gather(along_axes(K.matrices, tf.gather(V, K.rows)), np.argsort(K.rows))


def rows_of(K: KernelMatrix, rows: TensorType) -> tf.Tensor:
    """[R, N], some rows of a kernel matrix."""
    if not isinstance(K, KroneckerProduct):
        return tf.gather(K, rows)
    shape = [part.shape[0] for part in K.matrices]
    places = np.stack(np.unravel_index(np.argsort(K.rows), shape), axis=1)  # [N, axes]
    product = tf.ones([tf.shape(rows)[0], 1], K.matrices[0].dtype)
    for part, place in zip(K.matrices, tf.unstack(tf.gather(places, rows), axis=1), strict=True):
        product = tf.reshape(
            product[:, :, None] * tf.gather(part, place)[:, None, :], [tf.shape(rows)[0], -1]
        )
    return tf.gather(product, np.argsort(K.rows), axis=1)


def diagonal(K: KernelMatrix) -> tf.Tensor:
    """[N], the diagonal of a kernel matrix."""
    if not isinstance(K, KroneckerProduct):
        return tf.linalg.diag_part(K)
    parts = tuple(tf.linalg.diag_part(part) for part in K.matrices)
    return tf.gather(outer_product(parts), np.argsort(K.rows))


def along_axes(matrices: Any, V: tf.Tensor) -> tf.Tensor:
    r"""
    Products along all axes: :math:`(M_1 \otimes M_2 \otimes \dots)^\top V`, for V [N, B].

    An axis that has been served goes to the end, so that each is one product of two matrices.
    """
    num_rows = int(np.prod([M.shape[0] for M in matrices]))
    for M in matrices:
        V = tf.matmul(tf.reshape(V, [M.shape[0], -1]), M, transpose_a=True)
    return tf.transpose(tf.reshape(V, [-1, num_rows]))
