"""
Does the order of the tasks matter? Four random orders, beside the tasks' own.

The paper says that it does not. Measured here: how far C and Sigma, the predictions and the joint
density are from one order to another, and what averaging C and Sigma over orders does to that. The
prior of the weights between tasks is "scaled", which averaging needs, and not the paper's.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray
from matplotlib.figure import Figure

from ..metrics import joint_nlpd, mean_rmse
from . import figures, methods, paper
from .methods import COOL, choose, frobenius_distance
from .partition import Partition, data_folder, load_sets, needed_folder, partition, row_limit
from .records import Columns, Row, Rows, grouped, mean_of, where
from .runner import ArrayStore, Outcome, Plan, Request, Study, Unit
from .synthetic import SIZES, draw_data, learned_covariances
from .text import Cell, Check, TextTable, average, count, number, text_table

SYNTHETIC = "synthetic"
RANK, QUICK_RANK = 15, 6
QUICK_SIZES = {"tasks": 6, "rows": 60, "inputs": 10}
QUICK_SETS, QUICK_ROWS = ("andro", "slump"), 60
SPLITS, QUICK_SPLITS = 5, 1
RANDOM_ORDERS = 4
AVERAGED = 8
WORSE_RMSE, WORSE_NLPD = 0.01, 0.01
"""Averaging may cost so much: relative RMSE, and nats per row and task."""
DISTANCES = ("C_distance", "Sigma_distance", "mean_difference")
KINDS = ("own", "orders", "min", "max", "averaged")

COLUMNS = Columns(
    identity=("dataset", "split", "learning"),
    effort=(),
    settings=("seed", "orders", "averaged", "row_limit", "rank"),
    values=(
        "tasks",
        *(f"{name}{end}" for name in DISTANCES for end in ("", "_max")),
        "objective_range",
        *(f"{score}_{kind}" for score in ("rmse", "nlpd") for kind in KINDS),
        *("fit_seconds", "averaging_seconds"),
    ),
)


class InOrder(NamedTuple):
    """What was learned with the tasks in some order, brought back to their own."""

    C: AnyNDArray
    Sigma: AnyNDArray
    mean: AnyNDArray
    rmse: float
    nlpd: float
    """Joint over tasks, per row and task."""
    objective: float


class Drawn(NamedTuple):
    """A partition, and the true covariances where they are known."""

    part: Partition
    scale: AnyNDArray
    true: dict[str, AnyNDArray] = {}


Draw = Callable[[int], Drawn]
Source = tuple[Draw, float]
"""What draws the partition of a number, and the seconds that a unit may take."""


def plan(request: Request) -> Plan:
    """Train with the tasks in several orders, on synthetic draws and on real sets where given."""
    quick, seed = request.quick, request.seed
    max_rows = request.max_rows or (QUICK_ROWS if quick else None)
    sources = find_sources(request, max_rows)
    units = [
        Unit(
            identity={"dataset": name, "split": split, "learning": method.removeprefix("cool-")},
            effort={},
            work=partial(measure, draw, seed),
            guess=seconds,
            has_arrays=name == SYNTHETIC and split == 0,
        )
        for method in choose("methods", request.methods, COOL, COOL[:1])
        for name, (draw, seconds) in sources.items()
        for split in range(request.splits or (QUICK_SPLITS if quick else SPLITS))
    ]
    settings = {"seed": seed, "orders": RANDOM_ORDERS, "averaged": AVERAGED}
    settings |= {"row_limit": row_limit(max_rows), "rank": QUICK_RANK if quick else RANK}
    return Plan(units, settings)


def find_sources(request: Request, max_rows: int | None) -> dict[str, Source]:
    """The chosen data sets, the synthetic one first."""
    quick, seed, data = request.quick, request.seed, request.data
    names = choose("sets", request.sets, (SYNTHETIC, *paper.DATA_SETS), ())
    real = [name for name in names if name != SYNTHETIC]
    found: dict[str, Source] = {}
    if not names or SYNTHETIC in names:
        found[SYNTHETIC] = (partial(synthetic_part, quick, seed), 3.0)
    folder = needed_folder(data) if real else data_folder(data)
    if folder is None:
        print("No folder with real sets: name one with --data to have them too.")
    if folder is None or (names and not real):
        return found
    preferred = QUICK_SETS if quick else ()
    for name, (X, Y, *_) in load_sets(real or None, folder, max_rows, preferred).items():
        seconds = 2.0 + 60.0 * (len(X) / 1000.0) ** 3 + 0.4 * Y.shape[1]
        found[name] = (partial(real_part, X, Y, seed), seconds)
    return found


def synthetic_part(quick: bool, seed: int, split: int) -> Drawn:
    """Halves of a draw; targets divided by their deviation, not centred: their mean is zero."""
    rank, sizes = (QUICK_RANK, QUICK_SIZES) if quick else (RANK, SIZES)
    data = draw_data(rank, 100 * seed + split, sizes)
    half = len(data.X) // 2
    scale = data.Y[:half].std(axis=0)
    Y = data.Y / scale
    part = Partition(data.X[:half], Y[:half], data.X[half:], Y[half:])
    return Drawn(part, scale, {"true_C": data.C, "true_Sigma": data.Sigma})


def real_part(X: AnyNDArray, Y: AnyNDArray, seed: int, split: int) -> Drawn:
    """A partition of a real set, as the study of real data makes it."""
    return Drawn(partition(X, Y, seed, split), np.ones(Y.shape[1]))


def measure(draw: Draw, seed: int, *, dataset: str, split: int, learning: str) -> Outcome:
    """Train in the tasks' own order and in random ones; compare; average."""
    part, scale, true = draw(split)
    num_tasks = part.Y.shape[1]
    rng = np.random.default_rng([seed, split, 1])
    orders = [np.arange(num_tasks)] + [rng.permutation(num_tasks) for _ in range(RANDOM_ORDERS)]
    models, seconds = [], []
    for order in orders:
        kernel = methods.make_kernel("linear" if dataset == SYNTHETIC else "se", part.X)
        data = part.X, part.Y[:, order]
        models.append(methods.build(f"cool-{learning}", data, kernel, weight_prior="scaled"))
        seconds.append(methods.train(models[-1]))
    results = [evaluate(m, part, order, scale) for m, order in zip(models, orders, strict=True)]
    started = time.perf_counter()
    averaged = models[0].average_over_orders(AVERAGED, seed=seed)
    times = {"fit_seconds": np.mean(seconds), "averaging_seconds": time.perf_counter() - started}
    values = compare(results, evaluate(averaged, part, orders[0], scale))
    learned = {name: np.array([getattr(r, name) for r in results]) for name in ("C", "Sigma")}
    return Outcome({**values, **times, "tasks": num_tasks}, learned | true)


