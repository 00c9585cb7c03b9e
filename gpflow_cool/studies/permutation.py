"""
Does the order of the tasks matter? Four random orders, beside the tasks' own.

The paper says that it does not. Measured here: how far C and Sigma, the predictions and the joint
density are from one order to another, and what averaging C and Sigma over orders does to that.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

from ..metrics import joint_nlpd, mean_rmse
from ..models import CoolMTGP
from . import figures, methods, paper
from .methods import COOL, choose
from .partition import Partition, data_folder, load_sets, partition, row_limit
from .runner import DEFAULT_OUT, ArrayStore, Outcome, Study, StudyResult, Unit, run_study
from .synthetic import draw_data, learned_covariances
from .table import Layout, Row
from .text import Check, Table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYNTHETIC = "synthetic"
RANK, QUICK_RANK = 15, 6
SIZES = {"tasks": 15, "rows": 200, "inputs": 25}
QUICK_SIZES = {"tasks": 6, "rows": 60, "inputs": 10}
QUICK_SETS, QUICK_ROWS = ("andro", "slump"), 60
SPLITS, QUICK_SPLITS = 5, 1
RANDOM_ORDERS = 4
AVERAGED = 8
WORSE_RMSE, WORSE_NLPD = 0.01, 0.01
"""Averaging may cost so much: relative RMSE, and nats a row and task."""

LAYOUT = Layout(
    identity=("dataset", "split", "learning"),
    effort=(),
    settings=("seed", "orders", "averaged", "row_limit", "rank"),
    values=(
        "tasks",
        "C_distance",
        "C_distance_max",
        "Sigma_distance",
        "Sigma_distance_max",
        "mean_difference",
        "mean_difference_max",
        "objective_range",
        "rmse_own",
        "rmse_orders",
        "rmse_min",
        "rmse_max",
        "rmse_averaged",
        "nlpd_own",
        "nlpd_orders",
        "nlpd_min",
        "nlpd_max",
        "nlpd_averaged",
        "fit_seconds",
        "averaging_seconds",
    ),
)


class InOrder(NamedTuple):
    """What was learned with the tasks in some order, brought back to their own."""

    C: AnyNDArray
    Sigma: AnyNDArray
    mean: AnyNDArray
    rmse: float
    nlpd: float
    """Joint, a row and task."""
    objective: float


def run(
    *,
    quick: bool = False,
    out: Any = DEFAULT_OUT,
    seed: int = 0,
    data: Any = None,
    sets: Sequence[str] | str | None = None,
    methods: Sequence[str] | str | None = None,
    splits: int | None = None,
    max_rows: int | None = None,
) -> StudyResult:
    """
    Train with the tasks in several orders, on synthetic draws and on real sets.

    :param data: Folder with the ARFF files; without one only synthetic data is used.
    :param sets: Names of real sets, or one text with commas; "synthetic" for the drawn one.
    :param methods: "cool-hierarchical", "cool-approximate", or both; the first by default.
    :param splits: How many draws, and how many random partitions of a real set.
    :param max_rows: Keep so many first rows of every set, instead of 400 of the large ones.
    """
    max_rows = max_rows or (QUICK_ROWS if quick else None)
    rank, sizes = (QUICK_RANK, QUICK_SIZES) if quick else (RANK, SIZES)
    makers = part_makers(sets, data, seed, quick, max_rows, rank, sizes)
    units = [
        Unit(
            identity={"dataset": name, "split": split, "learning": method.removeprefix("cool-")},
            effort={},
            work=partial(measure, partial(maker, split), method, name == SYNTHETIC, seed, split),
            guess=guess,
            has_arrays=name == SYNTHETIC and split == 0,
        )
        for method in choose("methods", methods, COOL, COOL[:1])
        for name, (maker, guess) in makers.items()
        for split in range(splits or (QUICK_SPLITS if quick else SPLITS))
    ]
    settings = {"seed": seed, "orders": RANDOM_ORDERS, "averaged": AVERAGED}
    settings |= {"row_limit": row_limit(max_rows), "rank": rank}
    return run_study(STUDY, units, settings, out, quick)


class Drawn(NamedTuple):
    """A partition, and the true covariances where they are known."""

    part: Partition
    scale: AnyNDArray
    C: AnyNDArray | None = None
    Sigma: AnyNDArray | None = None


def part_makers(
    sets: Sequence[str] | str | None,
    data: Any,
    seed: int,
    quick: bool,
    max_rows: int | None,
    rank: int,
    sizes: dict[str, int],
) -> dict[str, tuple[Callable[[int], Drawn], float]]:
    """For each data set what makes a partition of it, and the seconds that a unit may take."""
    names = choose("sets", sets, (SYNTHETIC, *paper.DATA_SETS), ())
    makers: dict[str, tuple[Callable[[int], Drawn], float]] = {}
    if not names or SYNTHETIC in names:
        makers[SYNTHETIC] = (partial(synthetic_part, rank, sizes, seed), 3.0)
    real = [name for name in names if name != SYNTHETIC]
    folder = data_folder(data)
    if folder is None and not real:
        print("No folder with real sets: name one with --data to have them too.")
    if (names and not real) or folder is None:
        return makers
    if quick and not real:
        real = [name for name in QUICK_SETS if (folder / f"{name}.arff").is_file()]
    for name, found in load_sets(real or None, folder, max_rows).items():
        seconds = 2.0 + 60.0 * (len(found.X) / 1000.0) ** 3 + 0.4 * found.Y.shape[1]
        makers[name] = (partial(real_part, found.X, found.Y, seed), seconds)
    return makers


def synthetic_part(rank: int, sizes: dict[str, int], seed: int, split: int) -> Drawn:
    """Halves of a draw; targets divided by their deviation, not centred: their law has no mean."""
    data = draw_data(rank, 100 * seed + split, sizes)
    half = len(data.X) // 2
    scale = data.Y[:half].std(axis=0)
    Y = data.Y / scale
    part = Partition(data.X[:half], Y[:half], data.X[half:], Y[half:])
    return Drawn(part, scale, data.C, data.Sigma)


def real_part(X: AnyNDArray, Y: AnyNDArray, seed: int, split: int) -> Drawn:
    """A partition of a real set, as the study of real data makes it."""
    part = partition(X, Y, seed, split)
    return Drawn(part, np.ones(Y.shape[1]))


def measure(
    make_part: Callable[[], Drawn], method: str, linear: bool, seed: int, split: int
) -> Outcome:
    """Train in the tasks' own order and in random ones; compare; average."""
    drawn = make_part()
    part, num_tasks = drawn.part, drawn.part.Y.shape[1]
    rng = np.random.default_rng([seed, split, 1])
    orders = [np.arange(num_tasks)] + [rng.permutation(num_tasks) for _ in range(RANDOM_ORDERS)]
    trained = [train_in_order(part, order, method, linear) for order in orders]
    results = [
        evaluate(model, part, order, drawn.scale)
        for (model, _), order in zip(trained, orders, strict=True)
    ]
    started = time.perf_counter()
    averaged = trained[0][0].average_over_orders(AVERAGED, seed=seed)
    averaging_seconds = time.perf_counter() - started
    values = compare(results, evaluate(averaged, part, orders[0], drawn.scale))
    values |= {
        "tasks": num_tasks,
        "fit_seconds": float(np.mean([seconds for _, seconds in trained])),
    }
    arrays = {"C": np.array([r.C for r in results]), "Sigma": np.array([r.Sigma for r in results])}
    if drawn.C is not None and drawn.Sigma is not None:
        arrays |= {"true_C": drawn.C, "true_Sigma": drawn.Sigma}
    return Outcome({**values, "averaging_seconds": averaging_seconds}, arrays)


