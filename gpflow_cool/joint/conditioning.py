"""
Functions and missing targets given the observed targets: covariances, and imputation.

Letters: N rows, T tasks, M test points, R rows of the training data, c items of a chunk.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, MeanAndVariance, TensorType
from gpflow.mean_functions import MeanFunction

from ..graphs import unconverted
from ..systems.products import diagonal, rows_of
from .kronecker import rows_last
from .missing import ObservedSolution, ObservedSystem, multiply, solve, solve_observed

CHUNK = 2**21
"""How many numbers the right-hand sides may have that are solved for at once."""


def in_chunks(
    system: ObservedSystem, function: Callable[[tf.Tensor], tf.Tensor], items: tf.Tensor
) -> tf.Tensor:
    """
    A function of items [M, ...], applied to as many at a time as `CHUNK` allows.

    :param function: Solves T systems per item.
    """
    num_rows, num_tasks = system.mask.shape
    return some_at_a_time(CHUNK // (num_rows * num_tasks**2), function, items, tf.float64)


def some_at_a_time(
    limit: int, function: Callable[[tf.Tensor], tf.Tensor], items: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    """
    A function of items [M, ...], applied to a limited number at a time.

    :param dtype: That of the function's value.
    """
    limit = max(1, limit)
    if items.shape[0] is not None and items.shape[0] <= limit:
        return function(items)
    count = tf.shape(items)[0]
    size = tf.clip_by_value(count, 1, limit)
    num_chunks = tf.maximum((count + size - 1) // size, 1)
    padding = [[0, num_chunks * size - count]] + [[0, 0]] * (items.shape.rank - 1)
    padded = tf.reshape(
        tf.pad(items, padding), tf.concat([[num_chunks, size], tf.shape(items)[1:]], axis=0)
    )
    result = tf.map_fn(
        unconverted(function), padded, fn_output_signature=dtype, parallel_iterations=1
    )  # [chunks, size, ...]
    return tf.reshape(result, tf.concat([[-1], tf.shape(result)[2:]], axis=0))[:count]


def explained_blocks(
    system: ObservedSystem, cross: Callable[[tf.Tensor], tf.Tensor], items: tf.Tensor
) -> tf.Tensor:
    r"""
    [M, T, T], how much the observed targets explain of T values for each of M items.

    .. math:: V_o \, S_{oo}^{-1} V_o^\top

    :param cross: Takes some items [c, ...] to V [c, T, N, T], the covariance of their values with
        all targets.
    """
    num_tasks, size = system.mask.shape[1], system.mask.size

    def explain(some: tf.Tensor) -> tf.Tensor:
        V = cross(some)
        W, V = (tf.reshape(part, [-1, num_tasks, size]) for part in (solve_blocks(system, V), V))
        blocks = tf.matmul(W, V, transpose_b=True)
        return 0.5 * (blocks + tf.linalg.matrix_transpose(blocks))

    return in_chunks(system, explain, items)


@check_shapes("V: [c, T, N, T]", "return: [c, T, N, T]")
def solve_blocks(system: ObservedSystem, V: TensorType) -> tf.Tensor:
    """Solve with S_oo for T right-hand sides per item."""
    return tf.reshape(solve(system, tf.reshape(V, [-1, *system.mask.shape])), tf.shape(V))


@check_shapes("k: [c, N]", "S: [T, T]", "return: [c, T, N, T]")
def row_products(k: TensorType, S: TensorType) -> tf.Tensor:
    r"""Rows of Kronecker products, :math:`V_{ctnu} = k_{cn} S_{tu}`."""
    return k[:, None, :, None] * S[:, None, :]


@check_shapes("Kmn: [N, M]", "return: [M, T, N, T]")
def point_weights(system: ObservedSystem, Kmn: TensorType) -> tf.Tensor:
    r"""
    What takes cross-covariances to the covariance with the functions at M points.

    .. math:: S_{oo}^{-1} \, (k_m \otimes C_u)_o \, C
    """

    def weigh(k: tf.Tensor) -> tf.Tensor:  # [c, N], some of the points
        return tf.matmul(solve_blocks(system, row_products(k, system.C)), system.C)

    return in_chunks(system, weigh, tf.transpose(tf.cast(Kmn, tf.float64)))


@check_shapes("Kmn: [N, M]", "Knn: [M, M]", "return: [M, T, M, T]")
def covariance_between_points(
    system: ObservedSystem, Kmn: TensorType, Knn: TensorType, noise: bool
) -> tf.Tensor:
    r"""
    Posterior covariance of functions (or, with `noise`, observations) between all test points.

    .. math:: k(x_m, x_{m'}) \, C_{tu}
              - (k_m \otimes C_t)_o^\top \, S_{oo}^{-1} \, (k_{m'} \otimes C_u)_o
    """

    def explain(k: tf.Tensor) -> tf.Tensor:  # [c, N], some of the points
        weights = solve_blocks(system, row_products(k, system.C))
        return tf.einsum("nm,ctnu->ctmu", Kmn, tf.matmul(weights, system.C))

    cov = tf.einsum("mn,tu->mtnu", Knn, system.C) - in_chunks(system, explain, tf.transpose(Kmn))
    flat = tf.reshape(cov, [tf.shape(cov)[0] * cov.shape[1]] * 2)
    flat = 0.5 * (flat + tf.transpose(flat))
    flat = tf.linalg.set_diag(flat, tf.nn.relu(tf.linalg.diag_part(flat)))
    cov = tf.reshape(flat, tf.shape(cov))
    if noise:
        eye = tf.eye(tf.shape(Knn)[0], dtype=Knn.dtype)
        cov += tf.einsum("mn,tu->mtnu", eye, system.Sigma)
    return cov


@check_shapes("Kmn: [N, M]", "Knn: [M]", "return: [M, T, T]")
def covariance_at_points(
    system: ObservedSystem, Kmn: TensorType, Knn: TensorType, noise: bool
) -> tf.Tensor:
    """The same between the tasks at each test point, where rounding leaves no variance negative."""
    explained = explained_blocks(system, lambda k: row_products(k, system.C), tf.transpose(Kmn))
    cov = Knn[:, None, None] * system.C - explained
    cov = tf.linalg.set_diag(cov, tf.nn.relu(tf.linalg.diag_part(cov)))
    return cov + system.Sigma if noise else cov


def map_batch(function: Callable[..., tf.Tensor], *parts: tf.Tensor) -> tf.Tensor:
    """
    A function of matrices, applied to batches of them one by one.

    :param parts: [batch..., rows, columns] each; the result has the first one's dtype.
    """
    if parts[0].shape.rank == 2:
        return function(*parts)
    flat = [tf.reshape(part, tf.concat([[-1], tf.shape(part)[-2:]], axis=0)) for part in parts]
    each = unconverted(lambda each: function(*each))
    result = tf.map_fn(each, flat, fn_output_signature=parts[0].dtype)
    return tf.reshape(result, tf.concat([tf.shape(parts[0])[:-2], tf.shape(result)[1:]], axis=0))


@check_shapes("Kmn: [N, batch..., M]", "return: [batch..., M, T]")
def predictive_mean_of_observed(solution: ObservedSolution, Kmn: TensorType) -> tf.Tensor:
    r"""Posterior mean of functions, :math:`(k_m \otimes C_t)_o^\top S_{oo}^{-1} y_o`."""
    K = tf.cast(rows_last(Kmn), tf.float64)  # [batch..., M, N]
    mean = tf.tensordot(K, tf.matmul(solution.weights, solution.system.C), axes=1)
    return tf.cast(mean, Kmn.dtype)


@check_shapes(
    "Kmn: [N, batch..., M]",
    "Knn: [batch..., M, M] if full_cov",
    "Knn: [batch..., M] if not full_cov",
    "return[0]: [batch..., M, T]",
)
def predictive_moments(
    solution: ObservedSolution,
    Kmn: TensorType,
    Knn: TensorType,
    full_cov: bool,
    full_output_cov: bool,
    noise: bool,
) -> MeanAndVariance:
    """Posterior mean and covariance of functions or observations in GPflow's layouts."""
    mean, dtype, system = predictive_mean_of_observed(solution, Kmn), Kmn.dtype, solution.system
    Kmn = tf.cast(rows_last(Kmn), tf.float64)  # [batch..., M, N]
    Knn = tf.cast(Knn, tf.float64)

    def covariance(k: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        cov = covariance_between_points(system, tf.transpose(k), kernel, noise)
        return cov if full_output_cov else tf.einsum("mtnt->tmn", cov)

    if full_cov:
        cov = map_batch(covariance, Kmn, Knn)
    else:
        k = tf.reshape(Kmn, [-1, Kmn.shape[-1]])  # points of all batches alike
        cov = covariance_at_points(system, tf.transpose(k), tf.reshape(Knn, [-1]), noise)
        cov = cov if full_output_cov else tf.linalg.diag_part(cov)
        cov = tf.reshape(cov, tf.concat([tf.shape(Knn), tf.shape(cov)[1:]], axis=0))
    return mean, tf.cast(cov, dtype)


class Imputation(NamedTuple):
    """The missing targets given the observed ones."""

    Y: tf.Tensor
    """[N, T], the targets, with the means of the missing ones filled in."""

    cov: tf.Tensor
    """[N, T, T], covariance of each row's missing targets; zero for those that are observed."""

    @property
    def std(self) -> tf.Tensor:
        """[N, T], standard deviation of the missing targets; zero for the others."""
        return tf.sqrt(tf.nn.relu(tf.linalg.diag_part(self.cov)))


def impute(
    system: ObservedSystem, X: TensorType, Y: TensorType, mean_function: MeanFunction
) -> Imputation:
    r"""
    Mean and covariance of the missing targets, noise included, given the observed ones.

    .. math:: S_{mo} S_{oo}^{-1} y_o, \qquad S_{mm} - S_{mo} S_{oo}^{-1} S_{om}

    Covariances are those between targets of the same row.
    """
    mask = system.mask
    mean, targets = tf.cast(mean_function(X), tf.float64), tf.cast(Y, tf.float64)
    weights = solve_observed(system, targets - mean).weights
    filled = tf.where(mask, targets, mean + multiply(system, weights[:, None])[:, 0])
    rows = np.flatnonzero(~mask.all(axis=1))
    missing = tf.constant(~mask[rows], tf.float64)
    cov = row_covariance(system, rows) * missing[:, :, None] * missing[:, None, :]
    full = tf.scatter_nd(rows[:, None], cov, [*mask.shape, mask.shape[1]])
    return Imputation(tf.cast(filled, Y.dtype), tf.cast(full, Y.dtype))


@check_shapes("rows: [R]", "return: [R, T, T]")
def row_covariance(system: ObservedSystem, rows: AnyNDArray) -> tf.Tensor:
    """Covariance of the targets of some rows, noise included; zero for those observed."""
    num_rows = system.mask.shape[0]

    def cross(some: tf.Tensor) -> tf.Tensor:  # [c]
        signal = row_products(rows_of(system.K, some), system.C)
        return signal + row_products(tf.one_hot(some, num_rows, dtype=tf.float64), system.Sigma)

    variance = tf.gather(diagonal(system.K), rows)
    prior = variance[:, None, None] * system.C + system.Sigma
    return prior - explained_blocks(system, cross, tf.constant(rows))
