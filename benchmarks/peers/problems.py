"""What is fitted: real tables, and synthetic ones of N training rows and T tasks."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpflow_cool.datasets import load_mulan
from gpflow_cool.studies.partition import Partition, partition, standardised

SEED = 0
INPUTS = 5
SMALL = 400
TEST_ROWS = 200


class Problem(NamedTuple):
    """A table; a real one is split 80/20 at random, a synthetic one is drawn anew."""

    name: str
    N: int
    """Rows of a real table, training rows of a synthetic one."""
    T: int
    table: str | None = None
    ard: bool = False
    """Whether each input has a lengthscale of its own."""

    @property
    def predicted(self) -> bool:
        """Whether more than fits is measured: on the larger synthetic tables only fits are."""
        return self.table is not None or self.N <= SMALL


def grid(N: int, T: int) -> Problem:
    return Problem(f"N{N}-T{T}", N, T)


REAL = (
    Problem("enb", 768, 2, "enb"),
    Problem("enb-ard", 768, 2, "enb", ard=True),
    Problem("atp1d", 337, 6, "atp1d"),
    Problem("oes10", 403, 16, "oes10"),
    Problem("scm20d-400", 400, 16, "scm20d"),
    Problem("scm20d-1000", 1000, 16, "scm20d"),
)
OVER_ROWS = tuple(grid(N, 16) for N in (100, 200, 400, 800, 1000, 2000))
OVER_TASKS = tuple(grid(800, T) for T in (4, 8, 16, 32, 64))
LARGEST = grid(2000, 64)
SMOKE = (grid(30, 3),)

# Those that the bars need come first.
ALL = (
    *REAL[:5],
    grid(100, 16),
    grid(800, 16),
    grid(800, 32),
    *REAL[5:],
    grid(1000, 16),
    grid(2000, 16),
    LARGEST,
    grid(400, 16),
    grid(800, 4),
    grid(800, 64),
    grid(200, 16),
    grid(800, 8),
)
BY_NAME = {problem.name: problem for problem in (*ALL, *SMOKE)}


def load(problem: Problem, split: int, folder: str | None) -> Partition:
    """Training and test rows, standardised with the training rows."""
    if problem.table is None:
        return synthetic(problem.N, problem.T, split)
    if folder is None:
        raise FileNotFoundError(
            f"{problem.name} needs the folder of the Mulan tables: name it with --data"
        )
    data = load_mulan(problem.table, folder=Path(folder))
    return partition(data.X[: problem.N], data.Y[: problem.N], SEED, split)


def synthetic(N: int, T: int, split: int) -> Partition:
    """Smooth functions that share what they are made of, with correlated noise."""
    rng = np.random.default_rng([SEED, N, T, split])
    X = rng.normal(size=[N + TEST_ROWS, INPUTS])
    F = np.sin(X @ rng.normal(size=[INPUTS, T])) @ rng.normal(size=[T, T]) / np.sqrt(T)
    mixing = np.eye(T) + rng.normal(size=[T, T]) / np.sqrt(T)
    Y = F + 0.3 * rng.normal(size=[len(X), T]) @ mixing.T
    return standardised(X[:N], Y[:N], X[N:], Y[N:])
