"""The page and its picture, from the lines of the runs."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from .problems import INITIAL, PROBLEMS  # noqa: E402

Runs = dict[int, dict[str, Any]]
"""Runs of one model, problem and batch size by seed."""

NAMES = {
    "ours": "CoolMTGP",
    "independent": "independent GPs",
    "independent-trieste": "independent GPs, as Trieste trains them",
    "botorch": "BoTorch Kronecker, qLogEHVI",
}
FEWEST_DRAWN = 5
"""A curve is the mean of this many runs at least."""

COLOURS = {"ours": "C0", "independent": "C1", "botorch": "C2"}


def select(lines: list[dict[str, Any]], model: str, problem: str, batch: int) -> Runs:
    wanted = (model, problem, batch)
    return {
        line["seed"]: line
        for line in lines
        if (line["model"], line["problem"], line["batch"]) == wanted and "failed" not in line
    }


def failures(lines: list[dict[str, Any]], model: str, problem: str, batch: int) -> str:
    """How many runs failed, where any did."""
    wanted = (model, problem, batch)
    runs = [line for line in lines if (line["model"], line["problem"], line["batch"]) == wanted]
    failed = sum("failed" in line for line in runs)
    return f", {failed} failed" if failed else ""


def mean_and_error(values: Iterable[float]) -> str:
    array = np.array(list(values))
    if len(array) < 2:
        return f"{array.mean():.3f}" if len(array) else ""
    return f"{array.mean():.3f} ± {array.std(ddof=1) / np.sqrt(len(array)):.3f}"


def difference(ours: Runs, other: Runs, what: str) -> str:
    """Ours less the other's, over the seeds that both have."""
    both = sorted(set(ours) & set(other))
    return mean_and_error(ours[seed][what][-1] - other[seed][what][-1] for seed in both)


def rows(lines: list[dict[str, Any]], batch: int) -> list[str]:
    """A row of the table for each problem and model that has runs."""
    table = []
    for problem in PROBLEMS:
        ours = select(lines, "ours", problem, batch)
        for model, name in NAMES.items():
            runs = select(lines, model, problem, batch)
            if not runs:
                continue
            steps = len(next(iter(runs.values()))["evaluated"]) - 1
            cells = [problem, name, f"{len(runs)}{failures(lines, model, problem, batch)}"]
            for what in ("evaluated", "recommended"):
                cells.append(mean_and_error(run[what][-1] for run in runs.values()))
                cells.append("" if model == "ours" else difference(ours, runs, what))
            cells.append(f"{np.median([run['cpu'] for run in runs.values()]) / steps:.1f}")
            table.append("| " + " | ".join(cells) + " |")
    return table


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Mean hypervolume against evaluations, with one standard error."""
    batches = sorted({line["batch"] for line in lines})
    shape = len(batches), len(PROBLEMS)
    size = 5.0 * shape[1], 3.4 * shape[0]
    fig, axes = plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False)
    for row, batch in zip(axes, batches, strict=True):
        for ax, problem in zip(row, PROBLEMS, strict=True):
            for model, colour in COLOURS.items():
                runs = select(lines, model, problem, batch)
                if len(runs) < FEWEST_DRAWN:
                    continue
                curves = np.array([run["evaluated"] for run in runs.values()])
                at = INITIAL + batch * np.arange(curves.shape[1])
                mean, error = curves.mean(axis=0), curves.std(axis=0) / np.sqrt(len(curves))
                ax.plot(at, mean, color=colour, label=f"{NAMES[model]} ({len(runs)} seeds)")
                ax.fill_between(at, mean - error, mean + error, color=colour, alpha=0.2)
            ax.set(title=f"{problem}, {batch} at a time", xlabel="evaluations")
            if ax.lines:
                ax.legend(fontsize=8, loc="lower right")
        row[0].set_ylabel("hypervolume, without noise")
    fig.savefig(path, dpi=110)
    plt.close(fig)


BEGIN, END = "<!-- tables: written by benchmarks.hypervolume -->", "<!-- end of tables -->"
COLUMNS = ["problem", "model", "seeds", "evaluated", "CoolMTGP less this"]
COLUMNS += ["recommended", "CoolMTGP less this", "s per step"]


def write_page(lines: list[dict[str, Any]], path: Path) -> None:
    """Write the tables into the page, between two comments, and the picture if runs are enough."""
    parts, picture = [BEGIN], path.parent / "images" / "hypervolume.png"
    counts = Counter((line["model"], line["problem"], line["batch"]) for line in lines)
    if max(counts.values(), default=0) >= FEWEST_DRAWN:
        draw(lines, picture)
        parts += ["", f"![Hypervolume against evaluations](images/{picture.name})"]
    for batch in sorted({line["batch"] for line in lines}):
        parts += ["", f"## {'One point' if batch == 1 else f'{batch} points'} at a time"]
        parts += ["| " + " | ".join(COLUMNS) + " |", "| --- " * len(COLUMNS) + "|"]
        parts += rows(lines, batch)
    before, _, after = path.read_text().partition(BEGIN)
    after = after.partition(END)[2]
    path.write_text(before + "\n".join([*parts, "", END]) + after)
