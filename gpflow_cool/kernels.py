"""
The Laplacian kernel, whether a kernel fits its columns, and kernel matrices of inputs that are far
from zero, or far apart compared with the lengthscales.

GPflow computes squared distances as x^2 - 2 x x' + x'^2. At Unix times, or at any inputs that are
large compared with their differences, nothing is left of that but rounding. A kernel that depends
on differences of inputs alone is therefore given inputs relative to an origin among the data. The
rounding that is left is no distance: equal rows have none, see :func:`squared_distances`.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow import Parameter
from gpflow.base import TensorType
from gpflow.kernels import (
    Combination,
    IsotropicStationary,
    Kernel,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Static,
    Stationary,
    Sum,
)
from gpflow.utilities.ops import broadcasting_elementwise

Gradients = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


class Laplacian(Stationary):
    r"""
    A kernel for tables: functions with corners, in which the inputs act one by one.

    .. math:: k(x, x') = v \exp \Big( - \sum_d \frac{|x_d - x'_d|}{l_d} \Big)

    It is the product of one Matern 1/2 kernel per input. GPflow's `Matern12` over several inputs is
    another kernel: its distance is the root of a sum of squares. This one is the limit of forests
    of random trees whose cuts fall anywhere (the Mondrian kernel), and does well where forests do.
    On a grid it is a product over the axes.

    >>> import numpy as np
    >>> from gpflow_cool import Laplacian
    >>> kernel = Laplacian(variance=2.0, lengthscales=[1.0, 4.0])
    >>> kernel(np.array([[0.0, 0.0]]), np.array([[1.0, 2.0]])).numpy().round(4).tolist()
    [[0.4463]]
    """

    @inherit_check_shapes
    def K(self, X: TensorType, X2: TensorType | None = None) -> tf.Tensor:
        rates = 1.0 / self.lengthscales
        if self.ard:
            return self.variance * tf.exp(-city_block_distances(X, X2, rates))
        # One gradient for all columns: it is that of a factor.
        ones = tf.ones([tf.shape(X)[-1]], self.lengthscales.dtype)
        return self.variance * tf.exp(-rates * city_block_distances(X, X2, ones))


@check_shapes(
    "X: [batch..., N, D]",
    "X2: [batch2..., N2, D]",
    "rates: [D]",
    "return: [batch..., N, batch2..., N2] if X2 is not None",
    "return: [batch..., N, N] if X2 is None",
)
def city_block_distances(X: TensorType, X2: TensorType | None, rates: TensorType) -> tf.Tensor:
    r""":math:`\sum_d \rho_d |x_d - x'_d|`, without an array of N x N x D numbers."""
    X = tf.convert_to_tensor(X)
    if X2 is None and X.shape.rank > 2:
        return tf.map_fn(lambda part: city_block_distances(part, None, rates), X)
    X2 = X if X2 is None else tf.convert_to_tensor(X2)
    num_columns = tf.shape(X)[-1]
    rows, rows2 = (tf.reshape(part, [-1, num_columns]) for part in (X, X2))
    distances = weighted_distances(rows, rows2, tf.convert_to_tensor(rates))
    return tf.reshape(distances, tf.concat([tf.shape(X)[:-1], tf.shape(X2)[:-1]], axis=0))


@tf.autograph.experimental.do_not_convert  # it would lose the gradient
@tf.custom_gradient
@check_shapes("X: [N, D]", "Z: [M, D]", "rates: [D]")
def weighted_distances(
    X: TensorType, Z: TensorType, rates: TensorType
) -> tuple[tf.Tensor, Callable[[tf.Tensor], Gradients]]:
    r"""
    :math:`S_{nm} = \sum_d \rho_d |x_{nd} - z_{md}|`, one column after the other, with its gradient:

    .. math:: \frac{\partial J}{\partial \rho_d} = \sum_{nm} G_{nm} |x_{nd} - z_{md}|, \qquad
              \frac{\partial J}{\partial x_{nd}} = \rho_d \sum_m G_{nm} \, s_{nmd}, \qquad
              \frac{\partial J}{\partial z_{md}} = - \rho_d \sum_n G_{nm} \, s_{nmd}

    where :math:`G = \partial J / \partial S` and s is the sign of :math:`x_{nd} - z_{md}`.
    TensorFlow would keep D matrices of N x M numbers for it.
    """
    columns = tf.transpose(X), tf.transpose(Z)

    def difference(x: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        return x[:, None] - z[None, :]

    def add(total: tf.Tensor, column: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return total + tf.abs(difference(*column))

    def gradient(G: tf.Tensor) -> Gradients:
        def each(of_column: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> tf.Tensor:
            step = lambda column: of_column(*column)  # noqa: E731
            return tf.map_fn(step, columns, fn_output_signature=X.dtype, parallel_iterations=1)

        by_rates = each(lambda x, z: tf.reduce_sum(G * tf.abs(difference(x, z))))
        by_X = each(lambda x, z: tf.reduce_sum(G * tf.sign(difference(x, z)), axis=1))
        by_Z = each(lambda x, z: tf.reduce_sum(G * tf.sign(difference(x, z)), axis=0))
        return tf.transpose(by_X) * rates, -tf.transpose(by_Z) * rates, by_rates

    none = tf.zeros([tf.shape(X)[0], tf.shape(Z)[0]], X.dtype)
    scaled = tuple(rates[:, None] * column for column in columns)
    return tf.foldl(add, scaled, none, parallel_iterations=1), gradient


# Whether a kernel fits the columns of X -----------------------------------------------------------

ONE_PER_COLUMN = ("lengthscales", "variance", "weight_variances")
"""Parameters of kernels that may have one entry per column."""


def check_columns(kernel: Kernel, num_columns: int) -> None:
    """Raise unless the kernel and every kernel inside sums and products fit the columns of X."""
    if isinstance(kernel, Combination):
        for part in kernel.kernels:
            check_columns(part, num_columns)
        return
    name, active = type(kernel).__name__, kernel.active_dims
    dims = range(num_columns)[active] if isinstance(active, slice) else [int(d) for d in active]
    if not dims or max(dims) >= num_columns or min(dims) < 0:
        raise ValueError(
            f"{name} has active_dims={active}, but X has {num_columns} columns: they"
            f" are counted from 0 to {num_columns - 1}."
        )
    check_definite(kernel, len(dims))
    for attribute in ONE_PER_COLUMN:
        size = np.size(getattr(kernel, attribute, 1.0))
        if size not in (1, len(dims)):
            raise ValueError(
                f"{name} has {size} {attribute}, but it sees {len(dims)} columns of X: pass one"
                " number, or one per column."
            )


def check_definite(kernel: Kernel, num_columns: int) -> None:
    r"""
    Raise if the kernel is certainly not positive definite.

    GPflow's `Periodic` adds absolute sines of several columns. Matern 3/2 of a sum of distances,
    with a and b in units of the lengthscale, is :math:`(1 + a + b) e^{-a - b} = (1 + a) e^{-a}
    e^{-b} + e^{-a} (1 + b) e^{-b} - e^{-a} e^{-b}`. Its spectral density is proportional to
    :math:`h(v) h(w) (2 h(v) + 2 h(w) - 1)` with :math:`h(w) = 1 / (1 + w^2)`, which is negative for
    high frequencies; likewise for Matern 5/2.
    """
    base = kernel.base_kernel if isinstance(kernel, Periodic) else None
    if num_columns > 1 and type(base) in (Matern32, Matern52):
        raise ValueError(
            f"Periodic({type(base).__name__}()) of {num_columns} columns is not positive definite,"
            " so that it is no kernel of a Gaussian process. Use"
            " Periodic(SquaredExponential()), or a product of periodic kernels of one column each,"
            " with active_dims=[0], active_dims=[1], ..."
        )


# Kernel matrices ----------------------------------------------------------------------------------

METHODS_OF_INPUTS = (
    "__call__",
    "slice",
    "K",
    "K_diag",
    "scale",
    "scaled_squared_euclid_dist",
    "scaled_difference_matrix",
)
"""Methods of such kernels that see inputs; all others see differences or distances."""

LARGEST_ERROR = 1e-8
"""
Of a squared distance in units of the lengthscales, or relative to it where that is larger: with
1e-6, covariances of rows in two groups far apart are wrong by 4e-8, with 1e-4 they are indefinite.
"""

LARGEST_DISTANCE = 1e-8
"""The largest squared distance, of the largest number: kernels of it are still numbers."""


def is_translation_invariant(kernel: Kernel) -> bool:
    """
    Whether k(x + c, x' + c) = k(x, x') for certain.

    That is so for a stationary or a static kernel, and for a periodic one with such a base, unless
    a class outside GPflow changes what is done with the inputs.
    """
    if type(kernel) is Laplacian:
        return True
    methods = (getattr(type(kernel), name, None) for name in METHODS_OF_INPUTS)
    if any(method and method.__module__.split(".")[0] != "gpflow" for method in methods):
        return False
    if isinstance(kernel, Periodic):
        return is_translation_invariant(kernel.base_kernel)
    return isinstance(kernel, Stationary | Static)


@check_shapes("X: [N, D]", "return: [D]")
def origin_of(X: TensorType) -> tf.Tensor:
    """The mean of the rows, as a constant: no gradient needs it."""
    return tf.stop_gradient(tf.reduce_mean(X, axis=0))


@check_shapes(
    "X: [batch..., N, D]",
    "X2: [batch2..., N2, D]",
    "origin: [D]",
    "return: [batch..., N, batch2..., N2] if full_cov and (X2 is not None)",
    "return: [batch..., N, N] if full_cov and (X2 is None)",
    "return: [batch..., N] if not full_cov",
)
def shifted_kernel(
    kernel: Kernel,
    X: TensorType,
    X2: TensorType | None = None,
    *,
    full_cov: bool = True,
    origin: TensorType,
) -> tf.Tensor:
    """
    `kernel(X, X2, full_cov=full_cov)`, where terms and factors that are translation invariant see
    inputs relative to the origin, and those of the distance see no rounding as a distance.
    """
    if type(kernel) in (Sum, Product):
        parts = [
            shifted_kernel(part, X, X2, full_cov=full_cov, origin=origin) for part in kernel.kernels
        ]
        return functools.reduce(tf.add if type(kernel) is Sum else tf.multiply, parts)
    if is_translation_invariant(kernel):
        X, X2 = X - origin, None if X2 is None else X2 - origin
        if full_cov and isinstance(kernel, IsotropicStationary):
            X, X2 = (kernel.scale(part) for part in kernel.slice(X, X2))
            return covariance_at(kernel, squared_distances(X, X2))
    return kernel(X, X2, full_cov=full_cov)


@check_shapes(
    "X: [batch..., N, D]",
    "X2: [batch2..., N2, D]",
    "return: [batch..., N, batch2..., N2] if X2 is not None",
    "return: [batch..., N, N] if X2 is None",
)
def squared_distances(X: TensorType, X2: TensorType | None = None) -> tf.Tensor:
    r"""
    :math:`|x - x'|^2`, where what may be rounding alone is 0.

    With :math:`s = |x|^2 + |x'|^2`, the difference :math:`s - 2 x^T x'` has an error of up to
    :math:`(D + 3) \epsilon s`. Rows that are not farther apart than that count as equal. Where the
    error may exceed `LARGEST_ERROR`, as for rows in two groups that are thousands of lengthscales
    apart, or where s is too large for a number, their entries are subtracted one by one. It is
    computed in float64: in float32, rows a thousandth of the range apart would count as equal.
    """
    dtype = tf.convert_to_tensor(X).dtype
    X = tf.cast(X, tf.float64)
    norms = tf.reduce_sum(tf.square(X), axis=-1)
    if X2 is None:
        sums = norms[..., :, None] + norms[..., None, :]
        r2 = sums - tf.matmul(2.0 * X, X, transpose_b=True)
    else:
        X2 = tf.cast(X2, tf.float64)
        norms2 = tf.reduce_sum(tf.square(X2), axis=-1)
        sums = broadcasting_elementwise(tf.add, norms, norms2)
        r2 = sums - tf.tensordot(2.0 * X, X2, [[-1], [-1]])
    epsilon = (tf.cast(tf.shape(X)[-1], tf.float64) + 3.0) * np.finfo(np.float64).eps
    rounding, largest = tf.stop_gradient(epsilon * sums), LARGEST_DISTANCE * dtype.max
    lost = (rounding >= LARGEST_ERROR * tf.maximum(r2, 1.0)) | (sums > largest)
    r2 = tf.where(r2 <= rounding, tf.zeros_like(r2), r2)
    places = tf.cast(tf.where(lost), tf.int32)  # nowhere, as a rule; Jacobians need int32
    direct = tf.reduce_sum(tf.square(differences_at(places, X, X2)), axis=-1)
    r2 = tf.tensor_scatter_nd_update(r2, places, tf.minimum(direct, largest))
    return tf.cast(r2, dtype)


@check_shapes("places: [P, rank]", "return: [P, D]")
def differences_at(places: TensorType, X: TensorType, X2: TensorType | None) -> tf.Tensor:
    """
    x - x' for some places of a matrix of distances.

    :param X: [batch..., N, D].
    :param X2: [batch2..., N2, D], None for X itself.
    """
    if X2 is None:
        second = tf.concat([places[:, :-2], places[:, -1:]], axis=1)
        return rows_at(places[:, :-1], X) - rows_at(second, X)
    axes = tf.rank(X) - 1
    return rows_at(places[:, :axes], X) - rows_at(places[:, axes:], X2)


@check_shapes("places: [P, axes]", "return: [P, D]")
def rows_at(places: TensorType, X: TensorType) -> tf.Tensor:
    """
    tf.gather_nd(X, places), with one more axis: the gradient by a single one would be
    IndexedSlices, which forward differentiation does not know.
    """
    return tf.gather_nd(X[None], tf.pad(places, [[0, 0], [1, 0]]))


@check_shapes("r2: [any...]", "return: [any...]")
def covariance_at(kernel: IsotropicStationary, r2: TensorType) -> tf.Tensor:
    r"""
    The covariance at squared distances in units of the lengthscales.

    A rational quadratic kernel is :math:`\sigma^2 \exp(-\alpha \log(1 + r^2 / 2 \alpha))`. GPflow
    raises the bracket to a power. That multiplies its rounding by :math:`\alpha`, and training may
    take :math:`\alpha` to a million.
    """
    if type(kernel) is RationalQuadratic:
        alpha = tf.convert_to_tensor(kernel.alpha)
        alpha = tf.maximum(alpha, np.finfo(alpha.dtype.as_numpy_dtype).eps ** 2)  # may be 0
        return kernel.variance * tf.exp(-alpha * tf.math.log1p(0.5 * r2 / alpha))
    return kernel.K_r2(r2)


@check_shapes(
    "X: [N, D]",
    "X2: [batch..., M, D]",
    "return: [N, batch..., M] if X2 is not None",
    "return: [N, N] if X2 is None",
)
def kernel_matrix(kernel: Kernel, X: TensorType, X2: TensorType | None = None) -> tf.Tensor:
    """k(X, X), or k(X, X2), relative to the mean of X."""
    return shifted_kernel(kernel, X, X2, origin=origin_of(X))


def entry_names(
    kernel: Kernel, parameter: Parameter, input_names: Sequence[str] | None
) -> list[str] | None:
    """
    Names of the inputs to which the entries of a kernel's parameter belong; None where the inputs
    have no names, or the parameter has not one entry per input that its kernel sees.

    >>> from gpflow.kernels import SquaredExponential
    >>> kernel = SquaredExponential(lengthscales=[1.0, 2.0], active_dims=[0, 2])
    >>> entry_names(kernel, kernel.lengthscales, ["height", "hour", "wind"])
    ['height', 'wind']
    """
    if input_names is None or parameter.shape.rank != 1:
        return None
    for part in (kernel, *kernel.submodules):
        own = (getattr(part, name, None) for name in ("lengthscales", "variance"))
        if any(parameter is other for other in own):
            names = np.array(input_names, dtype=object)[part.active_dims].tolist()
            return names if len(names) == parameter.shape[0] else None
    return None
