"""
The paper's study of predictive variances: two tasks with correlated noise, inputs in two clusters.

Each method learns from forty rows; bands, level curves of the joint predictive distribution,
coverage and density are measured on a thousand rows spread evenly.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gpflow.base import AnyNDArray

from ..datasets import (
    TWO_TASK_NOISE,
    TwoTaskData,
    clustered_two_task,
    two_task_mean,
    uniform_two_task,
)
from ..linalg import correlation_from_covariance
from ..metrics import coverage, joint_nlpd, mean_rmse, nominal_coverage
from ..plotting import plot_level_curves
from . import figures, methods
from .methods import COLORS, COOL, NAMES, STEPS, choose
from .runner import DEFAULT_OUT, ArrayStore, Outcome, Study, StudyResult, Unit, run_study
from .table import Layout, Row
from .text import Check, Table, mean_and_spread, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = ("std-mt", "conv-mt", "cool-approximate", "cool-hierarchical", "truth")
TASK_NAMES = ("cos", "sin")
POINTS = (0.0, 0.25, 0.5)
TILTS = ("tilt_0", "tilt_25", "tilt_50")
SIZES, QUICK_SIZES = {"rows": 40, "test_rows": 1000}, {"rows": 40, "test_rows": 200}
DRAWS, QUICK_DRAWS = 10, 2
QUICK_STEPS = 50
GUESS = {"std-mt": 3.0, "conv-mt": 4.0, "truth": 0.1}
TRUE_CORRELATION = TWO_TASK_NOISE[0][1] / TWO_TASK_NOISE[0][0]
CORRELATION_TOLERANCE = 0.15
COVERAGE_BOUNDS = (0.90, 0.97)

LAYOUT = Layout(
    identity=("draw", "method"),
    effort=("steps",),
    settings=("seed", "rows", "test_rows"),
    values=(
        "noise_correlation",
        "coverage_1",
        "coverage_2",
        "joint_nlpd",
        "rmse",
        *TILTS,
        "widening",
        "fit_seconds",
    ),
)


def run(
    *,
    quick: bool = False,
    out: Any = DEFAULT_OUT,
    seed: int = 0,
    data: Any = None,
    draws: int | None = None,
    methods: Sequence[str] | str | None = None,
    steps: int | None = None,
) -> StudyResult:
    """
    Compare predictive distributions on draws of the two-task data.

    :param data: Not used: this study draws its data.
    :param draws: How many draws of the training data.
    :param methods: Names, or one text with commas.
    :param steps: At most so many L-BFGS steps for Std-MT and Conv-MT.
    """
    chosen = choose("methods", methods, METHODS, METHODS)
    sizes = QUICK_SIZES if quick else SIZES
    steps = steps or (QUICK_STEPS if quick else None)
    units = [
        make_unit(draw, method, seed, sizes, steps)
        for draw in range(draws or (QUICK_DRAWS if quick else DRAWS))
        for method in chosen
    ]
    return run_study(STUDY, units, {"seed": seed, **sizes}, out, quick)


def make_unit(draw: int, method: str, seed: int, sizes: dict[str, int], steps: int | None) -> Unit:
    """One method on one draw."""
    limit = (steps or STEPS[method]) if method in STEPS else None
    return Unit(
        identity={"draw": draw, "method": method},
        effort={"steps": limit},
        work=partial(measure, draw, method, seed, sizes, limit),
        guess=GUESS.get(method, 1.0),
        has_arrays=draw == 0 and method != "truth",
    )


def measure(draw: int, method: str, seed: int, sizes: dict[str, int], steps: int | None) -> Outcome:
    """Train on clustered rows, score on rows spread evenly."""
    first = 1000 * seed + 2 * draw  # seeds of training and held-out data never meet
    train = clustered_two_task(sizes["rows"], first)
    test = uniform_two_task(sizes["test_rows"], first + 1)
    X = np.array(POINTS)[:, None]
    if method == "truth":
        true = np.array(TWO_TASK_NOISE)
        values = score(test, two_task_mean(test.X), np.tile(true, [len(test.X), 1, 1]))
        values |= tilts(np.tile(true, [len(X), 1, 1])) | {"noise_correlation": TRUE_CORRELATION}
        return Outcome({**values, "fit_seconds": 0.0})
    kernel = methods.make_kernel("se", train.X)
    model = methods.build(method, (train.X, train.Y), kernel)
    seconds = methods.train(model, steps)
    mean, cov = methods.moments(model, X)
    values = score(test, *methods.moments(model, test.X)) | tilts(cov)
    values |= {"noise_correlation": noise_correlation(model), "fit_seconds": seconds}
    return Outcome(values, {"X": train.X, "Y": train.Y, "mean": mean, "cov": cov, **bands(model)})


def score(test: TwoTaskData, mean: AnyNDArray, cov: AnyNDArray) -> dict[str, float]:
    """Scores of predictions of held-out rows, means over the two tasks."""
    var = np.diagonal(cov, axis1=1, axis2=2)
    return {
        "coverage_1": float(np.mean(coverage(test.Y, mean, var, 1.0))),
        "coverage_2": float(np.mean(coverage(test.Y, mean, var, 2.0))),
        "joint_nlpd": joint_nlpd(test.Y, mean, cov),
        "rmse": mean_rmse(test.Y, mean),
    }


def tilts(cov: AnyNDArray) -> dict[str, float]:
    """
    Correlation of the two tasks' observations at the three inputs, and how much larger the area
    inside a level curve is at the last, where no data lie, than at the second, where they do.
    """
    values = cov[:, 0, 1] / np.sqrt(cov[:, 0, 0] * cov[:, 1, 1])
    areas = np.sqrt(np.linalg.det(cov))
    return {**dict(zip(TILTS, map(float, values), strict=True)), "widening": areas[2] / areas[1]}


def noise_correlation(model: Any) -> float:
    """What the model has learned of it; zero for a model without any."""
    if not hasattr(model, "noise_covariance"):
        return 0.0
    return float(np.asarray(correlation_from_covariance(model.noise_covariance()))[0, 1])


def bands(model: Any) -> dict[str, AnyNDArray]:
    """Mean and variances of f and y on a grid."""
    grid = np.linspace(0.0, 1.0, 201)[:, None]
    mean, f_var = (np.asarray(a) for a in model.predict_f(grid))
    y_var = np.asarray(model.predict_y(grid)[1])
    return {"grid": grid, "f_mean": mean, "f_var": f_var, "y_var": y_var}


def tables(rows: Sequence[Row]) -> list[Table]:
    """A line a method."""
    cells = []
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        if not mine:
            continue

        def column(name: str, mine: list[Row] = mine) -> list[float]:
            return [row[name] for row in mine]

        cells.append(
            (
                "True law" if method == "truth" else NAMES[method],
                str(len(mine)),
                mean_and_spread(column("noise_correlation")),
                mean_and_spread(column("coverage_1")),
                mean_and_spread(column("coverage_2")),
                mean_and_spread(column("joint_nlpd")),
                mean_and_spread(column("rmse")),
                *(number(np.mean(column(name))) for name in (*TILTS, "widening")),
                number(np.median(column("fit_seconds")), 1),
            )
        )
    header = (
        "method",
        "draws",
        "noise correlation",
        f"within 1 sigma ({nominal_coverage(1):.2f})",
        f"within 2 sigma ({nominal_coverage(2):.2f})",
        "joint NLPD",
        "RMSE",
        *(f"tilt at {x:g}" for x in POINTS),
        "widening",
        "s",
    )
    return [Table("Predictive variances (paper: figures only)", header, cells)]


def checks(rows: Sequence[Row]) -> list[Check]:
    """What the issue asks of both Cool approaches, beside Std-MT."""
    found = []
    for method in COOL:
        mine = [row for row in rows if row["method"] == method]
        if not mine:
            continue
        rho = float(np.mean([row["noise_correlation"] for row in mine]))
        inside = float(np.mean([row["coverage_2"] for row in mine]))
        low, high = COVERAGE_BOUNDS
        found += [
            Check(
                f"{NAMES[method]}: mean noise correlation within {CORRELATION_TOLERANCE} of"
                f" {TRUE_CORRELATION}",
                f"{rho:.3f}",
                abs(rho - TRUE_CORRELATION) <= CORRELATION_TOLERANCE,
            ),
            Check(
                f"{NAMES[method]}: mean coverage at two sigma between {low} and {high}",
                f"{inside:.3f}",
                low <= inside <= high,
            ),
        ]
    return found + tilt_checks(rows)


def tilt_checks(rows: Sequence[Row]) -> list[Check]:
    """Whether Cool's level curves tilt as the true law's, nearer to it than Std-MT's."""

    def tilt(method: str) -> AnyNDArray:
        mine = [[row[name] for name in TILTS] for row in rows if row["method"] == method]
        return np.mean(mine, axis=0) if mine else np.full(len(TILTS), np.nan)

    std, found = tilt("std-mt"), []
    for method in COOL:
        mine = tilt(method)
        nearer = np.abs(mine - TRUE_CORRELATION) < np.abs(std - TRUE_CORRELATION)
        if np.isfinite(mine).all() and np.isfinite(std).all():
            found.append(
                Check(
                    f"{NAMES[method]}: level curves tilt as the true law's (correlation"
                    f" {TRUE_CORRELATION} at x* = 0, 0.25, 0.5), nearer to it than Std-MT's",
                    f"{format_tilts(mine)} against {format_tilts(std)}",
                    bool(np.all(mine > 0) and np.all(nearer)),
                )
            )
    return found


