"""Learning: the paper's alternation, and EM on the exact evidence."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .chain import composed_kernel, input_kernel
from .gaussians import Array, gaussian_log_density


class Parameters(NamedTuple):
    """What the alternation learns; ``theta`` holds logarithms of the kernel's parameters."""

    theta: Array  # [P]
    b: Array  # [T]
    sigma2: Array  # [T]


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
