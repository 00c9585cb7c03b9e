"""
What is compared, and how it is scored.

A method is a function that trains and returns what is scored. `averaged` and `refined` start from
the trained `chain`, and so their seconds are those after its fit.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import gpflow
import numpy as np
from scipy.spatial.distance import pdist
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

from gpflow_cool import CoolMTGP, CoolMTGPRegressor, IndependentGPs

from .data import Array, Series, Split

Metrics = dict[str, float]
Methods = dict[str, Callable[[], Any]]
Filled = tuple[Array, Array | None]
"""Means [N, T] and, of some methods, variances [N, T] of the targets; only gaps are looked at."""


def scored(methods: Methods, score: Callable[[Any], Metrics]) -> Iterator[dict[str, Any]]:
    """A record per method: its scores and seconds of processor time, or the error."""
    for name, train in methods.items():
        try:
            started = time.process_time()
            trained = train()
            metrics = {"seconds": time.process_time() - started} | score(trained)
            yield {"method": name, **finite(metrics)}
        except Exception as error:
            text = (str(error).strip() or "no message").splitlines()[0]
            yield {"method": name, "error": f"{type(error).__name__}: {text[:200]}"}


def finite(metrics: Metrics) -> Metrics:
    """The metrics with five digits; an error if one is not a finite number."""
    for name, value in metrics.items():
        if not np.isfinite(value):
            raise ValueError(f"{name} is {value}")
    return {name: float(f"{value:.5g}") for name, value in metrics.items()}


# Held-out rows ------------------------------------------------------------------------------------


def single_lengthscale(X: Array) -> gpflow.kernels.Kernel:
    """A squared exponential kernel that starts at half the median distance between rows."""
    distances = pdist(X)
    distances = distances[distances > 0]
    start = 0.5 * np.median(distances) if len(distances) else 1.0
    return gpflow.kernels.SquaredExponential(lengthscales=start)


def chain_methods(data: tuple[Array, Array], kernel: gpflow.kernels.Kernel) -> Methods:
    """The chain as it is trained, averaged over orders, and refined if this version can."""

    @cache
    def chain() -> CoolMTGP:
        model = CoolMTGP(data, kernel)
        model.fit(verbose=0)
        return model

    methods: Methods = {"chain": chain, "averaged": lambda: chain().average_over_orders(seed=0)}
    if hasattr(CoolMTGP, "refine"):
        methods["refined"] = lambda: chain().refine()
    return methods


def row_methods(split: Split, *, default: bool = False) -> Methods:
    """Methods that predict new rows; `default` adds the estimator as a user has it."""
    X, Y = split.X, split.Y
    methods: Methods = {"default": lambda: CoolMTGPRegressor().fit(X, Y)} if default else {}
    return methods | chain_methods((X, Y), single_lengthscale(X))


def row_scores(split: Split, trained: Any) -> Metrics:
    """RMSE, and negative log densities of the held-out rows, each divided by the tasks."""
    X, Y = split.X_test, split.Y_test
    if isinstance(trained, CoolMTGPRegressor):
        mean, density = trained.predict(X), trained.log_density(X, Y)
    else:
        mean = trained.predict_y(X)[0].numpy()
        density = trained.predict_log_density((X, Y), full_output_cov=True).numpy()
    rows = -density / Y.shape[1]
    rmse = np.sqrt(np.mean(np.square(mean.reshape(Y.shape) - Y), axis=0)).mean()
    return {"rmse": rmse, "nlpd": rows.mean(), "best_row": rows.min(), "worst_row": rows.max()}


def score_rows(split: Split, **options: Any) -> Iterator[dict[str, Any]]:
    """A record per method about held-out rows."""
    return scored(row_methods(split, **options), lambda trained: row_scores(split, trained))


# Gaps ---------------------------------------------------------------------------------------------


def smooth_and_rough() -> gpflow.kernels.Kernel:
    """A squared exponential and a weaker Matern 1/2 kernel, both starting at 30 hours."""
    k = gpflow.kernels
    return k.SquaredExponential() + k.Matern12(variance=np.exp(-1.0))


def imputed(model: Any) -> Filled:
    """What a joint model makes of the gaps, given all that is observed."""
    filled = model.impute()
    return filled.Y.numpy(), np.diagonal(filled.cov.numpy(), axis1=1, axis2=2)


def gap_methods(series: Series) -> Methods:
    """Methods that fill gaps; learning and filling count."""
    X, Y = series.X, series.observed
    chains = chain_methods((X, Y), smooth_and_rough())

    def default() -> Filled:
        filled = CoolMTGPRegressor().fit(X, Y).impute(Y)
        return filled.completed, np.square(filled.std)

    def independent() -> Filled:
        model = IndependentGPs((X, Y), smooth_and_rough())
        model.fit(verbose=0)
        return tuple(part.numpy() for part in model.predict_y(X))

    def imputer() -> Filled:
        return IterativeImputer(max_iter=30, random_state=0).fit_transform(Y), None

    joint = {
        name: lambda train=train: imputed(train())
        for name, train in chains.items()
        if name != "averaged"  # to fill in takes longer than to train
    }
    return {"default": default, **joint, "independent": independent, "imputer": imputer}


def gap_scores(series: Series, filled: Filled) -> Metrics:
    """Error in the gaps over each sensor's deviation, density and coverage per missing entry."""
    mean, variance = filled
    error, gaps = mean - series.Y, series.missing
    sensors = np.flatnonzero(gaps.any(axis=0))
    relative = [
        np.sqrt(np.mean(np.square(error[gaps[:, s], s]))) / series.Y[:, s].std() for s in sensors
    ]
    metrics = {"relative_rmse": np.mean(relative)}
    if variance is None:
        return metrics
    e, v = error[gaps], variance[gaps]
    nlpd = 0.5 * np.mean(np.square(e) / v + np.log(2.0 * np.pi * v))
    return metrics | {"nlpd": nlpd, "coverage": np.mean(np.abs(e) < 2.0 * np.sqrt(v))}


def score_gaps(series: Series) -> Iterator[Mapping[str, Any]]:
    """A record per method about the gaps."""
    return scored(gap_methods(series), lambda filled: gap_scores(series, filled))
