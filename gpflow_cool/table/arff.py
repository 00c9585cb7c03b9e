"""Dense ARFF files, without TensorFlow: every cell as it is in the file."""

import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

NUMERIC = ("numeric", "real", "integer")

ATTRIBUTE = re.compile(
    r"""@attribute \s+
        (?: '(?P<single>(?:[^'\\]|\\.)*)'
          | "(?P<double>(?:[^"\\]|\\.)*)"
          | (?P<plain>[^\s'"{][^\s{]*) )
        \s* (?P<kind>\S.*)""",
    re.IGNORECASE | re.VERBOSE,
)

CELL = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*)\s*,""")
"""A cell and the comma after it; a comma inside quotes does not end it."""


class Column(NamedTuple):
    """A column that is declared."""

    name: str
    kind: str
    """The type, as it stands in the file."""

    where: str
    """The file and the line."""

    def check_numbers(self) -> None:
        """Raise unless the column is declared to hold numbers."""
        if self.kind.lower() not in NUMERIC and not lists_numbers(self.kind):
            raise ValueError(
                f"{self.where}: column {self.name!r} is declared {self.kind[:40]!r}, but only"
                " numbers can be read: encode the column as numbers, or remove it."
            )


class ArffTable(NamedTuple):
    """What a file holds."""

    path: Path
    columns: tuple[Column, ...]
    cells: list[list[str]]
    """One list per row."""

    lines: list[int]
    """Line of each row, from 1."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def rows(self) -> Iterator[tuple[list[str], str]]:
        """Cells of every row, and where it is."""
        for cells, line in zip(self.cells, self.lines, strict=True):
            yield cells, f"{self.path}, line {line}"


def read(path: str | PathLike[str], *, only_numbers: bool = False) -> ArffTable:
    """
    Read a file.

    :param only_numbers: Whether columns of other types are refused, or taken as they are.
    """
    path = Path(path)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        content = content_lines(file)
        columns = read_header(content, path, only_numbers)
        rows = [
            (number, split_row(line, f"{path}, line {number}", len(columns)))
            for number, line in content
        ]
    if not rows:
        raise ValueError(f"{path} has no row after @data: it may have been cut off; get it again.")
    return ArffTable(path, columns, [cells for _, cells in rows], [number for number, _ in rows])


def content_lines(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Number, from 1, and text of every line that is neither empty nor a comment."""
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if line and not line.startswith("%"):
            yield number, line


def read_header(
    lines: Iterator[tuple[int, str]], path: Path, only_numbers: bool
) -> tuple[Column, ...]:
    """The columns; leaves the iterator at the first row of data."""
    columns: list[Column] = []
    for number, line in lines:
        keyword = line.split(maxsplit=1)[0].lower()
        if keyword == "@data" and columns:
            return tuple(columns)
        if keyword == "@attribute":
            columns.append(parse_attribute(line, f"{path}, line {number}"))
            if only_numbers:
                columns[-1].check_numbers()
        elif keyword != "@relation":
            raise ValueError(
                f"{path}, line {number}: expected @relation, @attribute or, after these, @data, got"
                f" {line[:40]!r}. Is this an ARFF file?"
            )
    raise ValueError(f"{path} ends before @data: it may have been cut off; get it again.")


def parse_attribute(line: str, where: str) -> Column:
    """The column that an @attribute line declares."""
    match = ATTRIBUTE.fullmatch(line)
    if match is None:
        raise ValueError(f"{where}: cannot find a name and a type in {line[:60]!r}.")
    quoted = match["single"] if match["single"] is not None else match["double"]
    name = match["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
    return Column(name, match["kind"], where)


def split_row(line: str, where: str, num_columns: int) -> list[str]:
    """Cells of a row of data, as many as there are columns, without their quotes."""
    if line.startswith("{"):
        raise ValueError(f"{where}: the row is sparse; write the file with dense rows.")
    quoted = "'" in line or '"' in line
    cells = CELL.findall(line + ",") if quoted else line.split(",")
    if len(cells) != num_columns:
        raise ValueError(
            f"{where}: {len(cells)} values, but {num_columns} columns are declared. The file may be"
            " damaged: get it again, or mend the line."
        )
    return [cell.strip().strip("'\"") for cell in cells]


# Numbers ------------------------------------------------------------------------------------------


def parse_value(text: str) -> float:
    """One number, with or without quotes; a question mark is NaN."""
    text = text.strip().strip("'\"")
    return float("nan") if text == "?" else float(text)


def is_value(text: str) -> bool:
    """Whether :func:`parse_value` can read the text."""
    try:
        parse_value(text)
    except ValueError:
        return False
    return True


def lists_numbers(kind: str) -> bool:
    """Whether a type is a list such as {0, 1} of nothing but numbers."""
    return kind.startswith("{") and kind.endswith("}") and all(map(is_value, kind[1:-1].split(",")))


def parse_numbers(cells: Sequence[str], where: str, names: Sequence[str]) -> list[float]:
    """The numbers of a row."""
    for name, cell in zip(names, cells, strict=True):
        if not is_value(cell):
            raise ValueError(
                f"{where}: column {name!r} has {cell.strip()!r}, which is not a number. Mend the"
                " line, or write ? for a missing value."
            )
    return [parse_value(cell) for cell in cells]
