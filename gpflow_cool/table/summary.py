"""What a fitted estimator has learned, in the user's units: numbers, JSON and lines of text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpflow.base import AnyNDArray

from ..joint.missing import MAX_DENSE
from ..metrics import coverage, known_log_densities, nlpd, rmse
from ..training.remarks import COPIES_AGREE, duplicate_rows, remark_lines
from .columns import constant_columns
from .learned import (
    choice_sentence,
    grid_of,
    grid_sentence,
    kernel_name,
    relevance_by_name,
    relevance_sentence,
)
from .residuals import (
    ObservedAndPredicted,
    all_are_hopeless,
    heavy_lines,
    heavy_tails,
    listed,
    poor_lines,
    standardised_rows,
)
from .unlike import constant_inputs, constant_lines

NUM_SIGMA = 2.0
"""Half width, in standard deviations, of the intervals that should hold 95.4 % of the targets."""

MAX_TARGETS_LISTED = 30
"""Scores of more targets than these are not listed one by one; --json has all."""

HOW_TO_SCORE = "For scores of rows that training has not seen: gpflow-cool evaluate."
HOW_TO_SCORE_A_STREAM = (
    "For scores of rows that training has not seen: train on some of the files, and compare what"
    " gpflow-cool predict says of another one with its targets."
)

CAVEAT = (
    "Kernel, covariances and scaling were learnt from all rows, also from the one that is left out."
    " So these scores are better than those of new rows will be, much better where rows are few or"
    " inputs many."
)


def observed_and_predicted(regressor: Any) -> ObservedAndPredicted:
    """Leave-one-out of an estimator as arrays, whatever form its answers have."""
    rows, (_, Y) = regressor._leave_one_out(return_cov=False), regressor.training_data()
    mean, std = (np.asarray(part).reshape(Y.shape) for part in (rows.mean, rows.std))
    return ObservedAndPredicted(Y, mean, std, np.asarray(rows.log_density))


def leave_one_out_scores(regressor: Any) -> dict[str, Any]:
    """
    Scores of each target, and of all together, every row predicted from the others; as JSON.

    They are optimistic: see "caveat" and "duplicate_rows".
    """
    rows = observed_and_predicted(regressor)
    known = ~np.isnan(rows.Y)
    targets = [
        {"target": name} | target_scores(*(part[o, t] for part in (rows.Y, rows.mean, rows.std)))
        for t, (name, o) in enumerate(zip(regressor.target_names_, known.T, strict=True))
    ]
    if not regressor._targets.is_linear:
        own = density_scores(regressor)
        targets = [{**row, **scores} for row, scores in zip(targets, own, strict=True)]
    return {
        "rows": len(rows.Y),
        "targets": targets,
        "joint_nlpd": -float(np.mean(joint_densities(regressor, rows))),
        "constant_targets": [regressor.target_names_[t] for t in constant_targets(rows.Y)],
        "caveat": CAVEAT,
        "duplicate_rows": duplicate_rows(*regressor.training_data()),
    }


def constant_targets(Y: AnyNDArray) -> list[int]:
    """
    Numbers of the targets that never change, beside others that do.

    >>> constant_targets(np.array([[1.0, 5.0], [2.0, 5.0]])), constant_targets(np.ones([2, 1]))
    ([1], [])
    """
    constant = constant_columns(Y)
    return [] if constant.all() else np.flatnonzero(constant).tolist()


def joint_densities(regressor: Any, rows: ObservedAndPredicted) -> AnyNDArray:
    """
    Log density of the known targets of each row, all together, for the rows that have any. Targets
    that never change are left out: they are predicted to the last digit, and flatter the others.
    """
    constant, known = constant_targets(rows.Y), ~np.isnan(rows.Y)
    known[:, constant] = False
    some = known.any(axis=1)
    if not constant:
        return rows.log_density[some]
    left_out = regressor.model_.leave_one_out(full_output_cov=True)
    Z = np.where(known, regressor._targets.standardised(rows.Y), np.nan)
    density = known_log_densities(Z, left_out.mean, left_out.cov)
    return np.asarray(regressor._targets.log_density(density, rows.Y, known)[some])


def caveat_lines(scores: Mapping[str, Any]) -> list[str]:
    """Why scores of rows that were left out are optimistic."""
    copies, left_out = scores["duplicate_rows"], scores["constant_targets"]
    lines = [scores["caveat"]]
    constant = [row["target"] for row in scores["targets"] if np.isnan(row["relative_rmse"])]
    if constant:
        never = "never changes: it has" if len(constant) == 1 else "never change: they have"
        them = "it" if len(constant) == 1 else "them"
        joint = f", and the joint score leaves {them} out" if left_out else ""
        lines.append(f"{listed(constant)} {never} no relative RMSE{joint}.")
    if copies:
        lines.append(
            f"{copies} {'row is an exact copy' if copies == 1 else 'rows are exact copies'} of"
            " another, from which it is predicted too well: this improves the scores further, and"
            f" {COPIES_AGREE}."
        )
    return lines


def never_together(Y: AnyNDArray) -> AnyNDArray:
    """
    [T, T], which pairs of targets no row has both of, so that no row tells their noise correlation.

    >>> never_together(np.array([[1.0, np.nan, 2.0], [np.nan, 3.0, 4.0]])).tolist()
    [[False, True, False], [True, False, False], [False, False, False]]
    """
    known = (~np.isnan(Y)).astype(np.int64)
    return known.T @ known == 0


def known_noise_correlation(regressor: Any) -> AnyNDArray:
    """[T, T], correlations of the noise; NaN for two targets that no row has both of."""
    R = np.asarray(regressor.noise_correlation_, dtype=np.float64)
    return np.where(never_together(regressor.training_data()[1]), np.nan, R)


def untold_pairs(R: AnyNDArray, names: Sequence[str]) -> list[list[str]]:
    """Pairs of targets whose correlation is NaN."""
    return [[names[t], names[u]] for t, u in np.argwhere(np.isnan(np.triu(R))).tolist()]


def untold_sentence(pairs: Sequence[Sequence[str]]) -> str:
    """
    >>> untold_sentence([["heat", "cold"]])
    'No row has both heat and cold: the data cannot tell how their noises correlate.'
    """
    if not pairs:
        return ""
    shown = listed([" and ".join(pair) for pair in pairs])
    return f"No row has both {shown}: the data cannot tell how their noises correlate."


def target_scores(y: AnyNDArray, mean: AnyNDArray, std: AnyNDArray) -> dict[str, float]:
    """
    Scores of one target, over the rows where it is known. One that never changes has no relative
    RMSE: NaN.
    """
    columns = y[:, None], mean[:, None]
    error = float(rmse(*columns)[0])
    base = np.std(y)  # error of predicting the mean of all rows
    constant = constant_columns(columns[0])[0]
    return {
        "rmse": error,
        "relative_rmse": np.nan if constant else float(error / base),
        "coverage": float(coverage(*columns, std[:, None] ** 2, NUM_SIGMA)[0]),
        "nlpd": float(nlpd(*columns, std[:, None] ** 2)[0]),
    }


def density_scores(regressor: Any) -> list[dict[str, float]]:
    """Coverage and NLPD of each target where targets are transformed, and so not normal."""
    rows, Y = standardised_rows(regressor), regressor.training_data()[1]
    scores = []
    for t, transform in enumerate(regressor._targets.transforms):
        known = ~np.isnan(Y[:, t])
        own = target_scores(*(part[known, t] for part in (rows.Y, rows.mean, rows.std)))
        slope = np.mean(transform.log_slope(Y[known, t])) - np.log(regressor._targets.scale[t])
        scores.append({"coverage": own["coverage"], "nlpd": float(own["nlpd"] - slope)})
    return scores


def listed_targets(targets: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """
    The scores to list: those of all targets, or of more than `MAX_TARGETS_LISTED` so many that are
    predicted worst, the worst first, and the medians of all.
    """
    if len(targets) <= MAX_TARGETS_LISTED:
        return list(targets)
    order = np.argsort([-np.nan_to_num(row["relative_rmse"]) for row in targets], kind="stable")
    numbers = [key for key in targets[0] if key != "target"]
    medians = {key: median_of([row[key] for row in targets]) for key in numbers}
    return [*(targets[t] for t in order[:MAX_TARGETS_LISTED]), {"target": "median", **medians}]


def median_of(values: Sequence[float]) -> float:
    """The median of what is not NaN; NaN if all are."""
    return float(np.nanmedian(values)) if not np.isnan(values).all() else np.nan


def which_are_listed(targets: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on what :func:`listed_targets` leaves out; empty if it lists all."""
    if len(targets) <= MAX_TARGETS_LISTED:
        return ""
    return (
        f"Of {len(targets)} targets, the {MAX_TARGETS_LISTED} with the largest relative RMSE are"
        " listed, and the medians of all."
    )


