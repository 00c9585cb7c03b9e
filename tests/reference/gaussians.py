"""Kernels and Gaussian densities."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
