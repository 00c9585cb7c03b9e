"""Two problems with two objectives that share noise, and the hypervolume. NumPy alone."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NOISE_CORRELATION = 0.9
INITIAL = 10


class Problem(NamedTuple):
    """Both objectives are minimised over the unit square."""

    name: str
    objectives: Callable[[np.ndarray], np.ndarray]
    """[M, 2] -> [M, 2], without noise."""

    reference: np.ndarray
    """[2], the corner that the hypervolume is measured from."""

    noise: float
    """Standard deviation of the noise of each objective."""


def vlmop2(X: np.ndarray) -> np.ndarray:
    """Two bells with different centres, over [-2, 2]^2 (van Veldhuizen and Lamont 1999)."""
    Z, centre = 4.0 * X - 2.0, 1.0 / np.sqrt(2.0)
    bells = [np.exp(-np.sum((Z - c) ** 2, axis=1)) for c in (centre, -centre)]
    return 1.0 - np.stack(bells, axis=1)


def branin_currin(X: np.ndarray) -> np.ndarray:
    """Branin's function over 50, and Currin's over 5 (Belakaria et al. 2019)."""
    u, v = 15.0 * X[:, 0] - 5.0, 15.0 * X[:, 1]
    bowl = v - 5.1 / (4.0 * np.pi**2) * u**2 + 5.0 / np.pi * u - 6.0
    branin = bowl**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(u) + 10.0
    x, y = X[:, 0], np.maximum(X[:, 1], 1e-9)
    rational = 2300.0 * x**3 + 1900.0 * x**2 + 2092.0 * x + 60.0
    rational = rational / (100.0 * x**3 + 500.0 * x**2 + 4.0 * x + 20.0)
    return np.stack([branin / 50.0, (1.0 - np.exp(-0.5 / y)) * rational / 5.0], axis=1)


PROBLEMS = {
    "VLMOP2": Problem("VLMOP2", vlmop2, np.array([1.1, 1.1]), 0.1),
    "Branin-Currin": Problem("Branin-Currin", branin_currin, np.array([1.0, 2.0]), 0.1),
}


class Experiment:
    """
    A problem whose i-th evaluation has the same noise, whoever asks: runs can be paired by seed.

    :ivar X: The points that were evaluated, [evaluations, 2].
    """

    def __init__(self, problem: Problem, seed: int, budget: int) -> None:
        self.problem = problem
        rng = np.random.default_rng([seed, len(problem.name)])
        self._start = rng.uniform(size=[INITIAL, 2])
        own, shared = rng.normal(size=[budget, 2]), rng.normal(size=[budget, 1])
        r = NOISE_CORRELATION
        self._noise = problem.noise * (np.sqrt(r) * shared + np.sqrt(1.0 - r) * own)
        self.X = np.zeros([0, 2])

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """The first points and what was observed there."""
        return self._start, self.observe(self._start)

    def observe(self, X: np.ndarray) -> np.ndarray:
        done = len(self.X)
        self.X = np.vstack([self.X, X])
        return self.problem.objectives(X) + self._noise[done : done + len(X)]


def front(Y: np.ndarray) -> np.ndarray:
    """Numbers of the rows that no other row dominates; of equal rows the first."""
    better = np.all(Y[:, None] <= Y[None], axis=-1) & np.any(Y[:, None] < Y[None], axis=-1)
    _, first = np.unique(Y, axis=0, return_index=True)
    return np.intersect1d(np.flatnonzero(~better.any(axis=0)), first)


def hypervolume(Y: np.ndarray, reference: np.ndarray) -> float:
    """The area that lies above some row of Y and below the reference point."""
    inside = Y[np.all(Y < reference, axis=1)]
    inside = inside[front(inside)]
    inside = inside[np.argsort(inside[:, 0])]
    above = np.concatenate([[reference[1]], inside[:-1, 1]]) if len(inside) else np.zeros(0)
    return float(np.sum((reference[0] - inside[:, 0]) * (above - inside[:, 1])))
