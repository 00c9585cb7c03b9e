"""
Does it help to refine CoolMTGP by the exact evidence? `python benchmarks/refinement.py [--quick]`.

Cool-MTGP learns 2 T numbers for its tasks, the exact model T (T + 1). On real sets (the Mulan
files, if `--data` or GPFLOW_COOL_DATA names their folder) and on the paper's synthetic data this
prints what happens to the exact evidence, which refinement raises, and to held-out rows, which it
need not help. The figures in docs/exact.md are from here.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gpflow
import numpy as np

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.datasets import load_mulan, low_rank_synthetic
from gpflow_cool.metrics import joint_nlpd, mean_rmse
from gpflow_cool.models.in_memory import InMemoryModel
from gpflow_cool.studies.partition import data_folder

SETS = ("edm", "slump", "andro", "enb", "atp1d")
MAX_ROWS = 250  # of enb


class Split(NamedTuple):
    """Rows to learn from and rows to predict, standardised by the former."""

    X: np.ndarray
    Y: np.ndarray
    Xnew: np.ndarray
    Ynew: np.ndarray


def standardise(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both by the mean and deviation of the first; columns that are constant there are dropped."""
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    keep = deviation > 1e-12 * (1.0 + np.abs(mean))
    return tuple((part[:, keep] - mean[keep]) / deviation[keep] for part in (train, test))


def real_split(name: str, folder: Path, seed: int) -> Split:
    """A fifth of the rows held out."""
    data = load_mulan(name, folder)
    rows = np.flatnonzero(np.isfinite(np.hstack([data.X, data.Y])).all(axis=1))
    rows = np.random.default_rng(seed).permutation(rows)
    rows = rows[:MAX_ROWS] if name == "enb" else rows
    test, train = np.split(rows, [len(rows) // 5])
    X, Xnew = standardise(data.X[train], data.X[test])
    Y, Ynew = standardise(data.Y[train], data.Y[test])
    return Split(X, Y, Xnew, Ynew)


def squared_exponential(num_inputs: int) -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=np.sqrt(num_inputs))


def score(model: InMemoryModel, split: Split) -> list[float]:
    """Exact evidence, held-out joint NLPD per task, held-out RMSE."""
    mean, cov = (part.numpy() for part in model.predict_y(split.Xnew, full_output_cov=True))
    nlpd = joint_nlpd(split.Ynew, mean, cov) / split.Y.shape[1]
    return [float(model.log_marginal_likelihood()), nlpd, mean_rmse(split.Ynew, mean)]


def refine(cool: CoolMTGP, optimizer: str, steps: int | None = None) -> KroneckerMTGP:
    exact = cool.to_exact()
    exact.fit(optimizer, steps=steps, verbose=0)
    return exact


def real_models(split: Split) -> dict[str, Callable[[], InMemoryModel]]:
    """What is compared, in the order in which it is trained."""
    data = split.X, split.Y
    cool = CoolMTGP(data, squared_exponential(split.X.shape[1]))

    def trained_cool() -> InMemoryModel:
        cool.fit(verbose=0)
        return cool

    def from_scratch() -> InMemoryModel:
        exact = KroneckerMTGP(data, squared_exponential(split.X.shape[1]))
        exact.fit("scipy", verbose=0)
        return exact

    return {
        "Cool": trained_cool,
        "Cool, EM 10 steps": lambda: refine(cool, "em", 10),
        "Cool, EM": lambda: refine(cool, "em"),
        "Cool, scipy": lambda: refine(cool, "scipy"),
        "exact, scipy": from_scratch,
    }


def study_real(name: str, folder: Path, num_splits: int) -> None:
    """Mean over splits of everything, one row per model; differences to Cool with their spread."""
    scores: dict[str, list[list[float]]] = {}
    for seed in range(num_splits):
        split = real_split(name, folder, seed)
        for label, train in real_models(split).items():
            start = time.perf_counter()
            model = train()
            seconds = time.perf_counter() - start
            scores.setdefault(label, []).append([*score(model, split), seconds])
    (N, D), T = split.X.shape, split.Y.shape[1]
    print(f"\n{name}: {N} rows, {D} inputs, {T} tasks, {num_splits} splits", flush=True)
    print("| model | evidence | NLPD per task | (minus Cool's) | RMSE | seconds |")
    print("|---|---|---|---|---|---|")
    base = np.array(scores["Cool"])
    for label, values in scores.items():
        mean = np.mean(values, axis=0)
        gain = np.array(values)[:, 1] - base[:, 1]
        print(
            f"| {label} | {mean[0]:.0f} | {mean[1]:.3f} | {gain.mean():+.3f} ({gain.min():+.3f} to"
            f" {gain.max():+.3f}) | {mean[2]:.3f} | {mean[3]:.1f} |",
            flush=True,
        )


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def synthetic_models(data: tuple[np.ndarray, np.ndarray]) -> dict[str, Callable[[], InMemoryModel]]:
    cool = CoolMTGP(data, gpflow.kernels.Linear())

    def trained_cool() -> InMemoryModel:
        cool.fit(verbose=0)
        return cool

    return {
        "Cool": trained_cool,
        "Cool, EM 10 steps": lambda: refine(cool, "em", 10),
        "Cool, EM 100 steps": lambda: refine(cool, "em", 100),
    }


def study_synthetic(rank: int, num_draws: int, num_tasks: int = 15, num_rows: int = 100) -> None:
    """Errors of Sigma and C, and the error of predictions, before and after EM."""
    scores: dict[str, list[list[float]]] = {}
    for seed in range(num_draws):
        drawn = low_rank_synthetic(rank, seed, num_rows=num_rows + 1000, num_tasks=num_tasks)
        train, new = (drawn.X[:num_rows], drawn.Y[:num_rows]), slice(num_rows, None)
        models = synthetic_models(train)
        models["truth"] = lambda train=train, drawn=drawn: KroneckerMTGP.ground_truth(
            train, gpflow.kernels.Linear(), drawn.C, drawn.Sigma
        )
        for label, make in models.items():
            model = make()
            errors = [
                relative_error(model.noise_covariance().numpy(), drawn.Sigma),
                relative_error(model.task_covariance().numpy(), drawn.C),
                float(np.mean((model.predict_f(drawn.X[new])[0] - drawn.Y[new]) ** 2)),
                float(model.log_marginal_likelihood()),
            ]
            scores.setdefault(label, []).append(errors)
    print(f"\nsynthetic, {num_tasks} tasks of rank {rank}, {num_rows} rows, {num_draws} draws")
    print("| model | error of Sigma | error of C | test MSE | evidence |\n|---|---|---|---|---|")
    for label, values in scores.items():
        mean = np.mean(values, axis=0)
        print(f"| {label} | {mean[0]:.2f} | {mean[1]:.2f} | {mean[2]:.3f} | {mean[3]:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small sets, one split, one draw")
    parser.add_argument("--data", help="folder of the Mulan files; else $GPFLOW_COOL_DATA")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="The standard deviations of the targets differ")
    folder = data_folder(arguments.data)
    if folder is None:
        print("Real sets are left out: name their folder with --data or GPFLOW_COOL_DATA.")
    else:
        for name in SETS[:2] if arguments.quick else SETS:
            study_real(name, folder, 1 if arguments.quick else 3)
    for rank in (5,) if arguments.quick else (5, 10, 15):
        study_synthetic(rank, 1 if arguments.quick else 5)


if __name__ == "__main__":
    main()
