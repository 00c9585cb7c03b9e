"""What must hold, as ratios of one run."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import methods, problems
from .methods import Method
from .runner import OK, TOO_LONG
from .summary import Summaries, Summary

OURS = "cool-hierarchical"
"""The package's default: it must meet every bar by itself."""
LARGE = 300
NATS, PERCENT = 0.02, 2.0


class Bar(NamedTuple):
    """A claim, and what was measured of it."""

    claim: str
    problem: str
    measured: str
    holds: bool

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "falls short"
        return f"{verdict:11s} {self.claim}; {self.problem}: {self.measured}"


def bars(found: Summaries) -> list[Bar]:
    """Every bar that the results have something to say of."""
    return [*fit_bars(found), *quality_bars(found), *growth_bars(found), *memory_bars(found)] + (
        prediction_bars(found)
    )


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


def ours(found: Summaries, problem: str) -> Summary | None:
    item = found.get((problem, OURS))
    return item if item is not None and item.status == OK else None


def against_fastest(
    found: Summaries, claim: str, problem: str, column: str, factor: float, rivals: list[Summary]
) -> list[Bar]:
    """How many times longer the fastest rival takes."""
    mine = ours(found, problem)
    if mine is None or not rivals:
        return []
    best = min(rivals, key=lambda item: getattr(item, column))
    ratio = getattr(best, column) / getattr(mine, column)
    return [Bar(claim, problem, f"{ratio:.2f} ({best.method})", ratio >= factor)]


def fit_bars(found: Summaries) -> list[Bar]:
    """Seconds to fit, cold and warm."""
    lines: list[Bar] = []
    for column in ("warm", "cold"):
        for problem in problems.ALL:
            if problem.N >= LARGE:
                name = problem.name
                correlated = peers(found, name, column, lambda method: method.correlated_noise)
                claim = f"{column} fit, 3 times faster than peers with correlated noise"
                lines += against_fastest(found, claim, name, column, 3.0, correlated)
                coupled = peers(found, name, column, lambda method: method.coupled)
                claim = f"{column} fit, not slower than peers that couple tasks"
                lines += against_fastest(found, claim, name, column, 1.0, coupled)
        name = problems.grid(100, 16).name
        rivals = peers(found, name, column, lambda method: method.name == "gpflow-coregion")
        claim = f"{column} fit, 20 times faster than GPR with Coregion"
        lines += against_fastest(found, claim, name, column, 20.0, rivals)
    return lines


def quality_bars(found: Summaries) -> list[Bar]:
    """Joint NLPD a task and RMSE beside the best peer, means over splits."""
    lines: list[Bar] = []
    for problem in problems.REAL:
        mine, rivals = ours(found, problem.name), peers(found, problem.name, "nlpd")
        if mine is None or not rivals:
            continue
        best = min(rivals, key=lambda item: item.nlpd)
        extra = mine.nlpd - best.nlpd
        text = f"{extra:+.3f} nats ({best.method})"
        lines.append(Bar(f"joint NLPD within {NATS}", problem.name, text, extra <= NATS))
        best = min(rivals, key=lambda item: item.rmse)
        extra = 100.0 * (mine.rmse / best.rmse - 1.0)
        text = f"{extra:+.1f}% ({best.method})"
        lines.append(Bar(f"RMSE within {PERCENT:.0f}%", problem.name, text, extra <= PERCENT))
    return lines


def growth_bars(found: Summaries) -> list[Bar]:
    """What twice the tasks, and twice the rows, cost."""
    lines = []
    for few, many, most in (((800, 16), (800, 32), 1.3), ((1000, 16), (2000, 16), 8.5)):
        before, after = (ours(found, problems.grid(*size).name) for size in (few, many))
        if before is not None and after is not None:
            ratio = after.warm / before.warm
            where = f"{before.problem} to {after.problem}"
            claim = f"warm fit costs at most {most} times"
            lines.append(Bar(claim, where, f"{ratio:.2f}", ratio <= most))
    return lines


def memory_bars(found: Summaries) -> list[Bar]:
    """Peak memory above the import, on the largest problem."""
    name = problems.LARGEST.name
    mine, rivals = ours(found, name), peers(found, name, "memory")
    if mine is None:
        return []
    text = f"{mine.memory / 1e9:.2f} GB"
    lines = [Bar("memory below 1.5 GB", name, text, mine.memory < 1.5e9)]
    if rivals:
        best = min(rivals, key=lambda item: item.memory)
        ratio = best.memory / mine.memory
        claim, text = "no peer below half of our memory", f"{ratio:.2f} ({best.method})"
        lines.append(Bar(claim, name, text, ratio >= 0.5))
    return lines


def prediction_bars(found: Summaries) -> list[Bar]:
    """Joint prediction of 1000 rows."""
    lines: list[Bar] = []
    for problem in problems.ALL:
        rivals = peers(found, problem.name, "predict")
        claim = "joint prediction faster than every peer"
        lines += against_fastest(found, claim, problem.name, "predict", 1.0, rivals)
    return lines
