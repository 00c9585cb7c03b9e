"""
What the chain of conditional likelihoods needs to know of the kernel matrix and the targets.

A :class:`Spectrum` is small, and the chain does not care where it came from: an exact kernel matrix
has R = N and nothing outside the span; a kernel of low rank, K = F F^T with F [N, R], has the rest
of the targets in `G0`.
"""

from typing import NamedTuple

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType


class Spectrum(NamedTuple):
    """
    Kernel and targets in the kernel's eigenbasis, always in float64: Grams of targets over noise
    reach 1e7, where float32 has no digits left, and all of this is small beside K.
    """

    lam: tf.Tensor
    """[R], eigenvalues of K, none negative."""

    Yr: tf.Tensor
    """[R, T], the targets (mean function subtracted) in the eigenbasis, U^T Y."""

    G0: tf.Tensor
    """[T, T], Gram matrix of the targets outside the span of the eigenvectors, Y^T Y - Yr^T Yr."""

    num_rows: tf.Tensor
    """[], N as a float."""


@check_shapes("lam: [N]", "U: [N, N]", "Y: [N, T]")
def exact_spectrum(lam: TensorType, U: TensorType, Y: TensorType) -> Spectrum:
    """Spectrum of a kernel matrix with N eigenvectors: nothing lies outside their span."""
    Yr = tf.cast(tf.matmul(U, Y, transpose_a=True), tf.float64)
    num_tasks = tf.shape(Yr)[1]
    return Spectrum(
        lam=tf.cast(lam, tf.float64),
        Yr=Yr,
        G0=tf.zeros([num_tasks, num_tasks], tf.float64),
        num_rows=tf.cast(tf.shape(Yr)[0], tf.float64),
    )
