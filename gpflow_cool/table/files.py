"""
Tables of numbers from CSV, Parquet and ARFF files; what is wrong with one is said in one line.

Nothing here needs TensorFlow, so a wrong column is reported at once. A table keeps every cell as it
is in the file; only the columns that are asked for must hold numbers.
"""

import codecs
import csv
import difflib
import io
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..saving.files import write_with_folders
from . import arff
from .marks import PLAIN, TextStyle, doubtful_point, not_a_number, to_number, with_point

Numbers = NDArray[np.float64]

PARQUET = (".parquet", ".pq")
SEPARATORS = ",;\t|"
INDEX_OF_CSV, INDEX_OF_PARQUET = ("", "Unnamed: 0"), "__index_level_0__"
"""What pandas calls an index that has no name; in CSV, if it is the first column."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


class TableError(ValueError):
    """A file, or a part of it, that is not what it should be."""


class FileTable(NamedTuple):
    """Columns of a file, as they are in it."""

    path: Path
    columns: dict[str, Sequence[Any]]
    """Name -> cells, one per row."""

    lines: Sequence[int] | None
    """Line of each row in a text file."""

    labels: Sequence[Any] | None = None
    """Cells of a column without a name, as pandas writes its index: labels of the rows."""

    written: Mapping[str, Sequence[Any]] | None = None
    """Cells as they are in the file, where the columns have points in place of its commas."""

    style: TextStyle = PLAIN
    """How a text file is written."""

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def numbers(self, names: Sequence[str], *, allow_missing: bool = False) -> Numbers:
        """
        Columns as numbers, [N, number of names].

        :param allow_missing: Whether an empty cell becomes NaN, or is refused.
        """
        self.cells_of(names)
        return np.column_stack([self._column(name, allow_missing) for name in names])

    def cells_of(
        self, names: Sequence[str], categorical: Collection[str] = ()
    ) -> dict[str, Sequence[Any]]:
        """
        Columns by name, checked to have no point that may separate thousands.

        :param categorical: Columns that hold no numbers.
        """
        check_names(names, self)
        for name in names:
            if name not in categorical:
                self._check_points(name)
        return {name: self.columns[name] for name in names}

    def _check_points(self, name: str) -> None:
        """Raise if a number has a point, where a comma is the decimal mark."""
        cells = (self.written or {}).get(name, ())
        row = doubtful_point(cells)
        if row is not None:
            raise TableError(
                f"{self.place(row, name)}: {cells[row][:40]!r} has a point, but --decimal says that"
                " a comma is the decimal mark. Does the point separate thousands? Then remove it."
                " Is it a decimal point? Then write a comma, or leave out --decimal if all numbers"
                " of the file have points."
            )

    def as_written(self) -> "FileTable":
        """The table with its cells as they are in the file."""
        if self.written is None:
            return self
        return self._replace(columns={name: self.written[name] for name in self.columns})

    def _column(self, name: str, allow_missing: bool) -> Numbers:
        cells = self.columns[name]
        values = [to_number(cell) for cell in cells]
        if None in values:
            row = values.index(None)
            raise TableError(f"{self.place(row, name)}: {not_a_number(cells[row], values)}")
        numbers = np.array(values, dtype=np.float64)
        empty = np.flatnonzero(np.isnan(numbers))
        if len(empty) and not allow_missing:
            more = f" ({len(empty)} such cells in the column)" if len(empty) > 1 else ""
            raise TableError(
                f"{self.place(int(empty[0]), name)}: the cell is empty{more}. Fill the gap, or drop"
                " the row."
            )
        infinite = np.flatnonzero(np.isinf(numbers))
        if len(infinite):
            raise TableError(f"{self.place(int(infinite[0]), name)}: the number is infinite.")
        return numbers

    def place(self, row: int, name: str) -> str:
        """Where a cell is, counted from 1 as people do."""
        line = "" if self.lines is None else f" (line {self.lines[row]})"
        return f"{self.path}, row {row + 1}{line}, column {name!r}"


def check_names(names: Sequence[str], table: FileTable) -> None:
    """Raise unless every name is a column."""
    for name in names:
        if name not in table.columns:
            shown = [f'"{known}"' if "," in known else known for known in table.names[:20]]
            known = ", ".join(shown) + (", ..." if len(table.names) > 20 else "")
            commas = any("," in part for part in table.names)
            hint = " A name with a comma stands in double quotes." if commas else ""
            meant = did_you_mean(name, table.names)
            raise TableError(f"{table.path} has no column {name!r}.{meant} It has: {known}.{hint}")


def did_you_mean(name: Any, known: Sequence[str]) -> str:
    """
    A question after a name that is not known, if one that is known is written nearly alike.

    >>> did_you_mean("Heigth", ["width", "height"]), did_you_mean("z", ["width", "height"])
    (" Did you mean 'height'?", '')
    """
    by_letters = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(str(name).casefold(), by_letters, n=1)
    return f" Did you mean {by_letters[near[0]]!r}?" if near else ""


# Reading -----------------------------------------------------------------------------------------


def unique(names: Sequence[str], path: Path) -> Sequence[str]:
    """The names, if none occurs twice."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise TableError(f"{path}: the header has {twice[0]!r} more than once. Rename a column.")
    return names