def evaluate(model: Any, part: Partition, order: AnyNDArray, scale: AnyNDArray) -> InOrder:
    """What a model of the tasks in some order has learned and predicts, in their own order."""
    back = np.argsort(order)
    square = np.ix_(back, back)
    mean, cov = methods.moments(model, part.X_test)
    mean, cov = mean[:, back], cov[:, back][:, :, back]
    if hasattr(model.kernel, "lengthscales"):
        C, Sigma = np.asarray(model.task_covariance()), np.asarray(model.noise_covariance())
    else:
        C, Sigma = learned_covariances(model, scale[order])
    return InOrder(
        C[square],
        Sigma[square],
        mean,
        mean_rmse(part.Y_test, mean),
        joint_nlpd(part.Y_test, mean, cov) / mean.shape[1],
        float(model.maximum_log_likelihood_objective()),
    )


def compare(results: Sequence[InOrder], averaged: InOrder) -> dict[str, float]:
    """How far the orders are from each other, and the averaged model from them."""
    pairs = list(itertools.combinations(results, 2))
    distances = {
        "C_distance": [relative_distance(a.C, b.C) for a, b in pairs],
        "Sigma_distance": [relative_distance(a.Sigma, b.Sigma) for a, b in pairs],
        "mean_difference": [float(np.sqrt(np.mean((a.mean - b.mean) ** 2))) for a, b in pairs],
    }
    values = {"objective_range": float(np.ptp([result.objective for result in results]))}
    for name, found in distances.items():
        values |= {name: float(np.mean(found)), f"{name}_max": max(found)}
    for name in ("rmse", "nlpd"):
        scores = [float(getattr(result, name)) for result in results]
        last = float(getattr(averaged, name))
        found = [scores[0], float(np.mean(scores)), min(scores), max(scores), last]
        values |= {f"{name}_{kind}": value for kind, value in zip(KINDS, found, strict=True)}
    return values


def relative_distance(A: AnyNDArray, B: AnyNDArray) -> float:
    """The distance of two matrices, relative to the geometric mean of their norms."""
    return float(np.sqrt(frobenius_distance(A, B) * frobenius_distance(B, A)))


def groups(rows: Rows) -> dict[str, list[Row]]:
    """The rows of each data set and approach, the synthetic one first."""
    names, found = (SYNTHETIC, *paper.DATA_SETS), {}
    for learning, end in (("hierarchical", ""), ("approximate", " (~)")):
        for name, mine in grouped(where(rows, learning=learning), "dataset", names).items():
            found[f"{name}{end}"] = mine
    return found


def span(score: str) -> Cell:
    """A cell with the mean range of a score over the orders."""
    return lambda rows: number(mean_of(rows, f"{score}_max") - mean_of(rows, f"{score}_min"), 3)


