"""Averages over orders of the tasks, against models that got their tasks in those orders."""

import gpflow
import numpy as np
import pytest
import reference as ref
from numpy.testing import assert_allclose, assert_array_equal
from problems import random_problem
from spectra import exact

from gpflow_cool import CoolMTGP
from gpflow_cool.chain.recovery import average_over_orders, is_ordinary, some_orders
from gpflow_cool.chain.search import Box


@pytest.fixture(name="data")
def _data(rng):
    X = rng.uniform(-2, 2, size=[30, 2])
    mix = rng.normal(size=[4, 4])
    F = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1]), X[:, 0], X[:, 1] ** 2 / 2], axis=1)
    return X, F @ mix / 2 + 0.3 * rng.normal(size=[30, 4])


def fitted(X, Y, learning):
    """A model whose kernel stays, with the best b and sigma2."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=1.3)
    gpflow.set_trainable(kernel, False)
    model = CoolMTGP((X, Y), kernel, learning=learning)
    model.fit(verbose=0)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("num_tasks", [2, 4])
@pytest.mark.parametrize("learning", ["hierarchical", "approximate"])
def test_mean_of_models_with_permuted_tasks(data, num_tasks, learning):
    X, Y = data[0], data[1][:, :num_tasks]
    C, Sigma = np.zeros([num_tasks, num_tasks]), np.zeros([num_tasks, num_tasks])
    orders = some_orders(num_tasks, 5, seed=3)
    for order in orders:
        permuted = fitted(X, Y[:, order], learning)
        back = np.argsort(order)
        C += permuted.task_covariance().numpy()[np.ix_(back, back)] / len(orders)
        Sigma += permuted.noise_covariance().numpy()[np.ix_(back, back)] / len(orders)
    averaged = fitted(X, Y, learning).average_over_orders(5, seed=3)
    assert_allclose(averaged.task_covariance(), C, rtol=1e-5, atol=1e-6)
    assert_allclose(averaged.noise_covariance(), Sigma, rtol=1e-5, atol=1e-6)


def test_one_order_is_the_model_itself(data):
    model = fitted(*data, "hierarchical")
    averaged = model.average_over_orders(1)
    Xnew = data[0][:5] + 0.1
    for one, other in zip(
        averaged.predict_y(Xnew, full_output_cov=True),
        model.predict_y(Xnew, full_output_cov=True),
        strict=True,
    ):
        assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_orders_are_permutations_and_repeat_with_a_seed():
    orders = some_orders(6, 9, seed=1)
    assert_array_equal(orders[0], np.arange(6))
    assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(6), [9, 1]))
    assert_array_equal(orders, some_orders(6, 9, seed=1))
    assert not np.array_equal(orders, some_orders(6, 9, seed=2))


def test_no_order_is_taken_twice():
    assert len({tuple(order) for order in some_orders(4, 23, seed=0)}) == 23


@pytest.mark.parametrize("num_tasks, all_orders", [(1, 1), (2, 2), (3, 6)])
def test_few_tasks_take_every_order_once(num_tasks, all_orders):
    orders = some_orders(num_tasks, 8, seed=1)
    assert_array_equal(orders[0], np.arange(num_tasks))
    assert len(orders) == len({tuple(order) for order in orders}) == all_orders
    assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(num_tasks), (all_orders, 1)))


def test_number_of_orders_is_checked(data):
    with pytest.raises(ValueError, match="num_orders=0 must be a whole number of at least 1"):
        fitted(*data, "hierarchical").average_over_orders(0)


def test_what_is_frozen_stays(rng):
    p = random_problem(rng, 20, 2)
    model = CoolMTGP((p.X, p.Y), gpflow.kernels.SquaredExponential(), sigma2=[0.5, 0.7])
    gpflow.set_trainable(model.sigma2, False)
    model.fit(verbose=0)
    exact = model.average_over_orders(1)
    assert_allclose(exact.noise_covariance(), model.noise_covariance(), rtol=1e-6)
    assert_allclose(exact.task_covariance(), model.task_covariance(), rtol=1e-4)


def test_an_order_whose_errors_add_up_is_left_out_of_the_average(rng):
    """Forty places along a line, given from left to right; the others are random orders."""
    X, places = rng.normal(size=(40, 1)), np.linspace(0.0, 1.0, 40)
    smooth = np.exp(-0.5 * np.square((places[:, None] - places) / 0.1))
    L = np.linalg.cholesky(smooth + 1e-6 * np.eye(40))
    Y = np.sin(2.0 * X + 12.0 * places) + 0.02 * rng.normal(size=(40, 40)) @ L.T
    K = ref.squared_exponential(X, X, 1.0, 1.0)
    box = Box(np.log([[1e-6, 1e-4]] * 40), np.log([[1e6, 1e2]] * 40))
    orders = [np.arange(40), *(rng.permutation(40) for _ in range(4))]
    each = [average_over_orders(exact(K, Y), [order], box, "hierarchical")[1] for order in orders]
    sizes = [np.trace(Sigma) for Sigma in each]
    assert sizes[0] > 2.0 * max(sizes[1:])
    _, Sigma = average_over_orders(exact(K, Y), orders, box, "hierarchical")
    assert_allclose(Sigma, np.mean(each[1:], axis=0), rtol=1e-3, atol=1e-6)


def test_the_given_order_is_ordinary_unless_its_noise_is_far_above_that_of_the_others():
    others = [[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]]  # means 1.5 and 3
    assert is_ordinary(np.array([[4.4, 8.9, 0.0], *others]))
    assert is_ordinary(np.array([[0.1, 0.1, 0.0], *others]))
    assert not is_ordinary(np.array([[15.0, 30.0, 0.0], *others]))
    assert is_ordinary(np.array([[1.0] * 19 + [1e-4], [1.0] * 19 + [1e-6]]))  # one task of many


def test_all_orders_count_where_there_are_no_more(rng):
    """The average then does not depend on the order of the columns."""
    X, Y = rng.normal(size=(12, 1)), rng.normal(size=(12, 3)) * [1.0, 1.0, 1e-3]
    K, box = (
        ref.squared_exponential(X, X, 1.0, 1.0),
        Box(np.full([3, 2], -12.0), np.full([3, 2], 5)),
    )
    orders = some_orders(3, 8, seed=0)
    assert len(orders) == 6
    C, Sigma = average_over_orders(exact(K, Y), orders, box, "hierarchical")
    turned = average_over_orders(exact(K, Y[:, [2, 0, 1]]), orders, box, "hierarchical")
    for matrix, other in zip((C, Sigma), turned, strict=True):
        assert_allclose(other, matrix[np.ix_([2, 0, 1], [2, 0, 1])], rtol=1e-6, atol=1e-9)
