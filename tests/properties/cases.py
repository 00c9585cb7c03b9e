"""
Random data sets, kernels and models, each described by one short :class:`Case`.

A case says how a data set is made; its numbers come from `np.random.default_rng(case.seed)`. So a
failure is reproduced by one line, and a simpler case is one with simpler fields.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import gpflow
import numpy as np
from hypothesis import strategies as st

from gpflow_cool import (
    CoolMTGP,
    CoolMTGPRegressor,
    IndependentGPs,
    KroneckerMTGP,
    SparseCoolMTGP,
    choose_inducing_points,
)

k = gpflow.kernels


# Kernels ------------------------------------------------------------------------------------------

KERNELS: dict[str, Callable[[int], k.Kernel]] = {
    "se": lambda D: k.SquaredExponential(),
    "matern12": lambda D: k.Matern12(),
    "matern32": lambda D: k.Matern32(),
    "matern52": lambda D: k.Matern52(),
    "rational_quadratic": lambda D: k.RationalQuadratic(),
    "linear": lambda D: k.Linear(),
    "constant": lambda D: k.Constant(),
    "periodic": lambda D: k.Periodic(k.SquaredExponential()),
    "se_ard": lambda D: k.SquaredExponential(lengthscales=np.ones(D)),
    "matern12_ard": lambda D: k.Matern12(lengthscales=np.ones(D)),
    "linear_ard": lambda D: k.Linear(variance=np.ones(D)),
    "linear+constant": lambda D: k.Linear() + k.Constant(),
    "se+linear": lambda D: k.SquaredExponential() + k.Linear(),
    "se+matern32": lambda D: k.SquaredExponential() + k.Matern32(),
    "se*matern52": lambda D: k.SquaredExponential() * k.Matern52(),
    "se*linear": lambda D: k.SquaredExponential() * k.Linear(),
    "periodic+se": lambda D: k.Periodic(k.SquaredExponential()) + k.SquaredExponential(),
    "periodic_matern32": lambda D: k.Periodic(k.Matern32()),
}

NOT_STATIONARY = ("linear",)
"""What the name of a kernel contains that sees more than differences of inputs."""


def is_stationary(kernel: str) -> bool:
    """Whether a shift of all inputs changes nothing."""
    return not any(part in kernel for part in NOT_STATIONARY)


# Cases --------------------------------------------------------------------------------------------

MODELS = (
    "cool",
    "kronecker",
    "kronecker_em",
    "std_mt",
    "sigma_mt",
    "averaged",
    "refined",
    "independent",
    "sparse",
    "estimator",
    "estimator_sparse",
)


class Case(NamedTuple):
    """How to make a data set, a kernel and a model; `repr` shows what is not the default."""

    model: str = "cool"
    seed: int = 0
    N: int = 3
    D: int = 1
    T: int = 2
    kernel: str = "se"
    learning: str = "approximate"
    weight_prior: str = "scaled"
    inputs: str = "normal"
    targets: str = "noisy"
    input_scale: float = 1.0
    input_offset: float = 0.0
    target_scale: float = 1.0
    target_offset: float = 0.0
    missing: float = 0.0

    def __repr__(self) -> str:
        """
        >>> Case(T=3, missing=0.2)
        Case(T=3, missing=0.2)
        """
        given = zip(self._fields, self, self._field_defaults.values(), strict=True)
        return f"Case({', '.join(f'{n}={v!r}' for n, v, default in given if v != default)})"


SCALES = (1e-12, 1e-6, 1e-3, 1e3, 1e6, 1e12, 0.0)
"""Units of columns; 0 stands for another unit in each column, between 1e-12 and 1e12."""

OFFSETS = (1e2, 1e4, 1e6, 1e8, 1e9)
"""Distance of columns from zero, in units of their spread."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "model": ("cool",) * 5 + MODELS,
    "N": (3, 1, 2, 4, 5, 6, 8, 8, 12, 12, 17, 25),
    "D": (1, 1, 1, 2, 2, 3, 4),
    "T": (2, 1, 2, 3, 3, 4, 5),
    "kernel": ("se",) * 4 + tuple(KERNELS),
    "learning": ("approximate", "approximate", "hierarchical"),
    "weight_prior": ("scaled", "scaled", "scaled", "unit"),
    "inputs": ("normal",) * 4
    + ("grid", "repeated_rows", "equal_rows", "constant_column", "copied_column", "heavy_tails"),
    "targets": ("noisy",) * 4
    + (
        "noise_free",
        "noise_only",
        "heavy_tails",
        "constant_column",
        "constant",
        "zero_column",
        "copies",
        "near_copies",
        "combination",
        "outlier",
    ),
    "input_scale": (1.0,) * 20 + SCALES,
    "input_offset": (0.0,) * 15 + OFFSETS,
    "target_scale": (1.0,) * 20 + SCALES,
    "target_offset": (0.0,) * 15 + OFFSETS,
    "missing": (0.0,) * 6 + (0.2, 0.6),
}
"""What a field is drawn from, the simplest first; what stands there several times is likelier."""


