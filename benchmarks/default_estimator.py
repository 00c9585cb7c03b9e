"""
The default estimator on real data, and kernels found again on data drawn from them.

`python benchmarks/default_estimator.py [cost] [draws] [splits] [folds] [--out RESULTS.jsonl]`

* `cost` compares the time of a choice with that of one fit, and looks at the memory of a gradient.
* `draws` draws data from every kernel that has a name, chooses a kernel for them, and looks at the
  relevance of inputs that are noise.
* `splits` fits the estimator with its defaults, a squared exponential kernel with one lengthscale,
  and scikit-learn's extra trees to ten splits of each Mulan set, as the studies make them.
* `folds` does ten-fold cross-validation, whose aRRMSE stands beside published ones.

All of them by default; the last two need the folder of the Mulan files, which `--data` or
GPFLOW_COOL_DATA names. Every result is a line of the file. What is there already is not measured
again, and tables of all lines are printed: docs/default_estimator.md has them.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import KFold

from gpflow_cool import CoolMTGP, CoolMTGPRegressor, choose_kernel
from gpflow_cool.metrics import arrmse, mean_rmse
from gpflow_cool.selection.candidates import CANDIDATES
from gpflow_cool.selection.choice import PER_INPUT
from gpflow_cool.selection.relevance import input_relevance
from gpflow_cool.studies.partition import (
    Partition,
    data_folder,
    load_set,
    partition,
    standardised,
)
from gpflow_cool.training.losses import loss_of
from gpflow_cool.training.relevance import free_lengthscales

Row = dict[str, Any]
Unit = tuple[Row, Callable[[], Row]]
"""What a line is about, and the work that gives its numbers."""

SETS = ("andro", "slump", "edm", "atp7d", "atp1d", "oes10", "oes97", "scm20d", "enb")
METHODS = ("se", "default", "trees")
SPLITS, FOLDS, DRAWS = 10, 10, 10
SEED = 0

PUBLISHED = {
    "andro": 0.446,
    "slump": 0.555,
    "edm": 0.698,
    "enb": 0.090,
    "oes97": 0.462,
    "oes10": 0.354,
    "atp1d": 0.370,
    "atp7d": 0.514,
}
"""aRRMSE under cross-validation, the best of ten methods that are not Gaussian processes."""

ROWS_OF_DRAW, TASKS_OF_DRAW, NOISE_OF_DRAW = 150, 3, 0.01
LENGTHSCALE, ALPHA = 0.25, 0.2
"""Of kernels that are to be found, in standard deviations of the one input."""

SEVERAL_INPUTS, LENGTHSCALES = 3, {"Matern32": 1.0, "Laplacian": 3.0}
"""Of `matern32+laplacian`: of one input, a Laplacian kernel is a Matern 1/2 kernel."""

ROUGHNESS = ("se", "matern52", "matern32", "matern12")
"""Neighbours in this list count as half found."""


# Real data ---------------------------------------------------------------------------------------


def measure(method: str, part: Partition) -> Row:
    """Fit to one part of the rows and score the other."""
    started = time.process_time()
    if method == "trees":
        mean = ExtraTreesRegressor(300, random_state=SEED).fit(part.X, part.Y).predict(part.X_test)
        scores = {}
    else:
        options = {} if method == "default" else {"kernel": "se", "ard": False}
        regressor = CoolMTGPRegressor(random_state=SEED, **options).fit(part.X, part.Y)
        mean, deviation = regressor.predict(part.X_test, return_std=True)
        density = regressor.log_density(part.X_test, part.Y_test) / part.Y.shape[1]
        residual = np.abs((part.Y_test - mean) / deviation).max()
        scores = {"nlpd": -density.mean(), "worst_row": density.min(), "worst_residual": residual}
        if method == "default":
            scores["chosen"] = regressor.kernel_choice_.chosen
    seconds = time.process_time() - started
    errors = {"rmse": mean_rmse(part.Y_test, mean), "arrmse": arrmse(part.Y_test, mean, part.Y)}
    return {**errors, **scores, "seconds": seconds}


def splits(folder: Path, sets: list[str], count: int) -> Iterator[Unit]:
    """Units of work: a split, a set, a method."""
    for split in range(count):
        for name in sets:
            data = load_set(name, folder)
            part = partition(data.X, data.Y, SEED, split)
            for method in METHODS:
                key = {"what": "splits", "set": name, "split": split, "method": method}
                yield key, partial(measure, method, part)


def folds(folder: Path, sets: list[str], count: int) -> Iterator[Unit]:
    """Units of work: a fold of ten, of a set whose result has been published, and a method."""
    for name in (name for name in sets if name in PUBLISHED):
        data = load_set(name, folder)
        ten = list(KFold(FOLDS, shuffle=True, random_state=SEED).split(data.X))
        for fold, (train, test) in enumerate(ten[:count]):
            part = standardised(data.X[train], data.Y[train], data.X[test], data.Y[test])
            for method in METHODS:
                key = {"what": "folds", "set": name, "split": fold, "method": method}
                yield key, partial(measure, method, part)


# Drawn data --------------------------------------------------------------------------------------


def draw(kernel: gpflow.kernels.Kernel, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Correlated targets with correlated noise, standardised."""
    K = kernel(X).numpy()
    K /= np.mean(np.diag(K))
    factors = [np.linalg.cholesky(random_correlation(rng)) for _ in range(2)]
    root = np.linalg.cholesky(K + 1e-9 * np.eye(len(X)))
    functions, noise = (rng.normal(size=[len(X), TASKS_OF_DRAW]) for _ in range(2))
    Y = root @ functions @ factors[0].T + np.sqrt(NOISE_OF_DRAW) * noise @ factors[1].T
    return (Y - Y.mean(axis=0)) / Y.std(axis=0)


