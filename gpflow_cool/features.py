r"""
Features of a kernel: :math:`k(x, x') \approx f(x)^\top f(x')` with R numbers a row.

With inducing points Z, :math:`f(x) = L^{-1} k(Z, x)` where :math:`L L^\top = k(Z, Z)`: what the
kernel matrix has more than F F^T is what the rows know beyond the inducing points.
"""

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow import covariances
from gpflow.base import AnyNDArray, TensorType
from gpflow.inducing_variables import InducingVariables
from gpflow.kernels import Kernel
from scipy.cluster.vq import kmeans2

from . import checks
from .linalg import cholesky_with_jitter

DEFAULT_POINTS = 300
"""Inducing points where their number is not given, or as many as there are rows: a fit costs
N M^2, and beyond this few data sets gain."""

MAX_CANDIDATES = 10_000
"""Points are chosen among so many rows, drawn at random where there are more."""

METHODS = ("greedy", "k-means")


class InducingFeatures:
    """Features from inducing points; whatever GPflow calls inducing variables."""

    def __init__(self, kernel: Kernel, inducing_variable: InducingVariables) -> None:
        self.kernel = kernel
        self.inducing_variable = inducing_variable

    def cross(self, X: TensorType) -> tf.Tensor:
        """[M, batch..., N], covariance of inducing variables and rows: L times the features."""
        return covariances.Kuf(self.inducing_variable, self.kernel, X)

    def diagonal(self, X: TensorType) -> tf.Tensor:
        """[N], k(x, x)."""
        return self.kernel(X, full_cov=False)

    @check_shapes("return: [M, M]")
    def factor(self) -> tf.Tensor:
        """L, in float64. Its jitter is far below GPflow's: enough for points that coincide."""
        Kuu = covariances.Kuu(self.inducing_variable, self.kernel, jitter=0.0)
        jitter = max(1e-11, 100.0 * float(np.finfo(Kuu.dtype.as_numpy_dtype).eps))
        return cholesky_with_jitter(tf.cast(Kuu, tf.float64), jitter)


def choose_inducing_points(
    X: AnyNDArray,
    kernel: Kernel,
    num_points: int | None = None,
    *,
    method: str = "greedy",
    seed: int = 0,
) -> AnyNDArray:
    """
    Inducing points for :class:`gpflow_cool.SparseCoolMTGP`.

    Among more than 10,000 rows, as many are drawn at random first.

    :param X: The inputs, [N, D]; an array that is mapped into memory is fine.
    :param kernel: Its lengthscales decide which rows tell of each other: set them beforehand.
    :param num_points: By default 300, or N if that is less.
    :param method: "greedy" takes, one after the other, the row of which the others taken know least
        (largest conditional variance, Burt et al. 2020), and fewer than `num_points` where those
        know all; "k-means" takes centres of clusters.
    :param seed: Which rows are drawn, and where clusters start.
    :return: [M, D].
    """
    checks.option(method, "method", METHODS)
    num_points = num_points or DEFAULT_POINTS
    num_points = min(checks.positive_integer(num_points, "num_points"), len(X))
    rng = np.random.default_rng(checks.seed(seed))
    if len(X) > MAX_CANDIDATES:
        X = X[np.sort(rng.choice(len(X), max(MAX_CANDIDATES, num_points), replace=False))]
    X = np.asarray(checks.matrix(X, "X", checks.INPUTS_ARE_COLUMNS))
    if method == "greedy":
        return X[greedy_rows(kernel, X, num_points)]
    centres, _ = kmeans2(X.astype(np.float64), num_points, minit="++", seed=rng)
    return centres.astype(X.dtype)


def greedy_rows(kernel: Kernel, X: AnyNDArray, num_points: int) -> AnyNDArray:
    r"""
    Rows of largest conditional variance, one after the other: a pivoted Cholesky factorisation.

    .. math:: v \leftarrow v - c^2, \qquad c = (k(x_j, X) - C_{:,j}^\top C) / \sqrt{v_j}
    """
    points = tf.constant(X)
    covariance = tf.function(lambda x: kernel(x, points)[0], autograph=False)
    v = kernel(points, full_cov=False).numpy().astype(np.float64)
    negligible = 1e-10 * float(v.max())
    C = np.zeros((num_points, len(X)))
    chosen: list[int] = []
    for m in range(num_points):
        j = int(np.argmax(v))
        chosen.append(j)
        k = covariance(points[j : j + 1]).numpy()
        C[m] = (k - C[:m, j] @ C[:m]) / np.sqrt(max(v[j], np.finfo(v.dtype).tiny))
        v = np.maximum(v - np.square(C[m]), 0.0)
        v[j] = 0.0
        if v.max() <= negligible:
            break
    return np.array(chosen)
