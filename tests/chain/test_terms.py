"""The chain's terms and their gradients against dense densities, for every prior and learning."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import CASES, LEARNINGS, assert_close, random_problem

from gpflow_cool.chain import terms as module
from gpflow_cool.chain.terms import Chain, conditional_log_likelihoods, factor_diagonal
from gpflow_cool.systems.eigen import EigenSystem

PRIORS = {"unit": None, "scaled": 0.7}
"""What `weight_variance` is."""


def tensor(value):
    return None if value is None else tf.constant(value, tf.float64)


def terms_of(K, Y, b, sigma2, learning, weight_variance=None):
    """The terms from the eigenvectors of K; arguments as the reference takes them."""
    system = EigenSystem(tf.convert_to_tensor(K), tf.convert_to_tensor(Y))
    chain = Chain(*map(tf.convert_to_tensor, (b, sigma2)), tensor(weight_variance))
    return conditional_log_likelihoods(system, chain, learning)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_terms_equal_dense_densities(rng, case, learning, prior):
    chain = CASES[case](rng).chain
    expected = ref.conditional_log_likelihoods(*chain, learning, PRIORS[prior])
    assert_close(terms_of(*chain, learning, PRIORS[prior]), expected)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("weight_variance", [1e-8, 1e8])
@pytest.mark.parametrize("N, T", [(7, 3), (2, 5), (1, 2)])
def test_weights_that_are_all_but_fixed_or_free(rng, N, T, weight_variance, learning):
    """
    L_tt^2 - 1 is some lambda N, of which small numbers keep 1e-16 / lambda. Large ones make small
    differences of I + lambda G, where earlier tasks explain all of a task.
    """
    chain = random_problem(rng, N, T).chain
    expected = ref.conditional_log_likelihoods(*chain, learning, weight_variance)
    assert_close(terms_of(*chain, learning, weight_variance), expected, rtol=1e-6)


def test_terms_of_units_far_apart(rng):
    """With the scaled prior, a unit changes the terms by its logarithm, once per row."""
    K, Y, b, sigma2 = random_problem(rng, 7, 4).chain
    units = np.array([1e-12, 1e9, 1.0, 1e-4])
    for learning in LEARNINGS:
        found = terms_of(K, Y * units, b * units**2, sigma2 * units**2, learning, 0.7)
        expected = terms_of(K, Y, b, sigma2, learning, 0.7) - 7 * np.log(units)
        assert_close(found, expected)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, T", [(1, 1), (6, 1), (6, 3), (2, 5)])
def test_gradients_by_differences(rng, N, T, learning, prior):
    chain, g = random_problem(rng, N, T).chain, rng.normal(size=T)
    values = [*chain] + ([] if PRIORS[prior] is None else [np.array(PRIORS[prior])])
    tensors = [tf.constant(value) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        total = tf.reduce_sum(g * terms_of(*tensors[:4], learning, *tensors[4:]))
    steps = 1e-3 * np.array([np.min(chain[3] / chain[2]), 0.2, *map(np.min, values[2:])])
    for i, gradient in enumerate(tape.gradient(total, tensors)):
        direction = np.asarray(rng.uniform(-1.0, 1.0, size=values[i].shape))
        if i == 0:  # K stays symmetric
            direction = direction + direction.T

        def along(h, i=i, direction=direction):
            moved = [value + h * direction if i == k else value for k, value in enumerate(values)]
            return g @ ref.conditional_log_likelihoods(*moved[:4], learning, *moved[4:])

        expected, size = ref.derivative(along, steps[i]), np.sum(np.abs(gradient * direction))
        assert_allclose(np.sum(gradient * direction), expected, rtol=1e-6, atol=1e-6 * size + 1e-9)


def test_gradient_of_the_diagonal_of_a_factor(rng):
    """Against TensorFlow's own gradient of the factor; nothing depends on some of the matrices."""
    A = rng.normal(size=(3, 2, 4, 4))
    M = tf.constant(A @ np.swapaxes(A, -1, -2) + np.eye(4))
    weights = rng.normal(size=(3, 2, 4))
    weights[1] = 0.0
    found = []
    for diagonal in (factor_diagonal, lambda M: tf.linalg.diag_part(tf.linalg.cholesky(M))):
        with tf.GradientTape() as tape:
            tape.watch(M)
            total = tf.reduce_sum(weights * tf.math.log(diagonal(M)))
        gradient = tape.gradient(total, M)
        found.append([total, 0.5 * (gradient + tf.linalg.matrix_transpose(gradient))])
    assert_close(found[0][0], found[1][0], rtol=1e-13)
    assert_close(found[0][1], found[1][1], rtol=1e-11)


@pytest.mark.parametrize("prior", PRIORS)
def test_some_tasks_at_a_time_give_what_all_give(rng, monkeypatch, prior):
    chain = random_problem(rng, 6, 5).chain
    whole = terms_of(*chain, "approximate", PRIORS[prior])
    monkeypatch.setattr(module, "MAX_NUMBERS", 50)  # two tasks of five
    assert_close(terms_of(*chain, "approximate", PRIORS[prior]), whole, rtol=1e-13)


@pytest.mark.parametrize("prior", PRIORS)
def test_many_tasks(rng, prior):
    chain = random_problem(rng, 9, 120).chain
    expected = ref.conditional_log_likelihoods(*chain, "approximate", PRIORS[prior])
    assert_close(terms_of(*chain, "approximate", PRIORS[prior]), expected, rtol=1e-8)
