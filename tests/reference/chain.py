"""The conditional model: objective, weights, gradients; the joint model recovered from it."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from .gaussians import Array, gaussian_log_density

Learning = Literal["hierarchical", "approximate"]


class Gradients(NamedTuple):
    """Derivatives of the objective; ``K`` is symmetric, dJ = sum(G.K * dK) for a symmetric dK."""

    K: Array  # [N, N]
    Y: Array  # [N, T]
    b: Array  # [T]
    sigma2: Array  # [T]


# The conditional model: objective, weights, gradients ---------------------------------------------


def input_kernel(K: Array, b: Array, sigma2: Array, t: int) -> Array:
    """K_x,t = b_t K + s_t I, [N, N]."""
    return b[t] * K + sigma2[t] * np.eye(len(K))


def composed_kernel(K: Array, Y: Array, b: Array, sigma2: Array, t: int) -> Array:
    """K_xy,t = b_t K + s_t I + Y_<t Y_<t^T, [N, N]."""
    return input_kernel(K, b, sigma2, t) + Y[:, :t] @ Y[:, :t].T


def weights(K: Array, Y: Array, b: Array, sigma2: Array) -> Array:
    """W [T, T], strictly lower; row t is the MAP w_t = E[w_t | y_t] = Y_<t^T K_xy,t^-1 y_t."""
    T = Y.shape[1]
    W = np.zeros((T, T))
    for t in range(T):
        W[t, :t] = Y[:, :t].T @ np.linalg.inv(composed_kernel(K, Y, b, sigma2, t)) @ Y[:, t]
    return W


def residuals(Y: Array, W: Array) -> Array:
    """Column t is y_t - Y_<t w_t, [N, T]."""
    return np.stack([Y[:, t] - Y[:, :t] @ W[t, :t] for t in range(Y.shape[1])], axis=1)


def dual_vectors(K: Array, Y: Array, b: Array, sigma2: Array) -> Array:
    """Column t is alpha_t = K_x,t^-1 (y_t - Y_<t w_t), [N, T]."""
    E = residuals(Y, weights(K, Y, b, sigma2))
    columns = [np.linalg.inv(input_kernel(K, b, sigma2, t)) @ E[:, t] for t in range(Y.shape[1])]
    return np.stack(columns, axis=1)


def conditional_log_likelihoods(
    K: Array, Y: Array, b: Array, sigma2: Array, learning: Learning
) -> Array:
    """
    Term t of the objective, [T].

    hierarchical: log N(y_t - Y_<t w_t | 0, K_x,t) - 1/2 |w_t|^2;
    approximate: log N(y_t | 0, K_xy,t).
    """
    tasks = range(Y.shape[1])
    if learning == "approximate":
        S = [composed_kernel(K, Y, b, sigma2, t) for t in tasks]
        return np.array([gaussian_log_density(Y[:, t], S[t]) for t in tasks])
    if learning == "hierarchical":
        W = weights(K, Y, b, sigma2)
        E = residuals(Y, W)
        S = [input_kernel(K, b, sigma2, t) for t in tasks]
        return np.array([gaussian_log_density(E[:, t], S[t]) - W[t] @ W[t] / 2 for t in tasks])
    raise ValueError(f"learning is {learning!r}; it must be 'hierarchical' or 'approximate'.")


def inducing_kernel(Kmm: Array, Kmn: Array) -> Array:
    """Q = K_nm K_mm^-1 K_mn, what inducing points see of K, [N, N]."""
    return Kmn.T @ np.linalg.solve(Kmm, Kmn)


def sparse_terms(
    Kmm: Array,
    Kmn: Array,
    diagonal: Array,
    Y: Array,
    b: Array,
    sigma2: Array,
    learning: Learning,
) -> Array:
    """Term t of the objective with Q for K, less 1/2 (b_t / s_t) trace(K - Q), [T]."""
    Q = inducing_kernel(Kmm, Kmn)
    terms = np.array(list(conditional_log_likelihoods(Q, Y, b, sigma2, learning)))
    return terms - 0.5 * b / sigma2 * (np.sum(diagonal) - np.trace(Q))


def objective(K: Array, Y: Array, b: Array, sigma2: Array, learning: Learning) -> float:
    """J = sum_t of the conditional log likelihoods."""
    return float(np.sum(conditional_log_likelihoods(K, Y, b, sigma2, learning)))


def derivative(function: Callable[[float], float], step: float) -> float:
    """f'(0) to order six: (45 d_1 - 9 d_2 + d_3) / 60h with d_k = f(kh) - f(-kh)."""
    d1, d2, d3 = (function(k * step) - function(-k * step) for k in (1, 2, 3))
    return (45 * d1 - 9 * d2 + d3) / (60 * step)


