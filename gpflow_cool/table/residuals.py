"""Training rows predicted from all the others: are the residuals what the model takes them for?"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

HEAVY, FEWEST_RESIDUALS = 3.0, 20
"""Excess kurtosis of heavy tails, and the fewest residuals from which it is told."""

MAX_NAMES = 10
"""At most this many columns are named in a line."""


class ObservedAndPredicted(NamedTuple):
    """Training targets, and every row predicted from all the others, as arrays [N, T]."""

    Y: AnyNDArray
    mean: AnyNDArray
    std: AnyNDArray
    log_density: AnyNDArray
    """[N], joint over tasks."""


def standardised_rows(regressor: Any) -> ObservedAndPredicted:
    """The same of the transformed and standardised targets, which the model takes for normal."""
    rows = regressor.model_.leave_one_out(full_output_cov=False)
    Z = regressor._targets.standardised(regressor.training_data()[1])
    return ObservedAndPredicted(
        Z, rows.mean.numpy(), np.sqrt(rows.cov.numpy()), rows.log_density.numpy()
    )


def heavy_tails(regressor: Any) -> dict[str, float]:
    r"""
    Targets whose residuals, every row predicted from the others, have heavy tails.

    .. math:: \kappa_t = N \sum_n r_{nt}^4 \Big/ \Big( \sum_n r_{nt}^2 \Big)^2 - 3 > 3

    :math:`r_{nt}` is a residual divided by its standard deviation. A normal target has
    :math:`\kappa` = 0, up to chance, and Student's t with six degrees of freedom 3.

    :return: The excess kurtosis of each of these targets.
    """
    rows = standardised_rows(regressor)
    R = np.full_like(rows.Y, np.nan)  # [N, T]; a target that never varies has no residuals
    np.divide(rows.Y - rows.mean, rows.std, out=R, where=rows.std > 0.0)
    count = np.sum(~np.isnan(R), axis=0)
    squares, fourths = np.nansum(R**2, axis=0), np.nansum(R**4, axis=0)
    kurtosis = count * fourths / np.maximum(squares**2, np.finfo(float).tiny) - 3.0
    heavy = (count >= FEWEST_RESIDUALS) & (kurtosis > HEAVY)
    names = regressor.target_names_
    return {names[t]: float(kurtosis[t]) for t in np.flatnonzero(heavy)}


SEE_ROWS = "see which rows they are, and whether these are right."
TRY_TRANSFORM = (
    "If the targets are skewed, --transform yeo-johnson helps, or log if they are positive"
    " (target_transform of the estimator): gpflow-cool evaluate --transform yeo-johnson tells"
    " whether it does."
)


def heavy_lines(heavy: Mapping[str, float], transformed: bool, streamed: bool = False) -> list[str]:
    """
    What to do about residuals with heavy tails.

    >>> heavy_lines({}, False)
    []

    :param streamed: Whether rows were read in chunks, which are not transformed.
    """
    if not heavy:
        return []
    shown = listed([f"{name} ({kurtosis:.1f})" for name, kurtosis in heavy.items()])
    remedy = SEE_ROWS
    if streamed:
        remedy = f"If the targets are skewed, write their logarithms to the files. Else {remedy}"
    elif not transformed:
        remedy = f"{TRY_TRANSFORM} Else {remedy}"
    remedy = remedy[0].upper() + remedy[1:]
    return [
        f"Residuals have heavy tails, so that intervals and densities mislead: {shown}, excess"
        f" kurtosis, which is 0 if they are normal. {remedy}"
    ]


HOPELESS = 0.99
"""With a larger error by leave-one-out, relative to that of the mean of all rows, nothing has been
learnt: by chance it is a little smaller than one."""

POOR = 1.0
"""Relative RMSE beyond which the mean of all rows is the better prediction."""


def poor_lines(scores: Sequence[Mapping[str, Any]], transformed: bool) -> list[str]:
    """
    What to say of targets whose means miss about as much as the mean of all rows does, or more.

    >>> poor_lines([{"target": "views", "relative_rmse": 0.7}], False)
    []
    >>> poor_lines([{"target": "views", "relative_rmse": 1.1}], False)
    ['No target is predicted better than by the mean: these inputs tell little about it.']
    """
    if not transformed:
        return hopeless_lines(scores)
    poor = [row for row in scores if row["relative_rmse"] > POOR]
    if not poor:
        return []
    shown = listed([f"{row['target']} ({row['relative_rmse']:.2g})" for row in poor])
    return [
        f"Means miss by more than the mean of all rows does: {shown}, relative RMSE. A few large"
        " rows decide this, and the inverse of the transform stretches them. Medians and intervals"
        " do not suffer (--quantiles 0.05,0.5,0.95). If means count, compare with gpflow-cool"
        " evaluate --transform yeo-johnson --kernels auto,matern32, or fit without a transform."
    ]


def hopeless_lines(scores: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which targets the inputs tell little about; those that never change are left out."""
    hopeless = [row["target"] for row in scores if row["relative_rmse"] >= HOPELESS]
    if not hopeless:
        return []
    verb, whom = ("is", "it") if len(hopeless) == 1 else ("are", "them")
    who = "No target is" if all_are_hopeless(scores) else f"{listed(hopeless)} {verb} not"
    return [f"{who} predicted better than by the mean: these inputs tell little about {whom}."]


def all_are_hopeless(scores: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the inputs tell little about any target that changes."""
    changing = [row for row in scores if not np.isnan(row["relative_rmse"])]
    return bool(changing) and all(row["relative_rmse"] >= HOPELESS for row in changing)


def listed(names: Sequence[str]) -> str:
    """Names of columns in a line; if they are many, the first ones and how many there are."""
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown}, ... ({len(names)})"
