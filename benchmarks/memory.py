"""
Does a process that fits all day grow? `python benchmarks/memory.py [--fits 500] [--draws 500]`.

Small models are fitted one after the other, then `sample_y` is called again and again. This prints
what the process holds, and how much it grew after the first 50 of each. The figures in
docs/robustness.md are from here. Linux only: it reads /proc.
"""

import argparse
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpflow_cool import CoolMTGPRegressor

WARM = 50
"""Calls before the growth is counted: TensorFlow's own caches fill up meanwhile."""


def resident_megabytes() -> float:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def growth(name: str, call: Callable[[int], object], count: int) -> float:
    """Call with 0, 1, ... and tell what is held after every 50 calls; MB more than after 50."""
    warm = resident_megabytes()
    for n in range(count):
        call(n)
        if n + 1 == WARM:
            warm = resident_megabytes()
        if (n + 1) % 50 == 0:
            print(f"{name} {n + 1}: {resident_megabytes():.1f} MB", flush=True)
    grown = resident_megabytes() - warm
    print(f"{name}: {grown:+.1f} MB after the first {min(WARM, count)}", flush=True)
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--fits", type=int, default=500)
    parser.add_argument("--draws", type=int, default=500)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(20, 2))
    Y = np.sin(6 * X @ rng.normal(size=(2, 3))) + 0.1 * rng.normal(size=(20, 3))

    def fit(seed: int) -> CoolMTGPRegressor:
        model = CoolMTGPRegressor("se", ard=False, orders=2, random_state=seed)
        return model.fit(X, Y + 0.01 * np.random.default_rng(seed).normal(size=Y.shape))

    model = fit(0)
    growth("sample_y", lambda n: model.sample_y(X[:5], 3, random_state=n), options.draws)
    growth("fit", fit, options.fits)


if __name__ == "__main__":
    main()