def finite_difference_gradients(
    K: Array, Y: Array, b: Array, sigma2: Array, learning: Learning
) -> Gradients:
    """Derivatives of ``objective`` by central differences."""
    # J is analytic up to where K_x,t or K_xy,t becomes singular. Each step is 1/200 of (a bound of)
    # that radius: the stencil's truncation, some (1/200)^6 of the gradient, is then below rounding,
    # eps |J| 200 / radius. Achieved: 1e-11 of the largest entry, for sigma2 in [0.05, 0.5] and N up
    # to 7 (steps of 1/100 and 1/1000 of the radius: 2e-10 and 5e-11).
    N, T = Y.shape

    def along(dK: Array, dY: Array, db: Array, ds: Array, radius: float) -> float:
        def line(h: float) -> float:
            return objective(K + h * dK, Y + h * dY, b + h * db, sigma2 + h * ds, learning)

        return derivative(line, radius / 200)

    zK, zY, zT = np.zeros((N, N)), np.zeros((N, T)), np.zeros(T)
    G = Gradients(np.zeros((N, N)), np.zeros((N, T)), np.zeros(T), np.zeros(T))
    for i in range(N):
        for j in range(i + 1):
            dK = zK.copy()
            dK[i, j] = dK[j, i] = 1.0  # the two entries of G share this derivative when i != j
            slope = along(dK, zY, zT, zT, float(np.min(sigma2 / b)))
            G.K[i, j] = G.K[j, i] = slope if i == j else slope / 2
        for t in range(T):
            dY = zY.copy()
            dY[i, t] = 1.0
            G.Y[i, t] = along(zK, dY, zT, zT, float(np.sqrt(np.min(sigma2))))
    for t in range(T):
        unit = np.eye(T)[t]
        G.b[t] = along(zK, zY, unit, zT, float(b[t]))
        G.sigma2[t] = along(zK, zY, zT, unit, float(sigma2[t]))
    return G


def analytic_gradients(
    K: Array, Y: Array, b: Array, sigma2: Array, learning: Learning
) -> Gradients:
    """
    Derivatives of ``objective`` from explicit inverses.

    dJ = sum_t 1/2 [alpha_t^T dS_t alpha_t - trace(Q_t dS_t)], dS_t = b_t dK + K db_t + I ds_t, with
    Q_t = K_xy,t^-1 (approximate) or K_x,t^-1 (hierarchical). For Y: dJ/dy_t = -alpha_t from term t,
    and from term t to its earlier tasks dJ/dY_<t = alpha_t w_t^T, minus K_xy,t^-1 Y_<t when
    approximate, whose determinant contains Y_<t.
    """
    N, T = Y.shape
    W, alpha = weights(K, Y, b, sigma2), dual_vectors(K, Y, b, sigma2)
    G = Gradients(np.zeros((N, N)), np.zeros((N, T)), np.zeros(T), np.zeros(T))
    for t in range(T):
        G.Y[:, t] -= alpha[:, t]
        G.Y[:, :t] += np.outer(alpha[:, t], W[t, :t])
        if learning == "approximate":
            Q = np.linalg.inv(composed_kernel(K, Y, b, sigma2, t))
            G.Y[:, :t] -= Q @ Y[:, :t]
        else:
            Q = np.linalg.inv(input_kernel(K, b, sigma2, t))
        G_S = 0.5 * (np.outer(alpha[:, t], alpha[:, t]) - Q)  # dJ_t / dS_t
        G.K[:] += b[t] * G_S
        G.b[t] = np.sum(G_S * K)
        G.sigma2[t] = np.trace(G_S)
    return G


# The joint model recovered from the conditional one -----------------------------------------------


def noise_covariance(W: Array, sigma2: Array) -> Array:
    """Sigma_t,<t = w_t^T Sigma_<t,<t and Sigma_tt = s_t + w_t^T Sigma_<t,<t w_t, task by task."""
    T = len(W)
    Sigma = np.zeros((T, T))
    for t in range(T):
        w, earlier = W[t, :t], Sigma[:t, :t]
        Sigma[t, :t] = Sigma[:t, t] = w @ earlier
        Sigma[t, t] = sigma2[t] + w @ earlier @ w
    return Sigma


