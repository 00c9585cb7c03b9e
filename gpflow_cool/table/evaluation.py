"""
Does the coupling pay? Cross-validation of Cool-MTGP beside models that do not couple so much.

All methods see the same folds, the same kernel and the same standardised columns; scores are in the
user's units. Where targets are missing (NaN), scores are of those that are there.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, RegressionData
from gpflow.kernels import Kernel

from .. import checks
from ..metrics import known_log_densities
from ..models.competitors import IndependentGPs
from ..models.cool import CoolMTGP
from ..models.exact import KroneckerMTGP
from .choices import average_where_possible
from .columns import standardising
from .costs import DEFAULT_ORDERS

COOL, INDEPENDENT, STD_MT = "Cool-MTGP", "independent GPs", "Std-MT"
MAX_RANK = 2
"""Rank of Std-MT where there are that many tasks."""


class Scores(NamedTuple):
    """Of one method, over all held-out rows."""

    rmse: AnyNDArray
    """[T], in the user's units."""

    arrmse: float
    """Error relative to predicting the training mean, averaged over tasks."""

    joint_nlpd: float
    """Negative log density of a row, joint over its tasks."""

    nlpd_rows: AnyNDArray
    """[N], the same of each row; NaN for a row with no target."""

    seconds: float
    """Of all its fits and predictions."""


class Difference(NamedTuple):
    """How much lower the joint NLPD of a row is than with another method, and how sure that is."""

    mean: float
    standard_error: float

    @property
    def verdict(self) -> str:
        """
        >>> Difference(0.5, 0.1).verdict, Difference(0.1, 0.1).verdict
        ('better', 'no clear difference')
        """
        if abs(self.mean) <= 2.0 * self.standard_error:
            return "no clear difference"
        return "better" if self.mean > 0 else "worse"


def methods(num_tasks: int, learning: str) -> dict[str, Callable[[RegressionData, Kernel], Any]]:
    """What is compared."""
    rank = min(MAX_RANK, num_tasks)
    return {
        COOL: lambda data, kernel: CoolMTGP(data, kernel, learning=learning),
        INDEPENDENT: IndependentGPs,
        f"{STD_MT}, rank {rank}": lambda data, kernel: KroneckerMTGP.std_mt(
            data, kernel, rank=rank
        ),
    }


@check_shapes("X: [N, D]", "Y: [N, T]")
def cross_validate(
    X: AnyNDArray,
    Y: AnyNDArray,
    kernel: Kernel,
    *,
    folds: int = 5,
    learning: str = "hierarchical",
    seed: int = 0,
    progress: Callable[[str], object] = lambda name: None,
) -> dict[str, Scores]:
    """
    Scores of every method, by its name.

    :param kernel: Copied for every fit; sees standardised inputs.
    :param folds: In how many parts the rows are split, at random.
    :param progress: Called with the name of a method after each of its fits.
    """
    check_folds(folds, len(X))
    check_known(Y, list(map(str, range(Y.shape[1]))), folds, seed)
    compared = methods(Y.shape[1], learning)
    mean = {name: np.empty_like(Y) for name in compared}
    nlpd = {name: np.empty(len(Y)) for name in compared}
    seconds = dict.fromkeys(compared, 0.0)
    for train, test in split(len(X), folds, seed):
        for name, make in compared.items():
            started = time.perf_counter()
            parts = held_out(X, Y, train, test, make, copy.deepcopy(kernel))
            mean[name][test], nlpd[name][test] = parts
            seconds[name] += time.perf_counter() - started
            progress(name)
    errors = {name: known_rmse(Y, mean[name]) for name in compared}
    base = known_rmse(Y, training_means(Y, folds, seed))
    return {
        name: Scores(
            rmse=errors[name],
            arrmse=float(np.mean(errors[name] / base)),
            joint_nlpd=float(np.nanmean(nlpd[name])),
            nlpd_rows=nlpd[name],
            seconds=seconds[name],
        )
        for name in compared
    }


def held_out(
    X: AnyNDArray,
    Y: AnyNDArray,
    train: AnyNDArray,
    test: AnyNDArray,
    make: Callable[[RegressionData, Kernel], Any],
    kernel: Kernel,
) -> tuple[AnyNDArray, AnyNDArray]:
    """Mean [M, T] and joint NLPD [M] of the test rows, from a model of the training rows."""
    inputs = standardising(X[train], constant_scale=np.inf)
    targets = standardising(Y[train], constant_scale=1.0)
    model = make((inputs.standardised(X[train]), targets.standardised(Y[train])), kernel)
    train_somehow(model)
    if isinstance(model, CoolMTGP):  # as the estimator does
        model = average_where_possible(model, DEFAULT_ORDERS, seed=0)
    predicted = model.predict_y(inputs.standardised(X[test]), full_output_cov=True)
    mean = targets.mean(predicted[0].numpy())
    cov = targets.covariance(predicted[1].numpy())
    nlpd = -known_log_densities(Y[test], mean, cov)
    return mean, np.where(np.isnan(Y[test]).all(axis=1), np.nan, nlpd)


