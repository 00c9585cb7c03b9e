"""
The data of the four parts: real sets, many tasks, outages of sensors, random sets.

Everything is drawn from `np.random.default_rng(seed)`, and standardised with what is learnt from.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Split(NamedTuple):
    """Rows to learn from and held-out rows, both standardised by the former."""

    X: Array
    Y: Array
    X_test: Array
    Y_test: Array


class Series(NamedTuple):
    """Sensors over time; `Y` is standardised by what is observed, `missing` marks the gaps."""

    X: Array
    Y: Array
    missing: Array

    @property
    def observed(self) -> Array:
        """The targets with NaN in the gaps, [N, T]."""
        return np.where(self.missing, np.nan, self.Y)


def standardised(X: Array, Y: Array, train: Array, test: Array) -> Split:
    """
    Both groups of rows by mean and deviation of the first.

    Inputs that are constant there are dropped, unless all are. Constant targets are only centred.
    Deviations leave out what is missing.
    """
    varies = np.ptp(X[train], axis=0) > 0
    X = X[:, varies] if varies.any() else X[:, :1]
    X_mean, X_scale = X[train].mean(axis=0), X[train].std(axis=0)
    Y_mean, Y_scale = np.nanmean(Y[train], axis=0), np.nanstd(Y[train], axis=0)
    X = (X - X_mean) / np.where(X_scale > 0, X_scale, 1.0)
    Y = (Y - Y_mean) / np.where(Y_scale > 1e-10, Y_scale, 1.0)
    return Split(X[train], Y[train], X[test], Y[test])


def squared_exponential(X: Array, lengthscale: float) -> Array:
    """Covariance [N, N] of a function of one input, X [N, 1]."""
    return np.exp(-0.5 * np.square((X - X.T) / lengthscale))


# Real sets ----------------------------------------------------------------------------------------

MULAN_TARGETS = {
    "andro": 6,
    "atp1d": 6,
    "atp7d": 6,
    "edm": 2,
    "enb": 2,
    "jura": 3,
    "oes10": 16,
    "oes97": 16,
    "scm20d": 16,
    "slump": 3,
}
"""Sets of the Mulan project, and how many of their last columns are targets."""

MOST_ROWS = 500
FIRST_ROWS = {"scm20d": 400}
"""Neighbouring rows are alike there: the paper's figures are those of the first ones."""


def mulan_table(folder: Path, name: str) -> Array:
    """All columns of an ARFF file."""
    lines = (folder / f"{name}.arff").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip().lower() == "@data")
    values = [line for line in lines[start + 1 :] if line.strip() and not line.startswith("%")]
    return np.genfromtxt(values[: FIRST_ROWS.get(name)], delimiter=",")


def mulan(folder: Path, name: str, seed: int) -> Split:
    """A random split 80/20 of at most 500 rows."""
    table = mulan_table(folder, name)
    rows = np.random.default_rng(seed).permutation(len(table))[:MOST_ROWS]
    X, Y = np.split(table, [-MULAN_TARGETS[name]], axis=1)
    train, test = np.split(rows, [round(0.8 * len(rows))])
    return standardised(X, Y, train, test)


# Many tasks ---------------------------------------------------------------------------------------

NEW_ROWS = 300