def read_csv(path: Path, encoding: str | None = None) -> FileTable:
    """Read text with a header; commas, semicolons, tabs or bars between the cells."""
    with path.open("rb") as file:
        start = file.read(4096)
    if b"\0" in start or start[:4] in (b"PAR1", b"PK\x03\x04"):
        raise TableError(f"{path} is not a CSV file: it holds no text. Export the table as CSV.")
    try:
        with path.open(encoding=encoding or "utf-8-sig", newline="") as file:
            first = file.readline()
            separator = max(SEPARATORS, key=first.count)
            file.seek(0)
            table = parse_rows(csv.reader(file, delimiter=separator, strict=True), path)
            default = "utf-8-sig" if start.startswith(codecs.BOM_UTF8) else "utf-8"
            return table._replace(style=TextStyle(separator, encoding=encoding or default))
    except UnicodeError as error:
        name = encoding or "UTF-8"
        raise TableError(
            f"{path} is not a CSV file that can be read: not {name} text. Say how it is encoded,"
            " for example --encoding latin-1."
        ) from error
    except (LookupError, csv.Error) as error:
        raise TableError(f"{path} is not a CSV file that can be read: {error}.") from error


def parse_rows(reader: Any, path: Path) -> FileTable:
    """Rows of text as columns; each row must be as long as the header."""
    names: Sequence[str] = []
    rows, lines = [], []
    for row in reader:
        if len(row) < 2 and not "".join(row).strip():
            continue  # a blank line
        if not names:
            names = unique([cell.strip() for cell in row], path)
            continue
        if len(row) != len(names):
            raise TableError(
                f"{path}, line {reader.line_num}: {len(row)} cells, but the header names"
                f" {len(names)} columns. Is it a CSV file?"
            )
        rows.append(row)
        lines.append(reader.line_num)
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    return FileTable(path, dict(zip(names, cells, strict=True)), lines)


def read_parquet(path: Path) -> FileTable:
    found = ask_pyarrow("read_table", path)
    unique(found.column_names, path)
    return FileTable(path, found.to_pydict(), None)


def ask_pyarrow(function: str, path: Path) -> Any:
    """What a function of `pyarrow.parquet` finds in a file."""
    pyarrow = import_pyarrow(path)
    try:
        return getattr(pyarrow.parquet, function)(path)
    except pyarrow.ArrowException as error:
        raise TableError(f"{path} is not a Parquet file, or is damaged.") from error
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error


def import_pyarrow(path: Path) -> Any:
    """The package pyarrow, which a Parquet file needs."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise TableError(
            f"{path} needs pyarrow ({error}): pip install 'gpflow_cool[table]', or use CSV."
        ) from error
    return pyarrow


def read_arff(path: Path) -> FileTable:
    """Read a dense ARFF file; a column of words is refused only where it is asked for."""
    try:
        found = arff.read(path)
    except ValueError as error:
        raise TableError(str(error)) from error
    names = unique(found.names, path)
    columns = zip(*found.cells, strict=True)
    return FileTable(path, dict(zip(names, columns, strict=True)), found.lines)


READERS = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), read_csv),
    **dict.fromkeys(PARQUET, read_parquet),
    ".arff": read_arff,
}


def read_table(
    path: str | os.PathLike[str], *, encoding: str | None = None, decimal: str = "."
) -> FileTable:
    """
    Read a file by the ending of its name.

    :param encoding: Of a text file; by default UTF-8.
    :param decimal: "," if numbers in a text file are written as 3,5.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "is not there"
        raise TableError(f"{path} {what}.")
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise TableError(
            f"{path}: files ending in {', '.join(READERS)} can be read, not"
            f" {path.suffix or 'without an ending'}."
        )
    try:
        table = read_csv(path, encoding) if read is read_csv else read(path)
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error
    if decimal == "," and read is read_csv:
        table = with_decimal_comma(table)
    table = without_index(table)
    check_header(table)
    return table


def with_decimal_comma(table: FileTable) -> FileTable:
    """A table of text whose numbers have a decimal comma, read as such."""
    columns: dict[str, Sequence[Any]] = {
        name: list(map(with_point, cells)) for name, cells in table.columns.items()
    }
    style = table.style._replace(decimal=",")
    return table._replace(columns=columns, written=table.columns, style=style)


def without_index(table: FileTable) -> FileTable:
    """A table whose index, as pandas writes it, is not a column but the labels of the rows."""
    names = [name for name in table.names if name == INDEX_OF_PARQUET]
    names += [name for name in table.names[:1] if name in INDEX_OF_CSV]
    if not names or len(table.columns) == 1:
        return table
    labels = table.as_written().columns[names[0]]
    columns = {name: cells for name, cells in table.columns.items() if name != names[0]}
    return table._replace(labels=labels, columns=columns)


def check_header(table: FileTable) -> None:
    """Raise unless there are columns, rows, and names."""
    if not table.columns or table.num_rows == 0:
        raise TableError(f"{table.path} has no rows of data.")
    nameless = [number for number, name in enumerate(table.names, start=1) if not name]
    if nameless:
        raise TableError(
            f"{table.path}: column {nameless[0]} has no name in the header. Name it, or leave it"
            " out (pandas: to_csv(..., index=False))."
        )


# Writing -----------------------------------------------------------------------------------------


def check_output(path: str | os.PathLike[str], endings: Sequence[str], force: bool) -> Path:
    """Return the path if a file may be written there."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise TableError(f"{path}: choose a name that ends in {' or '.join(endings)}.")
    if path.is_dir() or (path.exists() and not force):
        hint = "it is a folder" if path.is_dir() else "choose another name, or --force"
        raise TableError(f"{path} exists already: {hint}.")
    if path.suffix.lower() in PARQUET:
        import_pyarrow(path)
    check_writable(path)
    return path


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
