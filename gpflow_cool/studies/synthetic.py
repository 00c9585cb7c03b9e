"""
The paper's synthetic benchmark: fifteen tasks whose covariances have rank R, linear kernel.

Targets are divided by their deviation in the training half, not centred, since the law has mean
zero and the kernel no intercept; the error is reported in the law's own units, and so are C and
Sigma.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gpflow
import numpy as np
from gpflow.base import AnyNDArray

from ..datasets import LowRankData, low_rank_synthetic
from ..models import KroneckerMTGP
from . import figures, methods
from .methods import COLORS, COOL, NAMES, STEPS, choose, frobenius_distance
from .runner import DEFAULT_OUT, ArrayStore, Outcome, Study, StudyResult, Unit, run_study
from .table import Layout, Row
from .text import Check, Table, mean_and_spread, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = (
    "truth",
    "independent",
    "cool-hierarchical",
    "cool-approximate",
    "std-mt",
    "sigma-mt",
)
RANKED = ("std-mt", "sigma-mt")
ORDER = ("truth", "independent", "std-mt", "sigma-mt", "cool-approximate", "cool-hierarchical")
SIZES = {"tasks": 15, "rows": 200, "inputs": 25}
QUICK_SIZES = {"tasks": 8, "rows": 80, "inputs": 10}
RANKS = {5: (3, 5, 10), 10: (5, 10, 15), 15: (5, 10, 15)}
"""R -> values of P, as in the paper."""
QUICK_RANKS = {3: (3,), 8: (8,)}
DRAWS, QUICK_DRAWS = 10, 2
QUICK_STEPS = 20
GUESS = {"independent": 1.5, "std-mt": 4.0, "sigma-mt": 6.0}
"""Seconds a unit may take."""
BOUNDS = {5: 1.25, 10: 1.15, 15: 1.10}
"""R -> mean MSE of Cool at most so many times the ground truth's."""
WORST = 1.5

