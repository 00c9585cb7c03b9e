"""Draws at the rows of a table: exact ones up to some thousand rows, whole functions beyond."""

import gpflow
import numpy as np
import pytest
from problems import assert_moments, random_covariance

from gpflow_cool import KroneckerMTGP
from gpflow_cool.joint import fourier
from gpflow_cool.table import draws


@pytest.fixture
def posterior(rng):
    X, Y = rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    C, Sigma = random_covariance(rng, 2), 0.3 * random_covariance(rng, 2)
    kernel = gpflow.kernels.Matern52(lengthscales=1.5)
    return KroneckerMTGP.ground_truth((X, Y), kernel, C, Sigma).posterior()


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("limit", [2000, 2])
def test_moments_on_both_sides_of_the_limit(rng, posterior, monkeypatch, noise, limit):
    """4,000 draws of 8 seeds, within five standard errors."""
    monkeypatch.setattr(draws, "MAX_JOINT_ROWS", limit)
    monkeypatch.setattr(fourier, "NUM_FREQUENCIES", 128)
    Z = rng.normal(size=(3, 2))
    drawn = [draws.draw_rows(posterior, Z, 500, noise=noise, seed=seed) for seed in range(8)]
    mean, cov = (posterior.predict_y if noise else posterior.predict_f)(Z, True, True)
    assert_moments(np.reshape(drawn, (4000, 6)), np.ravel(mean), np.reshape(cov, (6, 6)))


def test_kernels_without_features_are_drawn_exactly(rng, posterior, monkeypatch):
    Z = rng.normal(size=(3, 2))
    posterior.kernel = gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential())
    exact = draws.draw_rows(posterior, Z, 4, noise=True, seed=1)
    monkeypatch.setattr(draws, "MAX_JOINT_ROWS", 2)
    assert np.array_equal(draws.draw_rows(posterior, Z, 4, noise=True, seed=1), exact)
