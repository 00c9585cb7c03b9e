"""Runs what is not in the file of results yet, one process after the other."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from gpflow_cool.chain.starting import half_median_distance
from gpflow_cool.metrics import joint_nlpd, mean_rmse
from gpflow_cool.studies.partition import Partition

from .methods import Method
from .problems import Problem, load
from .worker import OVERTIME

Row = dict[str, Any]

KEY = ("problem", "method", "split", "threads")
OK, NOT_INSTALLED, TOO_LONG = "ok", "not installed", "over the time limit"
STAGES, IMPORT = 4, 120
"""A worker is killed after so many times the limit, and so many seconds."""
BETTER = "warm"
"""Of the thread counts, that with less of this is the better."""
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
PACKAGES = (
    "gpflow_cool",
    "gpflow",
    "tensorflow",
    "gpytorch",
    "botorch",
    "torch",
    "scikit-learn",
    "numpy",
    "scipy",
)


class Results:
    """The rows, written to a file as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else circumstances()
        self.rows: list[Row] = known.get("rows", [])
        self.machine: str = known["machine"]
        self.versions: dict[str, str] = known["versions"]

    def find(self, **key: Any) -> Row | None:
        return next((row for row in self.rows if key.items() <= row.items()), None)

    def put(self, row: Row) -> None:
        """Add a row in the place of that with the same key."""
        key = [row[name] for name in KEY]
        self.rows = [old for old in self.rows if [old[name] for name in KEY] != key] + [row]
        text = json.dumps({**circumstances(), "rows": self.rows}, indent=1)
        fresh = self.path.with_suffix(".part")
        fresh.write_text(text + "\n", encoding="utf-8")
        fresh.replace(self.path)


def run(
    results: Results,
    problems: Sequence[Problem],
    methods: Sequence[Method],
    *,
    splits: int,
    threads: Sequence[int],
    limit: int,
    data: str | None,
    force: bool,
) -> None:
    """
    The first split with each number of threads, the others with that which was faster.

    :param splits: How many splits of a real problem; a synthetic one has one.
    :param force: Whether to do again what is there.
    """
    for split in range(splits):
        for problem in (p for p in problems if split == 0 or p.table):
            with tempfile.TemporaryDirectory() as folder:
                part = load(problem, split, data)
                save_data(Path(folder), part, problem.ard)
                for method in methods:
                    if part.Y.size > method.largest:
                        continue
                    tried = threads if split == 0 else best_threads(results, problem, method)
                    for key in keys(problem, method, split, tried):
                        if force or results.find(**key) is None:
                            row = {**key, "N": problem.N, "T": problem.T, "limit": limit}
                            where = Path(folder)
                            todo = stages(problem, split)
                            row |= measure(method, key["threads"], where, part, limit, todo)
                            results.put(row)
                            print(line(row), flush=True)
                        if results.find(**key, status=OK) is None:
                            break  # another number of threads would not help


def keys(problem: Problem, method: Method, split: int, threads: Iterable[int]) -> list[Row]:
    return [
        dict(zip(KEY, (problem.name, method.name, split, count), strict=True)) for count in threads
    ]


def best_threads(results: Results, problem: Problem, method: Method) -> list[int]:
    """The number of threads that was faster on the first split; none if nothing was scored."""
    rows = [
        row
        for row in results.rows
        if (row["problem"], row["method"], row["split"]) == (problem.name, method.name, 0)
        and {BETTER, "rmse"} <= row.keys()
    ]
    return [min(rows, key=lambda row: row[BETTER])["threads"]] if rows else []


def stages(problem: Problem, split: int) -> str:
    """What a worker does besides a fit: times come from the first split alone."""
    first = ("warm", "score", "predict") if problem.predicted else ("warm",)
    return ",".join(first) if split == 0 else "score"


def save_data(folder: Path, part: Partition, ard: bool) -> None:
    """What a worker needs, so that it imports nothing but its own package."""
    lengthscale = half_median_distance(part.X)
    if ard:
        lengthscale = np.full(part.X.shape[1], lengthscale)
    np.savez(folder / "data.npz", X=part.X, Y=part.Y, X_test=part.X_test, lengthscale=lengthscale)


def measure(
    method: Method, threads: int, folder: Path, part: Partition, limit: int, stages: str
) -> Row:
    """What a worker tells, the scores of its predictions, and how it ended."""
    if not method.installed():
        return {"status": NOT_INSTALLED}
    predictions = folder / "predictions.npz"
    predictions.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.peers.worker", method.name]
    command += [str(folder / "data.npz"), str(predictions), str(limit), stages]
    environment = {**os.environ, **dict.fromkeys(VARIABLES, str(threads))}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            stdout, stderr = worker.communicate(timeout=STAGES * limit + IMPORT)
            code = worker.returncode
        except subprocess.TimeoutExpired:  # its alarm waits for the end of a long call
            worker.kill()
            stdout, stderr = worker.communicate()
            code = OVERTIME
    row: Row = {}
    for text in stdout.splitlines():
        if text.startswith("{"):
            row |= json.loads(text)
    row["status"] = status(code, stderr)
    if predictions.is_file():
        row |= scores(part, predictions)
    return row


def status(code: int, stderr: str) -> str:
    """Why a worker ended."""
    if code == 0:
        return OK
    if code == OVERTIME:
        return TOO_LONG
    lines = stderr.strip().splitlines() or [f"ended by signal {-code}"]
    return f"failed: {lines[-1][:200]}"


def scores(part: Partition, predictions: Path) -> Row:
    """RMSE, and joint negative log density of a row's targets, divided by the number of tasks."""
    with np.load(predictions) as file:
        mean, cov = file["mean"], file["cov"]
    try:
        nlpd = joint_nlpd(part.Y_test, mean, cov) / part.Y.shape[1]
    except ValueError as error:
        return {"status": f"failed: {error}"[:200]}
    return {"rmse": mean_rmse(part.Y_test, mean), "nlpd": nlpd}


def line(row: Row) -> str:
    names = ("cold", "cold_cpu", "warm", "predict", "memory", "rmse", "nlpd")
    numbers = [f"{name} {row[name]:.4g}" for name in names if name in row]
    head = f"{row['problem']:12s} {row['method']:24s} split {row['split']} threads {row['threads']}"
    return f"{head}: {row['status']} {' '.join(numbers)}"


def circumstances() -> Row:
    """The machine and the versions."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = NOT_INSTALLED
    return {"machine": machine(), "versions": found}


def machine() -> str:
    model, total = "", ""
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            model = text.split(":")[1].strip()
    for text in Path("/proc/meminfo").read_text().splitlines():
        if text.startswith("MemTotal"):
            total = f"{int(text.split()[1]) / 2**20:.0f} GB"
    return f"{os.cpu_count()} cores, {model}, {total}, Python {platform.python_version()}"
