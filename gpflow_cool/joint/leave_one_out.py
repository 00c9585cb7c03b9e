"""Every row predicted from all the other rows, in closed form."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType
from gpflow.mean_functions import MeanFunction

from ..gaussian import LOG_2PI, univariate_log_densities
from ..systems.products import from_eigenbasis, squared
from .conditioning import explained_blocks, row_products
from .kronecker import JointSolution
from .missing import ObservedSystem, solve_observed

MAX_NUMBERS = 2**25
"""Covariances of up to so many numbers (256 MB) are one product of matrices."""


ALIGNMENT = 64
"""Bytes; TensorFlow takes memory that starts at a multiple of this as it is."""


class LeaveOneOut(NamedTuple):
    """Every row predicted from all the other rows."""

    mean: tf.Tensor
    """[N, T]; NaN where a target is missing."""

    cov: tf.Tensor
    """
    [N, T, T], covariance of each row's targets, noise included; NaN where one is missing. Without
    `full_output_cov`, variances [N, T].
    """

    log_density: tf.Tensor
    """[N], joint over the tasks of a row that are observed."""


@check_shapes("Y: [N, T]")
def leave_one_out(
    solution: JointSolution, Y: TensorType, full_output_cov: bool = True
) -> LeaveOneOut:
    r"""
    Predict every row from all the other rows, at a cost of O(N^2 T), and O(N T^3) for covariances.

    .. math::

        s = (U \circ U) \, [1 / (\lambda_n d_j + 1)], \qquad
        a = U \, [Z_{nj} / (\lambda_n d_j + 1)]

        \text{mean} = Y - (a / s) P^\top, \qquad \text{cov}_n = P \, \mathrm{diag}(1 / s_n) P^\top
    """
    s = from_eigenbasis(squared(solution.U), solution.shrinkage)
    a = from_eigenbasis(solution.U, solution.Z * solution.shrinkage)
    return left_out(solution, Y, a / s, 1.0 / s, full_output_cov)


@check_shapes("Kmn: [R, N]", "diagonal: [N]", "Y: [N, T]", "centred: [N, T]")
def leave_one_out_of_features(
    solution: JointSolution,
    Kmn: TensorType,
    diagonal: TensorType,
    Y: TensorType,
    centred: TensorType,
    full_output_cov: bool = True,
) -> LeaveOneOut:
    r"""
    The same for K = F F^T with F [N, R], at a cost of O(N R T) for N rows.

    .. math::

        s = 1 - (U \circ U) \, [1 - 1 / (\lambda_n d_j + 1)], \qquad
        a = Y P^{-\top} - U \, [Z_{nj} (1 - 1 / (\lambda_n d_j + 1))]

    where U [N, R] has the eigenvectors whose eigenvalues are not zero. Variances are
    :math:`1 / s + d_j (k(x, x) - |f(x)|^2)`, where the last term is the part of the kernel that the
    features leave out. Inducing points stay where they are.

    :param Kmn: Cross-covariance of the rows with the features.
    :param diagonal: k(x, x).
    :param centred: Y with the mean function subtracted.
    """
    scaled = tf.matmul(Kmn, solution.U, transpose_a=True)  # U diag(lam)
    U = scaled * tf.math.reciprocal_no_nan(solution.lam)
    rest = tf.maximum(diagonal - tf.reduce_sum(U * scaled, axis=1), tf.zeros([], U.dtype))
    gain = 1.0 - solution.shrinkage
    s = 1.0 - tf.matmul(tf.square(U), gain)
    a = tf.matmul(centred, solution.P_inverse, transpose_b=True) - tf.matmul(U, solution.Z * gain)
    return left_out(solution, Y, a / s, 1.0 / s + rest[:, None] * solution.d, full_output_cov)


@check_shapes("Y: [N, T]", "residual: [N, T]", "variance: [N, T]")
def left_out(
    solution: JointSolution,
    Y: TensorType,
    residual: TensorType,
    variance: TensorType,
    full_output_cov: bool,
) -> LeaveOneOut:
    """The result from residuals and variances in the rotated basis."""
    P = solution.P
    return LeaveOneOut(
        mean=Y - tf.matmul(residual, P, transpose_b=True),
        cov=(
            row_covariances(P, variance)
            if full_output_cov
            else tf.matmul(variance, tf.square(P), transpose_b=True)
        ),
        log_density=univariate_log_densities(residual, variance) - solution.log_det,
    )


@check_shapes("P: [T, T]", "variance: [N, T]", "return: [N, T, T]")
def row_covariances(P: TensorType, variance: TensorType) -> tf.Tensor:
    r"""
    :math:`P \, \mathrm{diag}(v_n) P^\top` of each row n.

    Where they are large, one row after the other goes into an array that becomes the tensor: a
    product of all rows, or a copy of the array, would need as much memory again.
    """
    num_rows, num_tasks = variance.shape
    if not tf.executing_eagerly() or num_rows * num_tasks**2 <= MAX_NUMBERS:
        return tf.matmul(P * variance[:, None, :], P, transpose_b=True)
    P, variance = P.numpy(), variance.numpy()
    memory = np.empty(num_rows * num_tasks**2 + ALIGNMENT, P.dtype)
    first = -memory.ctypes.data % ALIGNMENT // memory.itemsize
    cov = memory[first : first + num_rows * num_tasks**2].reshape([num_rows, num_tasks, num_tasks])
    for row, own in zip(cov, variance, strict=True):
        np.matmul(P * own, P.T, out=row)
    return tf.experimental.dlpack.from_dlpack(cov.__dlpack__())


def leave_one_out_of_observed(
    system: ObservedSystem,
    X: TensorType,
    Y: TensorType,
    mean_function: MeanFunction,
    full_output_cov: bool = True,
) -> LeaveOneOut:
    r"""
    Predict the observed targets of every row from those of all the other rows.

    .. math:: y_n - Q_n^{-1} (S_{oo}^{-1} y_o)_n, \qquad \mathrm{cov}_n = Q_n^{-1}, \qquad
              Q_n = (S_{oo}^{-1})_{nn}
    """
    mask = system.mask
    num_rows, num_tasks = mask.shape
    weights = solve_observed(system, Y - mean_function(X)).weights  # [N, T]
    eye = tf.eye(num_tasks, dtype=tf.float64)
    Q = explained_blocks(
        system,
        lambda rows: row_products(tf.one_hot(rows, num_rows, dtype=tf.float64), eye),
        tf.range(num_rows),
    )
    known = tf.constant(mask, tf.float64)
    L = tf.linalg.cholesky(Q + tf.linalg.diag(1.0 - known))
    error = tf.linalg.cholesky_solve(L, weights[..., None])[..., 0]
    log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)), axis=1)
    quadratic = tf.reduce_sum(weights * error, axis=1)
    cov = tf.linalg.cholesky_solve(L, tf.broadcast_to(eye, [num_rows, num_tasks, num_tasks]))
    cov = tf.where(mask[:, :, None] & mask[:, None, :], cov, np.nan)
    parts = LeaveOneOut(
        mean=tf.where(mask, tf.cast(Y, tf.float64) - error, np.nan),
        cov=cov if full_output_cov else tf.linalg.diag_part(cov),
        log_density=log_det - 0.5 * (quadratic + tf.reduce_sum(known, axis=1) * LOG_2PI),
    )
    return LeaveOneOut(*(tf.cast(part, Y.dtype) for part in parts))
