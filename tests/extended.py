"""
The chain's objectives in decimal numbers of 100 digits: a judge where float64 runs out of digits.

Arrays hold Python's `Decimal`; every float64 becomes one exactly. Nothing of ours is imported.
"""

from decimal import Decimal, getcontext
from typing import Any

import numpy as np

getcontext().prec = 100

PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
)
NEGLIGIBLE = Decimal("1e-80")
"""A variance below this is that of a point which stands there twice."""


def exact(values: Any) -> np.ndarray:
    """Numbers of float64 as decimal numbers, exactly."""
    return np.vectorize(Decimal, otypes=[object])(np.asarray(values, np.float64))


def distances(X: np.ndarray, X2: np.ndarray) -> np.ndarray:
    """[N, N2], distances between rows."""
    squares = np.sum((X[:, None] - X2[None]) ** 2, axis=-1)
    return np.vectorize(Decimal.sqrt, otypes=[object])(squares)


def kernel(name: str, X: np.ndarray, X2: np.ndarray, lengthscale: float) -> np.ndarray:
    """The kernels "se" and "matern12" of unit variance."""
    r = distances(X, X2) / Decimal(lengthscale)
    return np.vectorize(Decimal.exp, otypes=[object])(-r * r / 2 if name == "se" else -r)


def factor(S: np.ndarray) -> np.ndarray:
    """Cholesky factor, with columns of zeros where S is singular."""
    L = np.full(S.shape, Decimal(0))
    for j in range(len(S)):
        pivot = S[j, j] - L[j, :j] @ L[j, :j]
        if pivot > NEGLIGIBLE:
            L[j:, j] = (S[j:, j] - L[j:, :j] @ L[j, :j]) / pivot.sqrt()
    return L


def solve(L: np.ndarray, A: np.ndarray) -> np.ndarray:
    """L^-1 A, with rows of zeros where L has columns of zeros."""
    Z = np.full(A.shape, Decimal(0))
    for j in range(len(L)):
        if L[j, j] > 0:
            Z[j] = (A[j] - L[j, :j] @ Z[:j]) / L[j, j]
    return Z


def log_determinant(L: np.ndarray) -> Decimal:
    """log |L L^T|."""
    return 2 * sum(pivot.ln() for pivot in np.diag(L))


def objective(K: np.ndarray, Y: np.ndarray, b: Any, sigma2: Any, learning: str) -> Decimal:
    """The sum of the tasks' terms, for a kernel matrix."""
    N, T = Y.shape
    total = -Decimal(N * T) / 2 * (2 * PI).ln()
    for t, (b_t, s_t) in enumerate(zip(exact(b), exact(sigma2), strict=True)):
        own = factor(b_t * K + s_t * exact(np.eye(N)))
        both = factor(b_t * K + s_t * exact(np.eye(N)) + Y[:, :t] @ Y[:, :t].T)
        z = solve(both, Y[:, t])
        determinant = log_determinant(own if learning == "hierarchical" else both)
        total -= (z @ z + determinant) / 2
    return total


def bound(
    Kmm: np.ndarray, Kmn: np.ndarray, trace: Decimal, Y: np.ndarray, b: Any, sigma2: Any
) -> Decimal:
    """The hierarchical objective with inducing points."""
    F = solve(factor(Kmm), Kmn)
    Q = F.T @ F
    cost = sum(exact(b) / exact(sigma2)) * (trace - np.trace(Q)) / 2
    return objective(Q, Y, b, sigma2, "hierarchical") - cost


def evidence(K: np.ndarray, Y: np.ndarray, C: Any, Sigma: Any) -> Decimal:
    """Log density of all targets, whose covariance is C (x) K + Sigma (x) I."""
    S = np.kron(exact(C), K) + np.kron(exact(Sigma), exact(np.eye(len(K))))
    L, y = factor(S), Y.ravel(order="F")
    z = solve(L, y)
    return -(z @ z + log_determinant(L) + len(y) * (2 * PI).ln()) / 2