def random_correlation(rng: np.random.Generator) -> np.ndarray:
    A = rng.normal(size=[TASKS_OF_DRAW] * 2)
    S = A @ A.T + 0.1 * np.eye(TASKS_OF_DRAW)
    return S / np.sqrt(np.outer(np.diag(S), np.diag(S)))


def standard_inputs(num_inputs: int, rng: np.random.Generator) -> np.ndarray:
    X = rng.normal(size=[ROWS_OF_DRAW, num_inputs])
    return (X - X.mean(axis=0)) / X.std(axis=0)


def true_kernel(name: str) -> gpflow.kernels.Kernel:
    """The kernel by name, with parameters by which it can differ from the others."""
    kernel = CANDIDATES[name]()
    for part in (kernel, *kernel.submodules):
        if isinstance(part, gpflow.kernels.Stationary):
            own = LENGTHSCALES[type(part).__name__] if sees_several(name) else LENGTHSCALE
            part.lengthscales.assign(own)
        if isinstance(part, gpflow.kernels.RationalQuadratic):
            part.alpha.assign(ALPHA)
    return kernel


def sees_several(name: str) -> bool:
    return "laplacian" in name


def find_kernel(name: str, number: int) -> Row:
    """Draw from a kernel and choose one."""
    rng = np.random.default_rng([number, list(CANDIDATES).index(name)])
    X = standard_inputs(SEVERAL_INPUTS if sees_several(name) else 1, rng)
    table = choose_kernel((X, draw(true_kernel(name), X, rng)), verbose=0).table
    return {"found": table.chosen.removesuffix(PER_INPUT)}


def find_inputs(number: int) -> Row:
    """Draw functions of two of five inputs: relevance of the others, relative to these."""
    rng = np.random.default_rng([number, 99])
    X = standard_inputs(5, rng)
    kernel = gpflow.kernels.SquaredExponential(active_dims=[0, 1])
    Y = draw(kernel, X, rng)
    choice = choose_kernel((X, Y), verbose=0)
    mean = choice.model.posterior().predict_mean
    relevance = input_relevance(lambda Z: mean(Z).numpy(), X, Y.std(axis=0))
    return {"ratio": float(relevance[2:].max() / relevance[:2].min())}


