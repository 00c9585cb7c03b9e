"""Places where files may be written, and tables written there; nothing needs TensorFlow."""

import csv
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..saving.files import write_with_folders
from .files import PARQUET, TableError, import_pyarrow
from .marks import PLAIN, TextStyle

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def check_output(
    path: str | os.PathLike[str],
    endings: Sequence[str],
    force: bool,
    read: Sequence[Path] = (),
) -> Path:
    """
    Return the path if a file may be written there.

    :param read: Files, or folders of files, that the command reads: none of them is replaced.
    """
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise TableError(f"{path}: choose a name that ends in {' or '.join(endings)}.")
    if path.is_file() and any(is_among(path, source) for source in read):
        raise TableError(
            f"{path} is also read by this command, so that it is not replaced, even with --force:"
            " choose another name."
        )
    if path.is_dir() or (path.exists() and not force):
        hint = "it is a folder" if path.is_dir() else "choose another name, or --force"
        raise TableError(f"{path} exists already: {hint}.")
    if path.suffix.lower() in PARQUET:
        import_pyarrow(path)
    check_writable(path)
    return path


def is_among(path: Path, source: Path) -> bool:
    """Whether a file is another one, also by another name, or is in a folder."""
    files = source.iterdir() if source.is_dir() else [source]
    return any(os.path.samefile(path, file) for file in files if file.exists())


def check_writable(path: Path) -> None:
    """Raise if nothing can be made there; folders on the way may be missing."""
    folder = next(parent for parent in Path(os.path.abspath(path)).parents if parent.exists())
    if not folder.is_dir():
        raise TableError(f"{folder} is not a folder: choose another place.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TableError(
            f"{folder} cannot be written to ({error.strerror}): choose another place."
        ) from error


def write_table(path: Path, columns: Mapping[str, Sequence[Any]], style: TextStyle = PLAIN) -> None:
    """
    Write columns to CSV or, by the ending of the name, to Parquet; whole or not at all. Folders on
    the way are made.

    In CSV, a name that a spreadsheet would take for a formula gets an apostrophe before it. A file
    with a character that the encoding lacks is written in UTF-8.

    :param style: Of CSV; by default commas between cells, and decimal points.
    """
    if path.suffix.lower() in PARQUET:
        write_with_folders(path, parquet_bytes(import_pyarrow(path), columns))
        return
    cells = [written_cells(column, style) for column in columns.values()]
    buffer = io.StringIO(newline="")
    header = [spreadsheet_text(name) for name in columns]
    writer = csv.writer(buffer, delimiter=style.separator, lineterminator="\n")
    writer.writerows([header, *zip(*cells, strict=True)])
    text = buffer.getvalue()
    try:
        write_with_folders(path, text.encode(style.encoding))
    except UnicodeError:
        write_with_folders(path, text.encode("utf-8", "backslashreplace"))


def written_cells(column: Sequence[Any], style: TextStyle) -> list[Any]:
    """Cells of CSV: of an array Python's own numbers, of a list what it holds."""
    cells = column.tolist() if hasattr(column, "tolist") else column
    return [style.cell(cell) for cell in cells]


def spreadsheet_text(name: str) -> str:
    """
    A name that a spreadsheet shows, and does not compute.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("heat")
    ("'=1+1", 'heat')
    """
    return f"'{name}" if name.startswith(FORMULA) else name


def parquet_bytes(pyarrow: Any, columns: Mapping[str, Sequence[Any]]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    arrays = {name: np.asarray(cells) for name, cells in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(arrays), sink)
    return bytes(sink.getvalue())
