"""Parquet files that `fit` reads in chunks: found and checked before TensorFlow is loaded."""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..table.files import PARQUET, FileTable, TableError
from ..table.parquet import count_rows, is_number, open_dataset, parquet_files, read_schema
from .console import Training, note
from .tables import input_names, target_names

M_ARENA_MAX = -8
"""Number of an option of glibc's `mallopt`."""

STREAM_ROWS = 100_000
"""A single file with more rows than this is read in chunks, if it can be."""


class TrainingStream(NamedTuple):
    """A `pyarrow.dataset` of inputs and targets."""

    dataset: Any
    targets: list[str]
    num_rows: int
    num_files: int

    def sentence(self, points: int) -> str:
        """How the rows are read."""
        files = "one file" if self.num_files == 1 else f"{self.num_files} files"
        return (
            f"{self.num_rows} rows of {files} are read in chunks, and seen through {points}"
            " inducing points, an approximation."
        )


def training_stream(paths: Sequence[Path], given: Training) -> TrainingStream | None:
    """
    The stream of several files, of a folder, or of one long file; None for a table that is to be
    read into memory.
    """
    alone = len(paths) == 1 and not paths[0].is_dir()
    if alone and not is_long(paths[0], given):
        return None
    share_one_heap()
    files = parquet_files(paths)
    if not alone:
        check_options(given)
    header = FileTable(files[0], {name: () for name in read_schema(files[0]).names}, None)
    targets = target_names(header, given)
    dataset = open_dataset(files, [*input_names(header, given, targets), *targets])
    count = sum(map(count_rows, files))
    if count < 2:
        raise TableError(f"{paths[0]} has {count} rows: a model needs at least two.")
    return TrainingStream(dataset, targets, count, len(files))


def share_one_heap() -> None:
    """
    Let memory that one thread has freed be used by the others, which saves 50 MB: the C library
    keeps a heap for each thread of pyarrow and TensorFlow. Only glibc can be told.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def is_long(path: Path, given: Training) -> bool:
    """Whether one file has so many rows, of numbers alone, that it is better read in chunks."""
    if path.suffix.lower() not in PARQUET or not path.is_file() or table_option(given):
        return False
    schema = read_schema(path)
    header = FileTable(path, {name: () for name in schema.names}, None)
    targets = target_names(header, given)
    names = [*input_names(header, given, targets), *targets]
    return count_rows(path) > STREAM_ROWS and all(is_number(schema.field(n).type) for n in names)


def table_option(given: Training) -> str | None:
    """An option that needs all rows in memory, None if there is none."""
    asked = {
        "--categorical": given.categorical,
        "--missing-inputs": given.missing_inputs != "refuse",
        "--transform": given.transform != "none",
        "--large": given.large,
    }
    return next((option for option, is_asked in asked.items() if is_asked), None)


def check_options(given: Training) -> None:
    """Raise if an option needs all rows in memory."""
    option = table_option(given)
    if option is not None:
        raise TableError(
            f"{option} is for one file, which is read into memory: several files are read in"
            " chunks, as they are. Join them, or change their columns beforehand."
        )


def note_stream(stream: TrainingStream, points: int, quiet: bool) -> None:
    """Tell how the rows are read, and what else could be done with a single file."""
    hint = " Say --inducing M for another number"
    alone = ", or --large to read them into memory for the exact model (a grid's, say)"
    note(f"{stream.sentence(points)}{hint}{alone if stream.num_files == 1 else ''}.", quiet)
