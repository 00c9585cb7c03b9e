r"""
The chain of conditional likelihoods: T x T algebra on what a system says of the rows.

Task t is a Gaussian process that has seen the tasks before it. With the ratio
:math:`r_t = b_t / \sigma^2_t` and weights :math:`w_t \sim N(0, \lambda_t \sigma^2_t I)` of the
earlier tasks, integrated out,

.. math:: y_t \,|\, Y_{<t} \sim N(0, \sigma^2_t M_t), \qquad
          M_t = r_t K + I + \lambda_t Y_{<t} Y_{<t}^\top

One Cholesky factor :math:`L = \mathrm{chol}(I + \lambda G)` of the Gram matrix
:math:`G = Y^\top (r K + I)^{-1} Y` holds the terms of all tasks that have this r and lambda:

.. math:: y_t^\top M_t^{-1} y_t = (L_{tt}^2 - 1) / \lambda, \qquad
          \log |M_t| = \log |r K + I| + 2 \sum_{u < t} \log L_{uu}, \qquad
          e_t - w_t = L_{tt} L^{-\top} e_t

The prior of the weights is "scaled", :math:`\lambda_t = \lambda` with every target divided by the
root of its mean square, or "unit", the paper's N(0, I), which is :math:`\lambda_t = 1 / \sigma^2_t`
with the targets as they are. "hierarchical" learning leaves the last sum out: it does not charge
for the weights.

Letters: N rows, T tasks, B systems, J ratios.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..gaussian import LOG_2PI
from ..systems.spectrum import MAX_NUMBERS, System

LEARNING = ("hierarchical", "approximate")
WEIGHT_PRIORS = ("scaled", "unit")


class Chain(NamedTuple):
    """The chain's parameters, and what the prior of its weights is."""

    b: TensorType
    """[T], prior amplitude of each task."""

    sigma2: TensorType
    """[T], noise variance of each task given the tasks before it."""

    weight_variance: TensorType | None
    """[], lambda; None for the paper's prior of the weights, N(0, I)."""

    @property
    def ratios(self) -> tf.Tensor:
        """[T], b / sigma2."""
        return self.b / self.sigma2

    @property
    def weight_variances(self) -> tf.Tensor:
        """[T], lambda of each task."""
        if self.weight_variance is None:
            return 1.0 / self.sigma2
        return self.weight_variance * tf.ones_like(self.sigma2)


def root_or_one(squares: TensorType) -> tf.Tensor:
    """Square roots, and 1 for a task that is zero everywhere."""
    return tf.sqrt(tf.where(squares > 0.0, squares, tf.ones_like(squares)))


@check_shapes("gram: [batch..., T, T]", "weight_variance: [...]", "return: [batch..., T, T]")
def weight_systems(gram: TensorType, weight_variance: TensorType) -> tf.Tensor:
    r""":math:`I + \lambda G`, whose smallest eigenvalue is at least one."""
    eye = tf.eye(tf.shape(gram)[-1], dtype=gram.dtype)
    return eye + weight_variance[..., None, None] * gram


@tf.custom_gradient
def factor_diagonal(M: tf.Tensor):  # type: ignore[no-untyped-def]
    r"""
    The diagonal of the Cholesky factor L of M, [..., T], with its gradient by one inverse of L.

    .. math:: \partial_M = \tfrac{1}{2} L^{-\top} \mathrm{diag}(g_t L_{tt}) L^{-1}

    because :math:`2 \log L_{tt}` is a difference of log determinants of leading blocks of M.
    """
    L = tf.linalg.cholesky(M)
    diagonal = tf.linalg.diag_part(L)

    def gradient(by_diagonal: tf.Tensor) -> tf.Tensor:
        used = tf.where(tf.reduce_any(by_diagonal != 0.0, axis=-1))  # most ratios of a grid are not
        inverse = inverse_factor(tf.gather_nd(L, used))
        weights = 0.5 * tf.gather_nd(by_diagonal * diagonal, used)
        by_M = tf.matmul(inverse * weights[..., None], inverse, transpose_a=True)
        return tf.scatter_nd(used, by_M, tf.shape(M, out_type=tf.int64))

    return diagonal, gradient


