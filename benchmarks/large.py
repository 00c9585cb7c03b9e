"""
Many rows: what a fit through inducing points costs, beside one pass over the kernel.

    python benchmarks/large.py scm20d --data FOLDER
    python benchmarks/large.py peers --data FOLDER
    python benchmarks/large.py rows --sizes 100000 1000000
    python benchmarks/large.py estimate

`scm20d` (7463 rows for training, 16 targets, 300 inducing points): passes of the fit, by the rows
that it has seen and by the processor's seconds, and the error on the other rows. `peers`, on that
data: seconds that GPflow's `SVGP` and GPyTorch's variational model, which start from the same
inducing points, need to get to our joint NLPD on the other rows. `rows`: synthetic
rows from files that are mapped into memory, D = T = 8, 200 inducing points: seconds and memory
above the import, and the ratio of the two sizes. `estimate`: one evaluation on many workers, from
the measured time of a chunk and the time that a network of 10 Gbit/s takes for the sums.
"""

import argparse
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_cool import SparseCoolMTGP, choose_inducing_points
from gpflow_cool.chain.starting import half_median_distance
from gpflow_cool.datasets import load_mulan
from gpflow_cool.metrics import arrmse, joint_nlpd
from gpflow_cool.studies.partition import needed_folder
from gpflow_cool.training.losses import loss_of

SE = gpflow.kernels.SquaredExponential


def one_pass(kernel, Z, X, repeats=5):
    """The processor's seconds of K_mn and its product with itself; the fastest counts."""
    Z, X, seconds = tf.constant(Z), tf.constant(X), []
    for _ in range(repeats):
        started = time.process_time()
        Kmn = kernel(Z, X)
        tf.matmul(Kmn, Kmn, transpose_b=True).numpy()
        seconds.append(time.process_time() - started)
    return min(seconds)


def standardise(A, num_train):
    centre, scale = A[:num_train].mean(axis=0), A[:num_train].std(axis=0)
    return (A - centre) / np.where(scale > 0, scale, 1.0)


class Problem(NamedTuple):
    """Standardised rows, those for training and the others."""

    X: np.ndarray
    Y: np.ndarray
    X_test: np.ndarray
    Y_test: np.ndarray

    def scores(self, mean, cov):
        return Scores(joint_nlpd(self.Y_test, mean, cov), arrmse(self.Y_test, mean, self.Y))


class Scores(NamedTuple):
    nlpd: float
    arrmse: float

    def __str__(self):
        return f"aRRMSE {self.arrmse:.3f}, joint NLPD {self.nlpd:.2f}"


def load_scm20d(folder, num_rows=None):
    """The official split; `num_rows` leaves only the first rows for training."""
    num_train = 7463
    data = load_mulan("scm20d", folder=folder)
    X, Y = (standardise(np.asarray(A, dtype=float), num_train) for A in (data.X, data.Y))
    return Problem(*(A[:num_train][:num_rows] for A in (X, Y)), X[num_train:], Y[num_train:])


class Ours(NamedTuple):
    """The fitted model; steps, seconds, loss and passes of `fit`, two per evaluation."""

    posterior: object
    steps: int
    seconds: float
    loss: float
    passes: int

    def scores(self, problem):
        mean, cov = self.posterior.predict_y(problem.X_test, full_output_cov=True)
        return problem.scores(mean.numpy(), cov.numpy())


def choose(problem, num_points):
    """The kernel to start from, the inducing points, and the seconds it took to choose them."""
    kernel = SE(lengthscales=half_median_distance(problem.X))
    started = time.perf_counter()
    Z = choose_inducing_points(problem.X, kernel, num_points)
    return kernel, Z, time.perf_counter() - started


def fit_ours(problem, kernel, Z):
    model = SparseCoolMTGP((problem.X, problem.Y), kernel, Z)
    passes, chunks = [], model.rows.chunks
    model.rows.chunks = lambda *share: passes.append(share) or chunks(*share)
    started = time.process_time()
    history = model.fit(verbose=0)
    seconds = time.process_time() - started
    loss = min(history.history["loss"])
    return Ours(model.posterior(), len(history.epoch), seconds, loss, len(passes))


def scm20d(folder, num_points):
    problem = load_scm20d(folder)
    kernel, Z, chosen = choose(problem, num_points)
    unit = one_pass(kernel, Z, problem.X)
    ours = fit_ours(problem, kernel, Z)
    print(f"one pass of K_mn and K_mn K_nm: {unit:.3f} s; choosing the points: {chosen:.2f} s")
    print(f"fit: {ours.passes} passes over the rows, loss {ours.loss:.5f}")
    print(f"{ours.seconds:.2f} s, {ours.seconds / unit:.1f} times a pass, {ours.steps} steps")
    print(ours.scores(problem))


class Clock:
    """Adds up the seconds of what runs within it, and how long the processor was busy."""

    def __init__(self):
        self.seconds, self.busy = 0.0, 0.0

    def __enter__(self):
        self.since = time.perf_counter(), time.process_time()

    def __exit__(self, *error):
        self.seconds += time.perf_counter() - self.since[0]
        self.busy += time.process_time() - self.since[1]


