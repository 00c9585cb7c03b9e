"""Missing targets given the observed ones, against dense algebra."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose
from patterns import PATTERNS, random_joint
from problems import assert_close, random_problem

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.joint import conditioning, missing

SIZES = [(7, 3), (2, 5), (9, 1)]


def model_of(j, mean_function=None):
    data = (j.X, j.with_holes)
    return KroneckerMTGP.ground_truth(
        data, j.gpflow_kernel(), j.C, j.Sigma, mean_function=mean_function
    )


@pytest.mark.parametrize("path", [2000, 0])
@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_imputation_equals_dense(rng, N, T, pattern, path, monkeypatch):
    monkeypatch.setattr(missing, "MAX_DENSE", path)
    rtol = 1e-8 if path else 1e-6
    j = random_joint(rng, N, T, pattern)
    model = model_of(j)
    mean, cov = j.condition(j.S, j.S)
    cov = cov.reshape(T, N, T, N)
    absent = ~j.mask
    completed = model.impute()
    assert_close(completed.Y, np.where(j.mask, j.Y, mean.reshape(T, N).T), rtol)
    for n in range(N):
        own = np.where(np.outer(absent[n], absent[n]), cov[:, n, :, n], 0.0)
        assert_close(completed.cov[n], own, rtol)
        assert_close(completed.std[n], np.sqrt(own.diagonal()), rtol)


def test_imputation_of_complete_targets_is_them(rng):
    p = random_problem(rng, 6, 2)
    completed = CoolMTGP((p.X, p.Y), p.gpflow_kernel()).impute()
    assert np.array_equal(completed.Y, p.Y) and not np.any(completed.cov)


def test_mean_function_is_added_to_what_is_imputed(rng):
    j = random_joint(rng, 7, 2, "random_pattern")
    mean = np.array([3.0, -2.0])
    plain = model_of(j)
    shifted = model_of(j._replace(Y=j.Y + mean), gpflow.mean_functions.Constant(mean))
    assert_close(shifted.impute().Y, plain.impute().Y + mean, 1e-10)
    assert_close(shifted.leave_one_out().log_density, plain.leave_one_out().log_density, 1e-9)
    assert_close(shifted.predict_f(j.Xnew)[0], plain.predict_f(j.Xnew)[0] + mean, 1e-10)


@pytest.mark.slow
def test_rows_in_chunks(rng, monkeypatch):
    j = random_joint(rng, 7, 3, "random_pattern")
    model = model_of(j)
    expected = [*model.impute(), *model.leave_one_out()]
    monkeypatch.setattr(conditioning, "CHUNK", 2 * 7 * 3**2)  # two rows at a time
    for actual, whole in zip([*model.impute(), *model.leave_one_out()], expected, strict=True):
        assert_allclose(actual, whole, rtol=1e-10, atol=1e-12)  # NaN where a target is missing


def test_observations_vary_by_their_noise_at_least_where_the_signal_is_1e16_times_larger(rng):
    """Rounding of the signal's variance is as large as the noise there."""
    X, Y = np.linspace(0.0, 9.0, 7)[:, None], rng.normal(size=(7, 2))
    Y[[0, 5], [0, 1]] = np.nan
    C, Sigma = np.diag([1e11, 1.0]), np.diag([1e-5, 0.1])
    kernel = gpflow.kernels.SquaredExponential()
    model = KroneckerMTGP.ground_truth((X, Y), kernel, task_covariance=C, noise_covariance=Sigma)
    noise = np.diag(model.noise_covariance())
    (_, f), (_, y) = model.predict_f(X), model.predict_y(X)
    assert np.min(f) >= 0.0
    assert np.all(y >= noise)
    _, both = model.predict_y(X, full_output_cov=True)
    assert_allclose(np.diagonal(both, axis1=1, axis2=2), y)
    assert np.isfinite(model.predict_log_density((X, np.zeros_like(Y)), full_output_cov=True)).all()
