r"""
The joint model :math:`\mathrm{vec}(Y) \sim N(0, C \otimes K + \Sigma \otimes I)` in its own basis.

.. math:: \Sigma = P P^\top, \qquad C = P \, \mathrm{diag}(d) \, P^\top, \qquad
          K = U \, \mathrm{diag}(\lambda) \, U^\top

In the basis :math:`P` the tasks are T independent one-output Gaussian processes with kernels
:math:`d_j k` and unit noise, and the entries of :math:`Z = U^\top Y P^{-\top}` are independent,
:math:`Z_{nj} \sim N(0, \lambda_n d_j + 1)`. Every quantity below is a sum over those, and no matrix
of size N T x N T is ever formed. `vec` stacks columns (task-major).

Letters: N rows, M test points, T tasks, j a rotated task.
"""

from typing import NamedTuple

import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import MeanAndVariance, TensorType

from ..chain.recovery import mixing_matrix, residual_map, symmetric
from ..gaussian import LOG_2PI, log_densities_of_squares
from ..systems.products import Eigenvectors, KroneckerVectors, from_eigenbasis, to_eigenbasis
from ..systems.spectrum import Spectrum, System


class TaskBasis(NamedTuple):
    """The basis in which signal and noise are diagonal together."""

    P: tf.Tensor  # [T, T], from rotated tasks to tasks: Sigma = P P^T
    P_inverse: tf.Tensor  # [T, T]
    d: tf.Tensor  # [T], signal variances: C = P diag(d) P^T
    log_det: tf.Tensor  # [], log |det P|

    @check_shapes("lam: [R]", "return: [R, T]")
    def shrinkage(self, lam: TensorType) -> tf.Tensor:
        """1 / (lam_n d_j + 1), the fraction of a rotated target that is taken for noise."""
        return 1.0 / (lam[:, None] * self.d + 1.0)

    @check_shapes("return: [rows, T]")
    def rotate(self, Yr: TensorType) -> tf.Tensor:
        r"""The rotated targets, :math:`Z = Y_r P^{-\top}`."""
        return tf.matmul(Yr, self.P_inverse, transpose_b=True)


class JointSolution(NamedTuple):
    """
    All that predictions need of the training data; [N, N] and smaller.

    For K = F F^T of low rank with F [N, R], N is R here, and cross-covariances are with features or
    inducing points.
    """

    U: Eigenvectors  # of K, [N, N]; of low rank, the map from a cross-covariance to them
    lam: tf.Tensor  # [N], eigenvalues of K
    Z: tf.Tensor  # [N, T], rotated targets
    alpha: tf.Tensor  # [N, T], the factor of a cross-covariance in the predicted mean
    P: tf.Tensor
    P_inverse: tf.Tensor
    d: tf.Tensor
    log_det: tf.Tensor

    seen: tf.Tensor
    """[N], the eigenvalues as other points see them. lam + 1 / d is known to the rounding of the
    eigenvalues only. Where all of it is less, as copies of a row have it without noise, this is
    that rounding: covariances of a point with such an eigenvector are rounding as well, and d may
    be 1e20."""

    @property
    def shrinkage(self) -> tf.Tensor:
        """[N, T], 1 / (lam_n d_j + 1)."""
        return 1.0 / (self.lam[:, None] * self.d + 1.0)

    @property
    def seen_shrinkage(self) -> tf.Tensor:
        """[N, T], the same for the covariances of other points."""
        return 1.0 / (self.seen[:, None] * self.d + 1.0)


@check_shapes("W: [T, T]", "B: [T, T]", "sigma2: [T]")
def chain_task_basis(W: TensorType, B: TensorType, sigma2: TensorType) -> TaskBasis:
    """
    Task basis of C = A B A^T and Sigma = A diag(sigma2) A^T, where A = (I - W)^{-1}.

    A diag(sigma) is the Cholesky factor of Sigma, whitens C to B / (sigma sigma^T), and its inverse
    is known exactly. Neither C nor Sigma is factorised: a nearly singular Sigma loses no digits.
    """
    deviation = tf.sqrt(sigma2)
    L, L_inverse = mixing_matrix(W) * deviation, residual_map(W) / deviation[:, None]
    return whitened_basis(L, L_inverse, B / (deviation[:, None] * deviation[None, :]))


