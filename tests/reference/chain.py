"""The conditional model: objective, weights, gradients; the joint model recovered from it."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from .gaussians import Array, gaussian_log_density

Learning = Literal["hierarchical", "approximate"]


class Gradients(NamedTuple):
    """Derivatives of the objective; ``K`` is symmetric, dJ = sum(G.K * dK) for a symmetric dK."""

    K: Array  # [N, N]
    Y: Array  # [N, T]
    b: Array  # [T]
    sigma2: Array  # [T]


# The conditional model: objective, weights, gradients ---------------------------------------------
#
# The weights of earlier tasks have the prior w_t ~ N(0, diag(p_t)): "unit", p = 1, the paper's, if
# weight_variance is None, else "scaled", p_tu = lambda s_t / v_u with v the targets' mean squares.


def mean_squares(Y: Array) -> Array:
    """v, [T]; 1 for a task that is zero everywhere."""
    v = np.mean(Y**2, axis=0)
    return np.where(v > 0, v, 1.0)


def weight_prior(Y: Array, sigma2: Array, t: int, weight_variance: float | None = None) -> Array:
    """p_t, [t], prior variances of task t's weights."""
    if weight_variance is None:
        return np.ones(t)
    return weight_variance * sigma2[t] / mean_squares(Y)[:t]


def input_kernel(K: Array, b: Array, sigma2: Array, t: int) -> Array:
    """K_x,t = b_t K + s_t I, [N, N]."""
    return b[t] * K + sigma2[t] * np.eye(len(K))


def composed_kernel(
    K: Array, Y: Array, b: Array, sigma2: Array, t: int, weight_variance: float | None = None
) -> Array:
    """K_xy,t = b_t K + s_t I + Y_<t diag(p_t) Y_<t^T, [N, N]."""
    p = weight_prior(Y, sigma2, t, weight_variance)
    return input_kernel(K, b, sigma2, t) + (Y[:, :t] * p) @ Y[:, :t].T


def weights(
    K: Array, Y: Array, b: Array, sigma2: Array, weight_variance: float | None = None
) -> Array:
    """W [T, T], strictly lower; row t is w_t = E[w_t | y_t] = diag(p_t) Y_<t^T K_xy,t^-1 y_t."""
    T = Y.shape[1]
    W = np.zeros((T, T))
    for t in range(T):
        alpha = np.linalg.solve(composed_kernel(K, Y, b, sigma2, t, weight_variance), Y[:, t])
        W[t, :t] = weight_prior(Y, sigma2, t, weight_variance) * (Y[:, :t].T @ alpha)
    return W


def weight_covariances(
    K: Array, Y: Array, b: Array, sigma2: Array, weight_variance: float | None = None
) -> list[Array]:
    """V_t = (diag(p_t)^-1 + Y_<t^T K_x,t^-1 Y_<t)^-1, [t, t]: what is not known of the weights."""
    V = []
    for t in range(Y.shape[1]):
        Kx, earlier = input_kernel(K, b, sigma2, t), Y[:, :t]
        precision = np.diag(1.0 / weight_prior(Y, sigma2, t, weight_variance))
        V.append(np.linalg.inv(precision + earlier.T @ np.linalg.solve(Kx, earlier)))
    return V


def residuals(Y: Array, W: Array) -> Array:
    """Column t is y_t - Y_<t w_t, [N, T]."""
    return np.stack([Y[:, t] - Y[:, :t] @ W[t, :t] for t in range(Y.shape[1])], axis=1)


def dual_vectors(
    K: Array, Y: Array, b: Array, sigma2: Array, weight_variance: float | None = None
) -> Array:
    """Column t is alpha_t = K_x,t^-1 (y_t - Y_<t w_t), [N, T]."""
    E = residuals(Y, weights(K, Y, b, sigma2, weight_variance))
    columns = [np.linalg.inv(input_kernel(K, b, sigma2, t)) @ E[:, t] for t in range(Y.shape[1])]
    return np.stack(columns, axis=1)