class Outcome(NamedTuple):
    """A row of the table."""

    name: str
    clock: Clock
    scores: Scores
    reached: bool = True


def limit_threads(threads):
    """The same number for TensorFlow, PyTorch and NumPy; before any of them has computed."""
    import threadpoolctl
    import torch

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    torch.set_num_threads(threads)
    threadpoolctl.threadpool_limits(threads)


def minibatches(problem, size, seed=0):
    """Rows without end, shuffled anew in every epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(problem.X))
        for n in range(0, len(order), size):
            rows = order[n : n + size]
            yield problem.X[rows], problem.Y[rows]


def tell(name, steps, clock, scores):
    print(f"{name}: {steps} steps, {clock.seconds:.1f} s, {scores}", file=sys.stderr)


def train_peer(name, make, problem, batch, target, limit):
    """
    Train until the joint NLPD is the target, or for `limit` seconds.

    It is looked at every second, later at every twentieth of the seconds so far, while the clock
    stands still. Of a model that does not get there the best scores count.
    """
    batches, clock, steps, best = minibatches(problem, batch), Clock(), 0, None
    with clock:
        training = make()
    while clock.seconds < limit and (best is None or best.nlpd > target):
        look = min(limit, clock.seconds + max(1.0, clock.seconds / 20))
        while clock.seconds < look:
            with clock:
                training.step(*next(batches))
            steps += 1
        scores = problem.scores(*training.predict(problem.X_test))
        best = scores if best is None or scores.nlpd < best.nlpd else best
        tell(name, steps, clock, scores)
    return Outcome(name, clock, best, best.nlpd <= target)


def print_outcomes(outcomes):
    """Ours is the first."""
    heads = ("seconds", "busy", "NLPD", "aRRMSE", "reached", "ratio")
    print(f"\n{'':14s}" + "".join(f"{head:>9s}" for head in heads))
    for name, clock, scores, reached in outcomes:
        ratio = f"{'' if reached else '> '}{clock.seconds / outcomes[0].clock.seconds:.1f}"
        print(
            f"{name:14s}{clock.seconds:9.1f}{clock.busy:9.1f}{scores.nlpd:9.2f}"
            f"{scores.arrmse:9.3f}{'yes' if reached else 'no':>9s}{ratio:>9s}"
        )


def peers(folder, num_points, num_rows, limit, threads, batch, latents, rate):
    from peers import tensorflow_methods, torch_methods

    limit_threads(threads)
    problem, clock = load_scm20d(folder, num_rows), Clock()
    with clock:
        kernel, Z, _ = choose(problem, num_points)
        lengthscale = float(kernel.lengthscales.numpy())
        ours = fit_ours(problem, kernel, Z)
    outcomes = [Outcome("SparseCoolMTGP", clock, ours.scores(problem))]
    name, _, target, _ = outcomes[0]
    tell(name, ours.steps, clock, target)
    start = (Z, lengthscale, *problem.Y.shape)
    for name, module in (("GPflow SVGP", tensorflow_methods), ("GPyTorch LMC", torch_methods)):
        make = partial(module.coregionalization, *start, latents=latents, rate=rate)
        outcomes.append(train_peer(name, make, problem, batch, target.nlpd, limit))
    print_outcomes(outcomes)


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
    loss, seconds = loss_of(model, profile=True), []
    for _ in range(5):
        started = time.perf_counter()
        loss.evaluate()
        seconds.append(time.perf_counter() - started)
    numbers = num_points**2 + num_points * num_tasks + num_tasks**2
    print(f"a chunk of {chunk} rows, both passes: {min(seconds):.3f} s")
    print(f"sent in a step: {numbers} numbers for statistics, one per parameter for gradients")
    for workers in (1, 8, 64):
        work = min(seconds) * num_rows / chunk / workers
        sent = all_reduce_seconds(numbers, workers)
        print(f"{workers:3d} workers, {num_rows:.0e} rows: {work:.0f} s + {sent:.4f} s of network")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=["scm20d", "peers", "rows", "estimate"], default="rows"
    )
    help_data = "folder with scm20d.arff; else $GPFLOW_COOL_DATA"
    parser.add_argument("--data", "--folder", help=help_data)
    parser.add_argument("--inducing", "--points", type=int)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--rows", type=int, help="peers: train on the first rows only")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a peer trains")
    parser.add_argument("--threads", type=int, default=1, help="of everybody in peers")
    parser.add_argument("--batch", type=int, default=512, help="rows of a peer's minibatch")
    parser.add_argument("--latents", type=int, default=8, help="latent processes of a peer")
    parser.add_argument("--rate", type=float, default=0.01, help="a peer's Adam")
    arguments = parser.parse_args()
    if arguments.what == "scm20d":
        scm20d(needed_folder(arguments.data), arguments.inducing or 300)
    elif arguments.what == "peers":
        names = ("limit", "threads", "batch", "latents", "rate")
        options = {name: getattr(arguments, name) for name in names}
        peers(needed_folder(arguments.data), arguments.inducing or 300, arguments.rows, **options)
    elif arguments.what == "estimate":
        estimate(arguments.inducing or 200)
    else:
        rows(arguments.sizes, arguments.inducing or 200)


if __name__ == "__main__":
    main()
