"""
What the chain of conditional likelihoods needs to know of the kernel matrix and the targets.

A :class:`Spectrum` is small, and the chain does not care where it came from: an exact kernel matrix
has R = N and nothing outside the span; a kernel of low rank, K = F F^T with F [N, R], has the rest
of the targets in `G0`. Where entries of the targets are missing, S completions of them stand below
each other in `Yr`, each with weight 1 / S; sums over rows are then means over completions.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType


class Spectrum(NamedTuple):
    """
    Kernel and targets in the kernel's eigenbasis, always in float64: Grams of targets over noise
    reach 1e7, where float32 has no digits left, and all of this is small beside K.
    """

    lam: tf.Tensor
    """[R], eigenvalues of K, none negative."""

    Yr: tf.Tensor
    """[S R, T], the targets (mean function subtracted) in the eigenbasis, U^T Y; S = 1 unless some
    are missing, else S completions, one below the other, divided by the square root of S."""

    G0: tf.Tensor
    """[T, T], Gram matrix of the targets outside the span of the eigenvectors, Y^T Y - Yr^T Yr."""

    num_rows: tf.Tensor
    """[], N as a float."""

    precision: float = float(np.finfo(np.float64).eps)
    """Machine precision of what the eigenvalues were computed from."""

    slack: tf.Tensor | float = 0.0
    """[], trace of the part of the kernel matrix that inducing points do not see, which costs each
    task b / (2 sigma2) times it."""

    @property
    def rounding(self) -> tf.Tensor:
        """[], what an eigenvalue that should be zero may have become."""
        size = tf.cast(tf.size(self.lam), self.lam.dtype)
        return self.precision * size * tf.reduce_max(self.lam)

    def parts(self) -> list[tf.Tensor | float]:
        """What :func:`gpflow_cool.chain.newton.inner_spectrum` takes."""
        return [self.lam, self.Yr, self.G0, self.num_rows, self.slack, self.precision]

    def arrays(self) -> list[AnyNDArray]:
        """The same for NumPy."""
        return [np.asarray(part) for part in self.parts()]

    @property
    def copies(self) -> tf.Tensor:
        """[], S as an integer."""
        return tf.shape(self.Yr)[0] // tf.shape(self.lam)[0]

    @check_shapes("A: [rows, T]", "return: [S, R, T]")
    def split(self, A: TensorType) -> tf.Tensor:
        """What stands below each other for the completions, one after the other."""
        return tf.reshape(A, [-1, tf.shape(self.lam)[0], A.shape[1]])


@check_shapes("lam: [N]", "U: [N, N]", "Y: [copies..., N, T]")
def exact_spectrum(lam: TensorType, U: TensorType, Y: TensorType) -> Spectrum:
    """
    Spectrum of a kernel matrix with N eigenvectors: nothing lies outside their span.

    :param Y: The targets, or S completions of them.
    """
    Yr = tf.cast(tf.matmul(U, Y, transpose_a=True), tf.float64)
    if Yr.shape.rank == 3:
        weight = tf.sqrt(tf.cast(tf.shape(Yr)[0], tf.float64))
        Yr = tf.reshape(Yr / weight, [-1, Yr.shape[2]])
    num_tasks = tf.shape(Yr)[1]
    return Spectrum(
        lam=tf.cast(lam, tf.float64),
        Yr=Yr,
        G0=tf.zeros([num_tasks, num_tasks], tf.float64),
        num_rows=tf.cast(tf.shape(U)[0], tf.float64),
        precision=float(np.finfo(lam.dtype.as_numpy_dtype).eps),
    )