@check_shapes("C: [T, T]", "Sigma: [T, T]")
def task_basis(C: TensorType, Sigma: TensorType) -> TaskBasis:
    """Task basis of any C and any positive definite Sigma."""
    L = tf.linalg.cholesky(Sigma)
    half = tf.linalg.triangular_solve(L, C)
    L_inverse = tf.linalg.triangular_solve(L, tf.eye(tf.shape(L)[0], dtype=L.dtype))
    return whitened_basis(L, L_inverse, tf.linalg.triangular_solve(L, tf.transpose(half)))


@check_shapes("L: [T, T]", "L_inverse: [T, T]", "whitened: [T, T]")
def whitened_basis(L: TensorType, L_inverse: TensorType, whitened: TensorType) -> TaskBasis:
    r"""
    Task basis from a triangular factor of Sigma and the task covariance whitened by it.

    .. math:: \Sigma = L L^\top, \qquad L^{-1} C L^{-\top} = V \mathrm{diag}(d) V^\top, \qquad
              P = L V
    """
    d, V = tf.linalg.eigh(whitened)
    return TaskBasis(
        P=tf.matmul(L, V),
        P_inverse=tf.matmul(V, L_inverse, transpose_a=True),
        d=tf.maximum(d, tf.zeros_like(d)),
        log_det=tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L))),
    )


def solve_joint(
    U: Eigenvectors, spectrum: Spectrum, basis: TaskBasis, *, unit: TensorType = 0.0
) -> JointSolution:
    r"""
    What predictions need, in the dtype of U.

    .. math:: Z = Y_r P^{-\top}, \qquad
              \alpha = U \, [Z_{nj} d_j / (\lambda_n d_j + 1)] \, P^\top

    :param unit: [], rounding of the eigenvalues of a kernel matrix; features have none.
    """
    lam = spectrum.lam
    seen = tf.maximum(lam, unit - 1.0 / tf.reduce_max(basis.d))
    Z = basis.rotate(spectrum.Yr)
    rotated = Z * basis.d / (seen[:, None] * basis.d + 1.0)
    dtype = U.vectors[0].dtype if isinstance(U, KroneckerVectors) else U.dtype
    alpha = from_eigenbasis(U, tf.cast(tf.matmul(rotated, basis.P, transpose_b=True), dtype))
    return JointSolution(U, *(tf.cast(part, dtype) for part in (lam, Z, alpha, *basis, seen)))


@check_shapes("return: []")
def spectrum_log_evidence(spectrum: Spectrum, basis: TaskBasis) -> tf.Tensor:
    r"""
    Exact log evidence of the joint model; its mean over completions where there are several.

    .. math:: \sum_{nj} \log N(Z_{nj} \,|\, 0, \lambda_n d_j + 1) - N \log |\det P|

    Outside the span of the eigenvectors there is noise alone, with the log density
    :math:`-\tfrac{1}{2} \mathrm{tr}(P^{-1} G_0 P^{-\top}) - \tfrac{1}{2} (N - R) T \log 2 \pi`; a
    slack :math:`\tau` takes :math:`\tfrac{1}{2} \tau \sum_j d_j` off, and leaves a lower bound.
    """
    Z = basis.rotate(spectrum.Yr)
    v = spectrum.lam[:, None] * basis.d + 1.0
    squares = tf.reduce_sum(spectrum.split(tf.square(Z)), axis=0)  # [R, T]
    inside = tf.reduce_sum(log_densities_of_squares(squares / v, v))
    outside = basis.rotate(tf.matmul(basis.P_inverse, spectrum.G0))
    empty = spectrum.num_rows * tf.cast(tf.shape(Z)[1], Z.dtype) - tf.cast(tf.size(v), Z.dtype)
    rest = tf.linalg.trace(outside) + empty * LOG_2PI + spectrum.slack * tf.reduce_sum(basis.d)
    return inside - 0.5 * rest - spectrum.num_rows * basis.log_det


