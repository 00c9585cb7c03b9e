r"""
The chain on statistics of features: kernels of low rank, inducing points, data in pieces.

If :math:`K = F F^\top` with F [N, R], the chain needs only

.. math:: \Phi = F^\top F, \quad \Psi = F^\top Y, \quad \Gamma = Y^\top Y, \quad N,

which are sums over rows: they can be added up over pieces of the data, or over machines. With
inducing points K is not quite F F^T, and what it has more on its diagonal enters as the slack
:math:`\tau = \mathrm{tr}(K) - \mathrm{tr}(\Phi)` through the variational term
:math:`-\tfrac{1}{2} \tau \, b_t / \sigma^2_t`.

Letters: N rows, R features, T tasks, P = T (T - 1) / 2.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from ..chain.likelihood import Chain, chain_gradient, earlier_tasks, solve_chain
from ..chain.spectrum import Spectrum
from ..joint.kronecker import (
    TaskBasis,
    spectrum_evidence_gradient,
    spectrum_log_evidence,
    task_basis,
)
from ..linalg import eigh


class Statistics(NamedTuple):
    """Sums over rows, all in float64."""

    FF: tf.Tensor
    """[R, R], F^T F."""

    FY: tf.Tensor
    """[R, T], F^T Y."""

    YY: tf.Tensor
    """[T, T], Y^T Y."""

    trace: tf.Tensor
    """[], trace of K."""

    num_rows: tf.Tensor
    """[], N as a float."""


class Decomposition(NamedTuple):
    """F^T F = E diag(lam) E^T, and the targets in that basis."""

    E: tf.Tensor
    """[R, R], eigenvectors."""

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

    A direction that the features do not span has :math:`\lambda = 0` and nothing of the targets.
    """
    lam, E = eigh(statistics.FF, python_callback=python_callback)
    floor = np.finfo(np.float64).eps * tf.cast(tf.size(lam), lam.dtype) * tf.reduce_max(lam)
    spanned = lam > floor
    lam = tf.where(spanned, lam, tf.zeros_like(lam))
    root = tf.where(spanned, tf.math.rsqrt(tf.where(spanned, lam, tf.ones_like(lam))), lam)
    Yr = root[:, None] * tf.matmul(E, statistics.FY, transpose_a=True)
    slack = statistics.trace - tf.linalg.trace(statistics.FF)
    rounding = 1e-12 * statistics.trace
    spectrum = Spectrum(
        lam=lam,
        Yr=Yr,
        G0=statistics.YY - tf.matmul(Yr, Yr, transpose_a=True),
        num_rows=statistics.num_rows,
        slack=tf.where(slack > rounding, slack, tf.zeros_like(slack)),
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
        chain = solve_chain(known.spectrum, b64, sigma64, learning)

        def gradient(weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
            g64 = tf.cast(weights, tf.float64)
            grads = statistics_gradient(known, b64, sigma64, chain, learning, g64)
            return *grads[:-2], *(tf.cast(g, b.dtype) for g in grads[-2:])

        return tf.cast(chain.terms, b.dtype), gradient

    return terms(*statistics, tf.convert_to_tensor(b), tf.convert_to_tensor(sigma2))


def contrasts(chain: Chain, learning: str) -> tuple[tf.Tensor, np.ndarray]:
    r"""
    The vectors v, and the task of each, with which the objective is
    :math:`-\tfrac{1}{2} \sum_v v^\top G_t v` plus what does not depend on the targets.

    They are :math:`e_t - w_t` and, if approximate, the rows of :math:`\mathrm{chol}(I + G_t)^{-1}`:
    the derivative of :math:`-\tfrac{1}{2} \log |I + G_t|` is :math:`-\tfrac{1}{2} (I + G_t)^{-1}`.
    """
    num_tasks = chain.systems.W.shape[0]
    V = np.eye(num_tasks) - chain.systems.W
    tasks = np.arange(num_tasks)
    if learning == "approximate":
        mask = earlier_tasks(num_tasks)
        eye = tf.eye(num_tasks, batch_shape=[num_tasks], dtype=tf.float64)
        rows = tf.linalg.triangular_solve(chain.systems.L, eye)
        V = tf.concat([V, tf.boolean_mask(rows * mask[:, None, :], mask > 0)], axis=0)
        tasks = np.concatenate([tasks, np.nonzero(mask)[0]])
    return V, tasks


@check_shapes("V: [V, T]", "scale: [R, V]", "return: [R, V]")
def explained(known: Decomposition, V: TensorType, scale: TensorType) -> tf.Tensor:
    r"""Columns :math:`E \, \mathrm{diag}(s_v) E^\top \Psi v`, for the rows v of V."""
    root = tf.sqrt(known.spectrum.lam)[:, None]
    return tf.matmul(known.E, scale * tf.matmul(root * known.spectrum.Yr, V, transpose_b=True))


def statistics_gradient(
    known: Decomposition,
    b: TensorType,
    sigma2: TensorType,
    chain: Chain,
    learning: str,
    weights: TensorType,
) -> tuple[tf.Tensor, ...]:
    r"""
    Gradient of the weighted terms with respect to F^T F, F^T Y, Y^T Y, trace, N, b and sigma2.

    With :math:`h_v = E \, \mathrm{diag}(b / (\sigma^2 (b \lambda + \sigma^2))) E^\top \Psi v`:

    .. math::

        \partial_\Phi &= -\tfrac{1}{2} \sum_v g \sigma^2 h_v h_v^\top
                         - \tfrac{1}{2} E \, \mathrm{diag}(\textstyle\sum_t g b d) E^\top
                         + \tfrac{1}{2} \sum_t g (b / \sigma^2) I \\
        \partial_\Psi &= \sum_v g \, h_v v^\top, \qquad
        \partial_\Gamma = -\tfrac{1}{2} \sum_v (g / \sigma^2) v v^\top, \qquad
        \partial_{\mathrm{tr} K} = -\tfrac{1}{2} \sum_t g \, b / \sigma^2
    """
    E, spectrum = known
    V, tasks = contrasts(chain, learning)
    g, s = tf.gather(weights, tasks), tf.gather(sigma2, tasks)
    H = explained(known, V, tf.gather(b / sigma2 * chain.d, tasks, axis=1))
    has_slack = tf.cast(spectrum.slack > 0, tf.float64)
    by_trace = -0.5 * has_slack * tf.reduce_sum(weights * b / sigma2)
    shrink = tf.linalg.matvec(chain.d, weights * b)
    by_FF = -0.5 * (
        tf.matmul(H * (g * s), H, transpose_b=True) + tf.matmul(E * shrink, E, transpose_b=True)
    )
    by_FF -= by_trace * tf.eye(tf.shape(by_FF)[0], dtype=by_FF.dtype)
    by_YY = -0.5 * tf.matmul(V * (g / s)[:, None], V, transpose_a=True)
    rest = chain_gradient(spectrum, b, sigma2, chain, learning, weights)
    by_rows = tf.zeros([], tf.float64)
    return by_FF, tf.matmul(H * g, V), by_YY, by_trace, by_rows, rest.b, rest.sigma2


@tf.autograph.experimental.do_not_convert  # nothing to convert, and converting takes seconds
@check_shapes("C: [T, T]", "Sigma: [T, T]", "return: []")
def statistics_log_evidence(statistics: Statistics, C: TensorType, Sigma: TensorType) -> tf.Tensor:
    r"""
    Log evidence of the joint model from statistics, with a gradient written by hand.

    In the basis of :mod:`gpflow_cool.joint.kronecker` it is a sum over rotated tasks j of what a
    chain's task has with :math:`b = d_j, \sigma^2 = 1` and row j of :math:`P^{-1}` for v.
    """

    @tf.custom_gradient
    def evidence(*inputs: tf.Tensor):  # type: ignore[no-untyped-def]
        *parts, C, Sigma = inputs
        known = decompose(Statistics(*parts), python_callback=True)
        basis = task_basis(tf.cast(C, tf.float64), tf.cast(Sigma, tf.float64))
        value = spectrum_log_evidence(known.spectrum, basis)

        def gradient(g: tf.Tensor) -> tuple[tf.Tensor, ...]:
            g64 = tf.cast(g, tf.float64)
            by_parts = joint_statistics_gradient(known, basis)
            by_tasks = spectrum_evidence_gradient(known.spectrum, basis)
            return (
                *(g64 * part for part in by_parts),
                *(tf.cast(g64 * part, C.dtype) for part in by_tasks),
            )

        return tf.cast(value, C.dtype), gradient

    return evidence(*statistics, tf.convert_to_tensor(C), tf.convert_to_tensor(Sigma))


def joint_statistics_gradient(known: Decomposition, basis: TaskBasis) -> tuple[tf.Tensor, ...]:
    """Gradient of the log evidence with respect to the five statistics."""
    E, spectrum = known
    V, d = basis.P_inverse, basis.d
    shrinkage = 1.0 / (spectrum.lam[:, None] * d + 1.0)
    H = explained(known, V, d * shrinkage)
    by_trace = -0.5 * tf.cast(spectrum.slack > 0, tf.float64) * tf.reduce_sum(d)
    inside = tf.matmul(E * tf.linalg.matvec(shrinkage, d), E, transpose_b=True)
    by_FF = -0.5 * (tf.matmul(H, H, transpose_b=True) + inside)
    by_FF -= by_trace * tf.eye(tf.shape(by_FF)[0], dtype=by_FF.dtype)
    by_YY = -0.5 * tf.matmul(V, V, transpose_a=True)
    return by_FF, tf.matmul(H, V), by_YY, by_trace, tf.zeros([], tf.float64)