def draws(count: int) -> Iterator[Unit]:
    """Units of work: a draw of each kernel, and one with inputs that are noise."""
    for number in range(count):
        for name in CANDIDATES:
            key = {"what": "draws", "set": name, "split": number}
            yield key, partial(find_kernel, name, number)
        yield {"what": "draws", "set": "noise", "split": number}, partial(find_inputs, number)


# Cost --------------------------------------------------------------------------------------------


def compare_cost(num_rows: int, num_inputs: int, num_tasks: int) -> Row:
    """CPU time of a choice, and of one fit with one lengthscale."""
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=[num_rows, num_inputs])
    W = rng.normal(size=[2, num_tasks])
    Y = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1] + X[:, 2])], axis=1) @ W
    data = X, Y + 0.3 * rng.normal(size=Y.shape)
    CoolMTGP((X[:20], Y[:20]), gpflow.kernels.SquaredExponential()).fit(verbose=0)  # imports
    started = time.process_time()
    CoolMTGP(data, gpflow.kernels.SquaredExponential()).fit(verbose=0)
    one = time.process_time() - started
    choose_kernel(data, verbose=0)
    return {"fit": one, "choice": time.process_time() - started - one}


def gradient_memory(num_rows: int, num_inputs: int) -> Row:
    """How many N x N matrices a loss with its gradient by all lengthscales needs at its peak."""
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=[num_rows, num_inputs])
    Y = X[:, :4] + rng.normal(size=[num_rows, 4])
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=20.0))
    free_lengthscales(model.kernel, num_inputs)
    before = resident_bytes("VmRSS")
    loss_of(model, profile=True).evaluate()
    peak = resident_bytes("VmHWM") - before
    return {"matrices": peak / (8 * num_rows**2)}


def resident_bytes(field: str) -> int:
    """Memory of this process, at present (VmRSS) or at most so far (VmHWM); Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def costs() -> Iterator[Unit]:
    """Units of work: two shapes of data, and one gradient."""
    yield {"what": "cost", "set": "gradient", "split": 0}, partial(gradient_memory, 1000, 400)
    for N, D, T in ((400, 20, 16), (1000, 20, 4)):
        key = {"what": "cost", "set": f"N={N}, D={D}, T={T}", "split": 0}
        yield key, partial(compare_cost, N, D, T)


# Tables ------------------------------------------------------------------------------------------


def means(rows: list[Row], name: str) -> dict[str, dict[str, float]]:
    """Mean of a score by set and method."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if name in row:
            found.setdefault(row["set"], {}).setdefault(row["method"], []).append(row[name])
    return {s: {m: float(np.mean(v)) for m, v in found[s].items()} for s in found}


def print_splits(rows: list[Row]) -> None:
    """One line per set, and what holds on average."""
    nlpd, rmse, seconds = (means(rows, name) for name in ("nlpd", "rmse", "seconds"))
    print(
        "| set | splits | NLPD, se | NLPD, default | RMSE, se | RMSE, default | RMSE, trees |"
        " worst row, se | worst row, default | worst residual, default | s, se | s, default |"
        " chosen |\n|" + "---|" * 13
    )
    for name in rmse:
        mine = [row for row in rows if row["set"] == name]
        ours = [row for row in mine if row["method"] == "default"]
        worst = [min(r["worst_row"] for r in mine if r["method"] == m) for m in METHODS[:2]]
        chosen = Counter(row["chosen"].removesuffix(PER_INPUT) for row in ours).most_common()
        isotropic = sum(not row["chosen"].endswith(PER_INPUT) for row in ours)
        words = ", ".join(f"{kernel} {count}" for kernel, count in chosen)
        numbers = [nlpd[name][m] for m in METHODS[:2]] + [rmse[name][m] for m in METHODS]
        cells = [f"{x:.3f}" for x in numbers] + [f"{x:.1f}" for x in worst]
        cells += [f"{max(row['worst_residual'] for row in ours):.1f}"]
        cells += [f"{seconds[name][m]:.1f}" for m in METHODS[:2]]
        note = f" ({isotropic} with one lengthscale)" if isotropic else ""
        print(f"| {name} | {len(ours)} | {' | '.join(cells)} | {words}{note} |")
    gains = [nlpd[s]["default"] - nlpd[s]["se"] for s in nlpd]
    ratios = [rmse[s]["default"] / rmse[s]["se"] - 1 for s in rmse]
    trees = sum(rmse[s]["default"] <= rmse[s]["trees"] for s in rmse)
    print(
        f"NLPD: mean change {np.mean(gains):.3f}, lower on {sum(g < 0 for g in gains)} of"
        f" {len(gains)}, largest rise {max(gains):+.3f}\nRMSE: mean change"
        f" {100 * np.mean(ratios):+.1f}%, largest rise {100 * max(ratios):+.1f}%; at or below extra"
        f" trees on {trees}"
    )