@check_shapes("C: [T, T]", "Sigma: [T, T]", "return: []")
def kronecker_log_likelihood(system: System, C: TensorType, Sigma: TensorType) -> tf.Tensor:
    r"""
    Log density of vec(Y) under N(0, C (x) K + Sigma (x) I); for S completions of Y the mean of
    their log densities. It is differentiable, also where eigenvalues are equal.

    .. math:: -\tfrac{1}{2} \sum_j \big[ p_j^\top G(d_j) \, p_j + \log |d_j K + I| \big]
              - N \log |\det P| - \tfrac{1}{2} N T \log 2 \pi

    with :math:`p_j` row j of :math:`P^{-1}`.
    """
    C, Sigma = tf.cast(C, tf.float64), tf.cast(Sigma, tf.float64)
    basis = task_basis(tf.stop_gradient(C), tf.stop_gradient(Sigma))
    gram, log_det = system(basis.d)
    quadratic = tf.einsum("jt,jtu,ju->j", basis.P_inverse, gram, basis.P_inverse)
    num_rows, num_tasks = system.spectrum.num_rows, float(C.shape[0])
    constant = num_rows * (basis.log_det + 0.5 * num_tasks * LOG_2PI)
    value = -0.5 * tf.reduce_sum(quadratic + log_det) - constant
    # The basis has no gradient: eigenvectors have none where eigenvalues are equal.
    by = evidence_gradient(system.spectrum, basis)
    for part, by_part in zip((C, Sigma), by, strict=True):
        value += tf.reduce_sum(by_part * (part - tf.stop_gradient(part)))
    return value


class EvidenceGradient(NamedTuple):
    """Gradient of the log evidence of a spectrum with respect to C and Sigma."""

    C: tf.Tensor
    Sigma: tf.Tensor


def evidence_gradient(spectrum: Spectrum, basis: TaskBasis) -> EvidenceGradient:
    r"""
    Gradient of :func:`spectrum_log_evidence` with respect to C and Sigma.

    With :math:`A = [Z_{nj} / (\lambda_n d_j + 1)]`, :math:`H = [1 / (\lambda_n d_j + 1)]`, R
    eigenvectors and the slack :math:`\tau`:

    .. math::

        \partial_C &= \tfrac{1}{2} P^{-\top} (A^\top \mathrm{diag}(\lambda) A
                     - \mathrm{diag}(H^\top \lambda + \tau)) P^{-1} \\
        \partial_\Sigma &= \tfrac{1}{2} P^{-\top} (A^\top A + P^{-1} G_0 P^{-\top}
                     - \mathrm{diag}(H^\top 1 + N - R - \tau d)) P^{-1}
    """
    lam, slack, d, V = spectrum.lam, spectrum.slack, basis.d, basis.P_inverse
    H = basis.shrinkage(lam)
    A = H * spectrum.split(basis.rotate(spectrum.Yr))  # [S, R, T]
    outside = basis.rotate(tf.matmul(V, spectrum.G0))

    def to_tasks(weights: tf.Tensor, rest: tf.Tensor) -> tf.Tensor:
        inside = tf.einsum("srt,sru->tu", A * weights[:, None], A) + rest
        inside -= tf.linalg.diag(tf.linalg.matvec(H, weights, transpose_a=True))
        return 0.5 * tf.matmul(V, tf.matmul(inside, V), transpose_a=True)

    empty = spectrum.num_rows - spectrum.rank - slack * d
    return EvidenceGradient(
        C=to_tasks(lam, -slack * tf.eye(tf.shape(d)[0], dtype=V.dtype)),
        Sigma=to_tasks(tf.ones_like(lam), outside - tf.linalg.diag(empty)),
    )


