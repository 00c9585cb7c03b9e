r"""
A kernel matrix and targets in the kernel's eigenbasis: what every system but a series is made of.

The chain asks a system two functions of the ratio r of signal to noise, and nothing else:

.. math:: G(r) = Y^\top (r K + I)^{-1} Y, \qquad \log |r K + I|

A :class:`Spectrum` answers both by diagonal algebra, wherever it came from. An exact kernel matrix
has R = N eigenvectors, and nothing lies outside their span. A kernel of low rank, K = F F^T with
F [N, R], leaves the rest of the targets in `G0`. Where targets are missing, S completions of them
stand below each other in `Yr`, divided by the square root of S: G(r) is then the mean over
completions.

Letters: N rows, R eigenvectors, T tasks, S completions, J ratios.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from ..graphs import shared_graph

EPSILON = float(np.finfo(np.float64).eps)

MAX_NUMBERS = 2**24
"""Ratios are taken in blocks whose arrays have at most this many numbers (128 MB)."""


class System(Protocol):
    """What a kernel does to the rows, seen through the targets Y [N, T]."""

    spectrum: "Spectrum"

    U: Any
    """What takes cross-covariances to the eigenbasis, :math:`U^\\top k_*`."""

    def __call__(self, r: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
        """
        :math:`Y^T (r K + I)^{-1} Y`, [J, T, T], and :math:`\\log|r K + I|`, [J], for ratios r [J],
        with gradients for the kernel, the targets and r.
        """


class Spectrum(NamedTuple):
    """
    Kernel and targets in the kernel's eigenbasis.

    Always float64: Gram matrices of targets over noise reach 1e7, where float32 has no digits left,
    and all of this is small beside K.
    """

    lam: TensorType
    """[R], eigenvalues of K, none negative."""

    Yr: TensorType
    """[S R, T], the targets (mean function subtracted) in the eigenbasis, U^T Y."""

    G0: TensorType
    """[T, T], Gram matrix of the targets outside the span of the eigenvectors, Y^T Y - Yr^T Yr."""

    num_rows: TensorType
    """[], N as a float."""

    precision: TensorType = EPSILON
    """[], rounding of an eigenvalue, relative to the largest one: the machine precision of the
    kernel matrix; far less for features whose eigenvalues have digits of their own."""

    slack: TensorType = 0.0
    """[], trace of the part of the kernel matrix that inducing points do not see. It adds r times
    as much to the log determinant, so that the objective stays a lower bound."""

    @property
    def rank(self) -> Any:
        """[], R as a float."""
        size = self.lam.shape[0]
        return tf.cast(tf.shape(self.lam)[0], tf.float64) if size is None else float(size)

    @property
    def rounding(self) -> tf.Tensor:
        """[], how large rounding may have made an eigenvalue that should be zero."""
        return self.precision * self.rank * tf.reduce_max(self.lam)

    @property
    def typical_variance(self) -> tf.Tensor:
        """
        [], a variance of typical functions; 1 where the kernel is zero.

        The geometric mean of the kernel's mean variance and of what is left of it without the
        largest eigenvalue, which may be all of a kernel that is nearly constant, such as a linear
        one of years. It is at least a hundredth of the former.
        """
        mean = (tf.reduce_sum(self.lam) + self.slack) / self.num_rows
        rest = tf.maximum(mean - tf.reduce_max(self.lam) / self.num_rows, 1e-4 * mean)
        return tf.where(mean > 0.0, tf.sqrt(mean * rest), tf.ones_like(mean))

    @property
    def copies(self) -> tf.Tensor:
        """[], S as an integer."""
        return tf.shape(self.Yr)[0] // tf.shape(self.lam)[0]

    @check_shapes("A: [rows, T]", "return: [S, R, T]")
    def split(self, A: TensorType) -> tf.Tensor:
        """A matrix with one row for each row of `Yr`, as one matrix per completion."""
        columns = tf.shape(A)[1] if A.shape[1] is None else A.shape[1]
        return tf.reshape(A, [-1, tf.shape(self.lam)[0], columns])

    @check_shapes("r: [J]", "return: [J, R]")
    def shrinkage(self, r: TensorType) -> tf.Tensor:
        r""":math:`1 / (r \lambda_n + 1)`, the part of a rotated target that is taken for noise."""
        return 1.0 / (r[:, None] * self.lam + 1.0)

    @check_shapes("r: [J]", "return: [J, T, T]")
    def gram(self, r: TensorType) -> tf.Tensor:
        r"""
        Gram matrices of the targets.

        .. math:: G(r) = Y_r^\top \mathrm{diag}(1 / (r \lambda + 1)) \, Y_r + G_0
        """
        shape = [r.shape[0], *self.G0.shape]
        return tf.ensure_shape(self.in_blocks(rotated_grams, r, self.lam, self.Yr), shape) + self.G0

    @check_shapes("r: [J]", "return: [J]")
    def log_det(self, r: TensorType) -> tf.Tensor:
        r""":math:`\sum_n \log(r \lambda_n + 1) + r \tau`, with the slack :math:`\tau`."""
        found = self.in_blocks(log_determinants, r, self.lam)
        return tf.ensure_shape(found, r.shape) + r * self.slack

    def in_blocks(
        self, function: Callable[..., tf.Tensor], r: TensorType, *others: TensorType
    ) -> tf.Tensor:
        """A function of ratios, for so few at a time that its arrays are below `MAX_NUMBERS`."""
        numbers = (self.Yr.shape[0] or 1) * (self.Yr.shape[1] or 1)
        size, count = max(1, MAX_NUMBERS // numbers), r.shape[0]
        if count is None or count <= size:
            return function(r, *others)
        starts = range(0, count, size)
        return tf.concat([function(r[k : k + size], *others) for k in starts], axis=0)

    @check_shapes("r: [J]", "by_gram: [J, T, T]", "by_log_det: [J]")
    def gradient(
        self, r: TensorType, by_gram: TensorType, by_log_det: TensorType
    ) -> "SpectrumGradient":
        r"""
        Gradient of :math:`\sum_j \langle A_j, G(r_j) \rangle + a_j \log |r_j K + I|`.

        With :math:`d_j = 1 / (r_j \lambda + 1)`, in the eigenbasis:

        .. math::

            \partial_K &= \sum_j \big[ a_j r_j \, \mathrm{diag}(d_j)
                 - r_j \, \mathrm{diag}(d_j) Y_r A_j Y_r^\top \mathrm{diag}(d_j) \big], \\
            \partial_{Y_r} &= 2 \sum_j \mathrm{diag}(d_j) Y_r A_j, \qquad
            \partial_{r_j} = a_j \tau + \sum_n \lambda_n \big[ a_j d_{jn}
                              - d_{jn}^2 (Y_r A_j Y_r^\top)_{nn} \big]
        """
        diagonal, left, right, by_Yr, by_r = rotated_gradient(
            r, by_gram, by_log_det, self.lam, self.Yr
        )
        return SpectrumGradient(
            diagonal=tf.ensure_shape(diagonal, self.lam.shape),
            left=left,
            right=right,
            Yr=tf.ensure_shape(by_Yr, self.Yr.shape),
            r=tf.ensure_shape(by_r, r.shape) + by_log_det * self.slack,
        )


class SpectrumGradient(NamedTuple):
    r"""
    A gradient in the eigenbasis.

    .. math:: \partial_K = U \Big[ \mathrm{diag}(a) + \sum_j P_j Q_j^\top \Big] U^\top
    """

    diagonal: tf.Tensor  # [R], a
    left: tf.Tensor  # [J', S R, T], P of the ratios that count
    right: tf.Tensor  # [J', S R, T], Q of the same
    Yr: tf.Tensor  # [S R, T]
    r: tf.Tensor  # [J]


NUMBER, VECTOR, MATRIX, GRAMS = (tf.TensorSpec([None] * rank, tf.float64) for rank in range(4))


@shared_graph(VECTOR, VECTOR, MATRIX)
def rotated_grams(r: tf.Tensor, lam: tf.Tensor, Yr: tf.Tensor) -> tf.Tensor:
    r""":math:`Y_r^\top \mathrm{diag}(1 / (r \lambda + 1)) \, Y_r`, [J, T, T]."""
    num_rows, num_tasks = tf.unstack(tf.shape(Yr))
    d = shrinkages(r, lam, num_rows)
    scaled = tf.reshape(d[:, None, :] * tf.transpose(Yr), [-1, num_rows])
    return tf.reshape(tf.matmul(scaled, Yr), [-1, num_tasks, num_tasks])


@shared_graph(VECTOR, VECTOR)
def log_determinants(r: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
    r""":math:`\sum_n \log(r \lambda_n + 1)`, [J]."""
    return tf.reduce_sum(tf.math.log1p(r[:, None] * lam), axis=1)


@shared_graph(VECTOR, GRAMS, VECTOR, VECTOR, MATRIX)
def rotated_gradient(
    r: tf.Tensor, by_gram: tf.Tensor, by_log_det: tf.Tensor, lam: tf.Tensor, Yr: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """The parts of :meth:`Spectrum.gradient`, without a slack."""
    # Interpolation between ratios leaves most of them out.
    used = tf.reduce_any(by_gram != 0.0, axis=[1, 2]) | (by_log_det != 0.0)
    places, count = tf.where(used), tf.shape(r, out_type=tf.int64)
    r, A, by_log_det = (tf.boolean_mask(part, used) for part in (r, by_gram, by_log_det))
    A = 0.5 * (A + tf.linalg.matrix_transpose(A))
    right = shrinkages(r, lam, tf.shape(Yr)[0])[:, :, None] * Yr  # [J, S R, T]
    left = tf.matmul(right, A)
    d = shrinkages(r, lam, tf.shape(lam)[0])
    squares = tf.reshape(
        tf.reduce_sum(left * right, axis=2), [tf.shape(r)[0], -1, tf.shape(lam)[0]]
    )
    by_r = by_log_det * tf.linalg.matvec(d, lam)
    by_r -= tf.linalg.matvec(tf.reduce_sum(squares, axis=1), lam)
    return (
        tf.linalg.matvec(d, by_log_det * r, transpose_a=True),
        -r[:, None, None] * left,
        right,
        2.0 * tf.reduce_sum(left, axis=0),
        tf.scatter_nd(places, by_r, count),
    )


def shrinkages(r: tf.Tensor, lam: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
    r"""[J, S R], :math:`1 / (r \lambda + 1)`, once for each completion."""
    return tf.tile(1.0 / (r[:, None] * lam + 1.0), [1, num_rows // tf.shape(lam)[0]])


@shared_graph(VECTOR, GRAMS, GRAMS)
def inside_gradient(diagonal: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    r""":math:`\mathrm{diag}(a) + \sum_j P_j Q_j^\top`, summed over completions as well, [R, R]."""
    size, num_tasks = tf.shape(diagonal)[0], tf.shape(left)[2]
    left, right = (
        tf.reshape(tf.transpose(tf.reshape(part, [-1, size, num_tasks]), [1, 0, 2]), [size, -1])
        for part in (left, right)
    )
    return tf.linalg.diag(diagonal) + tf.matmul(left, right, transpose_b=True)
