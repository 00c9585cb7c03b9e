"""The joint model: evidence, predictions, densities."""

from typing import NamedTuple

import numpy as np

from .gaussians import Array, gaussian_log_density


class LeaveOneOut(NamedTuple):
    """Predictions of each row of Y from all the other rows."""

    mean: Array  # [N, T]
    cov: Array  # [N, T, T], of y: noise included
    log_density: Array  # [N], joint over the tasks of the row


class Given(NamedTuple):
    """Predictions at each test point, given the entries of its own row that are known."""

    f_mean: Array  # [M, T]
    f_cov: Array  # [M, T, T]
    y_mean: Array  # [M, T]
    y_cov: Array  # [M, T, T]


def joint_covariance(K: Array, C: Array, Sigma: Array) -> Array:
    """Cov vec(Y) = C (x) K + Sigma (x) I, [N T, N T]."""
    return np.kron(C, K) + np.kron(Sigma, np.eye(len(K)))


def log_evidence(K: Array, Y: Array, C: Array, Sigma: Array) -> float:
    """log N(vec(Y) | 0, C (x) K + Sigma (x) I)."""
    return gaussian_log_density(Y.ravel(order="F"), joint_covariance(K, C, Sigma))


def predict_f(
    K: Array, Ks: Array, Kss: Array, Y: Array, C: Array, Sigma: Array
) -> tuple[Array, Array]:
    """
    Mean [M, T] and covariance [M, T, M, T] of f(Xnew) given Y; N may be 0.

    R^T S^-1 vec(Y) and C (x) Kss - R^T S^-1 R, with R = C (x) Ks and S = C (x) K + Sigma (x) I.
    """
    M, T = len(Kss), len(C)
    cross = np.kron(C, Ks)  # R, [N T, M T]
    gain = np.linalg.solve(joint_covariance(K, C, Sigma), cross).T  # R^T S^-1
    mean = (gain @ Y.ravel(order="F")).reshape(T, M).T
    cov = (np.kron(C, Kss) - gain @ cross).reshape(T, M, T, M)
    return mean, cov.transpose(1, 0, 3, 2)


def predict_y(
    K: Array, Ks: Array, Kss: Array, Y: Array, C: Array, Sigma: Array
) -> tuple[Array, Array]:
    """As ``predict_f``, for y = f + noise: Sigma is added where m = m', the same observation."""
    mean, cov = predict_f(K, Ks, Kss, Y, C, Sigma)
    for m in range(len(Kss)):
        cov[m, :, m, :] += Sigma
    return mean, cov


def layout(cov: Array, full_cov: bool, full_output_cov: bool) -> Array:
    """GPflow's layouts: [M, T], full_cov [T, M, M], full_output_cov [M, T, T], both unchanged."""
    M, T = cov.shape[:2]
    if full_cov and full_output_cov:
        return cov
    if full_cov:
        return np.stack([cov[:, t, :, t] for t in range(T)])
    if full_output_cov:
        return np.stack([cov[m, :, m, :] for m in range(M)])
    return np.array([[cov[m, t, m, t] for t in range(T)] for m in range(M)])


def log_density(
    mean: Array, cov: Array, Ynew: Array, full_cov: bool, full_output_cov: bool
) -> Array:
    """
    Log density of Ynew [M, T] under N(mean, cov), cov [M, T, M, T] of y cut down to a layout.

    Neither: the sum of a row's marginals, [M]; full_output_cov: joint over the row's tasks, [M];
    full_cov: per task, joint over points, [T]; both: joint over everything, a scalar.
    """
    M, T = Ynew.shape
    E, V = Ynew - mean, layout(cov, full_cov, full_output_cov)
    if full_cov and full_output_cov:
        return np.array(gaussian_log_density(E.ravel(), V.reshape(M * T, M * T)))
    if full_cov:
        return np.array([gaussian_log_density(E[:, t], V[t]) for t in range(T)])
    if full_output_cov:
        return np.array([gaussian_log_density(E[m], V[m]) for m in range(M)])
    return np.array([gaussian_log_density(E[m], np.diag(V[m])) for m in range(M)])


def leave_one_out(K: Array, Y: Array, C: Array, Sigma: Array) -> LeaveOneOut:
    """p(Y_i | Y_-i) for each row i, conditioning anew on the other N - 1 rows each time."""
    means, covs, densities = [], [], []
    for i in range(len(Y)):
        rest = np.delete(np.arange(len(Y)), i)
        mean, cov = predict_y(
            K[np.ix_(rest, rest)], K[rest, i : i + 1], K[i : i + 1, i : i + 1], Y[rest], C, Sigma
        )
        means.append(mean[0])
        covs.append(cov[0, :, 0, :])
        densities.append(gaussian_log_density(Y[i] - mean[0], covs[-1]))
    return LeaveOneOut(np.stack(means), np.stack(covs), np.array(densities))


def predict_given(
    K: Array, Ks: Array, Kss: Array, Y: Array, C: Array, Sigma: Array, Ynew: Array
) -> Given:
    """
    At each test point apart, f and y given Y and the known (not NaN) entries of that row of Ynew.

    Conditions z = (f, y) ~ N((m, m), [[V, V], [V, V + Sigma]]): m_z + S_zk S_kk^-1 (y_k - m_k).
    """
    f_mean, f_cov = predict_f(K, Ks, Kss, Y, C, Sigma)
    M, T = Ynew.shape
    means, covs = np.zeros((M, 2 * T)), np.zeros((M, 2 * T, 2 * T))
    for m in range(M):
        V = f_cov[m, :, m, :]
        S = np.block([[V, V], [V, V + Sigma]])
        known = T + np.flatnonzero(~np.isnan(Ynew[m]))
        unknown = np.setdiff1d(np.arange(2 * T), known)
        gain = S[np.ix_(unknown, known)] @ np.linalg.inv(S[np.ix_(known, known)])
        prior = np.concatenate([f_mean[m], f_mean[m]])
        values = Ynew[m, known - T]
        means[m, known] = values  # certain: the covariance of these entries stays zero
        means[m, unknown] = prior[unknown] + gain @ (values - prior[known])
        posterior = S[np.ix_(unknown, unknown)] - gain @ S[np.ix_(known, unknown)]
        covs[m][np.ix_(unknown, unknown)] = posterior
    return Given(means[:, :T], covs[:, :T, :T], means[:, T:], covs[:, T:, T:])
