"""
What missing targets cost and lose: `python benchmarks/missing.py`.

* Solving with the covariance of the observed targets: conjugate gradients against the Cholesky
  factorisation, both in one run, and the memory that training needs.
* With `--data FOLDER`: test error on real tables with 40% of the training targets removed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import scipy.linalg
import tensorflow as tf

from gpflow_cool import CoolMTGP, IndependentGPs, KroneckerMTGP
from gpflow_cool.datasets import load_mulan
from gpflow_cool.joint.missing import solve
from gpflow_cool.studies.partition import needed_folder
from gpflow_cool.training.monte_carlo_em import DRAWS

MISSING = 0.4
TRAINING = 0.7


def problem(N: int, T: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets drawn from the model, half of them NaN, and C and Sigma."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=[N, 5])
    A, B = rng.normal(size=[2, T, T]) / np.sqrt(T)
    C, Sigma = A @ A.T, 0.1 * (0.5 * np.eye(T) + 0.5 * B @ B.T)
    K = kernel()(X).numpy()
    root = np.linalg.cholesky(K + 1e-8 * np.eye(N))
    Y = root @ rng.normal(size=[N, T]) @ A.T
    Y += rng.normal(size=[N, T]) @ np.linalg.cholesky(Sigma).T
    return X, np.where(rng.uniform(size=Y.shape) < 0.5, np.nan, Y), C, Sigma


def kernel() -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=2.0)


def fastest(run: Callable[[], Any], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def observed_covariance(
    K: np.ndarray, C: np.ndarray, Sigma: np.ndarray, observed: np.ndarray
) -> np.ndarray:
    """Covariance of the observed targets, row-major, with little more memory than it takes."""
    rows, tasks = np.nonzero(observed)
    S = K[np.ix_(rows, rows)]
    S *= C[np.ix_(tasks, tasks)]
    for n in np.unique(rows):
        own = np.flatnonzero(rows == n)
        S[np.ix_(own, own)] += Sigma[np.ix_(tasks[own], tasks[own])]
    return S


def compare_solves(N: int, T: int) -> None:
    """Conjugate gradients against Cholesky, on the same targets, to the same solution."""
    X, Y, C, Sigma = problem(N, T)
    model = KroneckerMTGP.ground_truth((X, Y), kernel(), C, Sigma)
    system = model.observed_system()
    V = tf.constant(np.nan_to_num(Y)[None])
    iterate = tf.function(lambda: solve(system, V), autograph=False)
    solution = iterate()[0].numpy()
    y = Y[model.observed]
    S = observed_covariance(kernel()(X).numpy(), C, Sigma, model.observed)
    factors: list[Any] = []

    def factorise() -> None:
        factors[:] = [scipy.linalg.cho_factor(S, lower=True)]

    ours, dense = fastest(iterate, 3), fastest(factorise, 1)
    expected = scipy.linalg.cho_solve(factors[0], y)
    error = np.max(np.abs(solution[model.observed] - expected)) / np.max(np.abs(expected))
    print(f"N={N}, T={T}, {len(y)} observed targets, float64")
    print(f"  conjugate gradients {ours:.3f} s, relative error {error:.1e}")
    print(f"  dense Cholesky {dense:.2f} s, ratio {dense / ours:.0f}")


def memory(name: str) -> int:
    """Bytes of this process: "VmRSS" now, "VmHWM" at its peak (`ru_maxrss` outlives a fork)."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def peak_memory(N: int, T: int) -> None:
    """Peak memory of a fit of two rounds above what was there before."""

    def model(rows: int, tasks: int) -> CoolMTGP:
        X, Y, _, _ = problem(rows, tasks)
        return CoolMTGP((X, Y), kernel())

    model(60, 2).fit(verbose=0, seed=0, rounds=2, steps=2)  # so that everything is loaded
    ours = model(N, T)
    before = memory("VmRSS")
    ours.fit(verbose=0, seed=0, rounds=2, steps=2)
    extra = memory("VmHWM") - before
    allowed = 8 * (10 * N * N + 10 * N * T * DRAWS)
    print(f"N={N}, T={T}: a fit takes {extra / 1e6:.0f} MB at its peak; ten N x N matrices and")
    print(f"  ten N x T x {DRAWS} arrays are {allowed / 1e6:.0f} MB, ratio {extra / allowed:.2f}")


# Real tables ---------------------------------------------------------------------------------


def root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def one_split(name: str, folder: Path, seed: int) -> dict[str, float]:
    """Test errors, in standard deviations of the observed training targets."""
    data = load_mulan(name, folder=folder)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.X))
    train, test = np.split(order, [int(TRAINING * len(order))])
    X = data.X[:, data.X[train].std(axis=0) > 1e-9]
    X = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    observed = rng.uniform(size=data.Y[train].shape) >= MISSING
    holes = np.where(observed, data.Y[train], np.nan)
    Y = (data.Y - np.nanmean(holes, axis=0)) / np.nanstd(holes, axis=0)
    holes = np.where(observed, Y[train], np.nan)
    complete = observed.all(axis=1)

    def trained(model: Any, **options: Any) -> Any:
        model.fit(verbose=0, **options)
        return model

    def error(model: Any) -> float:
        return root_mean_square(model.predict_f(X[test])[0].numpy() - Y[test])

    def start() -> gpflow.kernels.Kernel:
        return gpflow.kernels.SquaredExponential(lengthscales=np.sqrt(X.shape[1]))

    ours = trained(CoolMTGP((X[train], holes), start()), seed=seed)
    independent = trained(IndependentGPs((X[train], holes), start()))
    filled = ours.impute()
    gaps = (filled.Y.numpy() - Y[train])[~observed]
    rows = train[complete]
    return {
        "all known": error(trained(CoolMTGP((X[train], Y[train]), start()))),
        "40% missing": error(ours),
        "independent": error(independent),
        "complete rows": error(trained(CoolMTGP((X[rows], Y[rows]), start())))
        if len(rows)
        else np.nan,
        "filled": root_mean_square(gaps),
        "within 2 sigma": float(np.mean(np.abs(gaps) < 2.0 * filled.std.numpy()[~observed])),
    }


def real_tables(folder: Path, num_splits: int) -> None:
    for name in ("andro", "slump", "atp1d"):
        splits = [one_split(name, folder, seed) for seed in range(num_splits)]
        mean = {key: np.nanmean([split[key] for split in splits]) for key in splits[0]}
        print(name, ", ".join(f"{key} {value:.3f}" for key, value in mean.items()), flush=True)
        print(f"  ratio to all known {mean['40% missing'] / mean['all known']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--memory", nargs=2, type=int, help="N T: measure memory only")
    parser.add_argument("--data", "--mulan", help="folder of the Mulan tables: measure errors only")
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    if options.memory:
        peak_memory(*options.memory)
    elif options.data:
        real_tables(needed_folder(options.data), options.splits)
    else:
        N, T = (300, 8) if options.quick else (1000, 16)
        compare_solves(N, T)
        # A fresh process, so that a peak is its own, which gives back at once what it frees.
        command = [sys.executable, __file__, "--memory", str(N), str(T)]
        subprocess.run(command, check=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "200000"})


if __name__ == "__main__":
    main()
