r"""
Features of a kernel: :math:`k(x, x') \approx f(x)^\top f(x')` with R numbers per row.

Linear and constant kernels and sums of them have features for which this is exact. With inducing
points Z, :math:`f(x) = W^\top k(Z, x)` where :math:`W W^\top = k(Z, Z)^{-1}`; the difference
between the kernel matrix and F F^T is the covariance of the rows given the inducing points.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow import covariances
from gpflow.base import AnyNDArray, InputData, TensorType
from gpflow.inducing_variables import InducingPoints, InducingVariables
from gpflow.kernels import Constant, Kernel, Linear, Sum
from scipy.cluster.vq import kmeans2

from .. import checks
from ..graphs import compiled
from ..kernels import check_columns, kernel_matrix, origin_of, shifted_kernel
from ..linalg import inverse_root
from . import DEFAULT_POINTS

MAX_CANDIDATES = 10_000
"""Points are chosen among this many rows, drawn at random where there are more."""

METHODS = ("greedy", "k-means")


class Features(ABC):
    """Features of rows, f(x) = W^T cross(x)."""

    @property
    @abstractmethod
    def num_features(self) -> int:
        """R."""

    points: Callable[[], tf.Tensor] | None = None
    """Gives inducing points [R, D], where there are some."""

    @abstractmethod
    def cross(self, X: TensorType) -> tf.Tensor:
        """[R, batch..., N], covariance of inducing variables and rows."""

    @abstractmethod
    def diagonal(self, X: TensorType) -> tf.Tensor:
        """[N], k(x, x)."""


class InducingFeatures(Features):
    """Features from inducing points, or other inducing variables of GPflow."""

    def __init__(self, kernel: Kernel, inducing_variable: InducingVariables) -> None:
        self.kernel = kernel
        self.inducing_variable = inducing_variable

    @property
    def num_features(self) -> int:
        return int(self.inducing_variable.num_inducing)

    def cross(self, X: TensorType) -> tf.Tensor:
        if type(self.inducing_variable) is InducingPoints:
            return kernel_matrix(self.kernel, tf.convert_to_tensor(self.inducing_variable.Z), X)
        return covariances.Kuf(self.inducing_variable, self.kernel, X)

    def points(self) -> tf.Tensor:
        """
        The inducing points, [R, D].

        :raises ValueError: If there are other inducing variables.
        """
        if type(self.inducing_variable) is not InducingPoints:
            raise ValueError(
                "Functions can be drawn where there are InducingPoints, and these are"
                f" {type(self.inducing_variable).__name__}: predict_f_samples draws at given"
                " points."
            )
        return tf.convert_to_tensor(self.inducing_variable.Z)

    def diagonal(self, X: TensorType) -> tf.Tensor:
        return self.kernel(X, full_cov=False)

    @check_shapes("return: [M, M]")
    def variance(self) -> tf.Tensor:
        """Covariance of the inducing variables."""
        if type(self.inducing_variable) is InducingPoints:
            return kernel_matrix(self.kernel, tf.convert_to_tensor(self.inducing_variable.Z))
        return covariances.Kuu(self.inducing_variable, self.kernel, jitter=0.0)

    @check_shapes("return: [M, M]")
    def whitening(self, *, python_callback: bool = False) -> tf.Tensor:
        """W, in float64: a root of the inverse of :meth:`variance`."""
        return inverse_root(self.variance(), python_callback=python_callback)


class LinearFeatures(Features):
    r"""
    Features of a linear kernel, of a constant, or of a sum of them: exact.

    .. math:: k(x, x') = \sum_d v_d x_d x'_d + c, \qquad
              f(x) = (\sqrt{v_1} x_1, \ldots, \sqrt{v_D} x_D, \sqrt{c})
    """

    def __init__(self, kernel: Kernel, num_inputs: int) -> None:
        self.parts = linear_parts(kernel)
        self.num_inputs = num_inputs

    @property
    def num_features(self) -> int:
        return sum(num_columns(part, self.num_inputs) for part in self.parts or ())

    @check_shapes("X: [batch..., N, D]", "return: [batch..., N, R]")
    def __call__(self, X: TensorType) -> tf.Tensor:
        """The features of rows."""
        return tf.concat([part_features(part, X) for part in self.parts or ()], axis=-1)

    @check_shapes("X: [batch..., N, D]", "return: [R, batch..., N]")
    def cross(self, X: TensorType) -> tf.Tensor:
        """The features themselves: W is the identity."""
        F = self(X)
        rank = tf.rank(F)
        return tf.transpose(F, tf.concat([[rank - 1], tf.range(rank - 1)], axis=0))

    def diagonal(self, X: TensorType) -> tf.Tensor:
        return tf.reduce_sum(tf.square(self(X)), axis=-1)


def linear_parts(kernel: Kernel) -> list[Kernel] | None:
    """The linear and constant kernels whose sum a kernel is; None if it is no such sum."""
    if type(kernel) in (Linear, Constant):  # Polynomial is derived from Linear
        return [kernel]
    if type(kernel) is not Sum:
        return None
    parts = [linear_parts(part) for part in kernel.kernels]
    return None if None in parts else [leaf for part in parts for leaf in part or ()]


def num_columns(kernel: Kernel, num_inputs: int) -> int:
    """Number of features of a linear or a constant kernel."""
    if isinstance(kernel, Constant):
        return 1
    active = kernel.active_dims
    return len(range(num_inputs)[active]) if isinstance(active, slice) else len(active)


def part_features(kernel: Kernel, X: TensorType) -> tf.Tensor:
    """[batch..., N, R], features of a linear or a constant kernel."""
    deviation = tf.sqrt(tf.convert_to_tensor(kernel.variance))
    columns = X[..., :1] * 0.0 + 1.0 if isinstance(kernel, Constant) else kernel.slice(X, None)[0]
    return deviation * columns


def linear_features(kernel: Kernel, X: TensorType) -> LinearFeatures | None:
    """
    The features of a kernel that is linear, if they are fewer than the rows of X.

    Where the number of rows may change, it counts as larger.
    """
    if linear_parts(kernel) is None:
        return None
    features = LinearFeatures(kernel, int(X.shape[1]))
    fewer = X.shape[0] is None or features.num_features < X.shape[0]
    return features if fewer else None


def constant_left(F: AnyNDArray) -> float:
    r"""
    :math:`|1 - F F^+ 1| / |1|`, the part of a constant that is no combination of features.

    :param F: [N, R], features of the rows.
    """
    norms = np.linalg.norm(F, axis=0)
    basis = F / np.where(norms > 0, norms, 1.0)
    ones = np.ones(len(F))
    left = ones - basis @ np.linalg.lstsq(basis, ones, rcond=None)[0]
    return float(np.linalg.norm(left) / np.sqrt(len(F)))


def choose_inducing_points(
    X: InputData,
    kernel: Kernel,
    num_points: int | None = None,
    *,
    method: str = "greedy",
    seed: int = 0,
) -> AnyNDArray:
    """
    Inducing points for :class:`gpflow_cool.SparseCoolMTGP`.

    Among more than 10,000 rows, as many are drawn at random first.

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import choose_inducing_points
    >>> X = np.linspace(0, 1, 101)[:, None]
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.2)
    >>> np.sort(choose_inducing_points(X, kernel, 3), axis=0)[:, 0].round(2).tolist()
    [0.0, 0.5, 1.0]

    :param X: The inputs, [N, D]; an array that is mapped into memory is fine.
    :param kernel: Its lengthscales decide which rows are informative: set them beforehand.
    :param num_points: By default 300, or N if that is less.
    :param method: "greedy" takes, one after the other, the row with the largest variance given the
        rows taken before (Burt et al. 2020), and stops early once no variance is left; "k-means"
        takes centres of clusters, or all different rows where these are no more than the points.
    :param seed: Decides which rows are drawn, and where clusters start.
    :return: [M, D].
    """
    checks.option(method, "method", METHODS)
    checks.kernel(kernel)
    num_points = DEFAULT_POINTS if num_points is None else num_points
    num_points = checks.positive_integer(num_points, "num_points")
    rng = np.random.default_rng(checks.seed(seed))
    X = candidate_rows(X, num_points, rng)
    check_columns(kernel, X.shape[1])
    if method == "greedy":
        return X[greedy_rows(kernel, X, min(num_points, len(X)))]
    different = np.unique(X + 0.0, axis=0)  # -0.0 + 0.0 is 0.0
    if len(different) <= num_points:
        return different
    origin = X.mean(axis=0, dtype=np.float64)
    centres, _ = kmeans2(X - origin, num_points, minit="++", seed=rng)
    return (centres + origin).astype(X.dtype)


def candidate_rows(X: InputData, num_points: int, rng: np.random.Generator) -> AnyNDArray:
    """
    The rows among which points are chosen, cast and checked; drawn at random where they are many.

    Of an array, which may be mapped from a file, no other rows are read.
    """
    if not isinstance(X, np.ndarray):
        X = np.asarray(checks.matrix(X, "X", checks.INPUTS_ARE_COLUMNS))
    count = max(MAX_CANDIDATES, num_points)
    if X.ndim == 2 and len(X) > count:
        X = X[np.sort(rng.choice(len(X), count, replace=False))]
    return np.asarray(checks.matrix(X, "X", checks.INPUTS_ARE_COLUMNS))


def greedy_rows(kernel: Kernel, X: AnyNDArray, num_points: int) -> AnyNDArray:
    r"""
    Rows of largest conditional variance, one after the other: a pivoted Cholesky factorisation.

    .. math:: v \leftarrow v - c^2, \qquad c = (k(x_j, X) - C_{:,j}^\top C) / \sqrt{v_j}
    """
    points = tf.constant(X)
    origin = origin_of(points)
    covariance = compiled(lambda x: shifted_kernel(kernel, x, points, origin=origin)[0], points[:1])
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
