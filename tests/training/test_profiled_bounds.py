"""Bounds of b and sigma2 in profiled training: those of a user, and those of the inner problem."""

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp
from gpflow import Parameter, kernels
from gpflow.kernels import SquaredExponential as SE
from numpy.testing import assert_allclose
from problems import minimise_plainly, smooth_data
from spectra import exact

from gpflow_cool import CoolMTGP
from gpflow_cool.chain.starting import inner_box


@pytest.mark.parametrize("name", ["b", "sigma2"])
def test_a_parameter_with_an_upper_bound_is_trained_outside(rng, name):
    X, Y = smooth_data(rng, N=12, T=2)
    models = [CoolMTGP((X, Y), SE(lengthscales=0.8)) for _ in range(2)]
    for model in models:
        transform = tfp.bijectors.Sigmoid(np.float64(0.01), np.float64(8.0))
        setattr(model, name, Parameter([0.3, 0.4], transform=transform))
    profile = models[0].profile()
    assert any(p is getattr(models[0], name) for p in profile.parameters)
    models[0].fit(verbose=0)
    assert np.all(getattr(models[0], name).numpy() < 8.0)
    assert_allclose(models[0].training_loss(), minimise_plainly(models[1]), atol=1e-3)


def test_b_above_a_bound_of_its_own(rng):
    model = CoolMTGP(smooth_data(rng, N=12, T=2), SE(lengthscales=0.8))
    model.b = Parameter([2.5, 3.0], transform=gpflow.utilities.positive(lower=2.0))
    model.fit(verbose=0, steps=20)
    assert np.all(model.b.numpy() >= 2.0) and np.min(model.b.numpy()) < 2.1


def test_bounds_of_the_inner_problem():
    r"""
    b within 1e10 of :math:`v / k`, with v the variance of a task and k the mean of K's diagonal;
    above also of its mean square over the smallest eigenvalue. sigma2 within 1e10 of v / 10, above
    also of a tenth of the mean square, and above its floor.
    """
    K = np.diag([6.0, 1.0, 0.5, 0.0])  # of trace 7.5
    Y = np.array([[1.0, 20.0], [2.0, 21.0], [3.0, 19.0], [-4.0, 20.0]])
    squares, scales = np.array([7.5, 400.5]), np.array([7.25, 0.5])
    box = inner_box(exact(K, Y), scales, np.array([1e-4, 1e-30]))
    b = scales / (7.5 / 4)
    assert_allclose(np.exp(box.lower), np.stack([1e-10 * b, [1e-4, 5e-12]], axis=1))
    assert_allclose(np.exp(box.upper), 1e10 * np.stack([squares / 0.5, 0.1 * squares], axis=1))
    # of rank one: the eigenvalue is larger than the mean of the diagonal, 1.5, which then counts
    one = inner_box(exact(np.diag([6.0, 0.0, 0.0, 0.0]), Y), 1e3 * scales, np.zeros(2))
    assert_allclose(np.exp(one.upper[:, 0]), 1e10 * np.array([7250.0, 500.0]) / 1.5)
    # nothing but zeros
    none = inner_box(exact(np.zeros((4, 4)), Y), scales, np.zeros(2))
    assert_allclose(np.exp(none.upper[:, 0]), 1e10 * squares)


@pytest.mark.filterwarnings("ignore:.*as far from zero")
def test_noise_as_large_as_targets_that_the_kernel_cannot_explain(rng):
    """A linear kernel has no constant: without a bound in the way, the targets are mostly noise."""
    X, Y = rng.normal(size=(6, 2)), 1e6 + rng.normal(size=(6, 2))
    model = CoolMTGP((X, Y), kernels.Linear())
    model.fit(verbose=0)
    left = Y[:, 0] - X @ np.linalg.lstsq(X, Y[:, 0], rcond=None)[0]
    assert model.sigma2.numpy()[0] > np.mean(np.square(left))


def test_sigma2_stops_at_its_floor(rng):
    """A copy of another task wants no noise at all."""
    X, Y = smooth_data(rng)
    Y = Y[:, [0, 1, 0]]
    model = CoolMTGP((X, Y), SE(lengthscales=0.8))
    model.fit(verbose=0)
    floor = 1e-4 * np.var(Y[:, 2])
    assert_allclose(model.sigma2.numpy()[2], floor, rtol=1e-3)
    assert model.sigma2.numpy()[2] >= floor
