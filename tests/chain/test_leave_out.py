"""Rows and groups of rows given all the other rows, against deleting them."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from problems import CASES, assert_close, random_problem

from gpflow_cool.chain.leave_out import leave_rows_out
from gpflow_cool.chain.terms import Chain
from gpflow_cool.systems.eigen import EigenSystem
from gpflow_cool.systems.products import KroneckerProduct

PRIORS = {"unit": None, "scaled": 0.7}


def left_out(K, Y, b, sigma2, groups, weight_variance=None):
    lam = None if weight_variance is None else tf.constant(weight_variance, tf.float64)
    chain = Chain(tf.constant(b), tf.constant(sigma2), lam)
    return leave_rows_out(EigenSystem(K, tf.constant(Y)), chain, groups)


def single_rows(N):
    return [np.array([row]) for row in range(N)]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("case", CASES)
def test_single_rows_equal_deleting_them(rng, case, prior):
    chain = CASES[case](rng).chain
    groups = single_rows(len(chain[1]))
    expected = ref.leave_out_log_densities(*chain, groups, PRIORS[prior])
    assert_close(left_out(*chain, groups, PRIORS[prior]), expected)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("N, T", [(9, 1), (9, 4), (9, 14)])
def test_groups_of_unequal_size_equal_deleting_their_rows(rng, N, T, prior):
    """In any order, overlapping, and all rows at once."""
    chain = random_problem(rng, N, T).chain
    groups = [[3], [0, 8, 1], [2, 4], [5], [7, 6], list(range(N))]
    groups = [np.array(group) for group in groups]
    expected = ref.leave_out_log_densities(*chain, groups, PRIORS[prior])
    assert_close(left_out(*chain, groups, PRIORS[prior]), expected)


@pytest.mark.parametrize("shape", [(3, 4), (2, 1, 3)])
def test_rows_of_a_grid_equal_deleting_them(rng, shape):
    """The eigenvectors of a Kronecker product, with rows in another order than its own."""
    N, K, matrices = int(np.prod(shape)), np.ones((1, 1)), []
    for n in shape:
        X = rng.normal(size=(n, 1))
        matrices.append(ref.squared_exponential(X, X))
        K = np.kron(K, matrices[-1])
    rows = rng.permutation(N)
    back = np.argsort(rows)
    product = KroneckerProduct(tuple(map(tf.constant, matrices)), rows)
    _, Y, b, sigma2 = random_problem(rng, N, 3).chain
    groups = [*single_rows(N), np.array([0, 2]), np.array([5, 1])]
    expected = ref.leave_out_log_densities(K[np.ix_(back, back)], Y, b, sigma2, groups, 0.7)
    assert_close(left_out(product, Y, b, sigma2, groups, 0.7), expected)


@pytest.mark.parametrize("weight_variance", [1e-8, 1e4])
def test_weights_that_are_all_but_fixed_or_free(rng, weight_variance):
    chain = random_problem(rng, 7, 3).chain
    groups = [*single_rows(7), np.array([0, 3])]
    expected = ref.leave_out_log_densities(*chain, groups, weight_variance)
    assert_close(left_out(*chain, groups, weight_variance), expected, rtol=1e-7)


def test_units_of_targets_add_their_logarithms(rng):
    K, Y, b, sigma2 = random_problem(rng, 7, 3).chain
    groups, units = [np.array([0, 4]), np.array([3])], np.array([1e-8, 1.0, 1e5])
    found = left_out(K, Y * units, b * units**2, sigma2 * units**2, groups, 0.7)
    expected = left_out(K, Y, b, sigma2, groups, 0.7) - np.array([2, 1]) * np.sum(np.log(units))
    assert_close(found, expected)
