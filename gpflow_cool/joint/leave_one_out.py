"""Every row predicted from all the others, in closed form."""

from typing import NamedTuple

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import TensorType

from ..linalg import univariate_log_densities
from .kronecker import JointSolution


class LeaveOneOut(NamedTuple):
    """Every row predicted from all the others."""

    mean: tf.Tensor
    """[N, T]."""

    cov: tf.Tensor
    """[N, T, T], covariance of the observation, noise included."""

    log_density: tf.Tensor
    """[N], joint over the tasks of the row."""


@check_shapes("Y: [N, T]")
def leave_one_out(solution: JointSolution, Y: TensorType) -> LeaveOneOut:
    r"""
    Predict every row from all the others, in closed form, O(N^2 T).

    .. math::

        s = (U \circ U) \, [1 / (\lambda_n d_j + 1)], \qquad
        a = U \, [Z_{nj} / (\lambda_n d_j + 1)]

        \text{mean} = Y - (a / s) P^\top, \qquad \text{cov}_n = P \, \mathrm{diag}(1 / s_n) P^\top
    """
    s = tf.matmul(tf.square(solution.U), solution.shrinkage)
    a = tf.matmul(solution.U, solution.Z * solution.shrinkage)
    return left_out(solution, Y, a / s, 1.0 / s)


@check_shapes("Kmn: [R, N]", "diagonal: [N]", "Y: [N, T]", "centred: [N, T]")
def leave_one_out_of_features(
    solution: JointSolution,
    Kmn: TensorType,
    diagonal: TensorType,
    Y: TensorType,
    centred: TensorType,
) -> LeaveOneOut:
    r"""
    The same for some rows of K = F F^T, O(N R T), with the eigenvectors U [N, R] of eigenvalues
    that are not zero.

    .. math::

        s = 1 - (U \circ U) \, [1 - 1 / (\lambda_n d_j + 1)], \qquad
        a = Y P^{-\top} - U \, [Z_{nj} (1 - 1 / (\lambda_n d_j + 1))]

    and variances are :math:`1 / s + d_j (k(x, x) - |f(x)|^2)`: the last term is what inducing
    points, which stay where they are, do not see of the row.

    :param Kmn: Cross-covariance of the rows.
    :param diagonal: k(x, x).
    :param centred: Y less the mean function.
    """
    scaled = tf.matmul(Kmn, solution.U, transpose_a=True)  # U diag(lam)
    U = scaled * tf.math.reciprocal_no_nan(solution.lam)
    rest = tf.maximum(diagonal - tf.reduce_sum(U * scaled, axis=1), tf.zeros([], U.dtype))
    gain = 1.0 - solution.shrinkage
    s = 1.0 - tf.matmul(tf.square(U), gain)
    a = tf.matmul(centred, solution.P_inverse, transpose_b=True) - tf.matmul(U, solution.Z * gain)
    return left_out(solution, Y, a / s, 1.0 / s + rest[:, None] * solution.d)


@check_shapes("Y: [N, T]", "residual: [N, T]", "variance: [N, T]")
def left_out(
    solution: JointSolution, Y: TensorType, residual: TensorType, variance: TensorType
) -> LeaveOneOut:
    """Rows left out, from their residuals and variances in the rotated basis."""
    P = solution.P
    return LeaveOneOut(
        mean=Y - tf.matmul(residual, P, transpose_b=True),
        cov=tf.einsum("tj,nj,uj->ntu", P, variance, P),
        log_density=univariate_log_densities(residual, variance) - solution.log_det,
    )
