"""
Problems on which the reference is compared with itself.

Tolerances: float64 algebra on covariances of condition number below 1e4 agrees to 1e-11 or so by
any two routes, so 1e-9 leaves room for other BLAS libraries and none for a wrong formula.
"""

import numpy as np
import reference as ref

SIZES = [(1, 1), (7, 1), (7, 3), (2, 5)]
KERNELS = ["squared_exponential", "repeated_rows", "linear"]
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


def inputs(rng, N, kernel="squared_exponential"):
    """X [N, 2], the kernel function."""
    X = rng.normal(size=(N, 2))
    if kernel == "linear":  # rank 2 < N
        return X, lambda X1, X2: ref.linear(X1, X2, 0.7)
    if kernel == "repeated_rows":
        X = X[rng.integers(0, max(1, N // 2), size=N)]
    return X, lambda X1, X2: ref.squared_exponential(X1, X2, 1.3, np.array([1.5, 0.8]))


def problem(rng, N, T, kernel="squared_exponential"):
    """K, Y, b, sigma2 of the conditional model."""
    X, k = inputs(rng, N, kernel)
    Y = rng.normal(size=(N, T))
    return k(X, X), Y, rng.uniform(0.5, 2.0, size=T), rng.uniform(0.05, 0.5, size=T)


def random_covariance(rng, T, floor=0.1):
    A = rng.normal(size=(T, T))
    return A @ A.T / T + floor * np.eye(T)


def joint_problem(rng, N, T, M=3, kernel="squared_exponential"):
    """K, Ks, Kss, Y, C, Sigma of the joint model."""
    X, k = inputs(rng, N, kernel)
    Xnew = rng.normal(size=(M, 2))
    Y = rng.normal(size=(N, T))
    C, Sigma = random_covariance(rng, T), random_covariance(rng, T)
    return k(X, X), k(X, Xnew), k(Xnew, Xnew), Y, C, Sigma
