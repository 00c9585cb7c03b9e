"""The best b and sigma2 of every task, against a search by brute force and against dense terms."""

import functools

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import LEARNINGS, assert_close, unit_of_variance

from gpflow_cool.chain.optimum import (
    COEFFICIENTS,
    LEAST_RATIO,
    NODES,
    RATIOS,
    interpolation_weights,
    profiled_chain,
    ratios_at,
)
from gpflow_cool.systems.eigen import EigenSystem

LAM = 0.7
CLOSE = 2e-3
"""Nats: what interpolation between ratios may be wrong by, for fewer than 100 rows."""


class Data:
    """A kernel matrix, targets, and smallest noise variances."""

    def __init__(self, K, Y, floor=1e-4):
        self.K, self.Y = K, Y
        self.floor = floor * ref.mean_squares(Y)

    def found(self, learning, weight_variance=LAM):
        system = EigenSystem(tf.constant(self.K), tf.constant(self.Y))
        arguments = tf.constant(weight_variance, tf.float64), tf.constant(self.floor), learning
        return profiled_chain(system, *arguments)

    @property
    def bounds(self):
        """The logarithms of the smallest and the largest ratio on the grid."""
        unit = unit_of_variance(self.K)
        return np.log(LEAST_RATIO / unit), np.log(RATIOS[-1] / unit)


def covariance(x, lengthscale):
    return ref.squared_exponential(x[:, None], x[:, None], 1.3, lengthscale)


def waves(rng, N, T, lengthscale=0.7, noise=0.3):
    """Functions of one input that share noise; the last one is noise alone."""
    x = np.sort(rng.uniform(0.0, 6.0, size=N))
    F = np.stack([np.sin(x + 0.7 * t) for t in range(T)], axis=1)
    if T > 1:
        F[:, -1] = 0.0
    E = rng.normal(size=(N, T)) @ (np.eye(T) + 0.5 * np.triu(np.ones((T, T)), 1))
    return Data(covariance(x, lengthscale), F + noise * E)


def without_noise(rng):
    """A function that the kernel explains, and a combination of it: both at their floors."""
    x = np.linspace(0.0, 6.0, 25)
    y = np.sin(x)
    return Data(covariance(x, 2.0), np.column_stack([y, 2.0 * y, rng.normal(size=25)]))


def with_zero_task(rng):
    data = waves(rng, 15, 3)
    Y = data.Y.copy()
    Y[:, 1] = 0.0
    return Data(data.K, Y)


def trap(rng):
    """Waves that a long lengthscale explains with a large b alone: a small one makes them noise."""
    x = np.linspace(0.0, 6.0, 30)
    F = np.stack([np.sin(2 * x), np.cos(2 * x)], axis=1)
    return Data(covariance(x, 2.0), F + 0.05 * rng.normal(size=F.shape))


PROBLEMS = {
    "N20-T3": lambda rng: waves(rng, 20, 3),
    "N40-T1": lambda rng: waves(rng, 40, 1),
    "N90-T4": lambda rng: waves(rng, 90, 4),
    "N5-T8": lambda rng: waves(rng, 5, 8),
    "N1-T1": lambda rng: Data(np.array([[1.3]]), np.array([[0.8]])),
    "N1-T3": lambda rng: Data(np.array([[1.3]]), rng.normal(size=(1, 3))),
    "without noise": without_noise,
    "a task of zeros": with_zero_task,
    "trap": trap,
    "rank one": lambda rng: Data(np.ones((12, 12)), rng.normal(size=(12, 3)) + 1.0),
    "zero kernel": lambda rng: Data(np.zeros((8, 8)), rng.normal(size=(8, 2))),
    "units": lambda rng: Data(
        1e6 * waves(rng, 20, 3).K, waves(rng, 20, 3).Y * [1e-9, 1.0, 1e7], 1e-4
    ),
}


