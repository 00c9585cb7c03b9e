"""The page docs/benchmarks.md and its picture, written from the file of results."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ticker import LogLocator

from . import problems
from .bars import SCORED, Bar, bars
from .methods import ALL
from .runner import OK, Results
from .summary import Summaries, Summary, summarise

PICTURE = "images/benchmarks.png"
REMARKS = Path(__file__).with_name("remarks.md")
"""What the numbers do not say, and why a bar is missed: written by hand."""
HEADER = (
    "method",
    "cold fit, s",
    "warm fit, s",
    "predict, s",
    "memory, MB",
    "RMSE",
    "NLPD per task",
    "parameters",
    "failures",
    "threads",
)
INTRODUCTION = """# Beside other packages

This page is written by `python -m benchmarks.peers --page docs/benchmarks.md`; do not edit it by
hand. The results come from `python -m benchmarks.peers --data FOLDER`, where the folder holds
Mulan's ARFF files. Without `--data` the environment variable `GPFLOW_COOL_DATA` names the folder.

{note}

Machine: {machine}. Versions: {versions}.

How it is measured:

* Each fit runs in its own process. On the first split one and two threads are tried, unless the
  method fails with two. The better number counts in each column of seconds; `threads` lists it for
  cold fit, warm fit and prediction.
* Cold fit: building, tracing and training in a fresh process, after the import. Warm fit: the same
  again in that process. A cold fit of more than 20 seconds is not repeated, and counts as the warm
  fit too.
* Predict: mean and T x T covariance, noise included, at each of 1000 rows; the fastest of up to six
  calls within 20 seconds.
* Memory: the peak of the cold fit above the import, or until the fit was stopped, with the threads
  of the better warm fit.
* RMSE and NLPD per task (the joint negative log density of a row's targets, divided by their
  number): 20% of the rows are held out, everything is standardised with the other rows, and the
  mean is over splits.
* Synthetic problems have one draw and 200 new rows. With more than 400 rows only the fits are
  measured.
* A fit that takes longer than the time limit is a failure.

Ours: `cool-hierarchical` is `CoolMTGP` with `learning="hierarchical"`. `cool-averaged` averages it
over 8 orders of the tasks; its time includes the averaging. `cool-auto` is `CoolMTGPRegressor` with
its defaults, as on the command line: it chooses a kernel, frees lengthscales where the data decide
them, and refines C and Sigma. Its predictions have bars, its time has none.

Peers:

* GPyTorch `MultitaskKernel` (task covariance of full rank, 50 or 200 steps of Adam at 0.1, as in
  its tutorial) with a diagonal task noise (`iid`) and a full one (`full`);
* BoTorch `KroneckerMultiTaskGP` with its own kernel and priors (`botorch`), and with the kernel of
  the others and a full task noise, its other priors kept (`botorch-full`);
* GPflow `GPR` with `Coregion` of rank 2 and one noise variance, up to N T = 2000;
* GPflow `SVGP` with `SharedIndependent`, a noise variance per task and up to 200 inducing points;
* one GP per task, with GPflow and with scikit-learn.

All but `cool-auto` and `botorch` have a squared exponential kernel with one lengthscale, or with
one per input on `enb-ard`. It starts at half the median distance between rows.
"""
BARS = """\
Each bar compares ours with the best peer, which is named in brackets. Times and memory: the peer's
divided by ours. Scores: ours less the peer's, over the splits that both have. "Costs at most"
compares ours on two problems.

