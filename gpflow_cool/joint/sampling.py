"""
Draws of functions and of missing targets.

Draws given the observed targets follow Matheron's rule: draw everything from the prior, then add
the posterior mean of the difference to the observed targets. That is one system per draw.

Letters: N rows, T tasks, M test points, S draws.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType
from gpflow.config import default_jitter
from gpflow.mean_functions import MeanFunction

from ..gaussian import Seed, normal, sample_gaussian
from ..linalg import cholesky_with_jitter
from .conditioning import Imputation
from .missing import ObservedSolution, ObservedSystem, from_basis, multiply, solve, to_basis

DRAWS_AT_ONCE = 16

MAX_NUMBERS = 2**24
"""Covariances over points are formed for so many tasks at once that they have so many numbers
(128 MB)."""


class Draws(NamedTuple):
    """Which draws are asked for."""

    num_samples: int
    full_cov: bool
    """Whether they correlate over points."""

    noise: bool
    """Whether they are of observations, or of functions."""

    seed: Seed | None


@check_shapes("mean: [batch..., M, T]", "return: [batch..., S, M, T]")
def standard_normal(mean: TensorType, num_samples: int, seed: Seed | None = None) -> tf.Tensor:
    """Independent standard normal numbers, as many as draws with this mean need."""
    shape = tf.concat([tf.shape(mean)[:-2], [num_samples], tf.shape(mean)[-2:]], axis=0)
    return normal(shape, mean.dtype, seed)


@check_shapes(
    "mean: [batch..., M, T]",
    "S: [batch..., T, M, M] if full_cov",
    "S: [batch..., T, M] if not full_cov",
    "prior: [batch..., T]",
    "return: [batch..., S, M, T]",
)
def draw_independent_tasks(
    mean: TensorType,
    S: TensorType,
    full_cov: bool,
    num_samples: int,
    prior: TensorType,
    seed: Seed | None = None,
) -> tf.Tensor:
    """
    Draw T tasks independently of each other, each with its own covariance over points.

    :param prior: Variance of each task before data were seen.
    """
    if full_cov:
        samples = sample_gaussian(tf.linalg.matrix_transpose(mean), S, num_samples, prior, seed)
        order = tf.concat([tf.range(tf.rank(samples) - 3), tf.rank(samples) + [-2, -1, -3]], axis=0)
        return tf.transpose(samples, order)  # [..., T, S, M] -> [..., S, M, T]
    deviation = tf.sqrt(tf.linalg.matrix_transpose(S))[..., None, :, :]
    return mean[..., None, :, :] + deviation * standard_normal(mean, num_samples, seed)


@check_shapes("mean: [M, T]", "prior: [T]", "return: [S, M, T]")
def draw_blocks_of_tasks(
    mean: TensorType,
    covariances: Callable[[slice], tf.Tensor],
    size: int,
    num_samples: int,
    prior: TensorType,
    seed: Seed | None = None,
) -> tf.Tensor:
    """
    The same draws as those of :func:`draw_independent_tasks`, in blocks.

    :param covariances: Takes a block of tasks to their covariances over points, [tasks, M, M].
    :param size: How many tasks make a block.
    """
    num_tasks = int(mean.shape[1])
    shape = tf.concat([[num_tasks, num_samples], tf.shape(mean)[:1]], axis=0)
    white, parts = normal(shape, mean.dtype, seed), []
    for start in range(0, num_tasks, size):
        block = slice(start, start + size)
        L = cholesky_with_jitter(covariances(block), prior=prior[block])
        parts.append(tf.matmul(white[block], L, transpose_b=True))
    return mean + tf.transpose(tf.concat(parts, axis=0), [1, 2, 0])


@check_shapes(
    "mean: [batch..., M, T]",
    "S: [batch..., M, T, T]",
    "prior: [batch..., M]",
    "return: [batch..., S, M, T]",
)
def draw_independent_points(
    mean: TensorType,
    S: TensorType,
    num_samples: int,
    prior: TensorType,
    seed: Seed | None = None,
) -> tf.Tensor:
    """
    Draw M points independently of each other, each with its own covariance between tasks.

    :param prior: Mean variance of the tasks before data were seen.
    """
    L = cholesky_with_jitter(S, prior=prior)[..., None, :, :, :]  # [..., 1, M, T, T]
    return mean[..., None, :, :] + tf.linalg.matvec(L, standard_normal(mean, num_samples, seed))


@check_shapes(
    "mean: [batch..., M, T]",
    "S: [batch..., M, T, M, T]",
    "prior: [batch...]",
    "return: [batch..., S, M, T]",
)
def draw_jointly(
    mean: TensorType, S: TensorType, num_samples: int, prior: TensorType, seed: Seed | None = None
) -> tf.Tensor:
    """
    Draw all points and tasks from their joint covariance.

    :param prior: Mean variance of points and tasks before data were seen.
    """
    shape = tf.shape(mean)
    batch, size = shape[:-2], shape[-2] * shape[-1]
    flat_mean = tf.reshape(mean, tf.concat([batch, [size]], axis=0))
    flat_S = tf.reshape(S, tf.concat([batch, [size, size]], axis=0))
    samples = sample_gaussian(flat_mean, flat_S, num_samples, prior, seed)
    return tf.reshape(samples, tf.concat([batch, [num_samples], shape[-2:]], axis=0))


@check_shapes("K: [rows, rows]", "return: [S, M, T]")
def draw_functions(
    solution: ObservedSolution,
    K: TensorType,
    num_samples: int,
    *,
    noise: bool,
    seed: Seed | None = None,
) -> tf.Tensor:
    r"""
    Draw functions (or, with `noise`, observations) at M test points given the observed targets.

    .. math:: f_* + (C \otimes k_*)^\top_{\cdot o} \, S_{oo}^{-1} (y_o - f_o - e_o)

    :param K: [N + M, N + M], the kernel matrix of the training inputs followed by the test points.
    """
    system = solution.system
    num_rows, num_tasks = system.mask.shape
    size = tf.shape(K)[0]
    values, vectors = tf.linalg.eigh(system.C)
    root_C = vectors * tf.sqrt(tf.nn.relu(values))
    root_Sigma = tf.linalg.cholesky(system.Sigma)

    def correlated(num_points: tf.Tensor, root: tf.Tensor, number: int) -> tf.Tensor:
        own = None if seed is None else (seed[0], seed[1] + number)
        white = normal([num_samples, num_points, num_tasks], tf.float64, own)
        return tf.matmul(white, root, transpose_b=True)

    rounding = 4.0 * np.finfo(K.dtype.as_numpy_dtype).eps * tf.cast(size, tf.float64)
    relative = tf.maximum(tf.cast(default_jitter(), tf.float64), rounding)
    dtype, K = K.dtype, tf.cast(K, tf.float64)
    f = tf.matmul(cholesky_with_jitter(K, relative), correlated(size, root_C, 0))
    targets = f[:, :num_rows] + correlated(num_rows, root_Sigma, 1)
    weights = tf.matmul(solution.weights - solve(system, targets), system.C)
    new = f[:, num_rows:] + tf.matmul(K[num_rows:, :num_rows], weights)
    if noise:
        new += correlated(size - num_rows, root_Sigma, 2)
    return tf.cast(new, dtype)


@check_shapes("Y: [N, T]", "signal: [S, N, T]", "noise: [S, N, T]", "return: [S, N, T]")
def draw_completions(
    system: ObservedSystem, Y: TensorType, signal: TensorType, noise: TensorType
) -> tf.Tensor:
    r"""
    Draw the missing targets given the observed ones.

    .. math:: Y_0 + S_{\cdot o} S_{oo}^{-1} (y_o - Y_{0,o}), \qquad
              Y_0 = K^{1/2} \epsilon_f \, C^{1/2} + \epsilon_y \, \mathrm{chol}(\Sigma)^\top

    The roots are symmetric, so that draws from the same numbers change little when K, C and Sigma
    change little.

    :param Y: Ignored where a target is missing; may be NaN there.
    :param signal: Standard normal. Zero, like `noise`, gives the mean completion.
    """
    prior = draw_prior(system, tf.transpose(signal, [1, 0, 2]), tf.transpose(noise, [1, 0, 2]))
    weights = solve(system, Y - tf.transpose(prior, [1, 0, 2]))
    drawn = prior + multiply(system, tf.transpose(weights, [1, 0, 2]))
    return tf.where(system.mask, Y, tf.transpose(drawn, [1, 0, 2]))


@check_shapes("Y: [N, T]", "signal: [S, N, T]", "noise: [S, N, T]", "return: [pairs, N, T]")
def draw_pairs(
    system: ObservedSystem, Y: TensorType, signal: TensorType, noise: TensorType
) -> tf.Tensor:
    r"""
    As :func:`draw_completions` of the numbers, followed by those of their opposites.

    .. math:: S_{\cdot o} S_{oo}^{-1} y_o \pm (Y_0 - S_{\cdot o} S_{oo}^{-1} Y_{0,o})

    That is one system for the mean and one per pair.
    """
    prior = draw_prior(system, tf.transpose(signal, [1, 0, 2]), tf.transpose(noise, [1, 0, 2]))
    prior = tf.transpose(prior, [1, 0, 2])
    weights = solve(system, tf.concat([Y[None], prior], axis=0))
    known = tf.transpose(multiply(system, tf.transpose(weights, [1, 0, 2])), [1, 0, 2])
    mean, around = known[:1], prior - known[1:]
    return tf.where(system.mask, Y, tf.concat([mean + around, mean - around], axis=0))


def impute_by_draws(
    system: ObservedSystem,
    X: TensorType,
    Y: TensorType,
    mean_function: MeanFunction,
    num_samples: int = 128,
) -> Imputation:
    """
    As :func:`.conditioning.impute`, covariances estimated from draws: one system per draw instead
    of T per row. The means are exact; a deviation has a relative error of about
    1 / (2 `num_samples`)^(1/2), which is 6%.
    """
    mean, targets = tf.cast(mean_function(X), tf.float64), tf.cast(Y, tf.float64)
    nothing = tf.zeros([1, *system.mask.shape], tf.float64)
    filled = mean + draw_completions(system, targets - mean, nothing, nothing)[0]
    rng = np.random.default_rng(0)
    cov = tf.zeros([*system.mask.shape, system.mask.shape[1]], tf.float64)
    for _ in range(0, num_samples, DRAWS_AT_ONCE):
        numbers = rng.normal(size=[2, DRAWS_AT_ONCE, *system.mask.shape])
        drawn = draw_completions(system, tf.zeros_like(targets), *numbers)
        cov += tf.einsum("snt,snu->ntu", drawn, drawn) / num_samples
    return Imputation(
        tf.cast(tf.where(system.mask, targets, filled), Y.dtype), tf.cast(cov, Y.dtype)
    )


@check_shapes("signal: [N, S, T]", "noise: [N, S, T]", "return: [N, S, T]")
def draw_prior(system: ObservedSystem, signal: TensorType, noise: TensorType) -> tf.Tensor:
    """Draw all targets from the prior, made of standard normal numbers."""
    values, vectors = tf.linalg.eigh(system.C)
    root_C = tf.matmul(vectors * tf.sqrt(tf.nn.relu(values)), vectors, transpose_b=True)
    rotated = to_basis(system.U, tf.matmul(signal, root_C))
    functions = from_basis(system.U, tf.sqrt(system.lam)[:, None, None] * rotated)
    return functions + tf.matmul(noise, tf.linalg.cholesky(system.Sigma), transpose_b=True)
