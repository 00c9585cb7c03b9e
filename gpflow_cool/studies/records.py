"""
Results as rows of a CSV file that grows by one row after every unit of work.

Rows that were written stay, whatever happens to a run, and the next run continues after them.
"""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]
Rows = Sequence[Row]

OK = "ok"
"""The status of a row whose unit has succeeded."""


class StudyError(Exception):
    """What a user can mend: the message says what is wrong and what to do."""


class Columns(NamedTuple):
    """
    The columns of a study's file.

    A unit is done if a row that succeeded agrees with it in identity, effort and settings.
    """

    identity: tuple[str, ...]
    """What a row is about, for instance the data set, the method, the split."""
    effort: tuple[str, ...]
    """What a unit was allowed to cost, for instance the number of steps. Of two rows with the same
    identity and settings, tables use the later one, whatever its effort."""
    settings: tuple[str, ...]
    """What all rows of a table have in common, for instance the seed."""
    values: tuple[str, ...]
    """What came out."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.identity + self.effort + self.settings

    @property
    def header(self) -> tuple[str, ...]:
        return self.key + self.values + ("seconds", "status")


def to_text(value: Any) -> str:
    """
    A value as it stands in the file.

    >>> to_text(0.1 + 0.2), to_text(3), to_text("se"), to_text(None), to_text(float("nan"))
    ('0.3', '3', 'se', '', '')
    """
    if value is None or value != value:
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def texts(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Some values of a row as they stand in the file."""
    return tuple(to_text(row[name]) for name in names)


def from_text(text: str) -> Any:
    """
    The value of a cell: a whole number, a number, NaN where nothing stands, or else the text.

    >>> from_text("3"), from_text("0.3"), from_text(""), from_text("se")
    (3, 0.3, nan, 'se')
    """
    if text == "":
        return float("nan")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class RunTable:
    """
    The rows of one study, in memory and in a file.

    :param path: The CSV file; it is made, with a header, if it is not there.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self.path, self.columns = path, columns
        self.rows: list[Row] = []
        if path.exists() and path.stat().st_size > 0:
            self.rows = read_rows(path, columns)
            mend_last_line(path)
        else:
            self._write(csv_line(columns.header))
        self._done = {texts(row, columns.key) for row in self.rows if row["status"] == OK}

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        return texts(key, self.columns.key) in self._done

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row through to the disk; if it succeeded, count it as done."""
        cells = [to_text(row.get(name)) for name in self.columns.header]
        self._write(csv_line(cells))
        self.rows.append(dict(zip(self.columns.header, map(from_text, cells), strict=True)))
        if row["status"] == OK:
            self._done.add(texts(row, self.columns.key))

    def _write(self, line: str) -> None:
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StudyError(
                f"Cannot write to {self.path}: {error.strerror}. The {len(self.rows)} rows before"
                " are kept: make room, or choose another folder with --out."
            ) from error


def select(rows: Rows, columns: Columns, settings: Mapping[str, Any]) -> list[Row]:
    """The rows of these settings that have succeeded, the latest of each identity."""
    succeeded = where(rows, status=OK, **settings)
    return list({texts(row, columns.identity): row for row in succeeded}.values())


def where(rows: Rows, /, **wanted: Any) -> list[Row]:
    """The rows with these values; None stands for a cell that is empty."""
    texts = {name: to_text(value) for name, value in wanted.items()}
    return [r for r in rows if all(to_text(r[name]) == text for name, text in texts.items())]


def grouped(rows: Rows, name: str, order: Iterable[Any]) -> dict[Any, list[Row]]:
    """The rows of each value of a column, in this order; values without rows are left out."""
    found = {value: where(rows, **{name: value}) for value in order}
    return {value: mine for value, mine in found.items() if mine}


def distinct(rows: Rows, name: str) -> list[Any]:
    """The different values of a column, sorted."""
    return sorted({row[name] for row in rows})


def column(rows: Rows, name: str) -> list[float]:
    """The values of a column."""
    return [row[name] for row in rows]


def mean_of(rows: Rows, name: str) -> float:
    """The mean of a column; NaN where there are no rows."""
    return float(np.mean(column(rows, name))) if rows else float("nan")


def csv_line(cells: Sequence[str]) -> str:
    """The cells as a line of a CSV file; line breaks inside become spaces."""
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([" ".join(c.split()) for c in cells])
    return buffer.getvalue()


def read_rows(path: Path, columns: Columns) -> list[Row]:
    """
    The rows of a file. A last line that was cut off does not count.

    :raises StudyError: If the file does not have these columns.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"Cannot read {path}: {error}. Choose another folder.") from error
    lines = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if not lines or tuple(lines[0]) != columns.header:
        raise StudyError(
            f"{path} is there, but its header is not that of this study in this version of the"
            " package: choose another folder with --out, or move the file away."
        )
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(columns.header):
            raise StudyError(
                f"{path}, line {number}: {len(line)} cells, but {len(columns.header)} columns."
                " Remove the line; its unit will be computed again."
            )
    return [dict(zip(columns.header, map(from_text, line), strict=True)) for line in lines[1:]]


def mend_last_line(path: Path) -> None:
    """Remove what follows the last line break: a line that was cut off when a run was killed."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
