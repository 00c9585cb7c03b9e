"""What must hold, as ratios of one run."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import methods, problems
from .methods import Method
from .runner import OK, TOO_LONG
from .summary import Summaries, Summary

OURS = ("cool-hierarchical", "cool-averaged")
"""`CoolMTGP`, and its average over orders of the tasks."""
SCORED = (*OURS, "cool-auto")
"""Predictions of `CoolMTGPRegressor` with its defaults are compared too; it fits many kernels, so
that its time is not."""
LARGE = 300


class Bar(NamedTuple):
    """A claim, and what was measured of it."""

    claim: str
    problem: str
    method: str
    """Which of ours."""
    measured: str
    holds: bool

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "falls short"
        return f"{verdict:11s} {self.claim}; {self.problem}, {self.method}: {self.measured}"


def bars(found: Summaries) -> list[Bar]:
    """Every bar that the results have something to say of."""
    kinds = (fit_bars, growth_bars, memory_bars, prediction_bars)
    timed = [bar for kind in kinds for method in OURS for bar in kind(found, method)]
    return [*timed, *(bar for method in SCORED for bar in quality_bars(found, method))]


def peers(
    found: Summaries, problem: str, column: str, which: Callable[[Method], bool] = lambda _: True
) -> list[Summary]:
    """Peers of a kind with a number in a column, also those that were too slow later."""
    return [
        item
        for (where, name), item in found.items()
        if where == problem and item.status in (OK, TOO_LONG)
        if np.isfinite(getattr(item, column))
        if not methods.BY_NAME[name].ours and which(methods.BY_NAME[name])
    ]


def ours(found: Summaries, problem: str, method: str) -> Summary | None:
    item = found.get((problem, method))
    return item if item is not None and item.status == OK else None


def against_fastest(
    mine: Summary | None, claim: str, column: str, factor: float, rivals: list[Summary]
) -> list[Bar]:
    """How many times longer the fastest rival takes."""
    if mine is None or not rivals:
        return []
    best = min(rivals, key=lambda item: getattr(item, column))
    ratio = getattr(best, column) / getattr(mine, column)
    text = f"{ratio:.2f} ({best.method})"
    return [Bar(claim, mine.problem, mine.method, text, ratio >= factor)]


def fit_bars(found: Summaries, method: str) -> list[Bar]:
    """Seconds to fit, cold and warm."""
    lines: list[Bar] = []
    for column in ("warm", "cold"):
        for problem in problems.ALL:
            if problem.N >= LARGE:
                mine = ours(found, problem.name, method)
                correlated = peers(found, problem.name, column, lambda peer: peer.correlated_noise)
                claim = f"{column} fit, 3 times faster than peers with correlated noise"
                lines += against_fastest(mine, claim, column, 3.0, correlated)
                coupled = peers(found, problem.name, column, lambda peer: peer.coupled)
                claim = f"{column} fit, not slower than peers that couple tasks"
                lines += against_fastest(mine, claim, column, 1.0, coupled)
        name = problems.grid(100, 16).name
        rivals = peers(found, name, column, lambda peer: peer.name == "gpflow-coregion")
        claim = f"{column} fit, 20 times faster than GPR with Coregion"
        lines += against_fastest(ours(found, name, method), claim, column, 20.0, rivals)
    return lines


class Score(NamedTuple):
    """How predictions are judged."""

    name: str
    claim: str
    most: float
    """What ours may be behind."""
    text: str
    """How that is written."""

    def behind(self, mine: Summary, peer: Summary) -> float:
        """How much higher our mean is over the splits that both have, for the RMSE in percent."""
        both = mine.scores.keys() & peer.scores.keys()
        us, them = (
            np.mean([getattr(item.scores[split], self.name) for split in both])
            for item in (mine, peer)
        )
        return float(us - them if self.name == "nlpd" else 100.0 * (us / them - 1.0))


SCORES = (
    Score("nlpd", "joint NLPD within 0.02", 0.02, "{:+.3f} nats"),
    Score("rmse", "RMSE within 2%", 2.0, "{:+.1f}%"),
)


def quality_bars(found: Summaries, method: str) -> list[Bar]:
    """Joint NLPD per task and RMSE beside the best peer."""
    lines: list[Bar] = []
    for problem in problems.REAL:
        mine, rivals = ours(found, problem.name, method), peers(found, problem.name, "nlpd")
        rivals = [peer for peer in rivals if mine and mine.scores.keys() & peer.scores.keys()]
        for score in SCORES if mine and rivals else ():
            extras = [(score.behind(mine, peer), peer) for peer in rivals]
            extra, best = max(extras, key=lambda pair: pair[0])
            splits = len(mine.scores.keys() & best.scores.keys())
            text = f"{score.text.format(extra)} ({best.method}, splits: {splits})"
            lines.append(Bar(score.claim, problem.name, method, text, extra <= score.most))
    return lines


def growth_bars(found: Summaries, method: str) -> list[Bar]:
    """What twice the tasks, and twice the rows, cost."""
    lines = []
    for few, many, most in (((800, 16), (800, 32), 1.3), ((1000, 16), (2000, 16), 8.5)):
        before, after = (ours(found, problems.grid(*size).name, method) for size in (few, many))
        if before is not None and after is not None:
            ratio = after.warm / before.warm
            where = f"{before.problem} to {after.problem}"
            claim = f"warm fit costs at most {most} times"
            lines.append(Bar(claim, where, method, f"{ratio:.2f}", ratio <= most))
    return lines


def memory_bars(found: Summaries, method: str) -> list[Bar]:
    """Peak memory above the import, on the largest problem."""
    name = problems.LARGEST.name
    mine, rivals = ours(found, name, method), peers(found, name, "memory")
    if mine is None:
        return []
    text = f"{mine.memory / 1e9:.2f} GB"
    lines = [Bar("memory below 1.5 GB", name, method, text, mine.memory < 1.5e9)]
    if rivals:
        best = min(rivals, key=lambda item: item.memory)
        ratio = best.memory / mine.memory
        claim, text = "no peer below half of our memory", f"{ratio:.2f} ({best.method})"
        lines.append(Bar(claim, name, method, text, ratio >= 0.5))
    return lines


def prediction_bars(found: Summaries, method: str) -> list[Bar]:
    """Joint prediction of 1000 rows."""
    lines: list[Bar] = []
    for problem in problems.ALL:
        rivals = peers(found, problem.name, "predict")
        claim = "joint prediction faster than every peer"
        mine = ours(found, problem.name, method)
        lines += against_fastest(mine, claim, "predict", 1.0, rivals)
    return lines