@check_shapes("L: [batch..., T, T]", "return: [batch..., T, T]")
def inverse_factor(L: TensorType) -> tf.Tensor:
    """Inverse of a lower triangular matrix."""
    eye = tf.eye(tf.shape(L)[-1], batch_shape=tf.shape(L)[:-2], dtype=L.dtype)
    return tf.linalg.triangular_solve(L, eye)


@check_shapes("diagonal: [batch..., T]", "return: [batch..., T]")
def quadratic_forms(diagonal: TensorType, weight_variance: TensorType) -> tf.Tensor:
    r""":math:`y_t^\top M_t^{-1} y_t = (L_{tt}^2 - 1) / \lambda`, from the diagonal of L."""
    return (tf.square(diagonal) - 1.0) / weight_variance


@check_shapes("diagonal: [batch..., T]", "return: [batch..., T]")
def weight_costs(diagonal: TensorType, learning: str) -> tf.Tensor:
    r""":math:`\sum_{u < t} \log L_{uu}`, what the weights cost; nothing if hierarchical."""
    if learning == "hierarchical":
        return tf.zeros_like(diagonal)
    return tf.cumsum(tf.math.log(diagonal), axis=-1, exclusive=True)


@check_shapes(
    "quadratic: [batch..., T]",
    "half_log_det: [batch..., T]",
    "sigma2: [batch..., T]",
    "return: [batch..., T]",
)
def log_likelihood_terms(
    quadratic: TensorType, half_log_det: TensorType, sigma2: TensorType, num_rows: TensorType
) -> tf.Tensor:
    r"""
    The terms of the objective.

    .. math:: -\tfrac{1}{2} \, y_t^\top M_t^{-1} y_t \, / \, \sigma^2_t
              - \tfrac{N}{2} \log 2 \pi \sigma^2_t - \tfrac{1}{2} \log |M_t|
    """
    noise = 0.5 * num_rows * (LOG_2PI + tf.math.log(sigma2))
    return -0.5 * quadratic / sigma2 - noise - half_log_det


class OwnSystem(NamedTuple):
    """Some tasks, each with the Gram matrix at its own ratio."""

    tasks: AnyNDArray  # [B], their numbers
    M: tf.Tensor  # [B, T, T], I + lambda G
    log_det: tf.Tensor  # [B], log |r K + I|


def own_systems(system: System, chain: Chain, scales: TensorType) -> Iterator[OwnSystem]:
    """
    The systems of all tasks at their own ratios, some tasks at a time.

    :param scales: [T], what the targets are divided by.
    """
    num_tasks = chain.b.shape[0]
    size = max(1, MAX_NUMBERS // num_tasks**2)
    outer = scales[:, None] * scales[None, :]
    for start in range(0, num_tasks, size):
        block = slice(start, start + size)
        gram, log_det = system(chain.ratios[block])
        M = weight_systems(gram / outer, chain.weight_variances[block])
        yield OwnSystem(np.arange(num_tasks)[block], M, log_det)


def target_scales(system: System, chain: Chain) -> tf.Tensor:
    """[T], what the targets are divided by: the roots of their mean squares, or one."""
    if chain.weight_variance is None:
        return tf.ones_like(chain.sigma2)
    products, _ = system(tf.zeros([1], tf.float64))
    return root_or_one(tf.linalg.diag_part(products[0]) / system.spectrum.num_rows)


@check_shapes("return: [T]")
def conditional_log_likelihoods(system: System, chain: Chain, learning: str) -> tf.Tensor:
    """Log likelihood of every task given the tasks before it."""
    scales, num_rows, parts = target_scales(system, chain), system.spectrum.num_rows, []
    for tasks, M, log_det in own_systems(system, chain, scales):
        diagonal = factor_diagonal(M)  # [B, T]
        own = np.stack([np.arange(len(tasks)), tasks], axis=1)
        variances = tf.gather(chain.weight_variances, tasks)
        quadratic = quadratic_forms(tf.gather_nd(diagonal, own), variances)
        half_log_det = 0.5 * log_det + tf.gather_nd(weight_costs(diagonal, learning), own)
        unit = tf.gather(scales, tasks)
        sigma2 = tf.gather(chain.sigma2, tasks) / tf.square(unit)
        terms = log_likelihood_terms(quadratic, half_log_det, sigma2, num_rows)
        parts.append(terms - num_rows * tf.math.log(unit))
    return tf.concat(parts, axis=0)
