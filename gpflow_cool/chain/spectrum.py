"""
What the chain of conditional likelihoods needs to know of the kernel matrix and the targets.

A :class:`Spectrum` is small, and the chain does not depend on where it came from. An exact kernel
matrix has R = N, and nothing lies outside the span of its eigenvectors. A kernel of low rank,
K = F F^T with F [N, R], leaves the rest of the targets in `G0`. Where entries of the targets are
missing, S completions of them stand below each other in `Yr`, each with weight 1 / S: sums over
rows are then means over completions.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from .products import Eigenvectors, for_copies, to_eigenbasis

EPSILON = float(np.finfo(np.float64).eps)


class Spectrum(NamedTuple):
    """
    Kernel and targets in the kernel's eigenbasis: tensors, or NumPy arrays, see :meth:`numpy`.

    They are always float64: Gram matrices of targets over noise reach 1e7, where float32 has no
    digits left, and all of this is small beside K.
    """

    lam: TensorType
    """[R], eigenvalues of K, none negative."""

    Yr: TensorType
    """[S R, T], the targets (mean function subtracted) in the eigenbasis, U^T Y. S is 1 unless some
    targets are missing; S completions stand below each other, divided by the square root of S."""

    G0: TensorType
    """[T, T], Gram matrix of the targets outside the span of the eigenvectors, Y^T Y - Yr^T Yr."""

    num_rows: TensorType
    """[], N as a float."""

    precision: TensorType = EPSILON
    """[], rounding of an eigenvalue, relative to the largest one: the machine precision of the
    kernel matrix; far less for features whose eigenvalues have digits of their own."""

    slack: TensorType = 0.0
    """[], trace of the part of the kernel matrix that inducing points do not see. It costs each
    task b / (2 sigma2) times as much."""

    def numpy(self) -> "Spectrum":
        """The same spectrum as NumPy arrays."""
        return Spectrum(*(np.asarray(part, np.float64) for part in self))

    def of_tasks(self, tasks: AnyNDArray | slice) -> "Spectrum":
        """The spectrum of some tasks, or of all in another order; of NumPy arrays."""
        return self._replace(Yr=self.Yr[:, tasks], G0=self.G0[tasks][:, tasks])

    @property
    def rank(self) -> Any:
        """[], R as a float."""
        size = self.lam.shape[0]
        return tf.cast(tf.shape(self.lam)[0], tf.float64) if size is None else float(size)

    @property
    def rounding(self) -> Any:
        """[], how large rounding may have made an eigenvalue that should be zero."""
        largest = np.max if isinstance(self.lam, np.ndarray) else tf.reduce_max
        return self.precision * self.rank * largest(self.lam)

    @property
    def unit(self) -> float:
        """How much the rounding of the kernel matrix moves an eigenvalue; of NumPy arrays."""
        return max(float(self.precision), EPSILON) * float(np.max(self.lam))

    @property
    def useful(self) -> AnyNDArray:
        """The eigenvalues that are more than rounding of the kernel matrix; of NumPy arrays."""
        return np.asarray(self.lam[self.lam > self.rank * self.unit])

    @property
    def copies(self) -> tf.Tensor:
        """[], S as an integer."""
        return tf.shape(self.Yr)[0] // tf.shape(self.lam)[0]

    @check_shapes("A: [rows, T]", "return: [S, R, T]")
    def split(self, A: TensorType) -> tf.Tensor:
        """A matrix with one row for each row of `Yr`, as one matrix per completion."""
        return tf.reshape(A, [-1, tf.shape(self.lam)[0], A.shape[1]])


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


@check_shapes("lam: [N]", "Y: [copies..., N, T]")
def exact_spectrum_of_arrays(lam: AnyNDArray, U: Eigenvectors, Y: AnyNDArray) -> Spectrum:
    """As :func:`exact_spectrum`, from NumPy arrays to NumPy arrays."""
    num_tasks = Y.shape[-1]
    copies = Y.reshape(-1, len(lam), num_tasks)
    Yr = np.concatenate([to_eigenbasis(U, copy) for copy in copies]).astype(np.float64)
    Yr /= np.sqrt(len(Yr) / len(lam))
    return Spectrum(
        lam=lam.astype(np.float64),
        Yr=Yr,
        G0=np.zeros([num_tasks, num_tasks]),
        num_rows=float(len(lam)),
        precision=float(np.finfo(lam.dtype).eps),
    )
