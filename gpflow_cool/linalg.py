"""
Factorisations, for every layer above.

Jitter is added in one place, :func:`cholesky_with_jitter`. There are other guards: eigenvalues of a
covariance matrix are clipped at zero in :func:`eigh`, :func:`inverse_root` leaves out directions in
which it is zero to rounding, and where rounding alone leaves no Cholesky factor, it is added to the
diagonal (:func:`cholesky_beyond_rounding`).
"""

import functools
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType
from gpflow.config import default_jitter
from threadpoolctl import ThreadpoolController

INDEFINITE = (
    "The kernel matrix has negative eigenvalues that are not rounding errors: the kernel is not"
    " positive definite at these inputs. Negative eigenvalues count as zero, so that predictions"
    " are those of another kernel: choose a kernel that is positive definite, or inputs that"
    " are smaller."
)
"""Always the same text and place: Python shows it once, and not at every step of training."""


CACHED_ROWS = 16
"""Rows per column of a block in :func:`lapack_triangle`."""

MOST_ROUNDING = 1e-3
"""No more than this part of its variances is taken for rounding of a covariance matrix."""

SMALL_BLOCK = 1e-8
"""Relative to the largest eigenvalue; below, a graded matrix is decomposed again."""

SMALL_MATRIX = 300
"""Matrices up to this size get one thread."""


@functools.cache
def blas_libraries() -> ThreadpoolController:
    """Those of NumPy and SciPy, which are loaded by now."""
    return ThreadpoolController().select(user_api="blas")


def threads_for(size: int) -> AbstractContextManager[Any]:
    """
    One thread for linear algebra within the context, if matrices are small.

    NumPy and SciPy each bring a BLAS with threads of its own. Idle threads of one keep those of the
    other waiting, for several times as long as small matrices take if the machine is busy. The
    number belongs to the process: other threads than the main one leave it as it is.

    :param size: That of the largest matrix: rows or tasks.
    """
    if size > SMALL_MATRIX or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return blas_libraries().limit(limits=1)


