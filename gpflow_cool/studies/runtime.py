"""
Time and error against the number of training rows: scm20d, four tasks, linear kernel.

The paper gives Std-MT and its own method 50 steps, and Conv-MT 200. Here Cool-MT trains until it
converges.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from ..datasets import MulanData
from . import figures, methods
from .methods import COLORS, NAMES, choose, step_limit
from .partition import Partition, load_set, needed_folder, standardised
from .records import Columns, Rows, StudyError, column, distinct, grouped, where
from .runner import ArrayStore, Outcome, Plan, Request, Study, Unit
from .text import Check, TextTable, among, average, text_table

Draw = Callable[[int, int], Partition]

DATA_SET = "scm20d"
NUM_TASKS = 4
METHODS = ("cool-approximate", "cool-hierarchical", "independent", "std-mt", "conv-mt")
STEPS, QUICK_STEPS = {"std-mt": 50, "conv-mt": 200}, {"std-mt": 10, "conv-mt": 10}
SIZES, QUICK_SIZES = (100, 200, 400, 800, 1600), (50, 100)
LARGEST_CONV = 800
"""Conv-MT is left out for more rows than this: it would take minutes."""
TEST_ROWS = 500
REPEATS, QUICK_REPEATS = 3, 1

COLUMNS = Columns(
    identity=("device", "method", "N", "repeat"),
    effort=("steps",),
    settings=("seed", "tasks", "test_rows"),
    values=("fit_seconds", "predict_seconds", "mse"),
)


def plan(request: Request) -> Plan:
    """Time the methods on random rows, for each number of rows."""
    quick, seed, steps = request.quick, request.seed, request.steps
    loaded = load_set(DATA_SET, needed_folder(request.data), max_rows=10**9)
    sizes = list(request.sizes or (QUICK_SIZES if quick else SIZES))
    if min(sizes) < 2 or max(sizes) >= len(loaded.X):
        raise StudyError(f"sizes={sizes}: {DATA_SET} has {len(loaded.X)} rows; choose from 2 on.")
    test_rows = min(TEST_ROWS, len(loaded.X) - max(sizes))
    limits = QUICK_STEPS if quick else STEPS
    units = [
        Unit(
            identity={"device": device, "method": method, "N": N, "repeat": repeat},
            effort=step_limit(method, steps, limits),
            work=partial(measure, partial(choose_rows, loaded, seed, test_rows)),
            guess=guess(method, N, steps or limits.get(method, 0)),
        )
        for device in devices()
        for N in sizes
        for method in choose("methods", request.methods, METHODS)
        for repeat in range(request.repeats or (QUICK_REPEATS if quick else REPEATS))
        if method != "conv-mt" or N <= LARGEST_CONV
    ]
    return Plan(units, {"seed": seed, "tasks": NUM_TASKS, "test_rows": test_rows})


def devices() -> list[str]:
    """The CPU, and a GPU where there is one."""
    return ["CPU", "GPU"] if tf.config.list_physical_devices("GPU") else ["CPU"]


def guess(method: str, N: int, steps: int) -> float:
    """Seconds that a unit may take, roughly."""
    cube = (N / 1000.0) ** 3
    seconds = {"conv-mt": 4.0 + 0.3 * steps * cube, "std-mt": 3.0 + steps * cube}
    return seconds.get(method, 0.5 + 3.0 * cube)


def choose_rows(data: MulanData, seed: int, test_rows: int, N: int, repeat: int) -> Partition:
    """N training rows and the test rows, which are the same for all N."""
    rows = np.random.default_rng([seed, repeat]).permutation(len(data.X))
    test, train = rows[:test_rows], rows[test_rows : test_rows + N]
    Y = data.Y[:, :NUM_TASKS]
    return standardised(data.X[train], Y[train], data.X[test], Y[test])


def measure(
    draw: Draw, *, device: str, method: str, N: int, repeat: int, steps: int | None
) -> Outcome:
    """Train and predict, with the clock; building the model and tracing count as training."""
    warm_up()
    part = draw(N, repeat)
    with tf.device(f"/{device}:0"):
        started = time.perf_counter()
        kernel = methods.make_kernel("linear", part.X)
        model = methods.build(method, (part.X, part.Y), kernel)
        methods.train(model, steps)
        trained = time.perf_counter()
        mean = np.asarray(model.predict_f(part.X_test)[0])
    times = {"fit_seconds": trained - started, "predict_seconds": time.perf_counter() - trained}
    return Outcome({**times, "mse": float(np.mean((part.Y_test - mean) ** 2))})


WARM: list[bool] = []


def warm_up() -> None:
    """Let TensorFlow load what it needs, once, so that this time counts for no method."""
    if not WARM:
        X = np.linspace(-1.0, 1.0, 12)[:, None]
        for method in ("cool-hierarchical", "std-mt", "conv-mt"):
            data = (X, np.hstack([X, X**2]))
            methods.train(methods.build(method, data, methods.make_kernel("linear", X)), 2)
        WARM.append(True)


def curves(rows: Rows, device: str, name: str) -> dict[str, dict[int, float]]:
    """Method -> N -> median of a column over repeats."""
    return {
        method: {N: float(np.median(column(where(mine, N=N), name))) for N in distinct(mine, "N")}
        for method, mine in grouped(where(rows, device=device), "method", NAMES).items()
    }


def tables(rows: Rows) -> list[TextTable]:
    """Time and error, one column per N."""
    found = []
    for device in distinct(rows, "device"):
        groups = grouped(where(rows, device=device), "method", NAMES)
        lines = {NAMES[method]: mine for method, mine in groups.items()}
        for name, words, decimals in (
            ("fit_seconds", "Seconds to train", 2),
            ("mse", "Test MSE", 3),
        ):
            cell = average(name, decimals, np.median)
            columns = [(f"N={N}", among(cell, N=N)) for N in distinct(rows, "N")]
            caption = f"{words}, {device}, median (paper: a figure only)"
            found.append(text_table(caption, "method", lines, columns))
    return found


def checks(rows: Rows) -> list[Check]:
    """The paper's conclusion: Cool is as accurate as Conv-MT and faster."""
    found = []
    for device in distinct(rows, "device"):
        times, errors = (curves(rows, device, name) for name in ("fit_seconds", "mse"))
        shared = times.get("conv-mt", {}).keys() & times.get("cool-approximate", {}).keys()
        if not shared:
            continue
        N = max(shared)
        speed = times["conv-mt"][N] / times["cool-approximate"][N]
        error = errors["cool-approximate"][N] / errors["conv-mt"][N]
        claim = f"{device}, N={N}: ~Cool-MT trains faster than Conv-MT, with an MSE not 5% above"
        measured = f"{speed:.1f} times as fast, MSE times {error:.3f}"
        found.append(Check(claim, measured, speed > 1.0 and error <= 1.05))
    return found


