"""Patterns of missing targets, and dense algebra on those that are observed; nothing of ours."""

from typing import NamedTuple

import gpflow
import numpy as np
import reference as ref


def random_pattern(rng, N, T):
    mask = rng.uniform(size=(N, T)) < 0.6
    mask[rng.integers(N, size=T), np.arange(T)] = True  # every task at least once
    mask[0, 0] = False
    return mask


def block(rng, N, T):
    mask = np.ones((N, T), dtype=bool)
    mask[: N // 2, : (T + 1) // 2] = False
    return mask


def monotone(rng, N, T):
    return np.arange(N)[:, None] < N - np.arange(T) * (N - 1) // max(T, 2)


def empty_row(rng, N, T):
    mask = np.ones((N, T), dtype=bool)
    mask[N // 2] = False
    return mask


def task_once(rng, N, T):
    mask = np.ones((N, T), dtype=bool)
    mask[1:, T - 1] = False
    return mask


def disjoint(rng, N, T):
    n, t = np.arange(N)[:, None], np.arange(T)
    return (n % T == t) | (t % N == n)  # more tasks than rows: several tasks share a row


PATTERNS = {
    p.__name__: p for p in [random_pattern, block, monotone, empty_row, task_once, disjoint]
}


class Joint(NamedTuple):
    """The joint model of all targets, and which of them are observed."""

    X: ref.Array
    Y: ref.Array
    Xnew: ref.Array
    Ynew: ref.Array
    C: ref.Array
    Sigma: ref.Array
    mask: ref.Array

    VARIANCE, LENGTHSCALE = 1.3, 1.5

    def k(self, X1, X2):
        return ref.squared_exponential(X1, X2, self.VARIANCE, self.LENGTHSCALE)

    def gpflow_kernel(self):
        return gpflow.kernels.SquaredExponential(self.VARIANCE, self.LENGTHSCALE)

    @property
    def K(self):
        return self.k(self.X, self.X)

    @property
    def with_holes(self):
        return np.where(self.mask, self.Y, np.nan)

    @property
    def o(self):
        """Observed entries in vec(Y), task-major."""
        return self.mask.ravel(order="F")

    @property
    def S(self):
        return np.kron(self.C, self.K) + np.kron(self.Sigma, np.eye(len(self.X)))

    @property
    def S_oo(self):
        return self.S[np.ix_(self.o, self.o)]

    @property
    def y_o(self):
        return self.Y.ravel(order="F")[self.o]

    def condition(self, cross, prior, y=None):
        """Mean and covariance given the observed entries; `cross` is [N T, anything]."""
        gain = np.linalg.solve(self.S_oo, cross[self.o]).T
        return gain @ (self.y_o if y is None else y), prior - gain @ cross[self.o]

    def predict_f(self, Xnew):
        """[M, T] and [M, T, M, T]."""
        M, T = len(Xnew), len(self.C)
        cross = np.kron(self.C, self.k(self.X, Xnew))
        mean, cov = self.condition(cross, np.kron(self.C, self.k(Xnew, Xnew)))
        return mean.reshape(T, M).T, cov.reshape(T, M, T, M).transpose(1, 0, 3, 2)

    def predict_y(self, Xnew):
        mean, cov = self.predict_f(Xnew)
        return mean, cov + np.einsum("mn,tu->mtnu", np.eye(len(Xnew)), self.Sigma)


def random_covariance(rng, T):
    A = rng.normal(size=(T, T + 2))
    return A @ A.T / (T + 2) + 0.1 * np.eye(T)


def random_joint(rng, N, T, pattern, M=3, D=2):
    return Joint(
        X=rng.normal(size=(N, D)),
        Y=rng.normal(size=(N, T)),
        Xnew=rng.normal(size=(M, D)),
        Ynew=rng.normal(size=(M, T)),
        C=random_covariance(rng, T),
        Sigma=0.3 * random_covariance(rng, T),
        mask=PATTERNS[pattern](rng, N, T),
    )