def conditional_log_likelihoods(
    K: Array,
    Y: Array,
    b: Array,
    sigma2: Array,
    learning: Learning,
    weight_variance: float | None = None,
) -> Array:
    """
    Term t of the objective, [T].

    hierarchical: log N(y_t - Y_<t w_t | 0, K_x,t) - 1/2 sum_u w_tu^2 / p_tu;
    approximate: log N(y_t | 0, K_xy,t).
    """
    tasks = range(Y.shape[1])
    if learning == "approximate":
        S = [composed_kernel(K, Y, b, sigma2, t, weight_variance) for t in tasks]
        return np.array([gaussian_log_density(Y[:, t], S[t]) for t in tasks])
    if learning == "hierarchical":
        W = weights(K, Y, b, sigma2, weight_variance)
        E = residuals(Y, W)
        terms = []
        for t in tasks:
            cost = np.sum(W[t, :t] ** 2 / weight_prior(Y, sigma2, t, weight_variance)) / 2
            terms.append(gaussian_log_density(E[:, t], input_kernel(K, b, sigma2, t)) - cost)
        return np.array(terms)
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
    weight_variance: float | None = None,
) -> Array:
    """Term t of the objective with Q for K, less 1/2 (b_t / s_t) trace(K - Q), [T]."""
    Q = inducing_kernel(Kmm, Kmn)
    terms = conditional_log_likelihoods(Q, Y, b, sigma2, learning, weight_variance)
    return terms - 0.5 * b / sigma2 * (np.sum(diagonal) - np.trace(Q))


def objective(
    K: Array,
    Y: Array,
    b: Array,
    sigma2: Array,
    learning: Learning,
    weight_variance: float | None = None,
) -> float:
    """J = sum_t of the conditional log likelihoods."""
    return float(np.sum(conditional_log_likelihoods(K, Y, b, sigma2, learning, weight_variance)))


def derivative(function: Callable[[float], float], step: float) -> float:
    """f'(0) to order six: (45 d_1 - 9 d_2 + d_3) / 60h with d_k = f(kh) - f(-kh)."""
    d1, d2, d3 = (function(k * step) - function(-k * step) for k in (1, 2, 3))
    return (45 * d1 - 9 * d2 + d3) / (60 * step)


def analytic_gradients(
    K: Array, Y: Array, b: Array, sigma2: Array, learning: Learning
) -> Gradients:
    """
    Derivatives of ``objective`` from explicit inverses, for the paper's prior of the weights.

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


# The best b and sigma2, for the scaled prior ------------------------------------------------------


class Best(NamedTuple):
    """A task's largest term, and where it is."""

    term: float
    log_ratio: float  # log(b_t / s_t)
    sigma2: float


def term_at_best_noise(
    K: Array,
    Y: Array,
    t: int,
    log_ratio: float,
    weight_variance: float,
    floor: float,
    learning: Learning,
) -> Best:
    """Term t at b = r s and s = y_t^T M_t^-1 y_t / N, M_t = K_xy,t / s, or s = floor if larger."""
    ratios, ones = np.full(Y.shape[1], np.exp(log_ratio)), np.ones(Y.shape[1])
    M = composed_kernel(K, Y, ratios, ones, t, weight_variance)
    sigma2 = max(float(Y[:, t] @ np.linalg.solve(M, Y[:, t])) / len(Y), floor)
    term = gaussian_log_density(Y[:, t], sigma2 * M)
    if learning == "hierarchical":
        without_weights = np.linalg.slogdet(input_kernel(K, ratios, ones, t))[1]
        term += (np.linalg.slogdet(M)[1] - without_weights) / 2
    return Best(term, log_ratio, sigma2)


