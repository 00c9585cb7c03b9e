"""What the rows of results say: one summary for each problem and method."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import methods, problems
from .runner import BETTER, NOT_INSTALLED, OK, TOO_LONG

SECONDS = ("cold", "warm", "predict")


class Scores(NamedTuple):
    """Of one split."""

    rmse: float
    nlpd: float


class Summary(NamedTuple):
    """A method on a problem; NaN where nothing was measured."""

    problem: str
    method: str
    status: str
    cold: float
    warm: float
    predict: float
    memory: float
    parameters: float
    threads: str
    """Of the three numbers of seconds."""
    splits: int
    """That did not fail."""
    failures: int
    scores: dict[int, Scores]
    """By split."""

    @property
    def rmse(self) -> float:
        """Mean over splits."""
        return mean(scores.rmse for scores in self.scores.values())

    @property
    def nlpd(self) -> float:
        """Mean over splits."""
        return mean(scores.nlpd for scores in self.scores.values())


Summaries = dict[tuple[str, str], Summary]


def summarise(rows: Iterable[dict[str, Any]]) -> Summaries:
    """By problem and method, in the order of the two lists."""
    rows = list(rows)
    found = {}
    for problem in problems.BY_NAME:
        for method in methods.BY_NAME:
            mine = [row for row in rows if (row["problem"], row["method"]) == (problem, method)]
            if mine:
                found[problem, method] = summary(problem, method, mine)
    return found


def summary(problem: str, method: str, rows: Sequence[dict[str, Any]]) -> Summary:
    """
    Seconds of the first split with the better thread count, scores of all splits.

    What a row measured before it failed counts; a fit that was stopped took at least its limit.
    """
    rows = [with_limit(row) for row in rows]
    good = [row for row in rows if row["status"] == OK or is_scored(row)]
    first = sorted(rows, key=lambda row: (row["status"] != OK, row["split"], speed(row)))[0]
    alike = [row for row in rows if all(row[key] == first[key] for key in ("status", "split"))]
    best = [min(alike, key=partial(speed, column=name)) for name in SECONDS]
    by_split = {row["split"]: row for row in sorted(good, key=speed, reverse=True)}
    failed = {row["split"] for row in rows if row["status"] not in (OK, NOT_INSTALLED)}
    return Summary(
        problem,
        method,
        first["status"],
        *(row.get(name, np.nan) for name, row in zip(SECONDS, best, strict=True)),
        *(first.get(name, np.nan) for name in ("memory", "parameters")),
        threads=" ".join(str(row["threads"]) for row in best),
        splits=len(by_split),
        failures=len(failed - set(by_split)),
        scores={
            split: Scores(row["rmse"], row["nlpd"])
            for split, row in by_split.items()
            if "rmse" in row
        },
    )


def is_scored(row: dict[str, Any]) -> bool:
    """Whether a row that took too long did so after it was scored."""
    return row["status"] == TOO_LONG and "rmse" in row


def with_limit(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the limit for seconds of a fit that reached it."""
    if row["status"] != TOO_LONG:
        return row
    return {"cold": row["limit"], "warm": row.get("cold", row["limit"]), **row}


def speed(row: dict[str, Any], column: str = BETTER) -> float:
    return row.get(column, np.inf)


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return float(np.mean(listed)) if listed else np.nan
