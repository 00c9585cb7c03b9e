"""
Does the coupling pay? Cross-validation of Cool-MTGP beside models that couple the tasks less.

All methods see the same folds, the same kernel and the same standardised columns; scores are in the
user's units. Missing targets (NaN) are left out of the scores.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
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
from .columns import scalings
from .costs import DEFAULT_ORDERS

COOL, INDEPENDENT, STD_MT = "Cool-MTGP", "independent GPs", "Std-MT"
MAX_RANK = 2
"""Rank of Std-MT where there are that many tasks."""


class MethodScores(NamedTuple):
    """Scores of one method, over all held-out rows."""

    rmse: AnyNDArray
    """[T], in the user's units."""

    arrmse: float
    """Error relative to predicting the training mean, averaged over tasks."""

    joint_nlpd: float
    """Negative log density per row, joint over its tasks."""

    nlpd_rows: AnyNDArray
    """[N], the same of each row; NaN for a row with no target."""

    seconds: float
    """Time of all fits and predictions."""


class Gain(NamedTuple):
    """How much lower the joint NLPD per row is than with another method, and how sure that is."""

    mean: float
    standard_error: float

    @property
    def verdict(self) -> str:
        """
        >>> Gain(0.5, 0.1).verdict, Gain(0.1, 0.1).verdict
        ('better', 'no clear difference')
        """
        if abs(self.mean) <= 2.0 * self.standard_error:
            return "no clear difference"
        return "better" if self.mean > 0 else "worse"


Maker = Callable[[RegressionData, Kernel], Any]
"""Makes a model of data, not trained yet."""


def compared_methods(num_tasks: int, learning: str) -> dict[str, Maker]:
    """The models that are compared, by name."""
    rank = min(MAX_RANK, num_tasks)
    return {
        COOL: partial(CoolMTGP, learning=learning),
        INDEPENDENT: IndependentGPs,
        f"{STD_MT}, rank {rank}": partial(KroneckerMTGP.std_mt, rank=rank),
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
) -> dict[str, MethodScores]:
    """
    Scores of every method, by its name.

    :param kernel: Copied for every fit; sees standardised inputs.
    :param folds: Number of parts into which the rows are split at random.
    :param progress: Called with the name of a method after each of its fits.
    """
    check_folds(folds, len(X))
    check_trainable(Y, list(map(str, range(Y.shape[1]))), folds, seed)
    methods = compared_methods(Y.shape[1], learning)
    mean = {name: np.empty_like(Y) for name in methods}
    nlpd = {name: np.empty(len(Y)) for name in methods}
    seconds = dict.fromkeys(methods, 0.0)
    baseline = np.empty_like(Y)  # the prediction that knows only the mean of the training rows
    for train, test in split_rows(len(X), folds, seed):
        baseline[test] = np.nanmean(Y[train], axis=0)
        for name, make in methods.items():
            started = time.perf_counter()
            parts = predict_held_out(X, Y, train, test, make, copy.deepcopy(kernel))
            mean[name][test], nlpd[name][test] = parts
            seconds[name] += time.perf_counter() - started
            progress(name)
    errors = {name: rmse_of_known(Y, mean[name]) for name in methods}
    return {
        name: MethodScores(
            rmse=errors[name],
            arrmse=float(np.mean(errors[name] / rmse_of_known(Y, baseline))),
            joint_nlpd=float(np.nanmean(nlpd[name])),
            nlpd_rows=nlpd[name],
            seconds=seconds[name],
        )
        for name in methods
    }


def predict_held_out(
    X: AnyNDArray, Y: AnyNDArray, train: AnyNDArray, test: AnyNDArray, make: Maker, kernel: Kernel
) -> tuple[AnyNDArray, AnyNDArray]:
    """Mean [M, T] and joint NLPD [M] of the test rows, from a model of the training rows."""
    inputs, targets = scalings(X[train], Y[train])
    model = make((inputs.standardised(X[train]), targets.standardised(Y[train])), kernel)
    fit_or_restart(model)
    if isinstance(model, CoolMTGP):  # as the estimator does
        model = average_where_possible(model, DEFAULT_ORDERS, seed=0)
    predicted = model.predict_y(inputs.standardised(X[test]), full_output_cov=True)
    mean = targets.mean(predicted[0].numpy())
    cov = targets.covariance(predicted[1].numpy())
    nlpd = -known_log_densities(Y[test], mean, cov)
    return mean, np.where(np.isnan(Y[test]).all(axis=1), np.nan, nlpd)