"""


def write_page(results: Results, page: Path, note: str) -> None:
    """Write the page, and the picture beside it."""
    found = summarise(results.rows)
    page.parent.joinpath(PICTURE).parent.mkdir(parents=True, exist_ok=True)
    draw(found, page.parent / PICTURE)
    versions = ", ".join(f"{name} {text}" for name, text in results.versions.items())
    head = INTRODUCTION.format(note=note, machine=results.machine, versions=versions)
    parts = [head, bar_table(bars(found)), f"![Seconds to fit]({PICTURE})\n"]
    parts.append(REMARKS.read_text(encoding="utf-8"))
    parts += [problem_table(found, problem) for problem in problems.BY_NAME.values()]
    page.write_text("\n".join(part for part in parts if part), encoding="utf-8")


def markdown(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    rows = [header, ("---",) * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def bar_table(found: list[Bar]) -> str:
    """What must hold, a column for each of ours, what falls short first."""
    rows: dict[tuple[str, str], dict[str, Bar]] = {}
    for bar in found:
        rows.setdefault((bar.claim, bar.problem), {})[bar.method] = bar

    def cell(bar: Bar | None) -> str:
        if bar is None:
            return ""
        return bar.measured if bar.holds else f"**falls short**: {bar.measured}"

    ordered = sorted(rows.items(), key=lambda row: all(bar.holds for bar in row[1].values()))
    lines = [(*key, *(cell(row.get(method)) for method in SCORED)) for key, row in ordered]
    held = (sum(bar.holds for bar in found if bar.method == method) for method in SCORED)
    count = (sum(bar.method == method for bar in found) for method in SCORED)
    text = ", ".join(
        f"{h} of {n} for `{method}`" for h, n, method in zip(held, count, SCORED, strict=True)
    )
    title = f"## What must hold\n\n{BARS}Held: {text}.\n"
    return f"{title}\n{markdown(('bar', 'problem', *SCORED), lines)}"


def problem_table(found: Summaries, problem: problems.Problem) -> str:
    """One line per method; empty if there is none."""
    lines = [cells(item) for (where, _), item in found.items() if where == problem.name]
    if not lines:
        return ""
    size = f"{problem.N} rows, {problem.T} tasks" if problem.table else "synthetic"
    size += ", a lengthscale for each input" if problem.ard else ""
    return f"## {problem.name} ({size})\n\n{markdown(HEADER, lines)}"


def cells(item: Summary) -> tuple[str, ...]:
    failures = f"{item.failures} of {item.failures + item.splits}"
    return (
        item.method if item.status == OK else f"{item.method}: {item.status}",
        number(item.cold),
        number(item.warm),
        number(item.predict),
        number(item.memory / 1e6, 0),
        number(item.rmse, 3),
        number(item.nlpd, 3),
        number(item.parameters, 0),
        failures,
        item.threads,
    )


def number(value: float, decimals: int | None = None) -> str:
    """Three digits by default; nothing for NaN."""
    if not np.isfinite(value):
        return ""
    return f"{value:.3g}" if decimals is None else f"{value:.{decimals}f}"


def draw(found: Summaries, path: Path) -> None:
    """Warm fits against N and against T, log-log, with slopes."""
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    panel(left, found, problems.OVER_ROWS, "N")
    left.set(title="16 tasks", xlabel="training rows N", ylabel="seconds to fit, warm")
    panel(right, found, problems.OVER_TASKS, "T")
    right.set(title="800 training rows", xlabel="tasks T")
    figure.savefig(path, dpi=120)


def panel(ax: Any, found: Summaries, sizes: tuple[problems.Problem, ...], axis: str) -> None:
    for index, method in enumerate(ALL):
        points = [
            (getattr(size, axis), found[size.name, method.name].warm)
            for size in sizes
            if (size.name, method.name) in found and found[size.name, method.name].status == OK
        ]
        if points:
            x, y = np.transpose(points)
            style = {"marker": "o" if method.ours else ".", "linewidth": 2.5 if method.ours else 1}
            colour = matplotlib.colormaps["tab20"](index)
            ax.loglog(x, y, label=method.name + slope(x, y), color=colour, **style)
    ticks = [getattr(size, axis) for size in sizes]
    ax.set_xticks(ticks, labels=map(str, ticks))
    ax.minorticks_off()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.grid(alpha=0.3)
    if ax.lines:
        ax.legend(fontsize="x-small")


def slope(x: np.ndarray, y: np.ndarray) -> str:
    """Of the line through all points of the curve."""
    if len(x) < 2:
        return ""
    value = round(np.polyfit(np.log(x), np.log(y), 1)[0], 1)
    return f", slope {value + 0.0:.1f}"  # not -0.0
