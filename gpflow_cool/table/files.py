"""
Tables of numbers from CSV, Parquet and ARFF files; what is wrong with one is said in one line.

Nothing here needs TensorFlow, so a wrong column is reported at once. A table keeps every cell as it
is in the file; only the columns that are asked for must hold numbers.
"""

import codecs
import csv
import difflib
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import arff
from .marks import PLAIN, TextStyle, counted, doubtful_point, not_a_number, to_number, with_point

Numbers = NDArray[np.float64]

PARQUET = (".parquet", ".pq")
SEPARATORS = ",;\t|"
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
"""A first line that tells Excel what separates the cells."""

INDEX_OF_CSV, INDEX_OF_PARQUET = ("", "Unnamed: 0"), "__index_level_0__"
"""What pandas calls an index that has no name; in CSV, if it is the first column."""


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
    used = encoding or marked_encoding(start)
    try:
        if "\0" in start.decode(used, "replace") or start[:4] in (b"PAR1", b"PK\x03\x04"):
            raise TableError(
                f"{path} is not a CSV file: it holds no text. Export the table as CSV."
            )
        with path.open(encoding=used, newline="") as file:
            first = file.readline()
            declared = SEPARATOR_LINE.fullmatch(first.rstrip("\r\n"))
            separator = declared[1] if declared else max(SEPARATORS, key=first.count)
            if not declared:
                file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True)
            table = parse_rows(reader, path, lines_before=1 if declared else 0)
            return table._replace(style=TextStyle(separator, encoding=used))
    except UnicodeError as error:
        name = encoding or used.upper()
        raise TableError(
            f"{path} is not a CSV file that can be read: not {name} text. Say how it is encoded,"
            " for example --encoding latin-1."
        ) from error
    except (LookupError, csv.Error) as error:
        raise TableError(f"{path} is not a CSV file that can be read: {error}.") from error


def marked_encoding(start: bytes) -> str:
    """The encoding that the first bytes of a text declare (byte order mark), else UTF-8."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # Excel's "Unicode text"
        return "utf-16"
    return "utf-8-sig" if start.startswith(codecs.BOM_UTF8) else "utf-8"


def parse_rows(reader: Any, path: Path, lines_before: int = 0) -> FileTable:
    """
    Rows of text as columns; each row must be as long as the header.

    :param lines_before: Lines of the file that the reader does not see.
    """
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
                f"{path}, line {reader.line_num + lines_before}: {counted(len(row), 'cell')}, but"
                f" the header names {counted(len(names), 'column')}. Is it a CSV file?"
            )
        rows.append(row)
        lines.append(reader.line_num + lines_before)
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

    :param encoding: Of a text file; by default UTF-8, or UTF-16 if its first bytes say so.
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