@check_shapes("C: [T, T]", "Sigma: [T, T]")
def em_step(spectrum: Spectrum, C: TensorType, Sigma: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    One step of expectation maximisation over full C and Sigma for a fixed kernel matrix.

    A row of U^T Y is :math:`\sqrt{\lambda_n} g_n + e_n` with :math:`g_n \sim N(0, C)` and
    :math:`e_n \sim N(0, \Sigma)`; the new C and Sigma are the mean second moments of
    :math:`g_n` and :math:`e_n` given that row. The evidence never decreases.

    :param spectrum: That of an exact kernel matrix.
    """
    basis, lam = task_basis(C, Sigma), spectrum.lam
    Z, H = spectrum.split(basis.rotate(spectrum.Yr)), basis.shrinkage(lam)  # [S, N, T], [N, T]

    def second_moment(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        mean = tf.reshape(mean, tf.shape(spectrum.Yr))
        inside = tf.matmul(mean, mean, transpose_a=True)
        inside += tf.linalg.diag(tf.reduce_sum(variance, axis=0))
        inside /= spectrum.num_rows
        return symmetric(tf.matmul(basis.P, tf.matmul(inside, basis.P, transpose_b=True)))

    signal = second_moment(tf.sqrt(lam)[:, None] * basis.d * H * Z, basis.d * H)
    noise = second_moment(H * Z, lam[:, None] * basis.d * H)
    return signal, noise


@check_shapes("Kmn: [N, batch..., M]", "return: [batch..., M, T]")
def predictive_mean(solution: JointSolution, Kmn: TensorType) -> tf.Tensor:
    r"""Mean of f at the test points, :math:`k(X, X_*)^\top \alpha`."""
    return tf.einsum("nt,n...m->...mt", solution.alpha, Kmn)


@check_shapes("Kmn: [N, batch..., M]", "return: [batch..., M, N]")
def rows_last(Kmn: TensorType) -> tf.Tensor:
    """A cross-covariance with the training rows last: GPflow has them first."""
    rank = tf.rank(Kmn)
    return tf.transpose(Kmn, tf.concat([tf.range(1, rank), [0]], axis=0))


@check_shapes(
    "Kmn: [N, batch..., M]",
    "Knn: [batch..., M, M] if full_cov",
    "Knn: [batch..., M] if not full_cov",
    "return: [batch..., T, M, M] if full_cov",
    "return: [batch..., T, M] if not full_cov",
)
def rotated_covariance(
    solution: JointSolution, Kmn: TensorType, Knn: TensorType, full_cov: bool
) -> tf.Tensor:
    r"""
    Posterior covariances of the T rotated functions.

    .. math:: q_j = d_j k_{**} - d_j^2 \, k_*^\top U \, \mathrm{diag}(1 / (\lambda d_j + 1)) \,
              U^\top k_*
    """
    return covariance_in_eigenbasis(solution, into_eigenbasis(solution.U, Kmn), Knn, full_cov)


@check_shapes("Kmn: [N, batch..., M]", "return: [batch..., R, M]")
def into_eigenbasis(U: Eigenvectors, Kmn: TensorType) -> tf.Tensor:
    r"""A cross-covariance in the eigenbasis, :math:`U^\top k_*`."""
    if Kmn.shape.rank == 2:
        return to_eigenbasis(U, Kmn)  # einsum would copy U
    if isinstance(U, KroneckerVectors):
        rotated = to_eigenbasis(U, tf.reshape(Kmn, [Kmn.shape[0], -1]))
        return tf.linalg.matrix_transpose(rows_last(tf.reshape(rotated, tf.shape(Kmn))))
    return tf.einsum("nr,n...m->...rm", U, Kmn)


def covariance_in_eigenbasis(
    solution: JointSolution, V: tf.Tensor, Knn: TensorType, full_cov: bool
) -> tf.Tensor:
    """:func:`rotated_covariance` of cross-covariances V [batch..., R, M] in the eigenbasis."""
    d, shrinkage = solution.d, solution.seen_shrinkage
    if full_cov:
        scaled = V[..., None, :, :] * tf.transpose(tf.sqrt(shrinkage) * d)[:, :, None]
        explained = tf.matmul(scaled, scaled, transpose_a=True)
        return d[:, None, None] * Knn[..., None, :, :] - explained
    explained = tf.einsum("rj,...rm->...jm", shrinkage * tf.square(d), tf.square(V))
    return tf.maximum(d[:, None] * Knn[..., None, :] - explained, tf.zeros([], d.dtype))


@check_shapes(
    "q: [batch..., T, M, M] if full_cov",
    "q: [batch..., T, M] if not full_cov",
    "return: [batch..., T, M, M] if full_cov",
    "return: [batch..., T, M] if not full_cov",
)
def add_rotated_noise(q: TensorType, full_cov: bool) -> tf.Tensor:
    """Add the noise of rotated tasks: variance 1, where a point meets itself."""
    if full_cov:
        return tf.linalg.set_diag(q, tf.linalg.diag_part(q) + 1.0)
    return q + 1.0


@check_shapes(
    "q: [batch..., T, M, M] if full_cov",
    "q: [batch..., T, M] if not full_cov",
    "P: [T, T]",
    "return: [batch..., M, T, M, T] if full_cov and full_output_cov",
    "return: [batch..., T, M, M] if full_cov and (not full_output_cov)",
    "return: [batch..., M, T, T] if (not full_cov) and full_output_cov",
    "return: [batch..., M, T] if (not full_cov) and (not full_output_cov)",
)
def task_layout(q: TensorType, P: TensorType, full_cov: bool, full_output_cov: bool) -> tf.Tensor:
    r"""
    Covariance of the tasks in GPflow's layouts.

    .. math:: \mathrm{cov}(f_t(x), f_u(x')) = \sum_j P_{tj} P_{uj} \, q_j(x, x')
    """
    if full_cov and full_output_cov:
        return tf.einsum("tj,...jmn,uj->...mtnu", P, q, P)
    if full_cov:
        return tf.einsum("tj,...jmn->...tmn", tf.square(P), q)
    if full_output_cov:
        return tf.einsum("tj,...jm,uj->...mtu", P, q, P)
    return tf.einsum("tj,...jm->...mt", tf.square(P), q)


@check_shapes(
    "S: [batch..., T, T]",
    "cross: [batch..., T, T]",
    "prior: [batch..., T, T]",
    "mean: [batch..., T]",
    "Y: [batch..., T]",
    "return[0]: [batch..., T]",
    "return[1]: [batch..., T, T]",
)
def condition_on_known(
    S: TensorType, cross: TensorType, prior: TensorType, mean: TensorType, Y: TensorType
) -> MeanAndVariance:
    r"""
    Condition the T values at a point on those observations of it that are known.

    .. math::

        m + G_o S_{oo}^{-1} (y_o - m_o), \qquad V - G_o S_{oo}^{-1} G_o^\top

    :param S: Covariance of the observations, noise included.
    :param cross: G, covariance of what is asked for with the observations.
    :param prior: V, covariance of what is asked for.
    :param Y: NaN where nothing is known.
    """
    known = tf.cast(tf.math.is_finite(Y), S.dtype)
    both = known[..., :, None] * known[..., None, :]
    # Unknown tasks become unit variances apart from everything else, so that one size fits all.
    L = tf.linalg.cholesky(both * S + tf.linalg.diag(1.0 - known))
    residual = tf.where(known > 0, Y - mean, tf.zeros_like(mean))
    half = tf.linalg.triangular_solve(L, tf.linalg.matrix_transpose(cross * known[..., None, :]))
    white = tf.linalg.triangular_solve(L, residual[..., None])
    shift = tf.matmul(half, white, transpose_a=True)[..., 0]
    return mean + shift, prior - tf.matmul(half, half, transpose_a=True)
