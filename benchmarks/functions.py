"""
New rows and drawn functions, as ratios of one run: `python benchmarks/functions.py`.

Bars: a posterior given up to 10 rows at N = 1000 and T = 16 at least 10 times faster than one that
is built anew; 100 functions of 16 tasks at 10,000 points within 60 s and 4 GB. Time is CPU time of
the process, the fastest of some runs: the machine may be busy.
"""

import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gpflow
import numpy as np

from gpflow_cool import CoolMTGP, KroneckerMTGP

REPEATS = 5
N, T, D = 1000, 16, 5
POINTS, FUNCTIONS = 10_000, 100
SPEED_BAR, SECONDS_BAR, GIGABYTES_BAR = 10.0, 60.0, 4.0


def fastest(function: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Fastest of some runs, in seconds of CPU time; the first one is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def problem(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth correlated targets with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=[size, D])
    F = np.sin(X @ rng.normal(size=[D, T])) @ rng.normal(size=[T, T]) / np.sqrt(T)
    return X, F + 0.3 * rng.normal(size=[size, T])


def compare_new_rows(model: CoolMTGP, X: np.ndarray, Y: np.ndarray) -> bool:
    """Condition a posterior on rows, and build the posterior of all rows anew."""
    posterior, Xnew = model.posterior(), X[:5] + 0.1
    C, Sigma = model.task_covariance(), model.noise_covariance()
    passed = True
    for q in (1, 10):
        data, rows = (X[: N + q], Y[: N + q]), (X[N : N + q], Y[N : N + q])
        rebuilt = KroneckerMTGP.ground_truth(data, model.kernel, C, Sigma)
        anew, given = fastest(rebuilt.posterior), fastest(partial(posterior.condition_on, *rows))
        first, second = rebuilt.posterior(), posterior.condition_on(*rows)
        both = [
            fastest(lambda make=make: make().predict_f(Xnew))
            for make in (rebuilt.posterior, partial(posterior.condition_on, *rows))
        ]
        difference = np.abs(first.predict_f(Xnew)[0] - second.predict_f(Xnew)[0]).max()
        passed &= anew / given >= SPEED_BAR
        print(
            f"N={N} T={T} q={q}: anew {1e3 * anew:.0f} ms, condition_on {1e3 * given:.1f} ms, ratio"
            f" {anew / given:.1f} (bar {SPEED_BAR:.0f}); with a first prediction at 5 points"
            f" {1e3 * both[0]:.0f} and {1e3 * both[1]:.0f} ms, ratio {both[0] / both[1]:.1f}; the"
            f" means differ by {difference:.0e}"
        )
    return passed


def draw_functions(model: CoolMTGP) -> bool:
    """All functions at all points in one call."""
    Xnew = np.random.default_rng(1).normal(size=[POINTS, D])
    posterior = model.posterior()
    wall, start = time.perf_counter(), time.process_time()
    values = posterior.sample_functions(FUNCTIONS, seed=0)(Xnew)
    seconds, wall = time.process_time() - start, time.perf_counter() - wall
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{values.shape[0]} functions of {T} tasks at {POINTS} points: {seconds:.1f} s of CPU time,"
        f" {wall:.1f} s (bar {SECONDS_BAR:.0f} s); {gigabytes:.1f} GB in all (bar"
        f" {GIGABYTES_BAR:.0f} GB)"
    )
    return seconds <= SECONDS_BAR and gigabytes <= GIGABYTES_BAR


def main() -> None:
    X, Y = problem(N + 10)
    model = CoolMTGP((X[:N], Y[:N]), gpflow.kernels.SquaredExponential(lengthscales=2.0))
    results = [compare_new_rows(model, X, Y), draw_functions(model)]
    if not all(results):
        raise SystemExit("A bar was missed.")


if __name__ == "__main__":
    main()
