"""Gaussian densities and samples, for every layer above."""

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from .linalg import cholesky_beyond_rounding, cholesky_with_jitter

LOG_2PI = float(np.log(2.0 * np.pi))

Seed = tuple[int, int]
"""Decides random numbers."""


def normal(shape: TensorType, dtype: tf.DType, seed: Seed | None = None) -> tf.Tensor:
    """Standard normal numbers: those of a seed, or without one those of `tf.random.set_seed`."""
    if seed is None:
        return tf.random.normal(shape, dtype=dtype)
    return tf.random.stateless_normal(shape, seed, dtype=dtype)


def drawn_seed(seed: int | None) -> int:
    """A seed as it is; without one, a number that `tf.random.set_seed` decides."""
    if seed is not None:
        return seed
    with tf.init_scope():  # also where a graph is being traced
        return int(tf.random.uniform([], maxval=2**31 - 1, dtype=tf.int32))


@check_shapes(
    "mean: [batch..., M]", "S: [batch..., M, M]", "prior: [batch...]", "return: [batch..., S, M]"
)
def sample_gaussian(
    mean: TensorType,
    S: TensorType,
    num_samples: int,
    prior: TensorType | None = None,
    seed: Seed | None = None,
) -> tf.Tensor:
    """
    Draw from N(mean, S).

    :param prior: As for :func:`gpflow_cool.linalg.cholesky_with_jitter`.
    :param seed: As for :func:`normal`.
    """
    L = cholesky_with_jitter(S, prior=prior)
    shape = tf.concat([tf.shape(mean)[:-1], [num_samples], tf.shape(mean)[-1:]], axis=0)
    noise = normal(shape, L.dtype, seed)
    return mean[..., None, :] + tf.matmul(noise, L, transpose_b=True)


@check_shapes(
    "r: [batch..., M]", "S: [batch..., M, M]", "prior: [batch..., M]", "return: [batch...]"
)
def gaussian_log_density(
    r: TensorType, S: TensorType, prior: TensorType | None = None
) -> tf.Tensor:
    r"""
    Log density of a residual.

    .. math:: \log N(r \,|\, 0, S)

    :param prior: As for :func:`gpflow_cool.linalg.cholesky_beyond_rounding`.
    """
    L = cholesky_beyond_rounding(S, prior)
    z = tf.linalg.triangular_solve(L, r[..., None])[..., 0]
    return univariate_log_densities(z, tf.square(tf.linalg.diag_part(L)), whitened=True)


@check_shapes("r: [batch..., M]", "v: [batch..., M]", "return: [batch...]")
def univariate_log_densities(r: TensorType, v: TensorType, *, whitened: bool = False) -> tf.Tensor:
    r"""
    Log density of independent residuals.

    .. math:: \sum_m \log N(r_m \,|\, 0, v_m)

    :param whitened: Whether `r` is divided by the standard deviations already.
    """
    return log_densities_of_squares(tf.square(r) if whitened else tf.square(r) / v, v)


@check_shapes("squares: [batch..., M]", "v: [batch..., M]", "return: [batch...]")
def log_densities_of_squares(squares: TensorType, v: TensorType) -> tf.Tensor:
    """Log density of independent residuals from their squares over variances."""
    return -0.5 * tf.reduce_sum(squares + tf.math.log(v) + LOG_2PI, axis=-1)


@check_shapes(
    "residual: [batch..., M, T]",
    "S: [batch..., M, T, M, T] if full_cov and full_output_cov",
    "S: [batch..., T, M, M] if full_cov and (not full_output_cov)",
    "S: [batch..., M, T, T] if (not full_cov) and full_output_cov",
    "S: [batch..., M, T] if (not full_cov) and (not full_output_cov)",
    "prior: [batch..., M, T]",
    "return: [batch...] if full_cov and full_output_cov",
    "return: [batch..., T] if full_cov and (not full_output_cov)",
    "return: [batch..., M] if not full_cov",
)
def log_density_of_layout(
    residual: TensorType,
    S: TensorType,
    full_cov: bool,
    full_output_cov: bool,
    prior: TensorType | None = None,
) -> tf.Tensor:
    """
    Log density of residuals of T tasks at M points, from a covariance in GPflow's layouts.

    :param prior: Variances before data were seen, if S is a difference from them.
    """
    if full_cov and full_output_cov:
        shape = tf.shape(residual)
        size = shape[-1] * shape[-2]
        flat = tf.reshape(S, tf.concat([shape[:-2], [size, size]], axis=0))
        one = tf.concat([shape[:-2], [size]], axis=0)
        sizes = None if prior is None else tf.reshape(prior, one)
        return gaussian_log_density(tf.reshape(residual, one), flat, sizes)
    if full_cov:
        sizes = None if prior is None else tf.linalg.matrix_transpose(prior)
        return gaussian_log_density(tf.linalg.matrix_transpose(residual), S, sizes)
    if full_output_cov:
        return gaussian_log_density(residual, S, prior)
    return univariate_log_densities(residual, S)
