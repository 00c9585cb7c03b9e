"""
Many rows: what a fit through inducing points costs, beside one pass over the kernel.

    python benchmarks/large.py scm20d --folder FOLDER
    python benchmarks/large.py rows --sizes 100000 1000000
    python benchmarks/large.py estimate

`scm20d` (7463 rows for training, 16 targets, 300 inducing points): seconds of the fit over
those of K_mn and K_mn K_nm, in one run, and the error on the other rows. `rows`: synthetic
rows from files that are mapped into memory, D = T = 8, 200 inducing points: seconds and memory
above the import, and the ratio of the two sizes. `estimate`: one evaluation on many workers, from
the measured time of a chunk and the time that a network of 10 Gbit/s takes for the sums.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_cool import SparseCoolMTGP, choose_inducing_points
from gpflow_cool.datasets import load_mulan
from gpflow_cool.metrics import arrmse
from gpflow_cool.starting import half_median_distance

SE = gpflow.kernels.SquaredExponential


def one_pass(kernel, Z, X, repeats=5):
    """Seconds of K_mn and its product with itself; the fastest counts."""
    Z, X, seconds = tf.constant(Z), tf.constant(X), []
    for _ in range(repeats):
        started = time.perf_counter()
        Kmn = kernel(Z, X)
        tf.matmul(Kmn, Kmn, transpose_b=True).numpy()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def standardise(A, num_train):
    centre, scale = A[:num_train].mean(axis=0), A[:num_train].std(axis=0)
    return (A - centre) / np.where(scale > 0, scale, 1.0)


def scm20d(folder, num_points):
    num_train = 7463
    data = load_mulan("scm20d", folder=folder)
    X, Y = (standardise(np.asarray(A, dtype=float), num_train) for A in (data.X, data.Y))
    train, test = slice(num_train), slice(num_train, None)
    kernel = SE(lengthscales=half_median_distance(X[train]))
    started = time.perf_counter()
    Z = choose_inducing_points(X[train], kernel, num_points)
    chosen = time.perf_counter() - started
    unit = one_pass(kernel, Z, X[train])
    model = SparseCoolMTGP((X[train], Y[train]), kernel, Z)
    started = time.perf_counter()
    history = model.fit(verbose=0)
    seconds = time.perf_counter() - started
    posterior = model.posterior()
    mean, _ = posterior.predict_y(X[test])
    density = posterior.predict_log_density(X[test], Y[test], full_output_cov=True)
    print(f"one pass of K_mn and K_mn K_nm: {unit:.3f} s; choosing the points: {chosen:.2f} s")
    print(f"fit: {seconds:.2f} s, {seconds / unit:.1f} passes, {len(history.epoch)} steps")
    error = arrmse(Y[test], mean.numpy(), Y[train])
    print(f"aRRMSE {error:.3f}, joint NLPD {-float(tf.reduce_mean(density)):.2f}")


def write_rows(folder, num_rows, chunk=100_000):
    """Smooth functions of eight inputs with noise, written a piece at a time."""
    rng = np.random.default_rng(0)
    directions, mixing = rng.normal(size=(8, 8)) / 3, rng.normal(size=(8, 8)) / 3
    files = [
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float64, (num_rows, 8))
        for name in "XY"
    ]
    for n in range(0, num_rows, chunk):
        X = rng.normal(size=(min(chunk, num_rows - n), 8))
        files[0][n : n + chunk] = X
        files[1][n : n + chunk] = np.sin(X @ directions) @ mixing + 0.3 * rng.normal(size=X.shape)
    del files
    return tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "XY")


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def rows(sizes, num_points):
    imported, seconds = peak(), []
    for num_rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            X, Y = write_rows(Path(folder), num_rows)
            kernel = SE(lengthscales=half_median_distance(X[:1000]))
            started = time.perf_counter()
            Z = choose_inducing_points(X, kernel, num_points)
            model = SparseCoolMTGP((X, Y), kernel, Z)
            history = model.fit()
            seconds.append(time.perf_counter() - started)
        steps = len(history.epoch)
        print(
            f"N={num_rows}: {seconds[-1]:.1f} s, {steps} steps,"
            f" loss {history.history['loss'][-1]:.1f}, {peak() - imported:.2f} GB above the import"
        )
    for n in range(1, len(sizes)):
        growth = sizes[n] / sizes[n - 1]
        print(f"{growth:g} times the rows: {seconds[n] / seconds[n - 1]:.1f} times the seconds")


def all_reduce_seconds(numbers, workers, bandwidth=1.25e9, latency=5e-5):
    """A ring: each number is sent 2 (W - 1) / W times by every worker, in 2 (W - 1) rounds."""
    return 2 * (workers - 1) * (8 * numbers / workers / bandwidth + latency)


def estimate(num_points, num_rows=10**9, num_tasks=8):
    """Two passes, statistics and gradients, on 1, 8 and 64 workers like this machine."""
    rng = np.random.default_rng(0)
    chunk = 8192
    X, Y = rng.normal(size=(chunk, 8)), rng.normal(size=(chunk, num_tasks))
    model = SparseCoolMTGP((X, Y), SE(lengthscales=2.0), X[:num_points])
    loss, seconds = model.profile(), []
    for _ in range(5):
        started = time.perf_counter()
        loss.evaluate()
        seconds.append(time.perf_counter() - started)
    numbers = num_points**2 + num_points * num_tasks + num_tasks**2
    print(f"a chunk of {chunk} rows, both passes: {min(seconds):.3f} s")
    print(f"sent in a step: {numbers} numbers for statistics, one a parameter for gradients")
    for workers in (1, 8, 64):
        work = min(seconds) * num_rows / chunk / workers
        sent = all_reduce_seconds(numbers, workers)
        print(f"{workers:3d} workers, {num_rows:.0e} rows: {work:.0f} s + {sent:.4f} s of network")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["scm20d", "rows", "estimate"], default="rows")
    parser.add_argument("--folder", help="with Mulan's ARFF files")
    parser.add_argument("--inducing", type=int)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    arguments = parser.parse_args()
    if arguments.what == "scm20d":
        scm20d(arguments.folder, arguments.inducing or 300)
    elif arguments.what == "estimate":
        estimate(arguments.inducing or 200)
    else:
        rows(arguments.sizes, arguments.inducing or 200)


if __name__ == "__main__":
    main()
