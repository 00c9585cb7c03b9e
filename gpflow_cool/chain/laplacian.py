"""
The Laplacian kernel, and the distances that it needs.

Letters: N and M rows, D inputs.
"""

from collections.abc import Callable

import tensorflow as tf
from check_shapes import check_shapes, inherit_check_shapes
from gpflow.base import TensorType
from gpflow.kernels import Stationary

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