def draw_figures(rows: Rows, store: ArrayStore) -> dict[str, Figure]:
    """Time on each device, and the error."""
    shown, sizes = distinct(rows, "device"), distinct(rows, "N")
    figure = figures.new_figure(4.6 * (len(shown) + 1), 4.4)
    axes = figure.subplots(1, len(shown) + 1)
    panels = [(device, "fit_seconds", f"{device} time") for device in shown]
    panels.append((shown[0], "mse", "test MSE"))
    for ax, (device, name, title) in zip(axes, panels, strict=True):
        for method, values in curves(rows, device, name).items():
            style = {"color": COLORS[method], "label": NAMES[method], "marker": "o"}
            ax.plot(list(values), list(values.values()), markersize=4, **style)
        ax.set(title=title, xlabel="training rows N", xscale="log")
        ax.set_xticks(sizes, [str(N) for N in sizes])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        if name == "fit_seconds":
            ax.set(yscale="log", ylabel="seconds to train")
    axes[-1].set_ylabel("MSE of standardised targets")
    figures.shared_legend(figure, axes[-1])
    return {"time_and_mse": figure}


def remarks(rows: Rows) -> list[str]:
    """The paper's figure of times, and why ours looks otherwise."""
    return [
        "The paper prints no times. Its machine was an i9 with one core and an RTX 2080 Ti; times"
        " are averaged over 50 runs there, medians of a few here.",
        "Our Cool-MT trains until it converges, by L-BFGS instead of the paper's 50 gradient steps."
        " With a linear kernel it needs sums over the rows, and no N x N matrix.",
        "Times include building the model and TensorFlow's tracing, which is most of what Std-MT"
        " and Conv-MT take for few rows.",
        *([] if "GPU" in distinct(rows, "device") else ["There was no GPU on this machine."]),
    ]


OPTIONS = ("methods", "sizes", "repeats", "steps")
TITLE = "Time against the number of rows"
STUDY = Study("runtime", TITLE, COLUMNS, OPTIONS, plan, tables, checks, draw_figures, remarks)
