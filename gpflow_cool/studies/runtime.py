"""
Time and error against the number of training rows: scm20d, four tasks, linear kernel.

The paper gives Std-MT and its own method 50 steps, and Conv-MT 200. Here Cool-MT needs no step with
a linear kernel: one eigendecomposition, and its inner problem is solved.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ..datasets import MulanData
from . import figures, methods
from .methods import COLORS, NAMES, choose
from .partition import Partition, load_set, needed_folder, standardised
from .runner import DEFAULT_OUT, ArrayStore, Outcome, Study, StudyResult, Unit, run_study
from .table import Layout, Row, StudyError
from .text import Check, Table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA_SET = "scm20d"
NUM_TASKS = 4
METHODS = ("cool-approximate", "cool-hierarchical", "independent", "std-mt", "conv-mt")
ORDER = ("independent", "std-mt", "conv-mt", "cool-approximate", "cool-hierarchical")
STEPS, QUICK_STEPS = {"std-mt": 50, "conv-mt": 200}, {"std-mt": 10, "conv-mt": 10}
SIZES, QUICK_SIZES = (100, 200, 400, 800, 1600), (50, 100)
LARGEST_CONV = 800
"""Conv-MT is left out beyond: it takes minutes."""
TEST_ROWS = 500
REPEATS, QUICK_REPEATS = 3, 1

LAYOUT = Layout(
    identity=("device", "method", "N", "repeat"),
    effort=("steps",),
    settings=("seed", "tasks", "test_rows"),
    values=("fit_seconds", "predict_seconds", "mse"),
)


def run(
    *,
    quick: bool = False,
    out: Any = DEFAULT_OUT,
    seed: int = 0,
    data: Any = None,
    methods: Sequence[str] | str | None = None,
    sizes: Sequence[int] | None = None,
    repeats: int | None = None,
    steps: int | None = None,
) -> StudyResult:
    """
    Time the methods.

    :param data: Folder with scm20d.arff.
    :param methods: Names, or one text with commas.
    :param sizes: Numbers of training rows.
    :param repeats: How many random choices of rows for each.
    :param steps: At most so many L-BFGS steps for Std-MT and Conv-MT, instead of the paper's.
    """
    loaded = load_set(DATA_SET, needed_folder(data), max_rows=10**9)
    sizes = list(sizes or (QUICK_SIZES if quick else SIZES))
    if min(sizes) < 2 or max(sizes) >= len(loaded.X):
        raise StudyError(f"sizes={sizes}: {DATA_SET} has {len(loaded.X)} rows; choose from 2 on.")
    test_rows = min(TEST_ROWS, len(loaded.X) - max(sizes))
    limits = QUICK_STEPS if quick else STEPS
    limits = {method: steps or limit for method, limit in limits.items()}
    units = [
        make_unit(device, loaded, method, N, repeat, seed, test_rows, limits.get(method))
        for device in devices()
        for N in sizes
        for method in choose("methods", methods, METHODS, METHODS)
        for repeat in range(repeats or (QUICK_REPEATS if quick else REPEATS))
        if method != "conv-mt" or N <= LARGEST_CONV
    ]
    settings = {"seed": seed, "tasks": NUM_TASKS, "test_rows": test_rows}
    return run_study(STUDY, units, settings, out, quick)


def devices() -> list[str]:
    """The CPU, and a GPU where there is one."""
    return ["CPU", "GPU"] if tf.config.list_physical_devices("GPU") else ["CPU"]


def make_unit(
    device: str,
    data: MulanData,
    method: str,
    N: int,
    repeat: int,
    seed: int,
    test_rows: int,
    steps: int | None,
) -> Unit:
    """One method, once, with so many rows."""
    cube = (N / 1000.0) ** 3
    seconds = {"conv-mt": 4.0 + 0.3 * (steps or 0) * cube, "std-mt": 3.0 + (steps or 0) * cube}
    return Unit(
        identity={"device": device, "method": method, "N": N, "repeat": repeat},
        effort={"steps": steps},
        work=partial(measure, device, data, method, N, repeat, seed, test_rows, steps),
        guess=seconds.get(method, 0.5 + 3.0 * cube),
    )


def choose_rows(data: MulanData, N: int, repeat: int, seed: int, test_rows: int) -> Partition:
    """N training rows and the test rows, which are the same for all N."""
    rows = np.random.default_rng([seed, repeat]).permutation(len(data.X))
    test, train = rows[:test_rows], rows[test_rows : test_rows + N]
    Y = data.Y[:, :NUM_TASKS]
    return standardised(data.X[train], Y[train], data.X[test], Y[test])


def measure(
    device: str,
    data: MulanData,
    method: str,
    N: int,
    repeat: int,
    seed: int,
    test_rows: int,
    steps: int | None,
) -> Outcome:
    """Train and predict, with the clock; building the model and tracing count as training."""
    warm_up()
    part = choose_rows(data, N, repeat, seed, test_rows)
    with tf.device(f"/{device}:0"):
        started = time.perf_counter()
        kernel = methods.make_kernel("linear", part.X)
        model = methods.build(method, (part.X, part.Y), kernel)
        methods.train(model, steps)
        trained = time.perf_counter()
        mean = np.asarray(model.predict_f(part.X_test)[0])
    return Outcome(
        {
            "fit_seconds": trained - started,
            "predict_seconds": time.perf_counter() - trained,
            "mse": float(np.mean((part.Y_test - mean) ** 2)),
        }
    )


WARM: list[bool] = []


def warm_up() -> None:
    """Let TensorFlow load what it loads on first use, once, so that nobody is charged for it."""
    if not WARM:
        X = np.linspace(-1.0, 1.0, 12)[:, None]
        for method in ("cool-hierarchical", "std-mt", "conv-mt"):
            data = (X, np.hstack([X, X**2]))
            methods.train(methods.build(method, data, methods.make_kernel("linear", X)), 2)
        WARM.append(True)


def curve(rows: Sequence[Row], device: str, method: str, column: str) -> dict[int, float]:
    """N -> median over repeats."""
    mine = [row for row in rows if row["device"] == device and row["method"] == method]
    return {
        N: float(np.median([row[column] for row in mine if row["N"] == N]))
        for N in sorted({row["N"] for row in mine})
    }


def devices_of(rows: Sequence[Row]) -> list[str]:
    return sorted({row["device"] for row in rows})


def tables(rows: Sequence[Row]) -> list[Table]:
    """Time and error, a column for each N."""
    sizes, found = sorted({row["N"] for row in rows}), []
    columns = (("fit_seconds", "Seconds to train", 2), ("mse", "Test MSE", 3))
    for device in devices_of(rows):
        for column, caption, decimals in columns:
            cells = []
            for method in ORDER:
                values = curve(rows, device, method, column)
                if values:
                    line = [number(values.get(N, np.nan), decimals) for N in sizes]
                    cells.append((NAMES[method], *line))
            header = ("method", *(f"N={N}" for N in sizes))
            text = f"{caption}, {device}, median (paper: a figure only)"
            found.append(Table(text, header, cells))
    return found


def checks(rows: Sequence[Row]) -> list[Check]:
    """The paper's conclusion: Cool is as accurate as Conv-MT and faster."""
    found = []
    for device in devices_of(rows):
        time_of = {m: curve(rows, device, m, "fit_seconds") for m in ORDER}
        mse = {m: curve(rows, device, m, "mse") for m in ORDER}
        shared = sorted(set(time_of["conv-mt"]) & set(time_of["cool-approximate"]))
        if not shared:
            continue
        N = shared[-1]
        speed = time_of["conv-mt"][N] / time_of["cool-approximate"][N]
        error = mse["cool-approximate"][N] / mse["conv-mt"][N]
        claim = f"{device}, N={N}: ~Cool-MT trains faster than Conv-MT, with an MSE not 5% above"
        measured = f"{speed:.1f} times as fast, MSE times {error:.3f}"
        found.append(Check(claim, measured, speed > 1.0 and error <= 1.05))
    return found