def tables(rows: Rows) -> list[TextTable]:
    """How much the order matters, and what averaging does."""
    differ = [
        ("splits", count),
        ("C", average("C_distance")),
        ("Sigma", average("Sigma_distance")),
        ("prediction", average("mean_difference", 3)),
        ("RMSE", span("rmse")),
        ("NLPD/T", span("nlpd")),
        ("objective, nats", average("objective_range", 1)),
    ]
    kinds = {"own": "own", "orders": "any order", "averaged": f"mean of {AVERAGED}"}
    averaging = [
        ("splits", count),
        *((f"NLPD/T, {words}", average(f"nlpd_{kind}", 3)) for kind, words in kinds.items()),
        *((f"RMSE, {words}", average(f"rmse_{kind}", 3)) for kind, words in kinds.items()),
        ("fit, s", average("fit_seconds")),
        ("averaging, s", average("averaging_seconds")),
    ]
    caption = (
        "From one order of the tasks to another: relative Frobenius distance of C and Sigma, root"
        " mean square\ndifference of predictions (targets of unit deviation), and ranges over five"
        " orders (paper: one figure, 'no impact')"
    )
    second = "Averaging C and Sigma over orders (not in the paper)"
    return [
        text_table(caption, "set", groups(rows), differ),
        text_table(second, "set", groups(rows), averaging),
    ]


def checks(rows: Rows) -> list[Check]:
    """Whether averaging over orders costs nothing, and helps."""
    found, gains = [], []
    for name, mine in groups(rows).items():
        before, after = mean_of(mine, "nlpd_own"), mean_of(mine, "nlpd_averaged")
        gains.append(before - after)
        rmse = mean_of(mine, "rmse_averaged") / mean_of(mine, "rmse_own")
        holds = after <= before + WORSE_NLPD and rmse <= 1.0 + WORSE_RMSE
        claim = f"{name}: averaging makes neither joint NLPD/T nor RMSE worse by more than 0.01"
        measured = f"NLPD/T {before:.3f} to {after:.3f}, RMSE times {rmse:.4f}"
        found.append(Check(claim, measured, holds))
    if gains:
        mean = float(np.mean(gains))
        claim = "averaging lowers the joint NLPD/T, mean over sets"
        found.append(Check(claim, f"by {mean:.3f}", mean > 0))
    return found


def draw_figures(rows: Rows, store: ArrayStore) -> dict[str, Figure]:
    """The matrices of the synthetic draw, and densities and errors of every set."""
    found = {"density": density_figure(rows)}
    for learning in ("hierarchical", "approximate"):
        arrays = store.load({"dataset": SYNTHETIC, "split": 0, "learning": learning})
        if arrays is not None:
            found[f"matrices_{learning}"] = matrices_figure(arrays)
    return found


def matrices_figure(arrays: dict[str, AnyNDArray]) -> Figure:
    """C and Sigma, true and learned in four random orders, mapped back."""
    random = zip(arrays["C"][1:], arrays["Sigma"][1:], strict=True)
    found = {"Real": (arrays["true_C"], arrays["true_Sigma"])}
    found |= {f"Random {i}": pair for i, pair in enumerate(random, start=1)}
    title = "Learned with the tasks in random orders, mapped back to their own"
    return figures.covariances_figure(title, found)


def density_figure(rows: Rows) -> Figure:
    """For each set the range over orders, their own order, and the average."""
    found = groups(rows)
    figure = figures.new_figure(12.0, 4.4)
    panels = figure.subplots(1, 2)
    titles = {"nlpd": "joint NLPD / number of tasks", "rmse": "RMSE"}
    for ax, (score, title) in zip(panels, titles.items(), strict=True):
        x = np.arange(len(found))
        low, high, own, averaged = (
            np.array([mean_of(mine, f"{score}_{column}") for mine in found.values()])
            for column in ("min", "max", "own", "averaged")
        )
        ax.vlines(x, low, high, color="0.75", linewidth=6, label="best to worst order")
        ax.plot(x, own, "o", color="C1", label="own order")
        ax.plot(x, averaged, "D", color="C0", label=f"C and Sigma averaged over {AVERAGED} orders")
        ax.set_xticks(x, list(found), rotation=30, ha="right")
        ax.set_ylabel(f"{title}, mean over splits")
        ax.grid(axis="y", alpha=0.3)
    figures.shared_legend(figure, panels[0])
    return figure


def remarks(rows: Rows) -> list[str]:
    """The paper's claim that order has no impact, in numbers."""
    found = [
        "The paper calls its results 'consistent with regard to the order'; it shows one figure."
    ]
    for name, mine in groups(rows).items():
        mean = {column: mean_of(mine, column) for column in COLUMNS.values}
        found.append(
            f"{name}: from order to order C differs by {mean['C_distance']:.0%} and Sigma by"
            f" {mean['Sigma_distance']:.0%}, the joint NLPD per task by"
            f" {mean['nlpd_max'] - mean['nlpd_min']:.3f}; averaging over {AVERAGED} orders takes it"
            f" from {mean['nlpd_own']:.3f} to {mean['nlpd_averaged']:.3f}, and the RMSE from"
            f" {mean['rmse_own']:.3f} to {mean['rmse_averaged']:.3f}."
        )
    return found


OPTIONS = ("sets", "methods", "splits", "max_rows")
TITLE = "Orders of the tasks"
STUDY = Study("permutation", TITLE, COLUMNS, OPTIONS, plan, tables, checks, draw_figures, remarks)