def print_folds(rows: list[Row]) -> None:
    """aRRMSE beside published ones."""
    found = means(rows, "arrmse")
    print("| set | folds | published | se | default | extra trees |\n|" + "---|" * 6)
    for name, scores in found.items():
        count = sum(row["set"] == name and row["method"] == "default" for row in rows)
        cells = " | ".join(f"{scores[m]:.3f}" for m in METHODS)
        print(f"| {name} | {count} | {PUBLISHED[name]:.3f} | {cells} |")


def print_draws(rows: list[Row]) -> None:
    """How often each kernel was found."""
    for name in CANDIDATES:
        found = Counter(row["found"] for row in rows if row["set"] == name)
        points = sum(count * likeness(name, other) for other, count in found.items())
        words = ", ".join(f"{kernel} {count}" for kernel, count in found.most_common())
        print(f"| {name} | {points:g} of {sum(found.values())} | {words} |")
    ratios = [row["ratio"] for row in rows if row["set"] == "noise"]
    few = sum(ratio <= 0.1 for ratio in ratios)
    print(f"noise at most a tenth as relevant: {few} of {len(ratios)}, {np.round(ratios, 3)}")


def likeness(name: str, found: str) -> float:
    """1 for the same kernel, a half for a neighbour in roughness."""
    if name == found:
        return 1.0
    if name not in ROUGHNESS or found not in ROUGHNESS:
        return 0.0
    return 0.5 if abs(ROUGHNESS.index(name) - ROUGHNESS.index(found)) == 1 else 0.0


def print_costs(rows: list[Row]) -> None:
    for row in rows:
        if "matrices" in row:
            print(f"gradient at N=1000, D=400: {row['matrices']:.1f} matrices of N x N")
        else:
            ratio = row["choice"] / row["fit"]
            print(f"{row['set']}: fit {row['fit']:.1f} s, choice {ratio:.1f} times that")


PRINTERS = {
    "cost": print_costs,
    "draws": print_draws,
    "splits": print_splits,
    "folds": print_folds,
}


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure_all(units: Iterator[Unit], out: Path, seconds: float) -> None:
    """Add a line for every unit of work that has none."""
    names, started = ("what", "set", "split", "method"), time.monotonic()
    done = {tuple(row.get(name) for name in names) for row in read(out)}
    for key, work in units:
        if time.monotonic() - started > seconds:
            break
        if tuple(key.get(name) for name in names) not in done:
            line = json.dumps({**key, **work()})
            with out.open("a") as file:
                file.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help=f"some of {', '.join(PRINTERS)}")
    parser.add_argument("--out", type=Path, default=Path("default_estimator.jsonl"))
    parser.add_argument("--data", help="folder of the Mulan files")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--count", type=int, default=10, help="splits, folds or draws")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop each after so many")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = data_folder(given.data)
    sets = given.sets.split(",") if folder else []
    makers: dict[str, Callable[[], Iterator[Unit]]] = {
        "cost": costs,
        "draws": partial(draws, given.count),
        "splits": partial(splits, folder or Path(), sets, given.count),
        "folds": partial(folds, folder or Path(), sets, given.count),
    }
    for what in given.what or PRINTERS:
        measure_all(makers[what](), given.out, given.seconds)
        rows = [row for row in read(given.out) if row["what"] == what]
        print(what if rows else f"{what}: nothing measured. --data names the folder of Mulan files")
        if rows:
            PRINTERS[what](rows)


if __name__ == "__main__":
    main()