def score_lines(scores: Mapping[str, Any]) -> list[str]:
    """The scores as lines of text."""
    rows = listed_targets(scores["targets"])
    width = max(6, *(len(row["target"]) for row in rows))
    lines = [f"{'target':{width}}        RMSE  relative RMSE  inside 2 sigma        NLPD"]
    for row in rows:
        relative = row["relative_rmse"]
        shown = "constant" if np.isnan(relative) else f"{relative:.3f}"
        lines.append(
            f"{row['target']:{width}}  {row['rmse']:10.4g}  {shown:>13}"
            f"  {row['coverage']:14.1%}  {row['nlpd']:10.3f}"
        )
    lines.append(f"{'all':{width}}  {'':10}  {'':13}  {'':14}  {scores['joint_nlpd']:10.3f}")
    return lines


def fit_summary(regressor: Any, out: Path, seconds: float) -> dict[str, Any]:
    """What a fit has found, as JSON."""
    model = regressor.model_
    noise = known_noise_correlation(regressor)
    return {
        "model": str(out),
        "rows": model.num_rows,
        "inputs": list(regressor.encoded_names_),
        "targets": list(regressor.target_names_),
        "inducing_points": getattr(model, "num_inducing", None),
        "missing": missing_targets(regressor),
        "converged": bool(regressor.history_.converged),
        "message": regressor.history_.message,
        "steps": len(regressor.history_.epoch),
        "seconds": seconds,
        "log_evidence": log_evidence(model),
        "kernel": kernel_name(regressor),
        "kernel_choice": choice_sentence(regressor.kernel_choice_, len(regressor.target_names_)),
        "grid": grid_of(regressor),
        "relevance": relevance_by_name(regressor),
        "constant_inputs": constant_inputs(regressor),
        "leave_one_out": leave_one_out_scores(regressor),
        "heavy_tails": heavy_tails(regressor),
        "transformed": not regressor._targets.is_linear,
        "task_correlation": np.asarray(regressor.task_correlation_).tolist(),
        "noise_correlation": [[None if np.isnan(r) else r for r in row] for row in noise.tolist()],
        "never_measured_together": untold_pairs(noise, regressor.target_names_),
    }


