"""
One method on one problem, in a process of its own: `python -m benchmarks.peers.worker`.

Prints a line of JSON after each stage, so that what was measured before a failure is kept.
"""

import json
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
SLOW = 60.0
"""A fit that took so many seconds is not repeated: tracing is a small part of it."""
MEMORY = 12 << 30
"""Bytes that a process may take."""


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = function()
    return time.perf_counter() - start, value


def memory(field: str) -> int:
    """A field of the process's status on Linux, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def measure(method: str, data: str, predictions: str, limit: int) -> None:
    """
    Fit, fit again, predict.

    :param data: File with X, Y, X_test and the lengthscale to start from.
    :param predictions: File for mean and covariance at X_test.
    :param limit: Seconds after which each of these stages ends the process.
    """
    function = BY_NAME[method].load()
    with np.load(data) as file:
        X, Y, X_test, lengthscale = (file[key] for key in ("X", "Y", "X_test", "lengthscale"))

    def fit() -> Any:
        signal.alarm(limit)
        return function(X, Y, float(lengthscale))

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the import
    before, busy = memory("VmRSS"), time.process_time()
    cold, model = seconds(fit)
    busy = time.process_time() - busy  # says more than the clock where others use the machine
    tell(cold=cold, cold_cpu=busy, memory=memory("VmHWM") - before, parameters=model.parameters)
    warm = cold
    if cold < SLOW:
        warm, model = seconds(fit)
    tell(warm=warm)
    signal.alarm(limit)
    mean, cov = model.predict(X_test)
    np.savez(predictions, mean=mean, cov=cov)
    Xnew = np.random.default_rng(0).normal(size=[ROWS, X.shape[1]])
    first, _ = seconds(lambda: model.predict(Xnew))
    again = first if first > SLOW else seconds(lambda: model.predict(Xnew))[0]
    tell(predict=again)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    measure(*sys.argv[1:4], limit=int(sys.argv[4]))
