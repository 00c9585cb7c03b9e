"""The paper's Algorithm 1, an alternation, ends where the objective of the model is flat."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP


def kernel_matrix(X, theta):
    return ref.squared_exponential(X, X, 1.0, np.exp(theta))


def gradient(model):
    """Of the loss, by logarithms of b, sigma2 and the lengthscale."""
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    parameters = model.trainable_parameters
    slopes = tape.gradient(loss, [p.unconstrained_variable for p in parameters])
    by_logarithms = []
    for p, slope in zip(parameters, slopes, strict=True):
        u = p.unconstrained_variable
        rate = tf.exp(p.transform.forward_log_det_jacobian(u, event_ndims=0))
        by_logarithms.append(np.ravel(slope * p / rate))
    return np.concatenate(by_logarithms)


@pytest.mark.parametrize("seed", range(3))
def test_the_alternation_ends_at_a_stationary_point(seed):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-3, 3, size=(20, 1)), axis=0)
    f = np.sin(2 * X)
    Y = np.hstack([f, f + 0.5 * np.cos(X)]) + 0.5 * rng.normal(size=(20, 2))
    b, sigma2 = np.ones(2), np.full(2, 0.1)
    found = ref.hierarchical_alternation(
        X, Y, kernel_matrix, np.zeros(1), b, sigma2, steps=2000, rate=0.025
    )
    options = {"learning": "hierarchical", "weight_prior": "unit", "b": b, "sigma2": sigma2}
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), **options)
    first, slopes = float(model.training_loss()), gradient(model)
    model.kernel.lengthscales.assign(np.exp(found.theta[0]))
    model.b.assign(found.b)
    model.sigma2.assign(found.sigma2)
    K = kernel_matrix(X, found.theta)
    expected = ref.objective(K, Y, found.b, found.sigma2, "hierarchical")
    assert_allclose(model.training_loss(), -expected, rtol=1e-9)
    assert float(model.training_loss()) < first
    assert np.linalg.norm(gradient(model)) < 1e-3 * np.linalg.norm(slopes)
    weights = ref.weights(K, Y, found.b, found.sigma2)
    assert_allclose(model.multitask_parameters().W, weights, rtol=1e-7, atol=1e-9)