def best_term(
    K: Array,
    Y: Array,
    t: int,
    weight_variance: float,
    floor: float,
    learning: Learning,
    log_ratios: tuple[float, float],
) -> Best:
    """The largest term t for ratios in a range: the best of 200, and SciPy's search around it."""
    rest = weight_variance, floor, learning
    grid = np.linspace(*log_ratios, 200)
    found = [term_at_best_noise(K, Y, t, log_ratio, *rest) for log_ratio in grid]
    best = int(np.argmax([one.term for one in found]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    polished = minimize_scalar(
        lambda log_ratio: -term_at_best_noise(K, Y, t, log_ratio, *rest).term,
        bounds=around,
        method="bounded",
        options={"xatol": 1e-10},
    )
    return max(found[best], term_at_best_noise(K, Y, t, float(polished.x), *rest))


# Rows given all other rows ------------------------------------------------------------------------


def leave_out_log_densities(
    K: Array,
    Y: Array,
    b: Array,
    sigma2: Array,
    groups: Sequence[Array],
    weight_variance: float | None = None,
) -> Array:
    """Log density of each group of rows given the others: all rows, less all but the group."""
    found = np.zeros(len(groups))
    for t in range(Y.shape[1]):
        S, y = composed_kernel(K, Y, b, sigma2, t, weight_variance), Y[:, t]
        for g, group in enumerate(groups):
            kept = np.setdiff1d(np.arange(len(Y)), group)
            found[g] += gaussian_log_density(y, S)
            found[g] -= gaussian_log_density(y[kept], S[np.ix_(kept, kept)])
    return found


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


def added_variances(W: Array, V: Sequence[Array], own: Array) -> Array:
    """
    What unknown weights add to each task's own variance, [T], task by task.

    u_t = trace(V_t S_<t), where S is the mean of ``noise_covariance`` over weights N(w_t, V_t):
    S_t,<t = w_t^T S_<t, S_tt = own_t + w_t^T S_<t w_t + u_t.
    """
    T = len(W)
    S, u = np.zeros((T, T)), np.zeros(T)
    for t in range(T):
        w, earlier = W[t, :t], S[:t, :t]
        u[t] = np.trace(V[t] @ earlier)
        S[t, :t] = S[:t, t] = w @ earlier
        S[t, t] = own[t] + w @ earlier @ w + u[t]
    return u


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


class Recovered(NamedTuple):
    """The joint model's matrices [T, T], and what unknown weights add to variances [T]."""

    B: Array
    C: Array
    Sigma: Array
    W: Array
    signal_added: Array
    noise_added: Array


def recover_all(
    K: Array,
    Y: Array,
    b: Array,
    sigma2: Array,
    weight_variance: float | None = None,
    correlation: Literal["mean", "map"] = "mean",
) -> Recovered:
    """C = A (B + diag(u)) A^T and Sigma = A diag(s + u') A^T; u = u' = 0 with "map"."""
    chain = K, Y, b, sigma2, weight_variance
    W, B = weights(*chain), input_covariance(K, dual_vectors(*chain), b)
    V = weight_covariances(*chain)
    added = [added_variances(W, V, own) * (correlation == "mean") for own in (b, sigma2)]
    C = task_covariance(W, B + np.diag(added[0]))
    return Recovered(B, C, noise_covariance(W, sigma2 + added[1]), W, *added)


def recover(
    K: Array, Y: Array, b: Array, sigma2: Array, weight_variance: float | None = None
) -> tuple[Array, Array]:
    """C and Sigma of the joint model: means over the weights, and MAP with the paper's prior."""
    correlation: Literal["mean", "map"] = "map" if weight_variance is None else "mean"
    found = recover_all(K, Y, b, sigma2, weight_variance, correlation)
    return found.C, found.Sigma


def feature_posterior(
    Phi: Array, Y: Array, b: Array, sigma2: Array, weight_variance: float | None = None
) -> tuple[Array, Array]:
    """
    Posterior N(m_t, V_t) of w_x,t where K = Phi Phi^T, Phi [N, R]: means [R, T], covs [T, R, R].

    Prior N(0, b_t I), likelihood N(y_t - Y_<t w_t | Phi w_x,t, s_t I), w_t fixed at its mean:
    V_t = (Phi^T Phi / s_t + I / b_t)^-1, m_t = V_t Phi^T (y_t - Y_<t w_t) / s_t.
    """
    R, T = Phi.shape[1], Y.shape[1]
    E = residuals(Y, weights(Phi @ Phi.T, Y, b, sigma2, weight_variance))
    V = [np.linalg.inv(Phi.T @ Phi / sigma2[t] + np.eye(R) / b[t]) for t in range(T)]
    m = [V[t] @ Phi.T @ E[:, t] / sigma2[t] for t in range(T)]
    return np.stack(m, axis=1), np.stack(V)
