"""
Slow, dense, transparent NumPy: the ground truth of the tests. It imports nothing of the package.

Letters: N rows, D inputs, T tasks, M test points, R features. ``Y`` is [N, T], ``Y_<t`` is
``Y[:, :t]``, kernels are matrices: K [N, N], Ks = k(X, Xnew) [N, M], Kss [M, M]. For task t,
K_x,t = b_t K + s_t I and K_xy,t = K_x,t + Y_<t Y_<t^T, with s = sigma2. ``vec`` stacks columns
(task-major), so the task matrix is the left Kronecker factor: ``np.kron(C, K)`` goes with
``Y.ravel(order="F")``.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Learning = Literal["hierarchical", "approximate"]


class Gradients(NamedTuple):
    """Derivatives of the objective; ``K`` is symmetric, dJ = sum(G.K * dK) for a symmetric dK."""

    K: Array  # [N, N]
    Y: Array  # [N, T]
    b: Array  # [T]
    sigma2: Array  # [T]


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


class Parameters(NamedTuple):
    """What the alternation learns; ``theta`` holds logarithms of the kernel's parameters."""

    theta: Array  # [P]
    b: Array  # [T]
    sigma2: Array  # [T]


# Kernels and Gaussians ----------------------------------------------------------------------------


def squared_exponential(
    X: Array, X2: Array, variance: float = 1.0, lengthscales: float | Array = 1.0
) -> Array:
    """k(x, x') = variance exp(-1/2 sum_d (x_d - x'_d)^2 / l_d^2), [N, M]."""
    difference = (X[:, None, :] - X2[None, :, :]) / lengthscales  # [N, M, D]
    return variance * np.exp(-0.5 * np.sum(difference**2, axis=-1))


def linear(X: Array, X2: Array, variance: float | Array = 1.0) -> Array:
    """k(x, x') = sum_d variance_d x_d x'_d, [N, M]."""
    return (X * variance) @ X2.T


def gaussian_log_density(y: Array, cov: Array) -> float:
    """log N(y | 0, S) = -1/2 y^T S^-1 y - 1/2 log|S| - n/2 log 2 pi."""
    sign, log_determinant = np.linalg.slogdet(cov)
    if sign <= 0:
        raise ValueError(f"The determinant of the covariance has sign {sign}; it must be positive.")
    quadratic = y @ np.linalg.solve(cov, y)
    return float(-0.5 * (quadratic + log_determinant + len(y) * np.log(2 * np.pi)))


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


# The joint model: evidence, predictions, densities ------------------------------------------------


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


# Learning: the paper's alternation, and EM on the exact evidence ----------------------------------


def hierarchical_alternation(
    X: Array,
    Y: Array,
    kernel_fn: Callable[[Array, Array], Array],
    theta0: Array,
    b0: Array,
    sigma20: Array,
    steps: int,
    rate: float,
) -> Parameters:
    """
    Algorithm 1: refresh w_t, step on log N(y_t - Y_<t w_t | 0, K_x,t) with w_t fixed, repeat.

    kernel_fn(X, theta) gives K. All parameters move by their logarithms (theta holds logarithms
    already). Signs as in ``analytic_gradients``; theta's step has the rate once (the paper: twice).
    """
    theta, b, sigma2 = (np.array(value, dtype=float) for value in (theta0, b0, sigma20))

    def slope(K: Array, dS: Array, t: int, w: Array) -> float:
        """1/2 [a^T dS a - trace(K_x,t^-1 dS)], a = K_x,t^-1 (y_t - Y_<t w)."""
        Q = np.linalg.inv(input_kernel(K, b, sigma2, t))
        a = Q @ (Y[:, t] - Y[:, :t] @ w)
        return float(0.5 * (a @ dS @ a - np.trace(Q @ dS)))

    for _ in range(steps):
        K = kernel_fn(X, theta)
        dK = [kernel_derivative(kernel_fn, X, theta, p) for p in range(len(theta))]
        delta = np.zeros(len(theta))
        for t in range(Y.shape[1]):
            S = composed_kernel(K, Y, b, sigma2, t)
            w = Y[:, :t].T @ np.linalg.inv(S) @ Y[:, t]
            slope_b = b[t] * slope(K, K, t, w)
            slope_s = sigma2[t] * slope(K, np.eye(len(K)), t, w)
            b[t] *= np.exp(rate * slope_b)
            sigma2[t] *= np.exp(rate * slope_s)
            delta += [slope(K, b[t] * dK_p, t, w) for dK_p in dK]
        theta = theta + rate * delta
    return Parameters(theta, b, sigma2)


def kernel_derivative(
    kernel_fn: Callable[[Array, Array], Array], X: Array, theta: Array, p: int
) -> Array:
    """dK / dtheta_p by the stencil of ``derivative``, with steps of 0.01 (theta is a logarithm)."""
    step = 0.01 * np.eye(len(theta))[p]
    d1, d2, d3 = (
        kernel_fn(X, theta + k * step) - kernel_fn(X, theta - k * step) for k in (1, 2, 3)
    )
    return (45 * d1 - 9 * d2 + d3) / 0.6


def row_log_evidence(lam: Array, Yr: Array, C: Array, Sigma: Array) -> float:
    """sum_n log N(Yr_n | 0, lam_n C + Sigma)."""
    return sum(gaussian_log_density(y, lam_n * C + Sigma) for lam_n, y in zip(lam, Yr, strict=True))


def em_step(lam: Array, Yr: Array, C: Array, Sigma: Array) -> tuple[Array, Array]:
    """
    One exact EM update of (C, Sigma) for rows Yr_n ~ N(0, lam_n C + Sigma); lam_n may be 0.

    Yr_n = sqrt(lam_n) g_n + e_n with g_n ~ N(0, C), e_n ~ N(0, Sigma) hidden:
    C = mean_n E[g_n g_n^T | Yr_n], Sigma = mean_n E[e_n e_n^T | Yr_n].
    """
    N, T = Yr.shape
    zero = np.zeros((T, T))
    P = np.block([[C, zero], [zero, Sigma]])  # prior covariance of (g_n, e_n)
    total = np.zeros((2 * T, 2 * T))
    for lam_n, y in zip(lam, Yr, strict=True):
        H = np.hstack([np.sqrt(lam_n) * np.eye(T), np.eye(T)])  # Yr_n = H (g_n, e_n)
        gain = P @ H.T @ np.linalg.inv(H @ P @ H.T)
        total += P - gain @ H @ P + np.outer(gain @ y, gain @ y)
    return total[:T, :T] / N, total[T:, T:] / N
