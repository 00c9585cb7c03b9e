"""
Rows on a grid: `python benchmarks/grid.py`.

* A fit of n x n rows and four tasks (`--tasks`), predictions at new points, and the peak of memory.
* The same rows through inducing points, and an estimate for the whole kernel matrix: what its
  eigendecomposition takes at 2000 rows, times the cube of the ratio of rows, for each evaluation.
* With `--gaps`: the same with 30% of the targets missing, and the errors of the imputed ones beside
  those of one Gaussian process per task.

Seconds are the processor's, of one run.
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np

from gpflow_cool import CoolMTGP, SparseCoolMTGP, choose_inducing_points
from gpflow_cool.grid import grid_inputs

LENGTHSCALE, START = 1.0, 0.5
DENSE_ROWS = 2000


def kernel() -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=[START, START])


def field(size: int, T: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """T tasks that mix two smooth functions on size x size points, with correlated noise."""
    rng = np.random.default_rng(0)
    axis = np.linspace(0.0, 10.0, size)
    K = np.exp(-0.5 * np.square((axis[:, None] - axis) / LENGTHSCALE))
    lam, U = np.linalg.eigh(K)
    root = U * np.sqrt(np.maximum(lam, 0.0))
    functions = [(root @ rng.normal(size=[size, size]) @ root.T).ravel() for _ in range(2)]
    noise = np.eye(T) + np.tril(rng.normal(size=[T, T])) / 3.0
    Y = np.stack(functions, axis=1) @ rng.normal(size=[2, T])
    return grid_inputs(axis, axis), Y + 0.3 * rng.normal(size=Y.shape) @ noise.T


def busy(function: Callable[[], Any]) -> tuple[float, Any]:
    """The processor's seconds for a call, and what it returned."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def dense_estimate(num_rows: int, evaluations: int) -> float:
    """Seconds for eigendecompositions of the whole kernel matrix."""
    X = np.random.default_rng(0).uniform(size=[DENSE_ROWS, 2])
    K = kernel()(X).numpy()
    seconds, _ = busy(lambda: np.linalg.eigh(K))
    return evaluations * seconds * (num_rows / DENSE_ROWS) ** 3


def full_grid(size: int, num_new: int, T: int) -> None:
    X, Y = field(size, T)
    seconds, model = busy(lambda: CoolMTGP((X, Y), kernel(), engine="grid"))
    fit, history = busy(lambda: model.fit(verbose=0))
    evaluations = len(history.history["loss"])
    print(f"{len(X)} rows, {T} tasks: build {seconds:.2f} s, fit {fit:.2f} s, {history}")
    dense = dense_estimate(len(X), evaluations)
    print(f"  the whole kernel matrix: about {dense:.3g} s, {dense / fit:.3g} times as long")
    Xnew = np.random.default_rng(1).uniform(0.0, 10.0, size=[num_new, 2])
    seconds, _ = busy(lambda: model.predict_f(Xnew, full_output_cov=True))
    print(f"  mean and covariance at {num_new} new points: {seconds:.2f} s")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"  peak of memory, TensorFlow included: {memory:.2f} GB", flush=True)


def inducing_points(size: int, points: int) -> None:
    X, Y = field(size)

    def fit() -> SparseCoolMTGP:
        Z = choose_inducing_points(X, kernel(), points)
        model = SparseCoolMTGP((X, Y), kernel(), Z)
        model.fit(verbose=0)
        return model

    seconds, model = busy(fit)
    print(f"{len(X)} rows through {points} inducing points: {seconds:.2f} s")
    print(f"  lengthscales {np.round(model.kernel.lengthscales.numpy(), 3)}", flush=True)


def with_gaps(size: int, share: float = 0.3) -> None:
    X, full = field(size)
    gone = np.random.default_rng(2).uniform(size=full.shape) < share
    Y = np.where(gone, np.nan, full)
    whole = CoolMTGP((X, full), kernel(), engine="grid")
    complete, _ = busy(lambda: whole.fit(verbose=0))
    model = CoolMTGP((X, Y), kernel(), engine="grid")
    seconds, history = busy(lambda: model.fit(verbose=0))
    ratio = seconds / complete
    print(f"{len(X)} rows, {share:.0%} of the targets missing: fit {seconds:.1f} s, {history}")
    print(f"  {ratio:.1f} times as long as with all targets ({complete:.1f} s)", flush=True)
    seconds, imputed = busy(model.impute)
    error = (imputed.Y.numpy() - full)[gone]
    coverage = np.mean(np.abs(error) < 2.0 * imputed.std.numpy()[gone])
    joint = np.sqrt(np.mean(np.square(error)))
    print(f"  imputed in {seconds:.1f} s: RMSE {joint:.3f}, coverage at two sigma {coverage:.3f}")
    alone = []
    for t in range(full.shape[1]):
        task = CoolMTGP((X, Y[:, t : t + 1]), kernel(), engine="grid")
        task.fit(verbose=0)
        filled = task.completions.numpy().mean(axis=0)[:, 0]  # pairs of draws, about the mean
        alone.append(np.square(filled - full[:, t])[gone[:, t]])
    independent = np.sqrt(np.mean(np.concatenate(alone)))
    print(f"  one Gaussian process per task: RMSE {independent:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 316, 1000])
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--new", type=int, default=10_000, help="number of new points")
    parser.add_argument("--points", type=int, default=300, help="inducing points; 0 for none")
    parser.add_argument("--gaps", action="store_true", help="missing targets only")
    options = parser.parse_args()
    for size in options.sizes:
        if options.gaps:
            with_gaps(size)
        else:
            full_grid(size, options.new, options.tasks)
    if options.points and not options.gaps:
        inducing_points(min(options.sizes), options.points)


if __name__ == "__main__":
    main()
