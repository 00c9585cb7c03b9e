"""How every study runs: its units of work with a progress bar, then tables, checks and figures."""

import gc
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from ..table.costs import duration
from .methods import Names
from .records import OK, Columns, Row, Rows, RunTable, StudyError, select, texts, to_text
from .text import Check, TextTable, check_lines

DEFAULT_OUT = "study_output"
DPI = 150
FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, tf.errors.OpError)
"""What a method may raise on data that it cannot handle; LinAlgError is a ValueError."""

COLLECT_AFTER = 2.0
"""Seconds of a unit after which garbage is collected, which takes some tenths of a second."""

REFINE_AFTER = 20.0
"""Seconds after which the estimate is printed again, by the pace so far."""


class Outcome(NamedTuple):
    """What a unit of work gives."""

    values: Mapping[str, Any]
    """Numbers, by the column that they go to."""
    arrays: Mapping[str, AnyNDArray] = {}
    """What figures need beyond numbers."""


@dataclass(frozen=True)
class Unit:
    """The smallest piece of work whose result is kept."""

    identity: Mapping[str, Any]
    work: Callable[..., Outcome]
    """Called with the identity and the effort as named arguments."""
    guess: float
    """How many seconds it may take on two cores."""
    effort: Mapping[str, Any]
    has_arrays: bool = False