def cases(**fixed: Any) -> st.SearchStrategy[Case]:
    """Cases for hypothesis, some fields given; they shrink to the simplest ones."""
    drawn = {name: st.sampled_from(choices) for name, choices in CHOICES.items()}
    drawn["seed"] = st.integers(0, 999)
    drawn |= {name: st.just(value) for name, value in fixed.items()}
    return st.builds(Case, **drawn).map(tidy)


def random_case(seed: int) -> Case:
    """The case of a seed, for the fuzz tool."""
    rng = np.random.default_rng(seed)
    fields = {n: choices[rng.integers(len(choices))] for n, choices in CHOICES.items()}
    return tidy(Case(**fields, seed=seed))


CHAINS = ("cool", "averaged", "refined", "sparse", "estimator", "estimator_sparse")
"""Models that are trained as a chain."""


def tidy(case: Case) -> Case:
    """
    The case without options that its model does not have, and without missing targets where they
    are always refused.
    """
    if case.model not in ("cool", "sparse"):
        case = case._replace(weight_prior="scaled")
    if case.model not in CHAINS:
        case = case._replace(learning="approximate")
    if "sparse" in case.model:
        case = case._replace(missing=0.0)
    return case


def simpler_cases(case: Case, name: str) -> list[Case]:
    """The case with one field simpler, the simplest first."""
    order = list(dict.fromkeys(CHOICES[name]))
    values = order[: order.index(getattr(case, name))]
    return [tidy(case._replace(**{name: value})) for value in values]


# What is refused ----------------------------------------------------------------------------------


def may_be_refused(case: Case) -> bool:
    """
    Whether a message with advice is a right answer: targets a million deviations from zero and
    more, of which no digits may be left, units far apart where tasks share a variance, and a kernel
    that is not positive definite.
    """
    is_standardised = case.model.startswith("estimator")
    no_kernel = case.kernel == "periodic_matern32" and case.D > 1
    shares = case.model in ("std_mt", "sigma_mt") and case.target_scale != 1.0
    return no_kernel or shares or (case.target_offset >= 1e6 and not is_standardised)


# Data ---------------------------------------------------------------------------------------------


