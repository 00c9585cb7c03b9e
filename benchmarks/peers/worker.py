"""
One method on one problem, in a process of its own: `python -m benchmarks.peers.worker`.

Prints a line of JSON after each stage, so that what was measured before a failure is kept.
"""

import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .methods import BY_NAME

ROWS = 1000
SLOW = 20.0
"""What took so many seconds is not repeated: tracing is a small part of it."""
REPEATS = 6
OVERTIME = 75
"""How a process ends that took too long."""
MEMORY = 12 << 30
"""Bytes that a process may take."""


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = function()
    return time.perf_counter() - start, value


def best_seconds(function: Callable[[], Any]) -> float:
    """Of up to six calls, as long as those before took less than `SLOW` together."""
    took = [seconds(function)[0]]
    while len(took) < REPEATS and sum(took) < SLOW:
        took.append(seconds(function)[0])
    return min(took)


def memory(field: str) -> int:
    """A field of the process's status on Linux, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def measure(method: str, data: str, predictions: str, limit: int, stages: str) -> None:
    """
    Fit, then what is asked for.

    :param data: File with X, Y, X_test and the lengthscale to start from.
    :param predictions: File for mean and covariance at X_test.
    :param limit: Seconds after which each stage ends the process.
    :param stages: Of "warm", "score" and "predict", with commas between them: fit again, predict
        at X_test, predict 1000 rows.
    """
    function = BY_NAME[method].load()
    with np.load(data) as file:
        X, Y, X_test, lengthscale = (file[key] for key in ("X", "Y", "X_test", "lengthscale"))

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the import
    before, busy = memory("VmRSS"), time.process_time()

    def fit() -> Any:
        signal.alarm(limit)
        return function(X, Y, lengthscale if lengthscale.ndim else float(lengthscale))

    trained: list[float] = []

    def give_up(*_: Any) -> None:
        if not trained:
            tell(memory=memory("VmHWM") - before)
        os._exit(OVERTIME)

    signal.signal(signal.SIGALRM, give_up)
    cold, model = seconds(fit)
    busy = time.process_time() - busy  # says more than the clock where others use the machine
    trained.append(cold)
    peak = memory("VmHWM") - before
    tell(cold=cold, cold_cpu=busy, memory=peak, parameters=model.parameters)
    if "warm" in stages:
        warm, model = (cold, model) if cold > SLOW else seconds(fit)
        tell(warm=warm)
    if "score" in stages:
        signal.alarm(limit)
        mean, cov = model.predict(X_test)
        np.savez(predictions, mean=mean, cov=cov)
    if "predict" in stages:
        signal.alarm(limit)
        Xnew = np.random.default_rng(0).normal(size=[ROWS, X.shape[1]])
        tell(predict=best_seconds(lambda: model.predict(Xnew)))
    signal.alarm(0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    measure(*sys.argv[1:4], limit=int(sys.argv[4]), stages=sys.argv[5])
