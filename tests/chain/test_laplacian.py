"""The Laplacian kernel against loops over rows and columns."""

import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Matern12
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.kernels import Laplacian, city_block_distances, weighted_distances


def by_loops(X, X2, variance, lengthscales):
    """[N, N2], entry by entry."""
    lengthscales = np.broadcast_to(lengthscales, X.shape[1])
    K = np.empty([len(X), len(X2)])
    for n, x in enumerate(X):
        for m, z in enumerate(X2):
            K[n, m] = variance * np.exp(-sum(np.abs(x - z) / lengthscales))
    return K


@pytest.mark.parametrize("N, D", [(1, 1), (5, 1), (4, 3), (2, 7)])
@pytest.mark.parametrize("ard", [False, True])
def test_kernel_equals_loops(rng, N, D, ard):
    X, X2 = rng.normal(size=[N, D]), rng.normal(size=[3, D])
    lengthscales = rng.uniform(0.5, 2.0, size=D) if ard else 0.7
    kernel = Laplacian(variance=1.3, lengthscales=lengthscales)
    assert_allclose(kernel(X), by_loops(X, X, 1.3, lengthscales), rtol=1e-13)
    assert_allclose(kernel(X, X2), by_loops(X, X2, 1.3, lengthscales), rtol=1e-13)
    assert_allclose(kernel(X, full_cov=False), np.full(N, 1.3), rtol=1e-13)


def test_kernel_sees_its_columns_only(rng):
    X = rng.normal(size=[4, 3])
    kernel = Laplacian(lengthscales=[0.5, 2.0], active_dims=[2, 0])
    assert_allclose(kernel(X), by_loops(X[:, [2, 0]], X[:, [2, 0]], 1.0, [0.5, 2.0]), rtol=1e-13)


def test_kernel_is_a_product_of_matern_kernels(rng):
    X = rng.normal(size=[6, 2])
    product = Matern12(lengthscales=0.4, active_dims=[0]) * Matern12(active_dims=[1])
    assert_allclose(Laplacian(lengthscales=[0.4, 1.0])(X), product(X), rtol=1e-12)


def test_equal_rows_are_fully_correlated(rng):
    X = np.repeat(rng.normal(size=[1, 4]), 3, axis=0)
    kernel = Laplacian(1.7, lengthscales=1e-3)
    assert_array_equal(kernel(X), np.full([3, 3], kernel.variance.numpy()))


def test_batches(rng):
    X, X2 = rng.normal(size=[2, 4, 3]), rng.normal(size=[5, 2, 3])
    kernel = Laplacian(lengthscales=[0.5, 1.0, 2.0])
    own, cross = kernel(X).numpy(), kernel(X, X2).numpy()
    assert own.shape == (2, 4, 4) and cross.shape == (2, 4, 5, 2)
    for a in range(2):
        assert_allclose(own[a], by_loops(X[a], X[a], 1.0, [0.5, 1.0, 2.0]), rtol=1e-13)
        for c in range(5):
            expected = by_loops(X[a], X2[c], 1.0, [0.5, 1.0, 2.0])
            assert_allclose(cross[a, :, c], expected, rtol=1e-13)


@pytest.mark.parametrize("lengthscales", [0.5, [0.5, 2.0]])
def test_no_rows_and_unknown_shapes(rng, lengthscales):
    kernel, X = Laplacian(lengthscales=lengthscales), rng.normal(size=[3, 2])
    assert_array_equal(kernel(X[:0], X), np.zeros([0, 3]))
    unknown = tf.TensorSpec([None, None], tf.float64)
    compiled = tf.function(lambda A, B: kernel(A, B), input_signature=[unknown, unknown])
    assert_allclose(compiled(X, X[:2]), by_loops(X, X[:2], 1.0, lengthscales), rtol=1e-13)


def naive(X, Z, rates):
    return tf.reduce_sum(tf.abs(X[:, None] - Z[None]) * rates, axis=-1)


@pytest.mark.parametrize("N, M, D", [(1, 1, 1), (4, 3, 2), (2, 5, 6)])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_equals_that_of_all_differences_at_once(rng, N, M, D, compiled):
    inputs = [rng.normal(size=[N, D]), rng.normal(size=[M, D]), rng.uniform(0.5, 2.0, size=D)]
    inputs = [tf.constant(part) for part in inputs]
    weights = tf.constant(rng.normal(size=[N, M]))

    def gradients(distances):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(weights * tf.sin(distances(*inputs)))
        return tape.gradient(loss, inputs)

    ours = tf.function(gradients) if compiled else gradients
    for actual, expected in zip(ours(weighted_distances), gradients(naive), strict=True):
        assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_gradient_of_one_matrix_with_itself(rng):
    """X comes in twice, and both of its gradients count."""
    X, rates = tf.constant(rng.normal(size=[5, 3])), tf.constant([0.5, 1.0, 2.0], tf.float64)
    weights = tf.constant(rng.normal(size=[5, 5]))
    actual, expected = [], []
    for found, distances in [(actual, city_block_distances), (expected, naive)]:
        with tf.GradientTape() as tape:
            tape.watch(X)
            S = distances(X, None, rates) if found is actual else distances(X, X, rates)
            loss = tf.reduce_sum(weights * tf.exp(-S))
        found.append(tape.gradient(loss, X))
    assert_allclose(actual[0], expected[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("ard", [False, True])
def test_no_array_has_a_matrix_per_input(rng, ard):
    """Of all tensors in the graph of a gradient, none is larger than N x N."""
    N, D = 30, 40
    X = tf.constant(rng.normal(size=[N, D]))
    kernel = Laplacian(lengthscales=np.full(D, 9.0) if ard else 9.0)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(kernel(X)))
        return tape.gradient(loss, kernel.trainable_variables)

    graph = gradient.get_concrete_function().graph
    graphs = [graph, *(function.graph for function in graph._functions.values())]
    outputs = [out for each in graphs for op in each.get_operations() for out in op.outputs]
    sizes = [out.shape.num_elements() or 0 for out in outputs]
    assert len(sizes) > 50 and max(sizes) == max(N * N, N * D)