def format_tilts(values: AnyNDArray) -> str:
    return ", ".join(number(v) for v in values)


def draw_figures(rows: Sequence[Row], store: ArrayStore) -> dict[str, "Figure"]:
    """Bands and level curves of the first draw, and the scores of all."""
    loaded = {method: store.load({"draw": 0, "method": method}) for method in METHODS}
    arrays = {method: found for method, found in loaded.items() if found is not None}
    found = {"scores": scores_figure(rows)}
    if arrays:
        found |= {"bands": bands_figure(arrays), "level_curves": level_curves_figure(arrays)}
    return found


def bands_figure(arrays: dict[str, dict[str, AnyNDArray]]) -> "Figure":
    """Mean and two-sigma bands of each task, a row of panels a method."""
    figure = figures.new_figure(10.0, 2.4 * len(arrays) + 0.6)
    grid = figure.subplots(len(arrays), 2, sharex=True, sharey=True, squeeze=False)
    for axes, (method, found) in zip(grid, arrays.items(), strict=True):
        for t, ax in enumerate(axes):
            draw_bands(ax, found, t, COLORS[method])
            ax.set_title(f"{NAMES[method]}: {TASK_NAMES[t]}", fontsize="medium")
        axes[0].set_ylabel("y")
    for ax in grid[-1]:
        ax.set_xlabel("x")
    grid[0, 0].set_ylim(-3.2, 3.2)
    figures.shared_legend(figure, grid[-1, -1])
    return figure