def draw_figures(rows: Sequence[Row], store: ArrayStore) -> dict[str, "Figure"]:
    """Time on each device, and the error."""
    shown = devices_of(rows)
    figure = figures.new_figure(4.6 * (len(shown) + 1), 4.4)
    axes = figure.subplots(1, len(shown) + 1)
    panels = [(device, "fit_seconds", f"{device} time") for device in shown]
    panels.append((shown[0], "mse", "test MSE"))
    for ax, (device, column, title) in zip(axes, panels, strict=True):
        for method in ORDER:
            values = curve(rows, device, method, column)
            if values:
                style = {"color": COLORS[method], "label": NAMES[method], "marker": "o"}
                ax.plot(list(values), list(values.values()), markersize=4, **style)
        ax.set(title=title, xlabel="training rows N", xscale="log")
        sizes = sorted({row["N"] for row in rows})
        ax.set_xticks(sizes, [str(N) for N in sizes])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        if column == "fit_seconds":
            ax.set(yscale="log", ylabel="seconds to train")
    axes[-1].set_ylabel("MSE of standardised targets")
    figures.shared_legend(figure, axes[-1])
    return {"time_and_mse": figure}


STUDY = Study("runtime", "Time against the number of rows", LAYOUT, tables, checks, draw_figures)
