"""Noise that correlates between tasks, against dense Gaussians and quadrature."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from problems import assert_close, random_problem
from scipy.stats import norm

from gpflow_cool import CoolMTGP
from gpflow_cool.joint.likelihood import CorrelatedGaussian

SHAPES = [((), 1), ((4,), 3), ((2, 4), 3)]


def draw(rng, batch, T):
    """A likelihood with its covariance, and X, Fmu, Fvar, Y with leading dimensions `batch`."""
    A = rng.normal(size=(T, T))
    Sigma = A @ A.T / T + 0.2 * np.eye(T)
    likelihood = CorrelatedGaussian(T, lambda: tf.constant(Sigma))
    X, Fmu, Y = (rng.normal(size=(*batch, n)) for n in (2, T, T))
    return likelihood, Sigma, X, Fmu, rng.uniform(0.1, 1.5, size=(*batch, T)), Y


def over_batch(function, *arrays):
    """`function` of the last axis, entry by entry of the leading ones."""
    batch = arrays[0].shape[:-1]
    result = [function(*(array[i] for array in arrays)) for i in np.ndindex(batch)]
    return np.reshape(result, batch + np.shape(result[0]))


@pytest.mark.parametrize("batch, T", SHAPES)
def test_log_prob(rng, batch, T):
    likelihood, Sigma, X, F, _, Y = draw(rng, batch, T)
    expected = over_batch(lambda f, y: ref.gaussian_log_density(y - f, Sigma), F, Y)
    assert_close(likelihood.log_prob(X, F, Y), expected)


@pytest.mark.parametrize("batch, T", SHAPES)
def test_conditional_moments(rng, batch, T):
    likelihood, Sigma, X, F, _, _ = draw(rng, batch, T)
    assert_close(likelihood.conditional_mean(X, F), F, rtol=0)
    expected = np.zeros((*batch, T)) + np.diag(Sigma)
    assert_close(likelihood.conditional_variance(X, F), expected, rtol=1e-15)


@pytest.mark.parametrize("batch, T", SHAPES)
def test_predictions_are_of_the_marginals(rng, batch, T):
    likelihood, Sigma, X, Fmu, Fvar, Y = draw(rng, batch, T)
    mean, variance = likelihood.predict_mean_and_var(X, Fmu, Fvar)
    assert_close(mean, Fmu, rtol=0)
    assert_close(variance, Fvar + np.diag(Sigma), rtol=1e-15)
    expected = norm(Fmu, np.sqrt(Fvar + np.diag(Sigma))).logpdf(Y).sum(axis=-1)
    assert_close(likelihood.predict_log_density(X, Fmu, Fvar, Y), expected)


@pytest.mark.parametrize("batch, T", SHAPES)
def test_variational_expectations_by_quadrature(rng, batch, T):
    """E log N(y | f, Sigma) over independent f_t: a quadratic, exact with three nodes per task."""
    likelihood, Sigma, X, Fmu, Fvar, Y = draw(rng, batch, T)
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    grid = np.stack(np.meshgrid(*[nodes] * T), axis=-1).reshape(-1, T)
    grid_weights = np.stack(np.meshgrid(*[weights / weights.sum()] * T), axis=-1)
    grid_weights = grid_weights.reshape(-1, T).prod(axis=1)

    def expectation(mu, var, y):
        densities = [ref.gaussian_log_density(y - mu - np.sqrt(var) * z, Sigma) for z in grid]
        return grid_weights @ densities

    expected = over_batch(expectation, Fmu, Fvar, Y)
    assert_close(likelihood.variational_expectations(X, Fmu, Fvar, Y), expected)


def test_a_model_hands_over_its_present_noise(rng):
    """The likelihood stores nothing: it follows the model's parameters."""
    p = random_problem(rng, 7, 3)
    model = CoolMTGP((p.X, p.Y), p.gpflow_kernel(), b=p.b, sigma2=p.sigma2)
    for sigma2 in (p.sigma2, 2.0 * p.sigma2):
        model.sigma2.assign(sigma2)
        _, Sigma = ref.recover(p.K, p.Y, p.b, sigma2, 1.0)
        expected = [ref.gaussian_log_density(y, Sigma) for y in p.Ynew]
        assert_close(model.likelihood.log_prob(p.Xnew, np.zeros((3, 3)), p.Ynew), expected)