class ArrayStore:
    """Arrays that figures need, one npz file per unit."""

    def __init__(self, folder: Path, prefix: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.prefix = folder, prefix
        self.digest = zlib.crc32(repr([(k, to_text(v)) for k, v in settings.items()]).encode())

    def path(self, identity: Mapping[str, Any]) -> Path:
        words = "_".join(to_text(value) or "none" for value in identity.values())
        return self.folder / f"{self.prefix}_{words}_{self.digest:08x}.npz".replace(" ", "-")

    def save(self, identity: Mapping[str, Any], arrays: Mapping[str, AnyNDArray]) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            np.savez(self.path(identity), **arrays)
        except OSError as error:
            raise StudyError(f"Cannot write to {self.folder}: {error.strerror}.") from error

    def load(self, identity: Mapping[str, Any]) -> dict[str, AnyNDArray] | None:
        """The arrays of a unit, None if it has not run."""
        if not self.path(identity).exists():
            return None
        with np.load(self.path(identity), allow_pickle=False) as file:
            return dict(file)


class Request(NamedTuple):
    """What a user asks of a study: None for its default; each study has some of the options."""

    quick: bool
    """Whether sizes are small, to show how the study works."""
    seed: int
    data: str | PathLike[str] | None
    """Folder with the ARFF files; a study that draws its data ignores it."""
    sets: Names = None
    methods: Names = None
    kernels: Names = None
    draws: int | None = None
    splits: int | None = None
    repeats: int | None = None
    sizes: Sequence[int] | None = None
    max_rows: int | None = None
    steps: int | None = None


class Plan(NamedTuple):
    """What a study has to do."""

    units: Sequence[Unit]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """
    Everything that distinguishes one study from another.

    >>> from gpflow_cool.studies import BY_NAME
    >>> BY_NAME["variance"].name
    'variance'
    """

    name: str
    title: str
    columns: Columns
    options: tuple[str, ...]
    """Those fields of a :class:`Request` that the study knows, beside the first three."""
    plan: Callable[[Request], Plan]
    tables: Callable[[Rows], list[TextTable]]
    checks: Callable[[Rows], list[Check]]
    figures: Callable[[Rows, ArrayStore], dict[str, Figure]]
    remarks: Callable[[Rows], list[str]]
    """Sentences that compare our numbers with the paper's."""

    @property
    def summary(self) -> str:
        """The first line of its module's docstring."""
        return (sys.modules[self.plan.__module__].__doc__ or "").strip().splitlines()[0]


class StudyResult(NamedTuple):
    """
    What a study has found.

    >>> StudyResult._fields
    ('rows', 'tables', 'checks', 'csv', 'figures')
    """

    rows: list[Row]
    """All rows of these settings, from earlier runs too."""
    tables: list[TextTable]
    """What the study prints."""
    checks: list[Check]
    """What must hold, and whether it does."""
    csv: Path
    """The file of the rows."""
    figures: list[Path]
    """The pictures."""


def run_study(study: Study, plan: Plan, out: str | PathLike[str], quick: bool) -> StudyResult:
    """
    Do what is left to do, then print, draw and return everything of these settings.

    :param out: The folder for the CSV file and the figures.
    :param quick: Whether the sizes are small: files are then named so.
    """
    units, settings = plan
    folder = output_folder(out)
    stem = study.name + ("_quick" if quick else "")
    table = RunTable(folder / f"{stem}.csv", study.columns)
    store = ArrayStore(folder / "arrays", stem, settings)
    print(f"{study.title}\n({', '.join(f'{k} {to_text(v)}' for k, v in settings.items())})")
    run_units(table, store, units, settings)
    rows = select(table.rows, table.columns, settings)
    tables, checks = study.tables(rows), [] if quick else study.checks(rows)
    print("\n" + "\n\n".join(map(str, tables)))
    if checks:
        print("\n" + "\n".join(check_lines(checks)))
    figures = write_figures(folder, stem, study.figures(rows, store))
    print_failures(table, settings)
    print(f"\nWritten to {folder}: {table.path.name}, {', '.join(f.name for f in figures)}")
    return StudyResult(rows, tables, checks, table.path, figures)


def output_folder(out: str | PathLike[str]) -> Path:
    """The folder, made if it is not there, and checked before any work is done."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".can_be_written"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StudyError(
            f"Cannot write to the folder {folder}: {error.strerror}. Choose another with --out."
        ) from error
    return folder


def run_units(
    table: RunTable, store: ArrayStore, units: Sequence[Unit], settings: Mapping[str, Any]
) -> None:
    """Do each unit that the table does not hold yet; rows are written as they come."""
    keys = [{**unit.identity, **unit.effort, **settings} for unit in units]
    pending = [
        (unit, key)
        for unit, key in zip(units, keys, strict=True)
        if key not in table or (unit.has_arrays and not store.path(unit.identity).exists())
    ]
    print_estimate(pending, len(units))
    errors, total = [], sum(unit.guess for unit, _ in pending)
    with tqdm(
        total=total,
        bar_format="{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}",
        mininterval=0.5 if sys.stderr.isatty() else 60.0,
        disable=not pending,
        dynamic_ncols=True,
    ) as bar:
        started, refined = time.perf_counter(), False
        for number, (unit, key) in enumerate(pending):
            bar.set_postfix_str(" ".join(to_text(v) for v in unit.identity.values()))
            row = do(unit, store)
            errors += [row["status"]] if row["status"] != OK else []
            if key not in table:
                table.append({**key, **row})
            bar.update(unit.guess)
            elapsed = time.perf_counter() - started
            if not refined and elapsed > REFINE_AFTER and number + 1 < len(pending):
                refined = True
                left = elapsed * (total - bar.n) / bar.n
                tqdm.write(f"At this pace: {duration(left)} more", file=sys.stdout)
    if errors and len(errors) == len(pending):
        raise StudyError(f"Every one of {len(errors)} units failed, the last: {errors[-1]}")


def do(unit: Unit, store: ArrayStore) -> Row:
    """The values of a unit, or why it failed: the units after it are still done."""
    started = time.perf_counter()
    try:
        outcome = unit.work(**unit.identity, **unit.effort)
    except FAILURES as error:
        lines = str(error).strip().splitlines() or [""]
        row: Row = {"status": f"failed: {type(error).__name__}: {lines[0][:200]}"}
    else:
        if unit.has_arrays:
            store.save(unit.identity, outcome.arrays)
        row = {**outcome.values, "status": OK}
    seconds = time.perf_counter() - started
    if seconds > COLLECT_AFTER:
        gc.collect()  # compiled functions are cycles, and hold their model's matrices
    return {**row, "seconds": round(seconds, 3)}


def print_estimate(pending: Sequence[tuple[Unit, Any]], total: int) -> None:
    """How much is left to do."""
    there = f", {total - len(pending)} are there already" if len(pending) < total else ""
    seconds = sum(unit.guess for unit, _ in pending)
    takes = f": about {duration(seconds)} on two free cores" if pending else ""
    print(f"{len(pending)} of {total} units to do{there}{takes}", flush=True)


def print_failures(table: RunTable, settings: Mapping[str, Any]) -> None:
    """Name the units that failed and have not succeeded since."""
    names = table.columns.identity
    done = {texts(row, names) for row in select(table.rows, table.columns, settings)}
    failed = {texts(row, names): row["status"] for row in table.rows if row["status"] != OK}
    failed = {words: status for words, status in failed.items() if words not in done}
    for words, status in failed.items():
        print(f"\n{' '.join(words)} {status}")
    if failed:
        print("The same command tries these again.")


def write_figures(folder: Path, stem: str, figures: Mapping[str, Figure]) -> list[Path]:
    """Write the figures; the rows are safe already if this fails."""
    paths = []
    for name, figure in figures.items():
        path = folder / f"{stem}_{name}.png"
        try:
            figure.savefig(path, dpi=DPI)
        except OSError as error:
            raise StudyError(
                f"Cannot write {path}: {error.strerror}. The results are kept in {stem}.csv."
            ) from error
        paths.append(path)
    return paths