LAYOUT = Layout(
    identity=("R", "draw", "method", "P"),
    effort=("steps",),
    settings=("seed", "tasks", "rows", "inputs"),
    values=("mse", "C_error", "Sigma_error", "fit_seconds"),
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
    Compare the methods on draws of the benchmark.

    :param data: Not used: this study draws its data.
    :param draws: How many draws for each R.
    :param methods: Names, or one text with commas; the slow ones come last.
    :param steps: At most so many L-BFGS steps for Std-MT and Sigma-MT.
    """
    chosen = choose("methods", methods, METHODS, METHODS)
    ranks, sizes = (QUICK_RANKS, QUICK_SIZES) if quick else (RANKS, SIZES)
    draws = draws or (QUICK_DRAWS if quick else DRAWS)
    steps = steps or (QUICK_STEPS if quick else None)
    units = [
        make_unit(R, draw, method, P, seed, sizes, picture_rank(ranks), steps)
        for method in chosen
        for R, values in ranks.items()
        for P in (values if method in RANKED else (None,))
        for draw in range(draws)
    ]
    return run_study(STUDY, units, {"seed": seed, **sizes}, out, quick)


def picture_rank(ranks: Any) -> int:
    """The R whose matrices are pictured: the second."""
    return int(list(ranks)[1])


def make_unit(
    R: int,
    draw: int,
    method: str,
    P: int | None,
    seed: int,
    sizes: dict[str, int],
    pictured: int,
    steps: int | None,
) -> Unit:
    """One method on one draw."""
    limit = (steps or STEPS[method]) if method in RANKED else None
    return Unit(
        identity={"R": R, "draw": draw, "method": method, "P": P},
        effort={"steps": limit},
        work=partial(measure, R, 100 * seed + draw, method, P, sizes, limit),
        guess=GUESS.get(method, 0.4),
        has_arrays=draw == 0 and R == pictured and P in (None, R) and method != "independent",
    )


def draw_data(R: int, seed: int, sizes: dict[str, int]) -> LowRankData:
    """A draw of the benchmark, its rows in random order: the first half is for training."""
    data = low_rank_synthetic(
        R,
        seed,
        num_rows=sizes["rows"],
        num_tasks=sizes["tasks"],
        num_inputs=sizes["inputs"],
    )
    rows = np.random.default_rng([seed, R]).permutation(sizes["rows"])
    return data._replace(X=data.X[rows], Y=data.Y[rows])


def measure(
    R: int, seed: int, method: str, P: int | None, sizes: dict[str, int], steps: int | None
) -> Outcome:
    """Train on one half, predict the other; compare C and Sigma with the truth."""
    data = draw_data(R, seed, sizes)
    half = len(data.X) // 2
    X, Y, X_test, Y_test = data.X[:half], data.Y[:half], data.X[half:], data.Y[half:]
    scale = np.ones(sizes["tasks"]) if method == "truth" else Y.std(axis=0)
    kernel = gpflow.kernels.Linear()
    if method == "truth":
        model, seconds = KroneckerMTGP.ground_truth((X, Y), kernel, data.C, data.Sigma), 0.0
    else:
        model = methods.build(method, (X, Y / scale), kernel, rank=P or 1)
        seconds = methods.train(model, steps)
    mean = np.asarray(model.predict_f(X_test)[0]) * scale
    values = {"mse": float(np.mean((mean - Y_test) ** 2)), "fit_seconds": seconds}
    if method == "independent":
        return Outcome(values)
    C, Sigma = learned_covariances(model, scale)
    values |= {
        "C_error": frobenius_distance(C, data.C),
        "Sigma_error": frobenius_distance(Sigma, data.Sigma),
    }
    return Outcome(values, {"C": C, "Sigma": Sigma})


def learned_covariances(model: Any, scale: AnyNDArray) -> tuple[AnyNDArray, AnyNDArray]:
    """C and Sigma in the units of the targets, for a linear kernel of unit variance."""
    square = np.outer(scale, scale)
    variance = model.kernel.variance.numpy()
    C = variance * np.asarray(model.task_covariance()) * square
    return C, np.asarray(model.noise_covariance()) * square


def cases(rows: Sequence[Row], R: int) -> list[tuple[str, float]]:
    """Methods, with P where they have one, in the order of the paper's figure."""
    found = {(row["method"], row["P"] if row["P"] == row["P"] else 0) for row in rows_of(rows, R)}
    return sorted(found, key=lambda case: (ORDER.index(case[0]), case[1]))


def rows_of(rows: Sequence[Row], R: int, method: str | None = None, P: float = 0) -> list[Row]:
    """The rows of a rank, and of one method if it is given."""
    chosen = [row for row in rows if row["R"] == R]
    if method is None:
        return chosen
    chosen = [row for row in chosen if row["method"] == method]
    return [row for row in chosen if (row["P"] if row["P"] == row["P"] else 0) == P]


def label(method: str, P: float) -> str:
    """Name of a method, with its P."""
    return f"{NAMES[method]} (P={P:.0f})" if P else NAMES[method]


def ratios(rows: Sequence[Row], R: int, method: str, P: float = 0) -> list[float]:
    """MSE over the ground truth's, draw by draw."""
    truth = {row["draw"]: row["mse"] for row in rows_of(rows, R, "truth")}
    mine = rows_of(rows, R, method, P)
    return [row["mse"] / truth[row["draw"]] for row in mine if row["draw"] in truth]


def tables(rows: Sequence[Row]) -> list[Table]:
    """A line a method for each R."""
    found = []
    for R in sorted({row["R"] for row in rows}):
        cells = []
        for method, P in cases(rows, R):
            mine = rows_of(rows, R, method, P)
            ratio = ratios(rows, R, method, P)
            cells.append(
                (
                    label(method, P),
                    str(len(mine)),
                    mean_and_spread([row["mse"] for row in mine], 3),
                    number(np.mean(ratio) if ratio else np.nan),
                    number(np.max(ratio) if ratio else np.nan),
                    mean_and_spread([row["C_error"] for row in mine]),
                    mean_and_spread([row["Sigma_error"] for row in mine]),
                    number(np.median([row["fit_seconds"] for row in mine]), 1),
                )
            )
        header = ("method", "draws", "test MSE", "/ truth", "worst", "error of C", "of Sigma", "s")
        found.append(Table(f"Synthetic, R = {R} (paper: box plots only)", header, cells))
    return found


def checks(rows: Sequence[Row]) -> list[Check]:
    """What the issue asks of both Cool approaches; silent where the methods have not run."""
    found = []
    for R, bound in BOUNDS.items():
        for method in COOL:
            ratio = ratios(rows, R, method)
            other = [row["mse"] for row in rows_of(rows, R, "independent")]
            if not ratio or not other:
                continue
            mine = float(np.mean([row["mse"] for row in rows_of(rows, R, method)]))
            truth = float(np.mean([row["mse"] for row in rows_of(rows, R, "truth")]))
            name = f"R={R}, {NAMES[method]}"
            below = Check(
                f"{name}: mean MSE below independent GPs'",
                f"{mine:.3f} against {np.mean(other):.3f}",
                mine < float(np.mean(other)),
            )
            near = Check(
                f"{name}: mean MSE at most {bound:.2f} times the ground truth's",
                f"{mine / truth:.3f}",
                mine <= bound * truth,
            )
            worst = Check(
                f"{name}: no draw above {WORST} times the ground truth",
                f"worst {max(ratio):.3f}",
                max(ratio) <= WORST,
            )
            found += [below, near, worst]
    return found


def draw_figures(rows: Sequence[Row], store: ArrayStore) -> dict[str, "Figure"]:
    """Box plots of the error, and the matrices, true and learned."""
    found = {"mse": mse_figure(rows)}
    for ranks in (RANKS, QUICK_RANKS):
        matrices = matrices_figure(picture_rank(ranks), store)
        if matrices is not None:
            found["matrices"] = matrices
    return found


def mse_figure(rows: Sequence[Row]) -> "Figure":
    """Box plots of the test error, one panel a rank."""
    ranks = sorted({row["R"] for row in rows})
    figure = figures.new_figure(4.2 * len(ranks) + 0.6, 4.6)
    for ax, R in zip(figure.subplots(1, len(ranks), squeeze=False)[0], ranks, strict=True):
        shown = cases(rows, R)
        groups = [[row["mse"] for row in rows_of(rows, R, *case)] for case in shown]
        colors = [COLORS[method] for method, _ in shown]
        figures.box(ax, groups, [label(*case) for case in shown], colors)
        ax.set_title(f"R = {R}")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:.2g}")
        ax.tick_params(axis="y", which="minor", labelsize="x-small")
    figure.get_axes()[0].set_ylabel("test MSE, mean over tasks")
    return figure


def matrices_figure(R: int, store: ArrayStore) -> "Figure | None":
    """C and Sigma, true and learned, of the first draw; None where nothing was learned yet."""
    titles, C, Sigma = [], [], []
    for method in ORDER:
        P = R if method in RANKED else None
        arrays = store.load({"R": R, "draw": 0, "method": method, "P": P})
        if arrays is not None:
            titles.append(label(method, P or 0))
            C.append(arrays["C"])
            Sigma.append(arrays["Sigma"])
    if not titles:
        return None
    figure = figures.matrix_rows([("C", C), (r"$\Sigma$", Sigma)], titles)
    figure.suptitle(f"Covariances between tasks and between their noises, R = {R}")
    return figure


STUDY = Study("synthetic", "Synthetic benchmark of the paper", LAYOUT, tables, checks, draw_figures)
