"""Draws at many points: exact ones up to some thousand points, whole functions beyond."""

import gpflow
import numpy as np
import pytest
from problems import assert_moments, random_covariance

from gpflow_cool import KroneckerMTGP
from gpflow_cool.joint import fourier, simulation


def posterior_of(rng, kernel):
    X, Y = rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    C, Sigma = random_covariance(rng, 2), 0.3 * random_covariance(rng, 2)
    return KroneckerMTGP.ground_truth((X, Y), kernel, C, Sigma).posterior()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("limit", [2000, 2])
def test_moments_on_both_sides_of_the_limit(rng, monkeypatch, limit, noise):
    """4,000 draws of 8 seeds, within five standard errors."""
    monkeypatch.setattr(simulation, "MAX_EXACT", limit)
    monkeypatch.setattr(fourier, "NUM_FREQUENCIES", 128)
    posterior = posterior_of(rng, gpflow.kernels.Matern52(lengthscales=1.5))
    X = rng.normal(size=(3, 2))
    drawn = [simulation.simulate(posterior, X, 500, seed, noise=noise) for seed in range(8)]
    mean, cov = (posterior.predict_y if noise else posterior.predict_f)(X, True, True)
    assert_moments(np.reshape(drawn, (4000, 6)), np.ravel(mean), np.reshape(cov, (6, 6)))


def test_kernels_without_features_are_drawn_exactly_up_to_a_larger_limit(rng, monkeypatch):
    posterior = posterior_of(rng, gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential()))
    X = rng.normal(size=(3, 2))
    exact = simulation.simulate(posterior, X, 4, 1, noise=True)
    monkeypatch.setattr(simulation, "MAX_EXACT", 2)
    assert np.array_equal(simulation.simulate(posterior, X, 4, 1, noise=True), exact)
    monkeypatch.setattr(simulation, "MAX_WITHOUT_FEATURES", 2)
    with pytest.raises(ValueError, match="3 points are too many to draw .* Periodic, .* at most 2"):
        simulation.simulate(posterior, X, 1)
