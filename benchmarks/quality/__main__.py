r"""
How good a version is on many data sets, as distributions: `python -m benchmarks.quality`.

* `mulan`: the Mulan sets, three splits 80/20 each; at most 500 rows.
* `tasks`: three functions behind 5 to 150 tasks, 40 to 200 rows.
* `outages`: eight sensors over 300 hours, of three of them a block is missing.
* `random`: 200 random data sets of many kinds.

Prints means per case and method. With `--against FILE`, the results of another version, it prints
how the differences are distributed, and where most is lost. `benchmarks/quality/0.2.0.json` holds
the results of version 0.2.0, where nothing was refined: with `--pair refined=averaged` the refined
models are compared with the averaged ones.

Before TensorFlow starts, set to 1: OPENBLAS_NUM_THREADS, OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS
and TF_NUM_INTEROP_THREADS. Seconds are those of the processor.
"""

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

import gpflow_cool

from . import data, methods
from .report import print_comparison, print_tables

Record = dict[str, Any]

SPLITS = 3
TASK_SIZES = ((40, 5), (40, 20), (40, 35), (40, 60), (80, 40), (80, 150), (200, 100))
TASK_DRAWS, DRAWS_OF_LARGE, LARGE = 10, 4, 100
"""Draws of a size, fewer from 100 tasks on."""
OUTAGE_DRAWS = 6
RANDOM_SETS = 200


class Case(NamedTuple):
    """One data set, and what makes it."""

    part: str
    name: str
    seed: int
    make: Callable[[], Any]


def mulan_cases(folder: Path | None) -> Iterator[Case]:
    """Splits of all sets that are in the folder."""
    if folder is None or not any(folder.glob("*.arff")):
        raise SystemExit("mulan: name the folder of the ARFF files: --data or GPFLOW_COOL_DATA")
    for seed, name in product(range(SPLITS), data.MULAN_TARGETS):
        if (folder / f"{name}.arff").is_file():
            yield Case("mulan", name, seed, partial(data.mulan, folder, name, seed))


def tasks_cases(folder: Path | None) -> Iterator[Case]:
    """Draws of all sizes."""
    for N, T in TASK_SIZES:
        for seed in range(DRAWS_OF_LARGE if T >= LARGE else TASK_DRAWS):
            yield Case("tasks", f"{N} x {T}", seed, partial(data.many_tasks, N, T, seed))


def outages_cases(folder: Path | None) -> Iterator[Case]:
    """Draws of all versions."""
    for seed, version in product(range(OUTAGE_DRAWS), data.OUTAGES):
        yield Case("outages", version, seed, partial(data.outages, version, seed))


def random_cases(folder: Path | None) -> Iterator[Case]:
    """Random sets, named by what they are like."""
    for seed in range(RANDOM_SETS):
        yield Case("random", str(data.random_kind(seed)), seed, partial(data.random_set, seed))


PARTS = {
    "tasks": (tasks_cases, methods.score_rows),
    "outages": (outages_cases, methods.score_gaps),
    "mulan": (mulan_cases, partial(methods.score_rows, default=True)),
    "random": (random_cases, methods.score_rows),
}
"""The cases of each part, and what trains and scores all methods on one of them."""


def records_of(case: Case) -> Iterator[Record]:
    """A result, or an error, for each method."""
    _, score = PARTS[case.part]
    for record in score(case.make()):
        yield {"part": case.part, "case": case.name, "seed": case.seed} | record


def measure(cases: list[Case], out: Path | None, notes: str) -> Record:
    """The results of all cases, written to the file after each."""
    results: Record = {"version": gpflow_cool.__version__, "notes": notes, "records": []}
    for case in tqdm(cases, unit="case"):
        results["records"] += records_of(case)
        if out is not None:
            write(results, out)
    return results


def write(results: Record, path: Path) -> None:
    """A JSON file with a line per record."""
    head = {name: value for name, value in results.items() if name != "records"}
    lines = ",\n".join(json.dumps(record) for record in results["records"])
    path.write_text(f'{json.dumps(head)[:-1]}, "records": [\n{lines}\n]}}\n')


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="default: all")
    parser.add_argument("--data", default=os.environ.get("GPFLOW_COOL_DATA"), help="Mulan's files")
    parser.add_argument("--against", type=Path, help="compare with the results in this file")
    parser.add_argument("--pair", default="", help="refined=averaged: compare with another method")
    parser.add_argument("--out", type=Path, help="write the results to this file")
    parser.add_argument("--results", type=Path, help="take the results from a file, run nothing")
    parser.add_argument("--quick", action="store_true", help="every fifth case only")
    said = parser.parse_args()
    said.parts = said.parts.split(",")
    for name in said.parts:
        if name not in PARTS:
            parser.error(f"{name!r} is not a part: choose from {', '.join(PARTS)}")
    return said


def chosen_cases(said: argparse.Namespace) -> list[Case]:
    """What is to run."""
    folder = None if said.data is None else Path(said.data)
    cases = [case for part in said.parts for case in PARTS[part][0](folder)]
    return cases[::5] if said.quick else cases


def main() -> None:
    said = options()
    warnings.simplefilter("ignore")
    if said.results:
        results = json.loads(said.results.read_text())
        results["records"] = [r for r in results["records"] if r["part"] in said.parts]
    else:
        notes = "every fifth case" if said.quick else ""
        list(methods.score_rows(data.many_tasks(10, 2, 0)))  # so that all is loaded
        results = measure(chosen_cases(said), said.out, notes)
    if said.against:
        pairs = dict(pair.split("=") for pair in said.pair.split(",") if pair)
        print_comparison(results, json.loads(said.against.read_text()), pairs)
    else:
        print_tables(results)


if __name__ == "__main__":
    main()
