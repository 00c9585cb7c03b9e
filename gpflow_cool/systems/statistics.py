r"""
Sums over rows of features: kernels of low rank, inducing points, data in chunks.

If :math:`K = F F^\top` with F [N, R], a system needs only

.. math:: \Phi = F^\top F, \quad \Psi = F^\top Y, \quad \Gamma = Y^\top Y, \quad N,

which are sums over rows: they can be added up over chunks of the data, or over machines. With
inducing points F F^T has a smaller diagonal than K. The difference, the slack
:math:`\tau = \mathrm{tr}(K) - \mathrm{tr}(\Phi)`, enters through the variational term
:math:`-\tfrac{1}{2} \tau \, b_t / \sigma^2_t` of each task, the bound of Titsias (2009).

Letters: N rows, R features, T tasks, J ratios.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from ..linalg import eigh, triangle, uses_lapack
from .spectrum import EPSILON, Spectrum

LEAST_EIGENVALUE = 1e-22
"""Of F^T F, relative to the largest one; smaller ones count as zero. An eigenvector is wrong by eps
towards the others, and Yr by eps |Y| over the root of this ratio: by 2e-5 of |Y|."""


class Statistics(NamedTuple):
    """Sums over rows, all in float64."""

    FF: tf.Tensor  # [R, R], F^T F
    FY: tf.Tensor  # [R, T], F^T Y
    YY: tf.Tensor  # [T, T], Y^T Y
    trace: tf.Tensor  # [], trace of K
    num_rows: tf.Tensor  # [], N as a float


class Decomposition(NamedTuple):
    """F^T F = E diag(lam) E^T, and the targets in that basis."""

    E: tf.Tensor  # [R, R], eigenvectors
    spectrum: Spectrum


@check_shapes("F: [N, R]", "Y: [N, T]", "k_diagonal: [N]")
def row_statistics(F: TensorType, Y: TensorType, k_diagonal: TensorType) -> Statistics:
    """Statistics of some rows."""
    F, Y = tf.cast(F, tf.float64), tf.cast(Y, tf.float64)
    return Statistics(
        FF=tf.matmul(F, F, transpose_a=True),
        FY=tf.matmul(F, Y, transpose_a=True),
        YY=tf.matmul(Y, Y, transpose_a=True),
        trace=tf.reduce_sum(tf.cast(k_diagonal, tf.float64)),
        num_rows=tf.cast(tf.shape(F)[0], tf.float64),
    )


def decompose(statistics: Statistics, *, python_callback: bool = False) -> Decomposition:
    r"""
    The spectrum that the chain works on.

    .. math:: Y_r = \mathrm{diag}(\lambda)^{-1/2} E^\top \Psi, \qquad G_0 = \Gamma - Y_r^\top Y_r

    A direction that the features do not span has :math:`\lambda = 0`, and its entries of Y_r are 0.
    With long lengthscales the columns of F differ by orders of magnitude, and short ones may carry
    the signal: :func:`.linalg.graded_eigh` keeps their digits, if the columns are far from
    dependent once they have the same length, as those of whitened inducing points are.

    What may be rounding of the traces counts as slack: the objective stays a lower bound, and is
    smooth where nothing but rounding is left of the slack.
    """
    R = float(statistics.FF.shape[0])
    is_precise = uses_lapack(statistics.FF, python_callback)
    precision = LEAST_EIGENVALUE / R if is_precise else EPSILON
    lam, E = eigh(statistics.FF, python_callback=python_callback, is_graded=True)
    spanned = lam > precision * R * tf.reduce_max(lam)
    lam = tf.where(spanned, lam, tf.zeros_like(lam))
    root = tf.where(spanned, tf.math.rsqrt(tf.where(spanned, lam, tf.ones_like(lam))), lam)
    Yr = root[:, None] * tf.matmul(E, statistics.FY, transpose_a=True)
    rounding = 0.5 * R * EPSILON * statistics.trace
    slack = statistics.trace - tf.linalg.trace(statistics.FF)
    spectrum = Spectrum(
        lam=lam,
        Yr=Yr,
        G0=statistics.YY - tf.matmul(Yr, Yr, transpose_a=True),
        num_rows=statistics.num_rows,
        precision=tf.constant(precision, tf.float64),
        slack=tf.maximum(slack, tf.zeros_like(slack)) + rounding,
    )
    return Decomposition(E, spectrum)


@check_shapes("F: [N, R]", "Y: [N, T]")
def decompose_rows(F: TensorType, Y: TensorType, *, python_callback: bool = False) -> Decomposition:
    r"""
    As :func:`decompose`, from the rows themselves, with :math:`K = F F^\top` exactly.

    .. math:: [F, Y] = Q \begin{bmatrix} R_F & R_Y \\ 0 & R_0 \end{bmatrix}, \qquad
              R_F = V \, \mathrm{diag}(\lambda)^{1/2} E^\top, \qquad
              Y_r = V^\top R_Y, \qquad G_0 = R_0^\top R_0

    Nothing cancels here. :math:`G_0 = Y^\top Y - Y_r^\top Y_r` keeps no digit where the features
    explain nearly all of the targets, such as a mean that is large compared with the deviation.
    """
    R = F.shape[1]
    rows = tf.cast(tf.concat([F, Y], axis=1), tf.float64)
    too_few = tf.maximum(R - tf.shape(rows)[0], 0)
    r = triangle(tf.pad(rows, [[0, too_few], [0, 0]]), python_callback=python_callback)
    root, V, E = tf.linalg.svd(r[:R, :R])
    spanned = root > np.finfo(np.float64).eps * R * root[0]
    inside = tf.matmul(V, r[:R, R:], transpose_a=True)
    nothing = tf.zeros_like(inside)
    outside = tf.concat([tf.where(spanned[:, None], nothing, inside), r[R:, R:]], axis=0)
    spectrum = Spectrum(
        lam=tf.where(spanned, tf.square(root), tf.zeros_like(root)),
        Yr=tf.where(spanned[:, None], inside, nothing),
        G0=tf.matmul(outside, outside, transpose_a=True),
        num_rows=tf.cast(tf.shape(F)[0], tf.float64),
        slack=tf.zeros([], tf.float64),
    )
    return Decomposition(E, spectrum)


class FeatureSystem:
    """
    The system of features, from sums over rows, with a gradient written by hand.

    :param statistics: Sums over all rows, which gradients are with respect to.
    :param decomposition: That of the statistics, where it is known from the rows themselves.
    :param U: What takes cross-covariances to the eigenbasis, where predictions are asked for.
    """

    def __init__(
        self,
        statistics: Statistics,
        decomposition: Decomposition | None = None,
        U: TensorType | None = None,
        *,
        python_callback: bool = False,
    ) -> None:
        self.statistics = statistics
        fixed = Statistics(*map(tf.stop_gradient, statistics))
        self.E, self.spectrum = decomposition or decompose(fixed, python_callback=python_callback)
        self.U = U

    def __call__(self, r: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
        """Gram matrices [J, T, T] and log determinants [J], see :class:`.spectrum.System`."""

        @tf.custom_gradient
        def gram_and_log_det(r: tf.Tensor, *parts: tf.Tensor):  # type: ignore[no-untyped-def]
            def gradient(by_gram: tf.Tensor, by_log_det: tf.Tensor) -> tuple[tf.Tensor, ...]:
                by_r = self.spectrum.gradient(r, by_gram, by_log_det).r
                return by_r, *self.gradient(r, by_gram, by_log_det)

            return (self.spectrum.gram(r), self.spectrum.log_det(r)), gradient

        return gram_and_log_det(tf.convert_to_tensor(r), *self.statistics)

    @check_shapes("r: [J]", "by_gram: [J, T, T]", "by_log_det: [J]")
    def gradient(self, r: TensorType, by_gram: TensorType, by_log_det: TensorType) -> Statistics:
        r"""
        Gradient of :math:`\sum_j \langle A_j, G(r_j) \rangle + a_j \log |r_j K + I|`.

        With :math:`\Phi = E \, \mathrm{diag}(\lambda) E^\top`,
        :math:`\delta_j = r_j / (r_j \lambda + 1)` and
        :math:`H_j = \mathrm{diag}(\delta_j) E^\top \Psi`:

        .. math::

            G(r_j) &= \Gamma - \Psi^\top E \, \mathrm{diag}(\delta_j) E^\top \Psi, \qquad
            \log |r_j K + I| = \textstyle\sum_n \log(r_j \lambda_n + 1) + r_j \tau \\
            \partial_\Phi &= E \sum_j \big[ H_j A_j H_j^\top + a_j \, \mathrm{diag}(\delta_j - r_j)
                             \big] E^\top, \qquad
            \partial_\Psi = -2 E \sum_j H_j A_j, \\
            \partial_\Gamma &= \sum_j A_j, \qquad
            \partial_{\mathrm{tr} K} = \sum_j a_j r_j
        """
        lam, Yr, E = self.spectrum.lam, self.spectrum.Yr, self.E
        A = 0.5 * (by_gram + tf.linalg.matrix_transpose(by_gram))
        d = self.spectrum.shrinkage(r)  # [J, R]
        has_slack = tf.cast(self.spectrum.slack > 0.0, tf.float64)
        H = (r[:, None] * d * tf.sqrt(lam))[:, :, None] * Yr  # [J, R, T]
        HA = tf.matmul(H, A)
        # r d - r = -r d r lam, without a difference of numbers that are nearly equal
        by_lam = r[:, None] * d * tf.where(has_slack > 0.0, -r[:, None] * lam, tf.ones_like(d))
        by_lam = tf.reduce_sum(by_log_det[:, None] * by_lam, axis=0)
        inside = tf.einsum("jrt,jst->rs", HA, H) + tf.linalg.diag(by_lam)
        return Statistics(
            FF=tf.matmul(tf.matmul(E, inside), E, transpose_b=True),
            FY=-2.0 * tf.matmul(E, tf.reduce_sum(HA, axis=0)),
            YY=tf.reduce_sum(A, axis=0),
            trace=has_slack * tf.reduce_sum(by_log_det * r),
            num_rows=tf.zeros([], tf.float64),
        )
