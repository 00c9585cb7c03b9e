"""
Results as rows of a CSV file that grows by one row after every unit of work.

Whatever happens to a run, the rows before it are kept, and the next run goes on from there.
"""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]

OK = "ok"
"""The status of a row whose unit has succeeded."""


class StudyError(Exception):
    """What a user can mend: the message says what is wrong and what to do."""


class Layout(NamedTuple):
    """
    Columns of a study's file.

    A unit is done if a row that succeeded agrees with it in identity, effort and settings.
    """

    identity: tuple[str, ...]
    """What a row is about, for instance the data set, the method, the split."""
    effort: tuple[str, ...]
    """How hard was tried, for instance the number of steps. Of two rows with the same identity and
    settings tables take the later, whatever the effort."""
    settings: tuple[str, ...]
    """What all rows of a table have in common, for instance the seed."""
    values: tuple[str, ...]
    """What came out."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.identity + self.effort + self.settings

    @property
    def columns(self) -> tuple[str, ...]:
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

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout = path, layout
        self.rows: list[Row] = []
        if path.exists() and path.stat().st_size > 0:
            self.rows = read_rows(path, layout)
            mend_last_line(path)
        else:
            self._write(csv_line(layout.columns))
        self._done = {self._key(row) for row in self.rows if row["status"] == OK}

    def _key(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(to_text(row[name]) for name in self.layout.key)

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        return self._key(key) in self._done

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row through to the disk; if it succeeded, count it as done."""
        cells = [to_text(row.get(name)) for name in self.layout.columns]
        self._write(csv_line(cells))
        self.rows.append(dict(zip(self.layout.columns, map(from_text, cells), strict=True)))
        if row["status"] == OK:
            self._done.add(self._key(row))

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

    def selection(self, settings: Mapping[str, Any]) -> list[Row]:
        """The rows of these settings that have succeeded, the latest of each identity."""
        return select(self.rows, self.layout, settings)


def select(rows: Iterable[Row], layout: Layout, settings: Mapping[str, Any]) -> list[Row]:
    """The rows of these settings that have succeeded, the latest of each identity."""
    latest = {}
    for row in rows:
        same = all(to_text(row[name]) == to_text(value) for name, value in settings.items())
        if same and row["status"] == OK:
            latest[tuple(to_text(row[name]) for name in layout.identity)] = row
    return list(latest.values())


def csv_line(cells: Sequence[str]) -> str:
    """The cells as a line of a CSV file; line breaks inside become spaces."""
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([" ".join(c.split()) for c in cells])
    return buffer.getvalue()


def read_rows(path: Path, layout: Layout) -> list[Row]:
    """
    The rows of a file. A last line that was cut off does not count.

    :raises StudyError: If the file is not one of this layout.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"Cannot read {path}: {error}. Choose another folder.") from error
    lines = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if not lines or tuple(lines[0]) != layout.columns:
        raise StudyError(
            f"{path} is there, but its header is not that of this study in this version of the"
            " package: choose another folder with --out, or move the file away."
        )
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(layout.columns):
            raise StudyError(
                f"{path}, line {number}: {len(line)} cells, but {len(layout.columns)} columns."
                " Remove the line; its unit will be computed again."
            )
    return [dict(zip(layout.columns, map(from_text, line), strict=True)) for line in lines[1:]]


def mend_last_line(path: Path) -> None:
    """Remove what follows the last line break: a line that was cut off when a run was killed."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
