"""
How every study runs: units of work, an estimate, a progress bar, then tables, figures and checks.
"""

import gc
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from tqdm.auto import tqdm

from .table import OK, Layout, Row, RunTable, StudyError, to_text
from .text import Check, Table, check_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_OUT = "study_output"
DPI = 150
FAILURES = (ValueError, ArithmeticError, RuntimeError, MemoryError, tf.errors.OpError)
"""What a method may raise on data that are too much for it; LinAlgError is a ValueError."""

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
    """The smallest piece of work that is kept."""

    identity: Mapping[str, Any]
    work: Callable[[], Outcome]
    guess: float
    """How many seconds it may take on two cores."""
    effort: Mapping[str, Any]
    has_arrays: bool = False


class ArrayStore:
    """Arrays that figures need, one npz file a unit."""

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


@dataclass(frozen=True)
class Study:
    """What there is to know of a study, apart from its units."""

    name: str
    title: str
    layout: Layout
    tables: Callable[[Sequence[Row]], list[Table]]
    checks: Callable[[Sequence[Row]], list[Check]]
    figures: Callable[[Sequence[Row], ArrayStore], dict[str, "Figure"]]


class StudyResult(NamedTuple):
    """What a study has found."""

    rows: list[Row]
    """All rows of these settings, from earlier runs too."""
    tables: list[Table]
    checks: list[Check]
    csv: Path
    figures: list[Path]


def run_study(
    study: Study, units: Sequence[Unit], settings: Mapping[str, Any], out: Any, quick: bool
) -> StudyResult:
    """
    Do what is left to do, then print, draw and return everything of these settings.

    :param out: The folder for the CSV file and the figures.
    :param quick: Whether the sizes are small: files are then named so.
    """
    folder = output_folder(out)
    stem = study.name + ("_quick" if quick else "")
    table = RunTable(folder / f"{stem}.csv", study.layout)
    store = ArrayStore(folder / "arrays", stem, settings)
    print(f"{study.title}\n({', '.join(f'{k} {to_text(v)}' for k, v in settings.items())})")
    run_units(table, store, units, settings)
    rows = table.selection(settings)
    tables, checks = study.tables(rows), [] if quick else study.checks(rows)
    print("\n" + "\n\n".join(map(str, tables)))
    if checks:
        print("\n" + "\n".join(check_lines(checks)))
    figures = write_figures(folder, stem, study.figures(rows, store))
    print_failures(table, settings)
    print(f"\nWritten to {folder}: {table.path.name}, {', '.join(f.name for f in figures)}")
    return StudyResult(rows, tables, checks, table.path, figures)


def output_folder(out: Any) -> Path:
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
    errors = []
    with progress_bar([unit for unit, _ in pending]) as bar:
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
                left = elapsed * (bar.total - bar.n) / bar.n
                tqdm.write(f"At this pace: {duration(left)} more", file=sys.stdout)
    if errors and len(errors) == len(pending):
        raise StudyError(f"Every one of {len(errors)} units failed, the last: {errors[-1]}")


def do(unit: Unit, store: ArrayStore) -> Row:
    """The values of a unit, or why it failed: one failure must not end a night's work."""
    started = time.perf_counter()
    try:
        outcome = unit.work()
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


def duration(seconds: float) -> str:
    """
    A time that one can read.

    >>> duration(12), duration(200), duration(9000)
    ('12 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def progress_bar(units: Sequence[Unit]) -> Any:
    """A bar that weighs units by the time they may take."""
    return tqdm(
        total=sum(unit.guess for unit in units),
        bar_format="{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}",
        mininterval=0.5 if sys.stderr.isatty() else 60.0,
        disable=not units,
        dynamic_ncols=True,
    )


def print_failures(table: RunTable, settings: Mapping[str, Any]) -> None:
    """Name the units that failed."""
    identity = table.layout.identity
    done = {tuple(to_text(row[n]) for n in identity) for row in table.selection(settings)}
    failed = {
        tuple(to_text(row[n]) for n in identity): row["status"]
        for row in table.rows
        if row["status"] != OK
    }
    failed = {words: status for words, status in failed.items() if words not in done}
    for words, status in failed.items():
        print(f"\n{' '.join(words)} {status}")
    if failed:
        print("The same command tries these again.")


def write_figures(folder: Path, stem: str, figures: Mapping[str, "Figure"]) -> list[Path]:
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
