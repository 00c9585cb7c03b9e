"""What a cross-validation has found, as JSON and as text: what is better, and how surely."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .evaluation import COOL, MethodScores, named


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


def gain_over(other: MethodScores, cool: MethodScores, score: str = "nlpd_rows") -> Gain:
    """
    What a method gains over another, row by row.

    :param score: "nlpd_rows" or "error_rows", the lower the better.
    """
    gain = getattr(other, score) - getattr(cool, score)
    gain = gain[~np.isnan(gain)]
    return Gain(float(np.mean(gain)), float(np.std(gain, ddof=1) / np.sqrt(len(gain))))


def comparison(
    scores: dict[str, MethodScores],
    targets: Sequence[str],
    num_rows: int,
    folds: int,
    held_out: str = "at random",
    transform: Any = "none",
) -> dict[str, Any]:
    """
    What a comparison has found, as JSON.

    :param held_out: How rows are chosen to be held out, in words.
    :param transform: Of the targets, which some of the methods have.
    """
    gains = {name: gain_over(score, scores[COOL]) for name, score in scores.items() if name != COOL}
    return {
        "rows": num_rows,
        "folds": folds,
        "held_out": held_out,
        "best": {
            "joint_nlpd": min(scores, key=lambda name: scores[name].joint_nlpd),
            "arrmse": min(scores, key=lambda name: scores[name].arrmse),
        },
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
        "transform": {} if transform == "none" else transform_verdicts(scores, named(transform)),
    }


def transform_verdicts(scores: dict[str, MethodScores], label: str) -> dict[str, Any]:
    """
    For each method with a transform, whether densities and means are better than without it.

    :param label: What :func:`gpflow_cool.table.evaluation.named` calls the transform.
    """
    ending = f", {label}"
    found: dict[str, Any] = {}
    for name in scores:
        plain = name.removesuffix(ending)
        if plain == name or plain not in scores:
            continue
        gains = {
            what: gain_over(scores[plain], scores[name], rows)
            for what, rows in (("density", "nlpd_rows"), ("mean", "error_rows"))
        }
        told = {what: {**gain._asdict(), "verdict": gain.verdict} for what, gain in gains.items()}
        errors = [scores[plain].arrmse, scores[name].arrmse]
        found[name] = {"without": plain, "arrmse": errors, **told}
    return found


def transform_lines(found: dict[str, Any]) -> list[str]:
    """The same as text, with what to choose."""
    lines = []
    for name, told in found.items():
        density, mean = told["density"], told["mean"]
        before, after = told["arrmse"]
        lines.append(
            f"{name} beside {told['without']}: densities and intervals {density['verdict']} (joint"
            f" NLPD per row {lower_by(density['mean'])}, standard error"
            f" {density['standard_error']:.3f}); means {mean['verdict']} (aRRMSE {before:.3f} ->"
            f" {after:.3f}). {advice(density['verdict'], before, after)}"
        )
    return lines


def advice(density: str, before: float, after: float) -> str:
    """
    Which of both to choose.

    >>> advice("better", 0.41, 0.50)
    'For probabilities and intervals use the transform; if squared errors of means count, do not.'
    """
    if density == "better" and after > before:
        return (
            "For probabilities and intervals use the transform; if squared errors of means count,"
            " do not."
        )
    if density == "better":
        return "Use the transform."
    if density == "worse":
        return "Do without the transform."
    return "The simpler choice is to do without." if after >= before else "It serves the means."


def comparison_lines(found: dict[str, Any]) -> list[str]:
    """The same as text."""
    how = "" if found["held_out"] == "at random" else f", held out {found['held_out']}"
    head = f"{found['rows']} rows, {found['folds']} folds{how}"
    lines = [head, "", *score_table(found["scores"]), ""]
    for name, gain in found["gain_in_joint_nlpd"].items():
        lines.append(
            f"Cool-MTGP against {name}: {gain['verdict']}, joint NLPD per row"
            f" {lower_by(gain['mean'])} (standard error {gain['standard_error']:.3f})"
        )
    lines += transform_lines(found["transform"])
    return lines + best_lines(found)


def best_lines(found: dict[str, Any]) -> list[str]:
    """Which methods have the lowest scores; none is the best where one target is told alike."""
    best = found["best"]
    lowest = f"Lowest joint NLPD: {best['joint_nlpd']}. Lowest aRRMSE: {best['arrmse']}."
    if len(found["scores"][COOL]["rmse"]) > 1:
        return [lowest]
    clear = any(g["verdict"] in ("better", "worse") for g in found["gain_in_joint_nlpd"].values())
    return ["There is one target, and so nothing to couple."] + [lowest] * clear


def lower_by(gain: float) -> str:
    """
    >>> lower_by(0.5), lower_by(-0.25)
    ('lower by 0.500', 'higher by 0.250')
    """
    return f"{'lower' if gain >= 0 else 'higher'} by {abs(gain):.3f}"


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
