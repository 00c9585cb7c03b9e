"""How much of a function's variance an input moves, against slow loops in NumPy."""

import gpflow
import numpy as np
import pytest

from gpflow_cool.selection.relevance import NUM_ROWS, input_relevance

kernels = gpflow.kernels


def slow_relevance(k, X):
    """The definition, one pair of rows at a time, for a function k of two rows."""
    N, D = X.shape
    moved, level = np.zeros(D), 0.0
    for i in range(N):
        for j in range(N):
            level += (k(X[i], X[i]) + k(X[j], X[j]) - 2 * k(X[i], X[j])) / N**2
            for d in range(D):
                other = X[i].copy()
                other[d] = X[j, d]
                moved[d] += (k(X[i], X[i]) + k(other, other) - 2 * k(X[i], other)) / N**2
    return moved / level if level else moved


@pytest.mark.parametrize("rows", [1, 7])
def test_against_the_definition(rows):
    X = np.random.default_rng(0).normal(size=[rows, 3])
    ell, v = np.array([0.5, 2.0, 9.0]), np.array([1.0, 0.1, 2.0])

    def k(x, y):
        return 1.5 * np.exp(-0.5 * np.sum(((x - y) / ell) ** 2)) + np.sum(v * x * y)

    kernel = kernels.SquaredExponential(1.5, ell) + kernels.Linear(v)
    np.testing.assert_allclose(input_relevance(kernel, X), slow_relevance(k, X), atol=1e-12)


def test_inputs_that_the_kernel_does_not_see():
    X = np.random.default_rng(1).normal(size=[100, 3])  # more rows than are exchanged
    assert len(X) > NUM_ROWS
    relevance = input_relevance(kernels.Matern32(active_dims=[1]), X)
    assert relevance[0] == relevance[2] == 0.0
    np.testing.assert_allclose(relevance[1], 1.0)
    assert np.all(input_relevance(kernels.Constant(), X) == 0.0)


def test_a_kernel_of_zero_is_no_division_by_zero():
    assert input_relevance(kernels.Linear(), np.zeros([4, 2])).tolist() == [0.0, 0.0]


def test_far_inputs_and_white_noise():
    X = np.random.default_rng(2).normal(size=[20, 2])
    kernel = kernels.SquaredExponential(lengthscales=[1.0, 3.0])
    expected = input_relevance(kernel, X)
    np.testing.assert_allclose(input_relevance(kernel, X + 1e8), expected, rtol=1e-6)
    np.testing.assert_allclose(input_relevance(kernel + kernels.White(), X), expected, rtol=1e-9)