@check_shapes("Y: [N, T]", "mean: [N, T]", "return: [T]")
def rmse_of_known(Y: AnyNDArray, mean: AnyNDArray) -> AnyNDArray:
    """Root mean square error of each task; NaN in Y is ignored."""
    return np.sqrt(np.nanmean((Y - mean) ** 2, axis=0))


def fit_or_restart(model: Any) -> None:
    """
    Train; if that fails, train with restarts; if all fail, keep the best parameters seen.

    :raises KeyboardInterrupt: If the user ended training: a half-trained model has no score.
    """
    try:
        trained = model.fit(verbose=0, seed=0)
    except RuntimeError:
        trained = []
        with suppress(RuntimeError):
            trained = model.fit(verbose=0, restarts=3, seed=0)
    if any(history.interrupted for history in np.atleast_1d(trained)):
        raise KeyboardInterrupt


def gain_over(other: MethodScores, cool: MethodScores) -> Gain:
    """What Cool-MTGP gains in joint NLPD over another method, row by row."""
    gain = other.nlpd_rows - cool.nlpd_rows
    gain = gain[~np.isnan(gain)]
    return Gain(float(np.mean(gain)), float(np.std(gain, ddof=1) / np.sqrt(len(gain))))


def check_folds(folds: Any, num_rows: int) -> None:
    """Raise unless every fold has rows, and leaves at least two to train on."""
    checks.positive_integer(folds, "folds")
    if not 2 <= folds <= num_rows or num_rows - -(-num_rows // folds) < 2:
        raise ValueError(
            f"folds={folds} is not possible for {num_rows} rows: choose from 2 to {num_rows}, with"
            " at least two rows left to train on."
        )


def check_trainable(Y: AnyNDArray, names: Sequence[str], folds: int, seed: int) -> None:
    """Raise if a fold leaves a target without numbers to train on."""
    known = ~np.isnan(Y)
    for train, _ in split_rows(len(Y), folds, seed):
        for t in np.flatnonzero(~known[train].any(axis=0)):
            raise ValueError(
                f"Target {names[t]!r} has {known[:, t].sum()} known rows, and none to train on in"
                f" one of {folds} folds: use more folds, or leave it out."
            )


def split_rows(num_rows: int, folds: int, seed: int) -> Iterator[tuple[AnyNDArray, AnyNDArray]]:
    """Training and test rows of every fold."""
    order = np.random.default_rng(seed).permutation(num_rows)
    for test in np.array_split(order, folds):
        yield np.setdiff1d(order, test), np.sort(test)


# What was found -----------------------------------------------------------------------------------


def comparison(
    scores: dict[str, MethodScores], targets: Sequence[str], num_rows: int, folds: int
) -> dict[str, Any]:
    """What a comparison has found, as JSON."""
    gains = {name: gain_over(score, scores[COOL]) for name, score in scores.items() if name != COOL}
    return {
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
            name: {**gain._asdict(), "verdict": gain.verdict} for name, gain in gains.items()
        },
    }


def comparison_lines(found: dict[str, Any]) -> list[str]:
    """The same as text."""
    lines = [f"{found['rows']} rows, {found['folds']} folds", "", *score_table(found["scores"]), ""]
    for name, gain in found["gain_in_joint_nlpd"].items():
        lines.append(
            f"Cool-MTGP against {name}: {gain['verdict']}, joint NLPD per row"
            f" {'lower' if gain['mean'] >= 0 else 'higher'} by {abs(gain['mean']):.3f}"
            f" (standard error {gain['standard_error']:.3f})"
        )
    return lines


def score_table(scores: dict[str, dict[str, Any]]) -> list[str]:
    """Lines of text with one row per method and one column per score."""
    rows = [["", *(f"RMSE {n}" for n in scores[COOL]["rmse"]), "aRRMSE", "joint NLPD", "seconds"]]
    for name, score in scores.items():
        numbers = f"{score['arrmse']:.3f}", f"{score['joint_nlpd']:.3f}", f"{score['seconds']:.1f}"
        rows.append([name, *(f"{value:.4g}" for value in score["rmse"].values()), *numbers])
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([name.ljust(first), *map(str.rjust, cells, (max(10, w) for w in widths))])
        for name, *cells in rows
    ]