def log_evidence(model: Any) -> float | None:
    """Log evidence of the targets; None where some are missing and too many are observed."""
    if model.observed is not None and np.count_nonzero(model.observed) > MAX_DENSE:
        return None
    return float(model.log_marginal_likelihood())


def missing_targets(regressor: Any) -> dict[str, int]:
    """How many rows each target is missing at."""
    counts = np.isnan(regressor.model_.data[1].numpy()).sum(axis=0)
    return dict(zip(regressor.target_names_, counts.tolist(), strict=True))


def how_training_ended(converged: bool, message: str) -> str:
    """
    What to say of training that did not end as usual.

    >>> how_training_ended(True, "CONVERGENCE; stopped by Ctrl-C at step 7")
    ', stopped by Ctrl-C at step 7'
    >>> how_training_ended(False, "took all 5 steps")
    ', not converged (took all 5 steps)'
    >>> how_training_ended(True, "CONVERGENCE")
    ''
    """
    if not converged:
        return f", not converged ({message})"
    stopped = [part for part in message.split("; ") if part.startswith("stopped by")]
    return f", {stopped[0]}" if stopped else ""


def relevance_of_fit(result: Mapping[str, Any]) -> str:
    """Which inputs matter most, if the predictions are worth anything."""
    if all_are_hopeless(result["leave_one_out"]["targets"]):
        return "matter most: not known, since no target is predicted better than by the mean"
    return relevance_sentence(result["relevance"])


def fit_lines(result: dict[str, Any]) -> list[str]:
    """What a fit has found, as text."""
    points = result["inducing_points"]
    through = "" if points is None else f", through {points} inducing points"
    untold = untold_sentence(result["never_measured_together"])
    scored = result["leave_one_out"]["rows"]
    who = "Every row" if scored == result["rows"] else f"{scored} rows drawn at random, each"
    steps = "1 step" if result["steps"] == 1 else f"{result['steps']} steps"
    return [
        f"{result['rows']} rows, {steps} in {result['seconds']:.1f} s"
        f"{through}{how_training_ended(result['converged'], result['message'])}",
        f"inputs:  {listed(result['inputs'])}",
        f"targets: {listed(result['targets'])}",
        result["kernel_choice"] or f"kernel:  {result['kernel']}",
        *filter(None, [grid_sentence(result["grid"])]),
        relevance_of_fit(result),
        *constant_lines(result["constant_inputs"]),
        *remark_lines(result["message"]),
        "",
        f"{who} predicted from all the others, without training again:",
        *score_lines(result["leave_one_out"]),
        *filter(None, [which_are_listed(result["leave_one_out"]["targets"])]),
        *caveat_lines(result["leave_one_out"]),
        HOW_TO_SCORE if scored == result["rows"] else HOW_TO_SCORE_A_STREAM,
        "",
        *([untold, ""] if untold else []),
        *heavy_lines(result["heavy_tails"], result["transformed"], scored < result["rows"]),
        *poor_lines(result["leave_one_out"]["targets"], result["transformed"]),
        f"Written to {result['model']}. Look at it: gpflow-cool report {result['model']}",
    ]


def strongest_correlation(correlation: Any, names: Sequence[str]) -> str:
    """
    A sentence about the pair of tasks that correlates most; NaN counts as not known.

    >>> strongest_correlation([[1.0, -0.5], [-0.5, 1.0]], ["heat", "cold"])
    'The strongest is -0.50, between heat and cold.'
    """
    R = np.asarray(correlation, dtype=float)
    if len(R) < 2:
        return "There is one target, and so nothing to correlate with."
    if np.isnan(R[np.triu_indices(len(R), 1)]).all():
        return "No row has two targets, and so none is known."
    off = np.nan_to_num(np.abs(np.triu(R, 1)))
    if not off.any():
        return "All are 0."
    t, u = (int(i) for i in np.unravel_index(np.argmax(off), off.shape))
    return f"The strongest is {R[t, u]:.2f}, between {names[t]} and {names[u]}."