@functools.cache
def by_brute_force(name, learning, weight_variance=LAM):
    data = PROBLEMS[name](np.random.default_rng(0))
    best = [
        ref.best_term(data.K, data.Y, t, weight_variance, data.floor[t], learning, data.bounds)
        for t in range(data.Y.shape[1])
    ]
    return data, best


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_terms_equal_the_maxima_of_a_search_by_brute_force(name, learning):
    data, best = by_brute_force(name, learning)
    found = data.found(learning)
    assert_allclose(found.terms, [one.term for one in best], rtol=0, atol=CLOSE)
    # And the b and sigma2 that go with them have these terms, in dense algebra.
    dense = ref.conditional_log_likelihoods(
        data.K, data.Y, found.b.numpy(), found.sigma2.numpy(), learning, LAM
    )
    assert_allclose(found.terms, dense, rtol=0, atol=CLOSE)
    assert np.all(found.sigma2.numpy() >= data.floor * (1.0 - 1e-12))


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("weight_variance", [1e-8, 1e-3, 1e3, 1e8])
@pytest.mark.parametrize("name", ["N20-T3", "N5-T8", "without noise"])
def test_weights_that_are_all_but_fixed_or_free(name, weight_variance, learning):
    data, best = by_brute_force(name, learning, weight_variance)
    found = data.found(learning, weight_variance)
    assert_allclose(found.terms, [one.term for one in best], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_no_other_parameters_have_larger_terms(rng, learning):
    data = waves(rng, 30, 4)
    found = data.found(learning)
    b, sigma2 = found.b.numpy(), found.sigma2.numpy()
    for _ in range(300):
        s = np.maximum(sigma2 * np.exp(rng.normal(size=4)), data.floor)
        r = b / sigma2 * np.exp(2.0 * rng.normal(size=4))
        terms = ref.conditional_log_likelihoods(data.K, data.Y, r * s, s, learning, LAM)
        assert np.all(terms <= found.terms + 1e-3)


def test_noise_stays_at_its_floor(rng):
    data = without_noise(rng)
    sigma2 = data.found("approximate").sigma2.numpy()
    assert_close(sigma2[:2], data.floor[:2])
    assert sigma2[2] > 100.0 * data.floor[2]


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("name", ["N20-T3", "N5-T8", "without noise", "units"])
def test_gradient_is_the_partial_one_at_the_optimum(rng, name, learning):
    """
    By differences of the profiled terms. With the noise at its floor, b alone is best.
    """
    data = PROBLEMS[name](rng)
    N, T = data.Y.shape
    g = rng.uniform(0.5, 1.5, size=T)
    A = rng.normal(size=(N, N))
    dK = data.K @ (A + A.T) @ data.K / np.trace(data.K)
    directions = [dK, rng.normal(size=(N, T)) * np.sqrt(ref.mean_squares(data.Y)), LAM]
    tensors = [tf.constant(part, tf.float64) for part in (data.K, data.Y, LAM)]

    def total(K, Y, weight_variance):
        system = EigenSystem(K, Y)
        found = profiled_chain(system, weight_variance, tf.constant(data.floor), learning)
        return tf.reduce_sum(g * found.terms)

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = total(*tensors)
    for i, gradient in enumerate(tape.gradient(loss, tensors)):

        def along(h, i=i):
            moved = [part + h * directions[i] if i == k else part for k, part in enumerate(tensors)]
            return float(total(*moved))

        expected = ref.derivative(along, 1e-4)
        assert_allclose(np.sum(gradient * directions[i]), expected, rtol=1e-5, atol=1e-5)


def test_interpolation_is_exact_for_polynomials(rng):
    """And for their derivatives, at the ends of the grid as well."""
    degree = len(COEFFICIENTS) - 1
    last = len(NODES) - 1
    p = np.polynomial.Polynomial(rng.normal(size=degree + 1), domain=[0, last])
    places = np.concatenate([rng.uniform(0, last, size=20), [0.0, last, 7.0]])
    values = p(np.arange(last + 1.0))
    for k in range(3):
        expected = p.deriv(k)(places) if k else p(places)
        actual = tf.linalg.matvec(interpolation_weights(tf.constant(places), k), values)
        assert_close(actual, expected, rtol=1e-10)
    found = ratios_at(tf.range(float(last + 1), dtype=tf.float64))
    assert_close(found[1:], RATIOS[1:])
    assert found[0] == LEAST_RATIO and RATIOS[0] == 0.0


def test_one_graph_serves_targets_whose_number_of_rows_may_change(rng):
    """Data in variables of unknown size, as a model holds them."""
    data = waves(rng, 20, 3)
    K = tf.Variable(data.K, shape=[None, None])
    Y = tf.Variable(data.Y, shape=[None, 3])
    floor = tf.constant(data.floor)

    @tf.function(autograph=False)
    def terms():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            lam = tf.constant(LAM, tf.float64)
            tape.watch(lam)
            system = EigenSystem(tf.convert_to_tensor(K), Y, python_callback=True)
            found = profiled_chain(system, lam, floor, "approximate")
        return found.terms, tape.gradient(found.terms, lam)

    for rows in (20, 7, 1):
        K.assign(data.K[:rows, :rows])
        Y.assign(data.Y[:rows])
        part = Data(data.K[:rows, :rows], data.Y[:rows])
        part.floor = data.floor
        found, gradient = terms()
        assert_close(found, part.found("approximate").terms)
        assert np.isfinite(gradient)