def make_data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [N, D] and targets [N, T] of a case."""
    rng = np.random.default_rng(case.seed)
    Z = make_inputs(case, rng)
    Y = make_targets(case, Z, rng)
    X = units(case.input_scale, case.D, rng) * (Z + case.input_offset)
    Y = units(case.target_scale, case.T, rng) * (Y + case.target_offset)
    return X, with_holes(case, Y, rng)


def new_inputs(X: np.ndarray) -> np.ndarray:
    """[M, D]: a training row, one nearby, the centre, and one that is far from all."""
    spread = np.ptp(X, axis=0)
    spread = np.where(spread > 0, spread, np.maximum(np.abs(X[0]), 1.0))
    return np.vstack([X[0], X[-1] + 0.1 * spread, X.mean(axis=0), X[0] + 10.0 * spread])


def units(scale: float, columns: int, rng: np.random.Generator) -> np.ndarray:
    """What each column is multiplied by."""
    return np.full(columns, scale) if scale else 10.0 ** rng.uniform(-12.0, 12.0, columns)


def make_inputs(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Inputs [N, D], of order one."""
    Z = rng.normal(size=(case.N, case.D))
    if case.inputs == "grid":
        Z = np.linspace(-1.0, 1.0, case.N)[:, None] * np.ones(case.D)
    elif case.inputs == "repeated_rows":
        Z = Z[rng.integers((case.N + 1) // 2, size=case.N)]
    elif case.inputs == "equal_rows":
        Z = np.repeat(Z[:1], case.N, axis=0)
    elif case.inputs == "constant_column":
        Z[:, 0] = 0.7
    elif case.inputs == "copied_column":
        Z[:, -1] = Z[:, 0]
    elif case.inputs == "heavy_tails":
        Z = rng.standard_cauchy(size=Z.shape)
    return Z


def make_targets(case: Case, Z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Targets [N, T], of order one: waves in the inputs, and noise that the tasks share."""
    N, T = case.N, case.T
    waves = np.sin(Z @ rng.normal(size=(case.D, 2)) + rng.uniform(0.0, 6.0, size=2))
    F = waves @ rng.normal(size=(2, T))
    E = 0.2 * rng.normal(size=(N, T)) @ (np.eye(T) + 0.5 * rng.normal(size=(T, T)))
    Y = F + E
    if case.targets == "noise_free":
        Y = F
    elif case.targets == "noise_only":
        Y = 5.0 * E
    elif case.targets == "heavy_tails":
        Y = F + rng.standard_cauchy(size=(N, T))
    elif case.targets == "constant_column":
        Y[:, 0] = 1.3
    elif case.targets == "constant":
        Y = np.ones((N, T)) * rng.normal(size=T)
    elif case.targets == "zero_column":
        Y[:, 0] = 0.0
    elif case.targets == "copies":
        Y = np.repeat(Y[:, :1], T, axis=1)
    elif case.targets == "near_copies":
        Y = Y[:, :1] + 1e-6 * rng.normal(size=(N, T))
    elif case.targets == "combination":
        Y[:, -1] = Y[:, :-1] @ rng.normal(size=T - 1)
    elif case.targets == "outlier":
        Y[rng.integers(N), rng.integers(T)] += 100.0
    return Y


def with_holes(case: Case, Y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Some targets replaced by NaN; of each task one at least is kept."""
    holes = rng.uniform(size=Y.shape) < case.missing
    holes[rng.integers(case.N, size=case.T), np.arange(case.T)] = False
    return np.where(holes, np.nan, Y)


# Models -------------------------------------------------------------------------------------------

STEPS = 60
"""Enough for most fits to converge; what is promised holds after any number of steps."""


def make_model(case: Case, data: tuple[np.ndarray, np.ndarray]) -> Any:
    """The case's model on some data, not fitted; of an estimator, the estimator."""
    kernel, low_rank = KERNELS[case.kernel](case.D), min(2, case.T)
    chain = {"learning": case.learning, "weight_prior": case.weight_prior}
    if case.model in ("cool", "averaged", "refined"):
        return CoolMTGP(data, kernel, **chain)
    if case.model in ("kronecker", "kronecker_em"):
        return KroneckerMTGP(data, kernel)
    if case.model == "std_mt":
        return KroneckerMTGP.std_mt(data, kernel, rank=low_rank)
    if case.model == "sigma_mt":
        return KroneckerMTGP.sigma_mt(data, kernel, rank=low_rank)
    if case.model == "independent":
        return IndependentGPs(data, kernel)
    if case.model == "sparse":
        Z = choose_inducing_points(data[0], guess(kernel, data[0]), max(1, case.N // 2))
        return SparseCoolMTGP(data, kernel, Z, **chain)
    inducing = max(1, case.N // 2) if case.model == "estimator_sparse" else 0
    return CoolMTGPRegressor(
        kernel, learning=case.learning, inducing=inducing, orders=3, random_state=0
    )


def guess(kernel: k.Kernel, X: np.ndarray) -> k.Kernel:
    """The kernel with lengthscales of the size of the data, as the docs advise."""
    kernel = copy.deepcopy(kernel)
    spread = float(np.mean(np.ptp(X, axis=0)))
    if isinstance(kernel, k.Stationary) and spread > 0:
        kernel.lengthscales.assign(np.full(kernel.lengthscales.shape, spread))
    return kernel


def fit(case: Case, model: Any, data: tuple[np.ndarray, np.ndarray]) -> Any:
    """Train; what is returned has been trained, and may be another object."""
    if isinstance(model, CoolMTGPRegressor):
        return model.fit(*data)
    options: dict[str, Any] = {"steps": STEPS, "verbose": 0, "seed": 0}
    if np.isnan(data[1]).any():
        options |= {"rounds": 3, "draws": 4, "steps": 10}
    model.fit("em" if case.model == "kronecker_em" else "profile", **options)
    if case.model == "averaged":
        return model.average_over_orders(3, seed=0)
    return model.refine() if case.model == "refined" else model
