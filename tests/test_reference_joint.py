"""The reference's joint model against itself, by routes that share no formula with it."""

import numpy as np
import pytest
import reference as ref
from numpy.testing import assert_allclose, assert_array_equal
from reference_problems import KERNELS, SIZES, TOLERANCE, joint_problem
from scipy.stats import multivariate_normal, norm


def entrywise_covariance(K, C, Sigma):
    """Cov(y_nt, y_mu) = C_tu K_nm + Sigma_tu delta_nm, entry by entry, [N, T, N, T]."""
    N, T = len(K), len(C)
    S = np.zeros((N, T, N, T))
    for n, t, m, u in np.ndindex(N, T, N, T):
        S[n, t, m, u] = C[t, u] * K[n, m] + Sigma[t, u] * (n == m)
    return S


def stacked(K, Ks, Kss):
    """The kernel matrix of the training rows and then the test points."""
    return np.block([[K, Ks], [Ks.T, Kss]])


@pytest.mark.parametrize("N, T", SIZES)
def test_joint_covariance_is_task_major(rng, N, T):
    K, _, _, Y, C, Sigma = joint_problem(rng, N, T)
    S = entrywise_covariance(K, C, Sigma)
    S_task_major = S.transpose(1, 0, 3, 2).reshape(N * T, N * T)
    assert_allclose(ref.joint_covariance(K, C, Sigma), S_task_major, rtol=1e-14)
    # The evidence in the other, row-major order is the same number.
    row_major = multivariate_normal(cov=S.reshape(N * T, N * T)).logpdf(Y.ravel())
    assert_allclose(ref.log_evidence(K, Y, C, Sigma), row_major, **TOLERANCE)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("N, T", SIZES)
def test_predictions_by_conditioning_in_row_major_order(rng, N, T, kernel):
    """Through the precision matrix of all N + M rows: cov = P_**^-1, mean = -P_**^-1 P_*n y."""
    K, Ks, Kss, Y, C, Sigma = joint_problem(rng, N, T, M=3, kernel=kernel)
    S = entrywise_covariance(stacked(K, Ks, Kss), C, Sigma).reshape((N + 3) * T, (N + 3) * T)
    P = np.linalg.inv(S)
    new = slice(N * T, None)
    expected_cov = np.linalg.inv(P[new, new])
    expected_mean = -expected_cov @ P[new, : N * T] @ Y.ravel()
    mean, cov = ref.predict_y(K, Ks, Kss, Y, C, Sigma)
    assert_allclose(mean, expected_mean.reshape(3, T), **TOLERANCE)
    assert_allclose(cov, expected_cov.reshape(3, T, 3, T), **TOLERANCE)
    f_mean, f_cov = ref.predict_f(K, Ks, Kss, Y, C, Sigma)
    assert_array_equal(f_mean, mean)
    noise = np.einsum("mn,tu->mtnu", np.eye(3), Sigma)
    assert_allclose(f_cov + noise, cov, rtol=1e-14)


def test_prediction_without_data_is_the_prior(rng):
    _, _, Kss, _, C, Sigma = joint_problem(rng, 2, 3)
    mean, cov = ref.predict_f(np.zeros((0, 0)), np.zeros((0, 3)), Kss, np.zeros((0, 3)), C, Sigma)
    assert_array_equal(mean, np.zeros((3, 3)))
    assert_allclose(cov, np.einsum("mn,tu->mtnu", Kss, C), rtol=1e-14)


def test_layouts_entry_by_entry(rng):
    cov = rng.normal(size=(3, 2, 3, 2))
    assert ref.layout(cov, True, True) is cov
    full, outputs = ref.layout(cov, True, False), ref.layout(cov, False, True)
    variances = ref.layout(cov, False, False)
    assert (full.shape, outputs.shape, variances.shape) == ((2, 3, 3), (3, 2, 2), (3, 2))
    for m, t in np.ndindex(3, 2):
        assert variances[m, t] == cov[m, t, m, t]
        assert_array_equal(full[t, m], cov[m, t, :, t])
        assert_array_equal(outputs[m, t], cov[m, t, m, :])


@pytest.mark.parametrize("N, T", SIZES)
def test_log_densities_are_ratios_of_evidences(rng, N, T):
    K, Ks, Kss, Y, C, Sigma = joint_problem(rng, N, T, M=3)
    Ynew = rng.normal(size=(3, T))
    mean, cov = ref.predict_y(K, Ks, Kss, Y, C, Sigma)
    evidence = ref.log_evidence(K, Y, C, Sigma)
    # log p(Ynew | Y) = log p(Y, Ynew) - log p(Y).
    joint = ref.log_evidence(stacked(K, Ks, Kss), np.vstack([Y, Ynew]), C, Sigma) - evidence
    assert_allclose(ref.log_density(mean, cov, Ynew, True, True), joint, **TOLERANCE)
    per_row = ref.log_density(mean, cov, Ynew, False, True)
    for m in range(3):
        K1 = stacked(K, Ks[:, [m]], Kss[m : m + 1, [m]])
        ratio = ref.log_evidence(K1, np.vstack([Y, Ynew[m]]), C, Sigma) - evidence
        assert_allclose(per_row[m], ratio, **TOLERANCE)


