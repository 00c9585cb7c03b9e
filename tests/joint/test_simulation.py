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
@pytest.mark.parametrize("limit", [4000, 2])
def test_moments_on_both_sides_of_the_limit(rng, monkeypatch, limit):
    """4,000 draws of 4 seeds, within five standard errors; points two at a time."""
    monkeypatch.setattr(simulation, "MAX_EXACT", limit)
    monkeypatch.setattr(simulation, "POINTS_AT_ONCE", 2)
    monkeypatch.setattr(fourier, "NUM_FREQUENCIES", 256)
    posterior = posterior_of(rng, gpflow.kernels.Matern52(lengthscales=1.5))
    X = rng.normal(size=(3, 2))
    drawn = [simulation.simulate(posterior, X, 1000, seed) for seed in range(4)]
    mean, cov = posterior.predict_f(X, True, True)
    assert_moments(np.reshape(drawn, (4000, 6)), np.ravel(mean), np.reshape(cov, (6, 6)))


def test_many_points_need_a_kernel_with_features(rng, monkeypatch):
    monkeypatch.setattr(simulation, "MAX_EXACT", 2)
    posterior = posterior_of(rng, gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential()))
    with pytest.raises(ValueError, match="No features are known for the kernel Periodic"):
        simulation.simulate(posterior, rng.normal(size=(3, 2)), 1)