def many_tasks(N: int, T: int, seed: int) -> Split:
    """
    Three functions mixed at random, and noise of two factors that all tasks share.

    The functions have a squared exponential kernel with lengthscale .25 on uniform inputs; the
    noise has the covariance .3 (W W^T / 2 + .3 I). The targets are standardised.
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(N + NEW_ROWS, 1))
    L = np.linalg.cholesky(squared_exponential(X, 0.25) + 1e-8 * np.eye(len(X)))
    F = L @ rng.normal(size=(len(X), 3)) @ rng.normal(size=(3, T)) / np.sqrt(3.0)
    W = rng.normal(size=(T, 2))
    Sigma = 0.3 * (0.5 * W @ W.T + 0.3 * np.eye(T))
    Y = F + rng.normal(size=F.shape) @ np.linalg.cholesky(Sigma).T
    return standardised(X, Y, np.arange(N), np.arange(N, len(X)))


# Outages ------------------------------------------------------------------------------------------

HOURS, SENSORS = 300, 8
GAPS = ((0, 40, 90), (3, 120, 180), (5, 160, 230))
"""Sensor, first hour, and the hour after the last, of what is missing."""

OUTAGES = {
    "daily, 30 and 12 hours": (None, 30.0, 12.0),
    "three of 12 hours": (12.0, 12.0, 12.0),
    "daily, 60 and 25 hours": (None, 60.0, 25.0),
}
"""The three functions behind the sensors: a lengthscale in hours, or None for a daily cycle."""


def function_of_time(hours: Array, lengthscale: float | None, rng: np.random.Generator) -> Array:
    """A daily cycle of deviation 1 and random phase, or a draw of a Gaussian process: [N]."""
    if lengthscale is None:
        return np.sqrt(2.0) * np.sin(2.0 * np.pi * hours[:, 0] / 24.0 + rng.uniform(0.0, 6.0))
    K = squared_exponential(hours, lengthscale) + 1e-6 * np.eye(len(hours))
    return np.linalg.cholesky(K) @ rng.normal(size=len(hours))


def outages(version: str, seed: int) -> Series:
    """
    Eight sensors, 300 hours, of three of them a block is missing.

    The functions are mixed by normal numbers, and each sensor is scaled to deviation 1. The noise
    has deviation .2 and correlation .4. The input is the time in units of 30 hours.
    """
    rng = np.random.default_rng(seed)
    hours = np.arange(HOURS, dtype=float)[:, None]
    functions = [function_of_time(hours, scale, rng) for scale in OUTAGES[version]]
    F = np.stack(functions, axis=1) @ rng.normal(size=(3, SENSORS))
    R = 0.4 + 0.6 * np.eye(SENSORS)
    Y = F / F.std(axis=0) + 0.2 * rng.normal(size=F.shape) @ np.linalg.cholesky(R).T
    missing = np.zeros(Y.shape, dtype=bool)
    for sensor, first, end in GAPS:
        missing[first:end, sensor] = True
    seen = np.where(missing, np.nan, Y)
    return Series(hours / 30.0, (Y - np.nanmean(seen, 0)) / np.nanstd(seen, 0), missing)


# Random sets --------------------------------------------------------------------------------------

HELD_OUT = 50
INPUT_KINDS = (
    ("normal",) * 4
    + ("grid", "repeated rows", "constant column", "copied column")
    + ("heavy tails",)
)
TARGET_KINDS = ("noisy",) * 4 + (
    "noise free",
    "noise only",
    "heavy tails",
    "constant column",
    "copies",
    "near copies",
    "combination",
    "outlier",
)
MISSING = (0.0,) * 6 + (0.2, 0.6)
"""What a random set is drawn from, the kinds of tests/properties/cases.py in its own units."""


class Drawn(NamedTuple):
    """How a random set is made; see :func:`random_kind`."""

    N: int
    D: int
    T: int
    inputs: str
    targets: str
    missing: float

    def __str__(self) -> str:
        gaps = f", {self.missing:.0%} missing" if self.missing else ""
        return f"{self.N} x {self.T}, {self.D} {self.inputs} inputs, {self.targets}{gaps}"


def random_kind(seed: int) -> Drawn:
    """10 to 200 rows and 1 to 40 tasks, few large ones: logarithms are uniform."""
    rng = np.random.default_rng([seed, 0])
    N, T = np.exp(rng.uniform(np.log([10.0, 1.0]), np.log([201.0, 41.0]))).astype(int)
    D, missing = int(rng.choice((1, 1, 1, 2, 2, 3, 4))), float(rng.choice(MISSING))
    return Drawn(N, D, T, str(rng.choice(INPUT_KINDS)), str(rng.choice(TARGET_KINDS)), missing)


def random_set(seed: int) -> Split:
    """Some of the rows to learn from, of which targets may be missing, and complete new rows."""
    kind, rng = random_kind(seed), np.random.default_rng([seed, 1])
    X = random_inputs(kind, kind.N + HELD_OUT, rng)
    Y = random_targets(kind, X, rng)
    train, test = np.split(rng.permutation(len(X)), [kind.N])
    holes = rng.uniform(size=(kind.N, kind.T)) < kind.missing
    holes[rng.integers(kind.N, size=(2, kind.T)), np.arange(kind.T)] = False
    Y[train] = np.where(holes, np.nan, Y[train])
    return standardised(X, Y, train, test)


def random_inputs(kind: Drawn, rows: int, rng: np.random.Generator) -> Array:
    """Inputs [rows, D], of order one."""
    X = rng.normal(size=(rows, kind.D))
    if kind.inputs == "grid":
        X = np.linspace(-1.0, 1.0, rows)[:, None] * np.ones(kind.D)
    elif kind.inputs == "repeated rows":
        X = X[rng.integers((rows + 1) // 2, size=rows)]
    elif kind.inputs == "constant column":
        X[:, 0] = 0.7
    elif kind.inputs == "copied column":
        X[:, -1] = X[:, 0]
    elif kind.inputs == "heavy tails":
        X = rng.standard_cauchy(size=X.shape)
    return X


def random_targets(kind: Drawn, X: Array, rng: np.random.Generator) -> Array:
    """Targets [rows, T], of order one: waves in the inputs, and noise that the tasks share."""
    shape = N, T = len(X), kind.T
    waves = np.sin(X @ rng.normal(size=(kind.D, 2)) + rng.uniform(0.0, 6.0, size=2))
    F = waves @ rng.normal(size=(2, T))
    E = 0.2 * rng.normal(size=shape) @ (np.eye(T) + 0.5 * rng.normal(size=(T, T)))
    Y = F + E
    if kind.targets == "noise free":
        Y = F
    elif kind.targets == "noise only":
        Y = 5.0 * E
    elif kind.targets == "heavy tails":
        Y = F + rng.standard_cauchy(size=shape)
    elif kind.targets == "constant column":
        Y[:, 0] = 1.3
    elif kind.targets == "copies":
        Y = np.repeat(Y[:, :1], T, axis=1)
    elif kind.targets == "near copies":
        Y = Y[:, :1] + 1e-6 * rng.normal(size=shape)
    elif kind.targets == "combination" and T > 1:
        Y[:, -1] = Y[:, :-1] @ rng.normal(size=T - 1)
    elif kind.targets == "outlier":
        Y[rng.integers(N), rng.integers(T)] += 100.0
    return Y
