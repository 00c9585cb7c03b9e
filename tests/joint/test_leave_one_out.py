"""Every row predicted from all the other rows, against conditioning anew."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from patterns import PATTERNS, random_joint
from problems import CASES, assert_close, random_problem

from gpflow_cool import KroneckerMTGP
from gpflow_cool.joint import leave_one_out as module
from gpflow_cool.joint import missing
from gpflow_cool.joint.kronecker import solve_joint, task_basis
from gpflow_cool.joint.leave_one_out import leave_one_out
from gpflow_cool.linalg import eigh
from gpflow_cool.systems.eigen import exact_spectrum

SIZES = [(7, 3), (2, 5), (9, 1)]


def model_of(j, mean_function=None):
    data = (j.X, j.with_holes)
    return KroneckerMTGP.ground_truth(
        data, j.gpflow_kernel(), j.C, j.Sigma, mean_function=mean_function
    )


def solved(rng, p):
    """The solution of a problem with random C and Sigma, and the two."""
    T = len(p.b)
    W, A = np.tril(rng.normal(size=(T, T)), -1), rng.normal(size=(T, T))
    C, Sigma = ref.task_covariance(W, A @ A.T), ref.noise_covariance(W, p.sigma2)
    lam, U = eigh(tf.constant(p.K))
    basis = task_basis(tf.constant(C), tf.constant(Sigma))
    return solve_joint(U, exact_spectrum(lam, U, tf.constant(p.Y)), basis), C, Sigma


@pytest.mark.parametrize("largest", [2**25, 0])
@pytest.mark.parametrize("case", CASES)
def test_leave_one_out_equals_conditioning_anew(rng, case, largest, monkeypatch):
    """Covariances as one product, or one row after the other."""
    monkeypatch.setattr(module, "MAX_NUMBERS", largest)
    p = CASES[case](rng)
    solution, C, Sigma = solved(rng, p)
    actual = leave_one_out(solution, tf.constant(p.Y))
    expected = ref.leave_one_out(p.K, p.Y, C, Sigma)
    for name in expected._fields:
        assert_close(getattr(actual, name), getattr(expected, name), rtol=1e-8)
    variances = leave_one_out(solution, tf.constant(p.Y), full_output_cov=False).cov
    assert_close(variances, np.diagonal(expected.cov, axis1=1, axis2=2), rtol=1e-8)


def test_leave_one_out_adds_what_was_subtracted(rng):
    """The solution knows centred targets only; the mean is of the targets given."""
    p = random_problem(rng, 6, 3)
    solution, _, _ = solved(rng, p)
    offset = rng.normal(size=(6, 3))
    centred = leave_one_out(solution, tf.constant(p.Y))
    shifted = leave_one_out(solution, tf.constant(p.Y + offset))
    assert_close(shifted.mean, centred.mean + offset)
    assert_close(shifted.log_density, centred.log_density)


@pytest.mark.parametrize("path", [2000, 0])
@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_leave_one_out_of_observed_equals_dense(rng, N, T, pattern, path, monkeypatch):
    monkeypatch.setattr(missing, "MAX_DENSE", path)
    rtol = 1e-8 if path else 1e-6
    j = random_joint(rng, N, T, pattern)
    model = model_of(j)
    left = model.leave_one_out()
    variances = model.leave_one_out(full_output_cov=False).cov
    np.testing.assert_allclose(variances, np.diagonal(left.cov, axis1=1, axis2=2), rtol)
    for n in range(N):
        others = j.mask & (np.arange(N) != n)[:, None]
        rest = j._replace(mask=others)
        mean, cov = rest.predict_y(j.X[n : n + 1])
        o = j.mask[n]
        assert_close(left.mean[n].numpy()[o], mean[0, o], rtol)
        assert np.isnan(left.mean[n].numpy()[~o]).all()
        own = cov[0, :, 0][np.ix_(o, o)]
        assert_close(left.cov[n].numpy()[np.ix_(o, o)], own, rtol)
        assert np.isnan(left.cov[n].numpy()[~o]).all()
        density = ref.gaussian_log_density((j.Y[n] - mean[0])[o], own) if o.any() else 0.0
        assert_close(left.log_density[n], density, rtol)