def draw_bands(ax: "Axes", found: dict[str, AnyNDArray], t: int, color: str) -> None:
    """Mean and bands of one task, with the data and the true function."""
    x, mean = found["grid"][:, 0], found["f_mean"][:, t]
    for name, alpha in (("y", 0.18), ("f", 0.4)):
        half = 2.0 * np.sqrt(found[f"{name}_var"][:, t])
        text = rf"${name} \pm 2$ sigma"
        ax.fill_between(x, mean - half, mean + half, color=color, alpha=alpha, lw=0, label=text)
    ax.plot(x, mean, color=color, label="mean")
    ax.plot(x, two_task_mean(found["grid"])[:, t], "k--", lw=1, label="true function")
    ax.plot(found["X"][:, 0], found["Y"][:, t], "k.", markersize=4, label="data")
    ax.set_xlim(0.0, 1.0)


def level_curves_figure(arrays: dict[str, dict[str, AnyNDArray]]) -> "Figure":
    """Joint predictive distribution of y at three inputs, beside the true law."""
    figure = figures.new_figure(2.9 * len(arrays) + 0.4, 8.8)
    grid = figure.subplots(3, len(arrays), sharex="row", sharey="row", squeeze=False)
    X, noise = np.array(POINTS)[:, None], np.array(TWO_TASK_NOISE)
    truth = two_task_mean(X)
    for i, x in enumerate(POINTS):
        for ax, (method, found) in zip(grid[i], arrays.items(), strict=True):
            color = COLORS[method]
            plot_level_curves(found["mean"][i], found["cov"][i], ax, color=color, label="method")
            plot_level_curves(truth[i], noise, ax, color="k", linestyle=":", label="true law")
            ax.set_aspect("equal", adjustable="box")  # "datalim" cannot be shared
            ax.set_xlabel(TASK_NAMES[0])
            if i == 0:
                ax.set_title(NAMES[method])
        grid[i, 0].set_ylabel(f"$x^* = {x:g}$\n{TASK_NAMES[1]}")
    figures.shared_legend(figure, grid[-1, -1])
    return figure


def scores_figure(rows: Sequence[Row]) -> "Figure":
    """Noise correlation, coverage and joint density of every draw."""
    shown = [method for method in METHODS if any(row["method"] == method for row in rows)]
    figure = figures.new_figure(12.0, 4.0)
    panels = [
        ("noise_correlation", "noise correlation", TRUE_CORRELATION),
        ("coverage_2", "coverage at two sigma", nominal_coverage(2)),
        ("joint_nlpd", "joint NLPD", None),
    ]
    names = ["True law" if method == "truth" else NAMES[method] for method in shown]
    for ax, (column, title, line) in zip(figure.subplots(1, 3), panels, strict=True):
        groups = [[row[column] for row in rows if row["method"] == method] for method in shown]
        figures.box(ax, groups, names, [COLORS[method] for method in shown])
        ax.set_title(title)
        if line is not None:
            ax.axhline(line, color="k", linestyle=":", linewidth=1)
    return figure


STUDY = Study("variance", "Predictive variances of two tasks", LAYOUT, tables, checks, draw_figures)