@check_shapes("Y: [N, T]", "mean: [N, T]", "return: [T]")
def known_rmse(Y: AnyNDArray, mean: AnyNDArray) -> AnyNDArray:
    """Root mean square error of each task, over the targets that are not NaN."""
    return np.sqrt(np.nanmean((Y - mean) ** 2, axis=0))


def train_somehow(model: Any) -> None:
    """Train; where that fails, again from elsewhere, and else with the best parameters seen."""
    try:
        model.fit(verbose=0, seed=0)
    except RuntimeError:
        with suppress(RuntimeError):
            model.fit(verbose=0, restarts=3, seed=0)


def difference(scores: dict[str, Scores], other: str) -> Difference:
    """Cool-MTGP against another method, row by row."""
    gain = scores[other].nlpd_rows - scores[COOL].nlpd_rows
    gain = gain[~np.isnan(gain)]
    return Difference(float(np.mean(gain)), float(np.std(gain, ddof=1) / np.sqrt(len(gain))))


def check_folds(folds: Any, num_rows: int) -> None:
    """Raise unless every fold has rows, and leaves at least two to train on."""
    checks.positive_integer(folds, "folds")
    if not 2 <= folds <= num_rows or num_rows - -(-num_rows // folds) < 2:
        raise ValueError(
            f"folds={folds} is not possible for {num_rows} rows: choose from 2 to {num_rows}, with"
            " at least two rows left to train on."
        )


def check_known(Y: AnyNDArray, names: Sequence[str], folds: int, seed: int) -> None:
    """Raise if a fold leaves a target without numbers to train on."""
    known = ~np.isnan(Y)
    for train, _ in split(len(Y), folds, seed):
        for t in np.flatnonzero(~known[train].any(axis=0)):
            raise ValueError(
                f"Target {names[t]!r} has {known[:, t].sum()} known rows, and none to train on in"
                f" one of {folds} folds: use more folds, or leave it out."
            )


def split(num_rows: int, folds: int, seed: int) -> Iterator[tuple[AnyNDArray, AnyNDArray]]:
    """Training and test rows of every fold."""
    order = np.random.default_rng(seed).permutation(num_rows)
    for test in np.array_split(order, folds):
        yield np.setdiff1d(order, test), np.sort(test)


def training_means(Y: AnyNDArray, folds: int, seed: int) -> AnyNDArray:
    """[N, T], the prediction that knows only the mean of the training rows."""
    means = np.empty_like(Y)
    for train, test in split(len(Y), folds, seed):
        means[test] = np.nanmean(Y[train], axis=0)
    return means


def table(scores: dict[str, Scores], names: Sequence[str]) -> list[str]:
    """Lines of text that compare the methods."""
    width = max(map(len, scores))
    columns = [*(f"RMSE {name}" for name in names), "aRRMSE", "joint NLPD", "seconds"]
    widths = [max(10, len(column)) for column in columns]
    head = "  ".join(column.rjust(w) for column, w in zip(columns, widths, strict=True))
    lines = [f"{'':{width}}  {head}"]
    for name, score in scores.items():
        cells = [f"{value:.4g}" for value in score.rmse]
        cells += [f"{score.arrmse:.3f}", f"{score.joint_nlpd:.3f}", f"{score.seconds:.1f}"]
        row = "  ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True))
        lines.append(f"{name:{width}}  {row}")
    return lines


def summary(
    scores: dict[str, Scores], targets: Sequence[str], num_rows: int, folds: int
) -> tuple[dict[str, Any], list[str]]:
    """What a comparison has found, as JSON and as text."""
    against = {name: difference(scores, name) for name in scores}
    del against[COOL]
    result = {
        "rows": num_rows,
        "folds": folds,
        "scores": {
            name: {
                "rmse": dict(zip(targets, map(float, score.rmse), strict=True)),
                "arrmse": score.arrmse,
                "joint_nlpd": score.joint_nlpd,
                "seconds": score.seconds,
            }
            for name, score in scores.items()
        },
        "gain_in_joint_nlpd": {
            name: {"mean": d.mean, "standard_error": d.standard_error, "verdict": d.verdict}
            for name, d in against.items()
        },
    }
    lines = [f"{num_rows} rows, {folds} folds", "", *table(scores, targets), ""]
    lines += [
        f"Cool-MTGP against {name}: {d.verdict}, joint NLPD a row"
        f" {'lower' if d.mean >= 0 else 'higher'} by {abs(d.mean):.3f}"
        f" (standard error {d.standard_error:.3f})"
        for name, d in against.items()
    ]
    return result, lines
