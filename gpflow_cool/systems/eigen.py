"""Kernel matrices with N eigenvectors, as matrices or as Kronecker products over a grid."""

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..linalg import has_gpu
from .products import (
    Eigenvectors,
    KernelMatrix,
    KroneckerVectors,
    decompose,
    for_copies,
    from_eigenbasis,
    in_precision,
    kernel_tensors,
    outer_product,
    squared,
    to_eigenbasis,
    with_tensors,
)
from .spectrum import Spectrum, SpectrumGradient, inside_gradient


@check_shapes("lam: [N]", "Y: [copies..., N, T]")
def exact_spectrum(lam: TensorType, U: Eigenvectors, Y: TensorType) -> Spectrum:
    """
    Spectrum of a kernel matrix with N eigenvectors: nothing lies outside their span.

    :param U: The eigenvectors, [N, N] or those of a Kronecker product.
    :param Y: The targets, or S completions of them.
    """
    Yr = tf.cast(rotated_targets(U, Y), tf.float64)
    if Yr.shape.rank == 3:
        weight = tf.sqrt(tf.cast(tf.shape(Yr)[0], tf.float64))
        Yr = tf.reshape(Yr / weight, [-1, Yr.shape[2]])
    num_tasks = tf.shape(Yr)[1]
    return Spectrum(
        lam=tf.cast(lam, tf.float64),
        Yr=Yr,
        G0=tf.zeros([num_tasks, num_tasks], tf.float64),
        num_rows=tf.cast(tf.shape(lam)[0], tf.float64),
        precision=float(np.finfo(lam.dtype.as_numpy_dtype).eps),
    )


@check_shapes("Y: [copies..., N, T]", "return: [copies..., N, T]")
def rotated_targets(U: Eigenvectors, Y: TensorType) -> tf.Tensor:
    """U^T Y, for each completion if there are several."""
    return to_eigenbasis(U, Y) if Y.shape.rank == 2 else for_copies(to_eigenbasis, U, Y)


