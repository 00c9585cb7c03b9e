"""Tables and verdicts as text: Markdown that is aligned, so that a terminal shows it well too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .records import Rows, column, where

Cell = Callable[[Rows], str]
"""Writes a cell of a table from the rows that the cell is about."""


class TextTable(NamedTuple):
    """A table of text."""

    caption: str
    header: tuple[str, ...]
    cells: Sequence[tuple[str, ...]]

    def __str__(self) -> str:
        return "\n".join([self.caption, "", *markdown_lines(self)])


class Check(NamedTuple):
    """A claim, and what was measured."""

    claim: str
    measured: str
    holds: bool


def text_table(
    caption: str, corner: str, groups: Mapping[str, Rows], columns: Iterable[tuple[str, Cell]]
) -> TextTable:
    """
    A table with one line per group of rows.

    :param corner: Title of the first column, which holds the names of the groups.
    :param columns: Title of each further column, and what writes its cells.
    """
    titles, writers = zip(*columns, strict=True)
    cells = [(name, *(write(rows) for write in writers)) for name, rows in groups.items()]
    return TextTable(caption, (corner, *titles), cells)


def count(rows: Rows) -> str:
    """How many rows there are."""
    return str(len(rows))


def average(name: str, decimals: int = 2, statistic: Callable[..., Any] = np.mean) -> Cell:
    """A cell with the mean of a column, or another statistic of it."""
    return lambda rows: number(statistic(column(rows, name)) if rows else np.nan, decimals)


def spread(name: str, decimals: int = 2) -> Cell:
    """A cell with the mean and the standard deviation of a column."""
    return lambda rows: mean_and_spread(column(rows, name), decimals)


def among(cell: Cell, **wanted: Any) -> Cell:
    """The same cell, written from only those rows that have these values."""
    return lambda rows: cell(where(rows, **wanted))


def markdown_lines(table: TextTable) -> list[str]:
    """Lines of a Markdown table, columns aligned, numbers to the right."""
    rows = [table.header, *table.cells]
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(table.header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [
        "| " + " | ".join(pad(cells, widths)) + " |" for cells in (table.header, rule, *table.cells)
    ]


def pad(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The first cell to the left, the others to the right."""
    first = cells[0].ljust(widths[0])
    return [first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]


def check_lines(checks: Iterable[Check]) -> list[str]:
    """One line per claim."""
    return [f"{'holds' if c.holds else 'FAILS'}: {c.claim}: {c.measured}" for c in checks]


def number(value: Any, decimals: int = 2) -> str:
    """
    A number with so many decimals, a dash for one that is missing.

    >>> number(0.126), number(float("nan")), number(-0.001)
    ('0.13', '-', '0.00')
    """
    if np.isnan(value):
        return "-"
    return f"{round(float(value), decimals) + 0.0:.{decimals}f}"


def mean_and_spread(values: Sequence[float], decimals: int = 2) -> str:
    """
    Mean and standard deviation, or a dash where nothing was measured.

    >>> mean_and_spread([1.0, 2.0, 3.0]), mean_and_spread([])
    ('2.00 ± 0.82', '-')
    """
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if len(finite) == 0:
        return "-"
    return f"{number(finite.mean(), decimals)} ± {number(finite.std(), decimals)}"