def correlations(gram: Array, negligible: Array) -> Array:
    """rho_tu = <w_t, w_u> / (|w_t| |w_u|); a task with negligible |w_t|^2 has rho_tu = delta_tu."""
    T = len(gram)
    rho = np.eye(T)
    for t in range(T):
        for u in range(T):
            if t != u and gram[t, t] > negligible[t] and gram[u, u] > negligible[u]:
                rho[t, u] = gram[t, u] / np.sqrt(gram[t, t] * gram[u, u])
    return rho


def input_covariance(K: Array, alpha: Array, b: Array) -> Array:
    """B_tu = sqrt(b_t b_u) rho_tu, w_x,t = Phi^T alpha_t: <w_x,t, w_x,u> = alpha_t^T K alpha_u."""
    # Rounding of alpha^T K alpha itself: below this a task has no signal.
    rounding = len(K) * np.finfo(float).eps * np.linalg.norm(K, 2) * np.sum(alpha**2, axis=0)
    return np.sqrt(np.outer(b, b)) * correlations(alpha.T @ K @ alpha, rounding)


def mixing_matrix(W: Array) -> Array:
    """A [T, T] with w_t = sum_u A_tu w_x,u, from w_t = w_x,t + sum_u W_tu w_u, task after task."""
    T = len(W)
    A = np.zeros((T, T))
    for t in range(T):
        A[t, t] = 1.0
        for u in range(t):
            A[t] += W[t, u] * A[u]
    return A


def task_covariance(W: Array, B: Array) -> Array:
    """C = A B A^T, the covariance of the w_t when the w_x,t have covariance B, [T, T]."""
    A = mixing_matrix(W)
    return A @ B @ A.T


def recover(K: Array, Y: Array, b: Array, sigma2: Array) -> tuple[Array, Array]:
    """C and Sigma of the joint model from the data and the conditional model's parameters."""
    W, alpha = weights(K, Y, b, sigma2), dual_vectors(K, Y, b, sigma2)
    return task_covariance(W, input_covariance(K, alpha, b)), noise_covariance(W, sigma2)


def feature_posterior(Phi: Array, Y: Array, b: Array, sigma2: Array) -> tuple[Array, Array]:
    """
    Posterior N(m_t, V_t) of w_x,t where K = Phi Phi^T, Phi [N, R]: means [R, T], covs [T, R, R].

    Prior N(0, b_t I), likelihood N(y_t - Y_<t w_t | Phi w_x,t, s_t I), w_t fixed at its MAP:
    V_t = (Phi^T Phi / s_t + I / b_t)^-1, m_t = V_t Phi^T (y_t - Y_<t w_t) / s_t.
    """
    R, T = Phi.shape[1], Y.shape[1]
    E = residuals(Y, weights(Phi @ Phi.T, Y, b, sigma2))
    V = [np.linalg.inv(Phi.T @ Phi / sigma2[t] + np.eye(R) / b[t]) for t in range(T)]
    m = [V[t] @ Phi.T @ E[:, t] / sigma2[t] for t in range(T)]
    return np.stack(m, axis=1), np.stack(V)


def input_function_posterior(K: Array, Y: Array, b: Array, sigma2: Array) -> tuple[Array, Array]:
    """
    Posterior of f_x,t = Phi w_x,t at the training rows: means [N, T], covs [T, N, N].

    mean_t = b_t K K_x,t^-1 (y_t - Y_<t w_t), cov_t = b_t K - b_t K K_x,t^-1 b_t K.
    """
    E = residuals(Y, weights(K, Y, b, sigma2))
    means, covs = [], []
    for t in range(Y.shape[1]):
        gain = b[t] * K @ np.linalg.inv(input_kernel(K, b, sigma2, t))
        means.append(gain @ E[:, t])
        covs.append(b[t] * K - gain @ (b[t] * K))
    return np.stack(means, axis=1), np.stack(covs)


def sampled_input_covariance(draws: Array, b: Array) -> Array:
    """Monte Carlo B: mean over draws W_x [S, R, T] of sqrt(b_t b_u) <w_x,t, w_x,u> / (|w| |w|)."""
    nothing = np.zeros(len(b))
    rho = np.mean([correlations(draw.T @ draw, nothing) for draw in draws], axis=0)
    return np.sqrt(np.outer(b, b)) * rho
