r"""
The chain on sums over rows of features: kernels of low rank, inducing points, data in chunks.

If :math:`K = F F^\top` with F [N, R], the chain needs only

.. math:: \Phi = F^\top F, \quad \Psi = F^\top Y, \quad \Gamma = Y^\top Y, \quad N,

which are sums over rows: they can be added up over chunks of the data, or over machines. With
inducing points F F^T has a smaller diagonal than K. The difference, the slack
:math:`\tau = \mathrm{tr}(K) - \mathrm{tr}(\Phi)`, enters through the variational term
:math:`-\tfrac{1}{2} \tau \, b_t / \sigma^2_t`.

Letters: N rows, R features, T tasks, P = T (T - 1) / 2.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from ..chain.likelihood import chain_gradient, solve_chain, sum_over_contrasts
from ..chain.spectrum import EPSILON, Spectrum
from ..joint.kronecker import spectrum_evidence_gradient, spectrum_log_evidence, task_basis
from ..linalg import eigh, triangle, uses_lapack

LEAST_EIGENVALUE = 1e-22
"""Of F^T F, relative to the largest one; smaller ones count as zero. An eigenvector is wrong by eps
towards the others, and Yr by eps |Y| over the root of this ratio: by 2e-5 of |Y|."""

CANCELLED = 1e-6
"""Where the features leave less than this of a target's squares, what is left has lost so many
digits that its rounding counts."""

COUNTS = 0.5
"""Rounding of products counts where it is larger than so many times the noise."""


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


@check_shapes("sigma2: [T]", "return: [T, T]")
def products_left(spectrum: Spectrum, sigma2: TensorType) -> tf.Tensor:
    r"""
    Products :math:`G_0` of what the features leave of the targets, as the chain needs them.

    Where they leave little of a target its digits cancel, and rounding may have negative
    eigenvalues, which no products have. If these count beside the noise, the size of the lowest,
    relative to the squares :math:`y_t^\top y_t`, counts as left of such targets: the others keep
    their digits.
    """
    G0 = spectrum.G0
    left = tf.linalg.diag_part(G0)
    squares = left + tf.reduce_sum(tf.square(spectrum.Yr), axis=0)
    cancels = left < CANCELLED * squares

    def lifted() -> tf.Tensor:
        units = tf.where(squares > 0.0, tf.sqrt(tf.abs(squares)), tf.ones_like(squares))
        lowest = tf.reduce_min(tf.linalg.eigvalsh(G0 / units[:, None] / units))
        rounding = -tf.minimum(lowest, 0.0) * squares * tf.cast(cancels, G0.dtype)
        counts = tf.reduce_any(rounding > COUNTS * sigma2)
        return G0 + tf.linalg.diag(tf.where(counts, rounding, tf.zeros_like(rounding)))

    return tf.cond(tf.reduce_any(cancels), lifted, lambda: G0)


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


@tf.autograph.experimental.do_not_convert  # nothing to convert, and converting takes seconds
@check_shapes("b: [T]", "sigma2: [T]", "return: [T]")
def statistics_log_likelihoods(
    statistics: Statistics,
    b: TensorType,
    sigma2: TensorType,
    *,
    learning: str,
    decomposition: Decomposition | None = None,
) -> tf.Tensor:
    """
    The T terms of the objective from statistics, with a gradient written by hand.

    :param decomposition: That of the statistics, where it is known already.
    """

    @tf.custom_gradient
    def terms(*inputs: tf.Tensor):  # type: ignore[no-untyped-def]
        *parts, b, sigma2 = inputs
        known = decomposition or decompose(Statistics(*parts), python_callback=True)
        b64, sigma64 = tf.cast(b, tf.float64), tf.cast(sigma2, tf.float64)
        G0 = products_left(known.spectrum, sigma64)
        known = known._replace(spectrum=known.spectrum._replace(G0=G0))
        chain = solve_chain(known.spectrum, b64, sigma64, learning)

        def gradient(weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
            g64 = tf.cast(weights, tf.float64)

            def part(V: tf.Tensor, tasks: TensorType, g: tf.Tensor) -> tuple[tf.Tensor, ...]:
                by_parts = statistics_gradient(known, V, tasks, chain.d, b64, sigma64, g)
                rest = chain_gradient(known.spectrum, V, tasks, chain.d, b64, sigma64, g)
                return *by_parts, *(tf.cast(by, b.dtype) for by in (rest.b, rest.sigma2))

            return sum_over_contrasts(
                part, known.spectrum, sigma64, chain.W, chain.d, learning, g64
            )

        return tf.cast(chain.terms, b.dtype), gradient

    return terms(*statistics, tf.convert_to_tensor(b), tf.convert_to_tensor(sigma2))


def statistics_gradient(
    known: Decomposition,
    V: TensorType,
    tasks: TensorType,
    d: TensorType,
    b: TensorType,
    sigma2: TensorType,
    weights: TensorType,
) -> Statistics:
    r"""
    Gradient of weighted terms with respect to the five statistics.

    With :math:`h_v = E \, \mathrm{diag}(b / (\sigma^2 (b \lambda + \sigma^2))) E^\top \Psi v`:

    .. math::

        \partial_\Phi &= -\tfrac{1}{2} \sum_v g \sigma^2 h_v h_v^\top
                         - \tfrac{1}{2} E \, \mathrm{diag}(\textstyle\sum_t g b d) E^\top
                         + \tfrac{1}{2} \sum_t g (b / \sigma^2) I \\
        \partial_\Psi &= \sum_v g \, h_v v^\top, \qquad
        \partial_\Gamma = -\tfrac{1}{2} \sum_v (g / \sigma^2) v v^\top, \qquad
        \partial_{\mathrm{tr} K} = -\tfrac{1}{2} \sum_t g \, b / \sigma^2

    :param V: [V, T], the vectors v, see :func:`contrasts`.
    :param tasks: [V], the task of each vector.
    :param d: [R, T], 1 / (b lam + sigma2).
    :param weights: g, what the terms are multiplied by.
    """
    E, spectrum = known.E, known.spectrum
    g, s = tf.gather(weights, tasks), tf.gather(sigma2, tasks)
    rotated = tf.matmul(tf.sqrt(spectrum.lam)[:, None] * spectrum.Yr, V, transpose_b=True)
    H = tf.matmul(E, tf.gather(b / sigma2 * d, tasks, axis=1) * rotated)  # columns h_v
    has_slack = spectrum.slack > 0
    by_trace = -0.5 * tf.cast(has_slack, tf.float64) * tf.reduce_sum(weights * b / sigma2)
    ratio = spectrum.lam[:, None] * b / sigma2  # d * ratio = 1 / sigma2 - d, without cancellation
    by_lam = tf.linalg.matvec(d * tf.where(has_slack, ratio, -tf.ones_like(d)), weights * b)
    by_H = tf.matmul(H * (g * s), H, transpose_b=True)
    return Statistics(
        FF=0.5 * (tf.matmul(E * by_lam, E, transpose_b=True) - by_H),
        FY=tf.matmul(H * g, V),
        YY=-0.5 * tf.matmul(V * (g / s)[:, None], V, transpose_a=True),
        trace=by_trace,
        num_rows=tf.zeros([], tf.float64),
    )


@tf.autograph.experimental.do_not_convert  # nothing to convert, and converting takes seconds
@check_shapes("C: [T, T]", "Sigma: [T, T]", "return: []")
def statistics_log_evidence(
    statistics: Statistics,
    C: TensorType,
    Sigma: TensorType,
    *,
    decomposition: Decomposition | None = None,
) -> tf.Tensor:
    r"""
    Log evidence of the joint model from statistics, with a gradient written by hand.

    In the basis of :mod:`gpflow_cool.joint.kronecker` it is a sum over rotated tasks j. Each is
    like a task of the chain with :math:`b = d_j, \sigma^2 = 1` and row j of :math:`P^{-1}` for v.

    :param decomposition: That of the statistics, where it is known already.
    """

    @tf.custom_gradient
    def evidence(*inputs: tf.Tensor):  # type: ignore[no-untyped-def]
        *parts, C, Sigma = inputs
        known = decomposition or decompose(Statistics(*parts), python_callback=True)
        basis = task_basis(tf.cast(C, tf.float64), tf.cast(Sigma, tf.float64))
        value = spectrum_log_evidence(known.spectrum, basis)

        def gradient(g: tf.Tensor) -> tuple[tf.Tensor, ...]:
            g64 = tf.cast(g, tf.float64)
            tasks, ones = np.arange(C.shape[0]), tf.ones_like(basis.d)
            d = basis.shrinkage(known.spectrum.lam)
            by_parts = statistics_gradient(known, basis.P_inverse, tasks, d, basis.d, ones, ones)
            by = spectrum_evidence_gradient(known.spectrum, basis)
            by_tasks = (tf.cast(g64 * part, C.dtype) for part in (by.C, by.Sigma))
            return *(g64 * part for part in by_parts), *by_tasks

        return tf.cast(value, C.dtype), gradient

    return evidence(*statistics, tf.convert_to_tensor(C), tf.convert_to_tensor(Sigma))