def test_log_densities_of_marginals_equal_scipy(rng):
    K, Ks, Kss, Y, C, Sigma = joint_problem(rng, 7, 3, M=4)
    Ynew = rng.normal(size=(4, 3))
    mean, cov = ref.predict_y(K, Ks, Kss, Y, C, Sigma)
    sd = np.sqrt(np.einsum("mtmt->mt", cov))
    marginals = norm.logpdf(Ynew, mean, sd).sum(axis=1)
    assert_allclose(ref.log_density(mean, cov, Ynew, False, False), marginals, **TOLERANCE)
    per_task = [
        multivariate_normal(mean[:, t], cov[:, t, :, t]).logpdf(Ynew[:, t]) for t in (0, 1, 2)
    ]
    assert_allclose(ref.log_density(mean, cov, Ynew, True, False), per_task, **TOLERANCE)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("N, T", SIZES)
def test_leave_one_out_by_ratios_and_precisions(rng, N, T, kernel):
    K, _, _, Y, C, Sigma = joint_problem(rng, N, T, kernel=kernel)
    loo = ref.leave_one_out(K, Y, C, Sigma)
    P = np.linalg.inv(entrywise_covariance(K, C, Sigma).reshape(N * T, N * T))
    for i in range(N):
        rest, block = np.delete(np.arange(N), i), slice(i * T, (i + 1) * T)
        ratio = ref.log_evidence(K, Y, C, Sigma)
        ratio -= ref.log_evidence(K[np.ix_(rest, rest)], Y[rest], C, Sigma)
        assert_allclose(loo.log_density[i], ratio, **TOLERANCE)
        cov = np.linalg.inv(P[block, block])
        assert_allclose(loo.cov[i], cov, **TOLERANCE)
        assert_allclose(loo.mean[i], Y[i] - cov @ (P[block] @ Y.ravel()), **TOLERANCE)


def test_leave_the_only_row_out_is_the_prior(rng):
    K, _, _, Y, C, Sigma = joint_problem(rng, 1, 3)
    loo = ref.leave_one_out(K, Y, C, Sigma)
    assert_array_equal(loo.mean, np.zeros((1, 3)))
    assert_allclose(loo.cov[0], K[0, 0] * C + Sigma, rtol=1e-14)
    prior = multivariate_normal(cov=K[0, 0] * C + Sigma).logpdf(Y[0])
    assert_allclose(loo.log_density, [prior], rtol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_predict_given_by_conditioning_on_everything_at_once(rng, kernel):
    """Gaussian of (Y, y_m, f_m) with all N T + T + T entries, conditioned on all that is known."""
    N, T, M = 6, 3, 4
    K, Ks, Kss, Y, C, Sigma = joint_problem(rng, N, T, M, kernel)
    Ynew = rng.normal(size=(M, T))
    Ynew[0, 1] = Ynew[1, 0] = Ynew[1, 2] = np.nan
    Ynew[2] = np.nan
    given = ref.predict_given(K, Ks, Kss, Y, C, Sigma, Ynew)
    for m in range(M):
        S = np.zeros(((N + 2) * T, (N + 2) * T))
        rows = stacked(K, Ks[:, [m]], Kss[m : m + 1, [m]])
        S[: (N + 1) * T, : (N + 1) * T] = entrywise_covariance(rows, C, Sigma).reshape(
            (N + 1) * T, (N + 1) * T
        )
        f = slice((N + 1) * T, None)
        S[f, : (N + 1) * T] = np.kron(rows[-1], C)  # f_m shares no noise, not even with y_m
        S[: (N + 1) * T, f] = S[f, : (N + 1) * T].T
        S[f, f] = rows[-1, -1] * C
        z = np.concatenate([Y.ravel(), Ynew[m], np.full(T, np.nan)])
        known = np.flatnonzero(~np.isnan(z))
        gain = S[:, known] @ np.linalg.inv(S[np.ix_(known, known)])
        mean, cov = gain @ z[known], S - gain @ S[known]
        y = slice(N * T, (N + 1) * T)
        assert_allclose(given.f_mean[m], mean[f], **TOLERANCE)
        assert_allclose(given.f_cov[m], cov[f, f], **TOLERANCE)
        assert_allclose(given.y_mean[m], mean[y], **TOLERANCE)
        assert_allclose(given.y_cov[m], cov[y, y], **TOLERANCE)


def test_predict_given_nothing_and_everything(rng):
    K, Ks, Kss, Y, C, Sigma = joint_problem(rng, 5, 3, M=2)
    f_mean, f_cov = ref.predict_f(K, Ks, Kss, Y, C, Sigma)
    y_cov = ref.predict_y(K, Ks, Kss, Y, C, Sigma)[1]
    nothing = ref.predict_given(K, Ks, Kss, Y, C, Sigma, np.full((2, 3), np.nan))
    assert_array_equal(nothing.f_mean, f_mean)
    assert_array_equal(nothing.y_mean, f_mean)
    assert_allclose(nothing.f_cov, ref.layout(f_cov, False, True), rtol=1e-14)
    assert_allclose(nothing.y_cov, ref.layout(y_cov, False, True), rtol=1e-14)
    Ynew = rng.normal(size=(2, 3))
    everything = ref.predict_given(K, Ks, Kss, Y, C, Sigma, Ynew)
    assert_array_equal(everything.y_mean, Ynew)
    assert_array_equal(everything.y_cov, np.zeros((2, 3, 3)))
    # Knowing a whole noisy row is one more training row.
    for m in range(2):
        K1 = stacked(K, Ks[:, [m]], Kss[m : m + 1, [m]])
        mean, cov = ref.predict_f(K1, K1[:, -1:], K1[-1:, -1:], np.vstack([Y, Ynew[m]]), C, Sigma)
        assert_allclose(everything.f_mean[m], mean[0], **TOLERANCE)
        assert_allclose(everything.f_cov[m], cov[0, :, 0, :], **TOLERANCE)