class EigenSystem:
    """
    The system of a kernel matrix: one eigendecomposition, and a gradient written by hand.

    Differentiating through eigenvectors would divide by differences of eigenvalues.

    :param K: [N, N], or a Kronecker product.
    :param Y: Targets [N, T], or completions of them [S, N, T], mean function subtracted.
    :param python_callback: As for :func:`gpflow_cool.linalg.eigh`.
    """

    def __init__(self, K: KernelMatrix, Y: TensorType, *, python_callback: bool = False) -> None:
        self.K, self.Y = K, tf.convert_to_tensor(Y)
        fixed = with_tensors(K, [tf.stop_gradient(part) for part in kernel_tensors(K)])
        lam, self.U = decompose(fixed, python_callback=python_callback)
        self.spectrum = exact_spectrum(lam, self.U, tf.stop_gradient(self.Y))

    def __call__(self, r: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
        """Gram matrices [J, T, T] and log determinants [J], see :class:`.spectrum.System`."""

        @tf.custom_gradient
        def gram_and_log_det(r: tf.Tensor, Y: tf.Tensor, *tensors: tf.Tensor):  # type: ignore[no-untyped-def]
            def gradient(by_gram: tf.Tensor, by_log_det: tf.Tensor) -> tuple[tf.Tensor, ...]:
                by = self.spectrum.gradient(r, by_gram, by_log_det)
                by_Y = targets_gradient(by.Yr, self.U, Y)
                return by.r, by_Y, *kernel_gradient(by, self.U, Y.dtype)

            return (self.spectrum.gram(r), self.spectrum.log_det(r)), gradient

        return gram_and_log_det(r, self.Y, *kernel_tensors(self.K))

    @check_shapes("d: [R]", "return: [N, T]")
    def solved_targets(self, d: TensorType) -> tf.Tensor:
        r""":math:`(r K + I)^{-1} Y`, from the shrinkage d at r."""
        return from_eigenbasis(in_precision(self.U, tf.float64), d[:, None] * self.spectrum.Yr)

    @check_shapes("d: [R]", "rows: [G, g]", "return: [G, g, g]")
    def inverse_blocks(self, d: TensorType, rows: AnyNDArray) -> tf.Tensor:
        r"""Blocks of :math:`(r K + I)^{-1}`, for groups of rows."""
        U = in_precision(self.U, tf.float64)
        if rows.shape[1] == 1:
            return tf.gather(from_eigenbasis(squared(U), d[:, None]), rows)
        part = tf.gather(vectors_of(U), rows)  # [G, g, R]
        return tf.matmul(part * d, part, transpose_b=True)


class ThinSystem:
    """
    The rows of a kernel matrix of low rank: its eigenvectors are fewer than the rows.

    :param U: [N, R].
    :param Y: [N, T].
    """

    def __init__(self, spectrum: Spectrum, U: TensorType, Y: TensorType) -> None:
        self.spectrum, self.U, self.Y = spectrum, U, tf.cast(Y, tf.float64)

    def __call__(self, r: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
        """Gram matrices [J, T, T] and log determinants [J], without gradients."""
        return self.spectrum.gram(r), self.spectrum.log_det(r)

    @check_shapes("d: [R]", "return: [N, T]")
    def solved_targets(self, d: TensorType) -> tf.Tensor:
        """As for :class:`EigenSystem`."""
        return self.Y - tf.matmul(self.U, (1.0 - d[:, None]) * self.spectrum.Yr)

    @check_shapes("d: [R]", "rows: [G, g]", "return: [G, g, g]")
    def inverse_blocks(self, d: TensorType, rows: AnyNDArray) -> tf.Tensor:
        """As for :class:`EigenSystem`."""
        part = tf.gather(self.U, rows)  # [G, g, R]
        eye = tf.eye(rows.shape[1], dtype=tf.float64)
        return eye - tf.matmul(part * (1.0 - d), part, transpose_b=True)


def vectors_of(U: Eigenvectors) -> tf.Tensor:
    """[N, R], the eigenvectors as one matrix."""
    if not isinstance(U, KroneckerVectors):
        return U
    return from_eigenbasis(U, tf.eye(int(np.prod(U.shape)), dtype=tf.float64))


@check_shapes("by_Yr: [rows, T]", "Y: [copies..., N, T]", "return: [copies..., N, T]")
def targets_gradient(by_Yr: TensorType, U: Eigenvectors, Y: TensorType) -> tf.Tensor:
    """The gradient with respect to Y, from that with respect to the rotated targets."""
    by_Yr = tf.cast(by_Yr, Y.dtype)
    if Y.shape.rank == 2:
        return from_eigenbasis(U, by_Yr)
    weight = tf.sqrt(tf.cast(tf.shape(Y)[0], Y.dtype))
    return for_copies(from_eigenbasis, U, tf.reshape(by_Yr, tf.shape(Y))) / weight


def kernel_gradient(by: SpectrumGradient, U: Eigenvectors, dtype: tf.DType) -> list[tf.Tensor]:
    """The gradient with respect to the kernel matrix, or to those of a Kronecker product."""
    if isinstance(U, KroneckerVectors):
        return [tf.cast(part, dtype) for part in kronecker_gradient(by, U)]
    return [from_eigenbasis_both(U, inside_gradient(by.diagonal, by.left, by.right), dtype)]


@check_shapes("U: [N, N]", "inside: [N, N]", "return: [N, N]")
def from_eigenbasis_both(U: TensorType, inside: TensorType, dtype: tf.DType) -> tf.Tensor:
    r"""
    :math:`U A U^\top`.

    On a CPU by NumPy, outside of graphs: two products of 800 rows take 34 ms, TensorFlow's 64.
    """
    inside = tf.cast(inside, dtype)
    if tf.executing_eagerly() and not has_gpu():
        V = U.numpy()
        return tf.constant(V @ inside.numpy() @ V.T)
    return tf.matmul(tf.matmul(U, inside), U, transpose_b=True)


def kronecker_gradient(by: SpectrumGradient, U: KroneckerVectors) -> list[tf.Tensor]:
    r"""
    Gradients with respect to the matrices of a Kronecker product.

    .. math:: \partial_{K_1} = U_1 \Big[ \mathrm{diag}(a \lambda_2)
              + \sum_f P_f \, \mathrm{diag}(\lambda_2) Q_f^\top \Big] U_1^\top

    for two axes, with a, :math:`P_f` and :math:`Q_f` as matrices [n_1, n_2]; likewise for the
    others, where :math:`\lambda_2` is the product of the eigenvalues of all other axes.
    """
    num_rows, num_tasks = int(np.prod(U.shape)), by.Yr.shape[1]
    U = in_precision(U, tf.float64)
    left, right = (
        tf.reshape(tf.reshape(part, [-1, num_rows, num_tasks]), [-1, *U.shape, num_tasks])
        for part in (by.left, by.right)
    )
    diagonal, found = tf.reshape(by.diagonal, U.shape), []
    for axis, vectors in enumerate(U.vectors):
        others = outer_product(U.values[:axis] + U.values[axis + 1 :])
        size, rest = U.shape[axis], [a for a in range(len(U.shape)) if a != axis]

        def unfolded(part: tf.Tensor, axis: int = axis, size: int = size) -> tf.Tensor:
            """[n, others, the rest], the axis first."""
            places = [axis + 1, *(other + 1 for other in rest), 0, len(U.shape) + 1]  # noqa: B023
            return tf.reshape(tf.transpose(part, places), [size, num_rows // size, -1])

        a = tf.reshape(tf.transpose(diagonal, [axis, *rest]), [size, -1])
        scaled = tf.reshape(unfolded(left) * others[:, None], [size, -1])
        inside = tf.matmul(scaled, tf.reshape(unfolded(right), [size, -1]), transpose_b=True)
        inside += tf.linalg.diag(tf.linalg.matvec(a, others))
        found.append(tf.matmul(tf.matmul(vectors, inside), vectors, transpose_b=True))
    return found