def train_in_order(
    part: Partition, order: AnyNDArray, method: str, linear: bool
) -> tuple[CoolMTGP, float]:
    """A model of the tasks in some order, and the seconds that training took."""
    kernel = methods.make_kernel("linear" if linear else "se", part.X)
    model = methods.build(method, (part.X, part.Y[:, order]), kernel)
    return model, methods.train(model)


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

    def distances(name: str) -> list[float]:
        found = []
        for one, other in pairs:
            A, B = getattr(one, name), getattr(other, name)
            norm = np.sqrt(np.linalg.norm(A) * np.linalg.norm(B))
            found.append(float(np.linalg.norm(A - B) / norm))
        return found

    differences = [float(np.sqrt(np.mean((a.mean - b.mean) ** 2))) for a, b in pairs]
    objectives = [result.objective for result in results]
    values = {"objective_range": max(objectives) - min(objectives)}
    for name in ("C", "Sigma"):
        values[f"{name}_distance"] = float(np.mean(distances(name)))
        values[f"{name}_distance_max"] = max(distances(name))
    values["mean_difference"] = float(np.mean(differences))
    values["mean_difference_max"] = max(differences)
    for name in ("rmse", "nlpd"):
        scores = [float(getattr(result, name)) for result in results]
        values[f"{name}_own"] = scores[0]
        values[f"{name}_orders"] = float(np.mean(scores))
        values[f"{name}_min"], values[f"{name}_max"] = min(scores), max(scores)
        values[f"{name}_averaged"] = float(getattr(averaged, name))
    return values


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each data set and approach, the synthetic one first."""
    found: dict[str, list[Row]] = {}
    for learning in ("hierarchical", "approximate"):
        for name in (SYNTHETIC, *paper.DATA_SETS):
            mine = [r for r in rows if r["dataset"] == name and r["learning"] == learning]
            if mine:
                found[name if learning == "hierarchical" else f"{name} (~)"] = mine
    return found


def mean_of(rows: Sequence[Row], column: str) -> float:
    return float(np.mean([row[column] for row in rows]))


def tables(rows: Sequence[Row]) -> list[Table]:
    """How much the order matters, and what averaging does."""
    differ, average = [], []
    for name, mine in groups(rows).items():
        differ.append(
            (
                name,
                str(len(mine)),
                number(mean_of(mine, "C_distance")),
                number(mean_of(mine, "Sigma_distance")),
                number(mean_of(mine, "mean_difference"), 3),
                number(mean_of(mine, "rmse_max") - mean_of(mine, "rmse_min"), 3),
                number(mean_of(mine, "nlpd_max") - mean_of(mine, "nlpd_min"), 3),
                number(mean_of(mine, "objective_range"), 1),
            )
        )
        kinds = ("own", "orders", "averaged")
        columns = [f"{score}_{kind}" for score in ("nlpd", "rmse") for kind in kinds]
        cells = [number(mean_of(mine, column), 3) for column in columns]
        times = ("fit_seconds", "averaging_seconds")
        cells += [number(mean_of(mine, column), 2) for column in times]
        average.append((name, str(len(mine)), *cells))
    first = Table(
        "From one order of the tasks to another: relative Frobenius distance of C and Sigma, root"
        " mean square\ndifference of predictions (targets of unit deviation), and ranges over five"
        " orders (paper: one figure, 'no impact')",
        ("set", "splits", "C", "Sigma", "prediction", "RMSE", "NLPD/T", "objective, nats"),
        differ,
    )
    kinds = ("own", "any order", f"mean of {AVERAGED}")
    head = [f"{score}, {kind}" for score in ("NLPD/T", "RMSE") for kind in kinds]
    header = ("set", "splits", *head, "fit, s", "averaging, s")
    return [first, Table("Averaging C and Sigma over orders (not in the paper)", header, average)]


def checks(rows: Sequence[Row]) -> list[Check]:
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


def draw_figures(rows: Sequence[Row], store: ArrayStore) -> dict[str, "Figure"]:
    """The matrices of the synthetic draw, and densities and errors of every set."""
    found = {"density": density_figure(rows)}
    for learning in ("hierarchical", "approximate"):
        arrays = store.load({"dataset": SYNTHETIC, "split": 0, "learning": learning})
        if arrays is not None:
            found[f"matrices_{learning}"] = matrices_figure(arrays)
    return found


def matrices_figure(arrays: dict[str, AnyNDArray]) -> "Figure":
    """C and Sigma, true and learned in four random orders, mapped back."""
    titles = ["Real", *(f"Random {i}" for i in range(1, len(arrays["C"])))]
    rows = [
        ("C", [arrays["true_C"], *arrays["C"][1:]]),
        (r"$\Sigma$", [arrays["true_Sigma"], *arrays["Sigma"][1:]]),
    ]
    figure = figures.matrix_rows(rows, titles)
    figure.suptitle("Learned with the tasks in random orders, mapped back to their own")
    return figure


def density_figure(rows: Sequence[Row]) -> "Figure":
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


STUDY = Study("permutation", "Orders of the tasks", LAYOUT, tables, checks, draw_figures)