def lapack_eigh(K: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """
    Eigenvalues and eigenvectors of a covariance matrix by LAPACK's divide and conquer.

    Warns where eigenvalues are negative beyond rounding.

    :raises LinAlgError: If the matrix has entries that are not finite.
    """
    if not np.isfinite(K).all():
        raise np.linalg.LinAlgError(
            "The kernel matrix has entries that are not finite: look at the kernel's parameters"
            " (gpflow.utilities.print_summary) and at the scale of X."
        )
    # NumPy's, not SciPy's: each brings a BLAS with threads of its own, and the idle ones of one
    # keep the other waiting for a tenth of a second.
    lam, U = np.linalg.eigh(K)
    if lam[0] < -np.sqrt(np.finfo(lam.dtype).eps) * lam[-1]:
        warnings.warn(INDEFINITE, stacklevel=1)
    return lam, U


def graded_eigh(S: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    Eigendecomposition of a covariance matrix whose rows differ by orders of magnitude.

    Let :math:`S = D C D` with D diagonal and C far from singular, as :math:`F^\top F` is where the
    features F have columns of very different lengths. LAPACK's error is some
    :math:`\epsilon \lambda_{\max}`, which swallows small eigenvalues. Their eigenvectors V are
    orthogonal to the others up to :math:`\epsilon`. So :math:`V^\top S V` has the small eigenvalues
    up to :math:`\epsilon^2 \lambda_{\max}`, and is decomposed again, until none is small.
    """
    lam, U = lapack_eigh(S)
    small = int(np.searchsorted(lam, SMALL_BLOCK * lam[-1]))
    if lam[-1] <= 0.0 or not small:
        return lam, U
    V = U[:, :small]
    block = V.T @ (S @ V)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # negative eigenvalues there are rounding
        within, P = graded_eigh(0.5 * (block + block.T))
    return np.concatenate([within, lam[small:]]), np.hstack([V @ P, U[:, small:]])


def has_gpu() -> bool:
    """Whether TensorFlow would place work on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


def prefers_device(size: int | None, dtype: tf.DType) -> bool:
    """
    Whether TensorFlow's eigendecomposition on a GPU is faster than LAPACK's, copies included.

    One timed trial decides for each size and dtype. A GPU is preferred where the size may change.
    """
    return has_gpu() and (size is None or device_is_faster(size, dtype))


@functools.cache
def device_is_faster(size: int, dtype: tf.DType) -> bool:
    """Time both eigendecompositions of one random covariance matrix; the device's once before."""
    F = np.random.default_rng(0).normal(size=[size, size])
    with tf.init_scope():  # also where a graph is being traced
        K = tf.constant(F @ F.T / size, dtype)
        try:
            on_device = min(seconds(lambda: tf.linalg.eigh(K)[0].numpy()) for _ in range(2))
        except tf.errors.OpError:
            return False
        return on_device < seconds(lambda: [tf.constant(A) for A in lapack_eigh(K.numpy())])


def seconds(function: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def device_eigh(K: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """TensorFlow's eigendecomposition; outside of graphs LAPACK's, where the former fails."""
    if not tf.executing_eagerly():
        return tf.linalg.eigh(K)
    with suppress(tf.errors.OpError):
        lam, U = tf.linalg.eigh(K)
        if np.isfinite(lam).all():
            return lam, U
    lam, U = lapack_eigh(K.numpy())
    return tf.constant(lam), tf.constant(U)


def uses_lapack(K: TensorType, python_callback: bool) -> bool:
    """Whether :func:`eigh` calls LAPACK, and not TensorFlow."""
    may_call_python = python_callback or tf.executing_eagerly()
    return may_call_python and not prefers_device(K.shape[0], K.dtype)


@check_shapes("K: [N, N]", "return[0]: [N]", "return[1]: [N, N]")
def eigh(
    K: TensorType, *, python_callback: bool = False, is_graded: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    Eigendecomposition of a covariance matrix, its eigenvalues clipped at zero.

    .. math:: K = U \, \mathrm{diag}(\lambda) \, U^\top

    On a CPU this is LAPACK, two to four times faster than TensorFlow's own; where there is a GPU,
    see :func:`prefers_device`. A graph reaches LAPACK through a callback into Python, which cannot
    be exported, so that it must be asked for.

    The derivative of an eigendecomposition divides by differences of eigenvalues, which covariance
    matrices do not keep apart. It is NaN here, so that a mistake is noticed: the objectives have
    gradients of their own, and predictions are differentiable with respect to ``Xnew``.

    :param python_callback: Whether a graph may call Python.
    :param is_graded: Whether LAPACK is called as in :func:`graded_eigh`.
    """
    K = tf.convert_to_tensor(K)
    use_lapack = uses_lapack(K, python_callback)
    by_lapack = graded_eigh if is_graded else lapack_eigh

    @tf.custom_gradient
    def decompose(K: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], object]:
        if use_lapack:
            lam, U = tf.numpy_function(by_lapack, [K], [K.dtype, K.dtype])
            lam, U = tf.ensure_shape(lam, K.shape[:1]), tf.ensure_shape(U, K.shape)
        else:
            lam, U = device_eigh(K)

        def no_gradient(_lam: tf.Tensor, _U: tf.Tensor) -> tf.Tensor:
            return tf.fill(tf.shape(K), tf.constant(np.nan, K.dtype))

        return (tf.maximum(lam, tf.zeros([], K.dtype)), U), no_gradient

    return decompose(K)


@check_shapes("S: [M, M]", "return: [M, M]")
def inverse_root(S: TensorType, *, python_callback: bool = False) -> tf.Tensor:
    r"""
    W with :math:`W W^\top = S^{-1}`, but for directions in which S is zero to rounding.

    .. math:: S = V \, \mathrm{diag}(\lambda) V^\top, \qquad
              W = V \, \mathrm{diag}\Bigl(\frac{\lambda}{\lambda^2 + \delta^2}\Bigr)^{1/2}, \qquad
              \delta = \epsilon \lambda_{\max}

    In float64. A Cholesky factor would need a jitter, which changes all directions, and one of
    1e-11 for gradients without noise. Here rounding errors of a direction stay in its column.

    The gradient is that of a function of W W^T. With :math:`\partial_W` for that of W,

    .. math:: \partial_S = -\tfrac{1}{2} W (W^\top \partial_W) W^\top

    :param python_callback: As for :func:`eigh`.
    """
    S = tf.convert_to_tensor(S)
    precision = float(np.finfo(S.dtype.as_numpy_dtype).eps)

    @tf.custom_gradient
    def root(S: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        lam, V = eigh(tf.cast(S, tf.float64), python_callback=python_callback)
        jitter = tf.maximum(precision * tf.reduce_max(lam), 1e-150)  # S may be zero
        W = V * tf.sqrt(lam / (tf.square(lam) + tf.square(jitter)))

        def gradient(by_W: tf.Tensor) -> tf.Tensor:
            return tf.cast(inverse_root_gradient(W, tf.matmul(W, by_W, transpose_a=True)), S.dtype)

        return W, gradient

    return root(S)


@check_shapes("W: [M, M]", "inside: [M, M]", "return: [M, M]")
def inverse_root_gradient(W: TensorType, inside: TensorType) -> tf.Tensor:
    r"""
    Gradient with respect to S of a function of :math:`W W^\top = S^{-1}`.

    :param inside: :math:`W^\top \partial_W`, symmetric but for rounding.
    """
    symmetric = 0.5 * (inside + tf.transpose(inside))
    return -0.5 * tf.matmul(tf.matmul(W, symmetric), W, transpose_b=True)


def lapack_triangle(A: AnyNDArray) -> AnyNDArray:
    """R of A = Q R by LAPACK, first of blocks of rows that fit into the cache, then of their Rs."""
    num_columns = A.shape[1]
    size = CACHED_ROWS * num_columns
    end = len(A) // size * size
    if end > size:
        blocks = np.asarray(np.linalg.qr(A[:end].reshape(-1, size, num_columns), mode="r"))
        A = np.concatenate([blocks.reshape(-1, num_columns), A[end:]])
    return np.asarray(np.linalg.qr(A, mode="r"))


@check_shapes("A: [N, P]", "return: [rows, P]")
def triangle(A: TensorType, *, python_callback: bool = False) -> tf.Tensor:
    """
    R of A = Q R, without a gradient, so that A^T A = R^T R; the signs of its rows are arbitrary.

    LAPACK takes little longer than the product A^T A, and TensorFlow ten times as long.

    :param python_callback: As for :func:`eigh`.
    """
    A = tf.stop_gradient(tf.convert_to_tensor(A))
    if (python_callback or tf.executing_eagerly()) and not has_gpu():
        return tf.ensure_shape(tf.numpy_function(lapack_triangle, [A], A.dtype), [None, A.shape[1]])
    return tf.linalg.qr(A).r


@check_shapes("S: [batch..., M, M]", "prior: [batch...]", "return: [batch..., M, M]")
def cholesky_with_jitter(
    S: TensorType, relative: TensorType | None = None, *, prior: TensorType | None = None
) -> tf.Tensor:
    """
    Cholesky factor of a covariance matrix that may be singular.

    :param relative: What is added to the diagonal, relative to its mean; by default GPflow's
        jitter.
    :param prior: Variances before data were seen, if S is a difference from them: the rounding
        error of S is then relative to these, and may make it indefinite.
    """
    diagonal = tf.linalg.diag_part(S)
    relative = default_jitter() if relative is None else relative
    limits = np.finfo(S.dtype.as_numpy_dtype)
    jitter = tf.cast(relative, S.dtype) * tf.reduce_mean(diagonal, axis=-1, keepdims=True)
    jitter = tf.maximum(jitter, limits.tiny)  # S may be zero
    if prior is None:
        return tf.linalg.cholesky(tf.linalg.set_diag(S, diagonal + jitter))
    rounding = 4.0 * limits.eps * tf.cast(tf.shape(S)[-1], S.dtype)
    rounding = rounding * tf.cast(prior, S.dtype)[..., None]
    least = tf.maximum(jitter, rounding)
    more = 1e3 * least  # priors that are far apart round more
    return first_cholesky(S, *(diagonal + part for part in (least, more, 1e6 * rounding + more)))


def first_cholesky(S: TensorType, *diagonals: TensorType) -> tf.Tensor:
    """
    The Cholesky factor of S with another diagonal: for each matrix the first one that gives a
    factor, else the last. In a graph this takes two factorisations, as the gradient must not see
    one that failed.
    """
    L = tf.linalg.cholesky(tf.linalg.set_diag(S, diagonals[0]))
    found = tf.reduce_all(tf.math.is_finite(L), axis=[-2, -1])
    if tf.executing_eagerly() and bool(tf.reduce_all(found)):
        return L
    chosen = tf.where(found[..., None], diagonals[0], diagonals[1])
    if len(diagonals) == 2:
        return tf.linalg.cholesky(tf.linalg.set_diag(S, chosen))
    return tf.cond(
        tf.reduce_all(found),
        lambda: tf.linalg.cholesky(tf.linalg.set_diag(S, chosen)),
        lambda: first_cholesky(S, chosen, *diagonals[2:]),
    )


@check_shapes("S: [batch..., M, M]", "prior: [batch..., M]", "return: [batch..., M, M]")
def cholesky_beyond_rounding(S: TensorType, prior: TensorType | None = None) -> tf.Tensor:
    """
    Cholesky factor of a covariance matrix; of one with a little more on its diagonal where there is
    none, since rounding has its smallest eigenvalue.

    :param prior: Variances before data were seen, if S is a difference from them.
    """
    S = tf.convert_to_tensor(S)
    limits, diagonal = np.finfo(S.dtype.as_numpy_dtype), tf.linalg.diag_part(S)
    rounding = 1e4 * limits.eps * tf.cast(tf.shape(S)[-1], S.dtype)
    rounding = tf.minimum(rounding, tf.cast(MOST_ROUNDING, S.dtype))
    size = diagonal if prior is None else tf.maximum(diagonal, prior)
    return first_cholesky(S, diagonal, diagonal + rounding * size)


@check_shapes("S: [batch..., T, T]", "return: [batch..., T, T]")
def correlation_from_covariance(S: TensorType) -> tf.Tensor:
    """Correlations of a covariance; a task without variance has correlation 1 with itself only."""
    deviation = tf.sqrt(tf.linalg.diag_part(S))
    R = tf.math.divide_no_nan(S, deviation[..., :, None] * deviation[..., None, :])
    return tf.linalg.set_diag(R, tf.ones_like(deviation))
