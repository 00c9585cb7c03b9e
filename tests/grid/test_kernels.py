"""Kernels as products over the axes of a grid."""

import functools
import re

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Constant, Linear, Matern12, Matern32, Matern52, Periodic, White
from gpflow.kernels import SquaredExponential as SE
from numpy.testing import assert_allclose

from gpflow_cool import Laplacian
from gpflow_cool.grid import find_grid, grid_inputs
from gpflow_cool.grid.kernels import (
    column_groups,
    grid_that_is_asked_for,
    grid_that_pays,
    kernel_on_grid,
)

LENGTHS = [0.5, 1.0, 2.0]
KERNELS = {
    "isotropic": lambda: SE(variance=1.7, lengthscales=0.8),
    "relevance": lambda: SE(variance=1.7, lengthscales=LENGTHS),
    "laplacian": lambda: Laplacian(variance=1.7, lengthscales=LENGTHS),
    "product": lambda: Matern52(active_dims=[0, 1], variance=1.3) * Matern12(active_dims=[2]),
    "nested": lambda: (
        Matern32(active_dims=[0]) * Constant(1.4) * (SE(active_dims=[1, 2], lengthscales=[2, 3]))
    ),
    "sum in a product": lambda: (
        (Matern32(active_dims=[1]) + Linear(active_dims=[1]) + Constant(0.3)) * SE(active_dims=[0])
    ),
    "one column by two": lambda: SE(variance=2.0) * Periodic(SE(active_dims=[2]), period=1.5),
    "white": lambda: SE() * White(0.6),
    "linear": lambda: Linear(active_dims=[0]) * Matern12(active_dims=[1, 2]),
}


@pytest.fixture(name="X")
def _X(rng):
    X = grid_inputs([0.0, 0.3, 1.0], [2.0, 5.0], [1.0, 1.5, 1.7, 4.0])
    return X[rng.permutation(len(X))]


def on_grid(kernel, X):
    grid = find_grid(X, column_groups(kernel, X.shape[1]))
    return kernel_on_grid(kernel, grid, X, tf.reduce_mean(X, axis=0))


@pytest.mark.parametrize("name", KERNELS)
def test_product_over_axes_is_the_kernel_matrix(X, name):
    kernel = KERNELS[name]()
    matrices, rows = on_grid(kernel, X).matrix()
    assert len(matrices) > 1
    K = functools.reduce(np.kron, [part.numpy() for part in matrices])
    assert_allclose(K, kernel(X[rows]).numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", KERNELS)
def test_product_over_axes_is_the_covariance_with_new_points(rng, X, name):
    kernel, Xnew = KERNELS[name](), rng.uniform(0.0, 4.0, size=(2, 5, 3))
    here = on_grid(kernel, X)
    parts = here.cross(tf.constant(Xnew))
    K = parts[0]
    for part in parts[1:]:
        K = tf.reshape(K[:, None] * part, [-1, 2, 5])
    assert_allclose(K, kernel(X[here.grid.rows], Xnew), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_those_of_the_kernel(rng, X, name):
    kernel, weights = KERNELS[name](), rng.normal(size=(len(X), len(X)))
    with tf.GradientTape(persistent=True) as tape:
        matrices, rows = on_grid(kernel, X).matrix()
        K = matrices[0]
        for part in matrices[1:]:
            K = tf.reshape(tf.einsum("ab,cd->acbd", K, part), [K.shape[0] * part.shape[0]] * 2)
        product = tf.reduce_sum(weights * K)
        direct = tf.reduce_sum(weights * kernel(X[rows]))
    variables = kernel.trainable_variables
    found = tape.gradient(product, variables, unconnected_gradients="zero")
    expected = tape.gradient(direct, variables, unconnected_gradients="zero")
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_a_column_that_no_factor_sees_changes_nothing(X):
    kernel = Matern12(active_dims=[0]) * Matern12(active_dims=[1])
    matrices, rows = on_grid(kernel, X).matrix()
    assert_allclose(functools.reduce(np.kron, matrices), kernel(X[rows]), rtol=1e-12)


def test_times_far_from_zero_keep_their_digits():
    X = grid_inputs([0.0, 1.0], 1.7e9 + np.arange(4.0))
    kernel = SE(lengthscales=2.0)
    matrices, rows = on_grid(kernel, X).matrix()
    expected = kernel(X[rows] - [0.0, 1.7e9])
    assert_allclose(functools.reduce(np.kron, matrices), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "kernel, groups",
    [
        (SE(), [(0,), (1,), (2,)]),
        (Matern52(), [(0, 1, 2)]),
        (SE() + White(), [(0, 1, 2)]),
        (SE() * White(), [(0,), (1,), (2,)]),
        ((SE(active_dims=[0]) + White()) * SE(active_dims=[1]), [(0, 1, 2)]),
        (Matern52(active_dims=[2, 0]) * Constant(), [(0, 2), (1,)]),
        (Matern52(active_dims=slice(0, 2)) * SE(), [(0, 1), (2,)]),
        (Matern12(active_dims=[0, 1]) * Matern12(active_dims=[1, 2]), [(0, 1, 2)]),
    ],
)
def test_groups_of_columns(kernel, groups):
    assert column_groups(kernel, 3) == groups


def test_subclasses_are_not_taken_for_squared_exponentials():
    class Warped(gpflow.kernels.SquaredExponential):
        def K_r2(self, r2):
            return self.variance * tf.exp(-0.5 * r2**2)

    assert column_groups(Warped(), 2) == [(0, 1)]


def test_a_grid_pays_where_rows_are_many_and_axes_short(rng):
    X = grid_inputs(np.arange(20.0), np.arange(20.0))
    assert grid_that_pays(SE(), X).shape == (20, 20)
    assert grid_that_pays(Matern52(), X) is None
    assert grid_that_pays(SE(), X[:200]) is None
    assert grid_that_pays(SE(), grid_inputs(np.arange(200.0), [0.0, 1.0])) is None
    assert grid_that_pays(SE(), np.concatenate([X, X[:1]])) is None
    assert grid_that_pays(SE(), rng.normal(size=(400, 3))) is None
    assert grid_that_pays(SE(), rng.integers(2, size=(400, 300)).astype(float)) is None


@pytest.mark.parametrize(
    "kernel, X, text",
    [
        (
            SE(),
            np.arange(4.0)[:, None],
            'engine="grid" needs at least two columns of X, and it has one: use engine="auto".',
        ),
        (
            Matern12(),
            grid_inputs([0.0, 1.0], [0.0, 1.0]),
            'engine="grid" needs a kernel that is a product over the axes of X, whose columns are'
            " [0], [1]. Matern12 sees columns of several axes: multiply kernels that see one axis"
            " each, for example Matern52(active_dims=[0]) * Matern52(active_dims=[1])."
            " SquaredExponential and gpflow_cool.Laplacian are such products by themselves.",
        ),
        (
            SE(),
            grid_inputs(np.arange(3.0), np.arange(4.0))[1:],
            'engine="grid": X has 11 of the 12 rows of a grid of 3 x 4 points. Fill the gaps with'
            " NaN: X, Y = gpflow_cool.grid.complete_grid(X, Y).",
        ),
        (
            SE(),
            np.arange(6.0).reshape(3, 2),
            'engine="grid": the 3 rows of X are not a grid. Its columns have 3, 3 different values,'
            ' and not all combinations of them occur: use engine="auto".',
        ),
    ],
)
def test_an_error_tells_what_is_no_grid_or_no_product(kernel, X, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        grid_that_is_asked_for(kernel, X)
