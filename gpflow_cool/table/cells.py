"""
Cells of a table, and what they hold: numbers, dates, durations, categories or nothing.

Nothing here needs TensorFlow or pandas, so that the command line reports a wrong cell at once.
"""

import datetime
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import TableError
from .marks import how_to_write, to_number

Place = Callable[[int, str], str]
"""Where a cell is, for messages: row, counted from 0, and column."""

GAP = "(missing)"
"""The category of a cell that is empty."""

MOSTLY = 0.5
"""A column of which at least this part are numbers is meant to hold numbers."""

EPOCH = datetime.datetime(1970, 1, 1)
DURATION = re.compile(r"(-?\d+) days?(?: \+?(\d+):(\d+)(?::(\d+(?:\.\d+)?))?)?")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})([T ].*)?")
YEAR_FIRST = re.compile(r"(\d{4})[./](\d{1,2})[./](\d{1,2})([T ].*)?")
LIKE_A_DATE = re.compile(
    r"\d{1,2}([./-])\d{1,2}\1(\d{4}|\d{2})([T ,].*)?|\d{4}([./-])\d{1,2}\4\d{1,2}([T ,].*)?"
)
"""Also what cannot be read: 11/12/2026 may be in November or in December."""


def kind_of(name: str, cells: Sequence[Any] | NDArray[Any], place: Place) -> str:
    """What a column holds: "number", "date", "duration" or "category"."""
    dtype = getattr(cells, "dtype", None)
    if dtype is not None and dtype.kind in "biufmM":
        return {"M": "date", "m": "duration"}.get(dtype.kind, "number")
    numbers = [to_number(cell) for cell in cells]
    if None not in numbers:
        return "number"
    words = [row for row, number in enumerate(numbers) if number is None]
    all_words = len(words) == sum(number is None or number == number for number in numbers)
    for kind, read in READERS.items():
        if all_words and all(read(cells[row]) is not None for row in words):
            return kind
    if all_words:
        refuse_dates(name, cells, words, place)
    known = sum(number is not None and number == number for number in numbers)
    if known >= MOSTLY * (known + len(words)):
        cell = cells[words[0]]
        raise TableError(
            f"{place(words[0], name)}: {str(cell)[:40]!r} is not a number, but {known} other"
            f" {'cell' if known == 1 else 'cells'} of the column {'is' if known == 1 else 'are'}."
            " Mend the cell, or leave the column out, or declare it to hold categories"
            f" (--categorical; pandas: astype('category')).{how_to_write(cell)}"
        )
    return "category"


def refuse_dates(name: str, cells: Any, words: Sequence[int], place: Place) -> None:
    """Raise if all words of a column look like dates, and one of them cannot be read."""
    texts = [str(cells[row]).strip() for row in words]
    if all(map(LIKE_A_DATE.fullmatch, texts)):
        row = next(row for row in words if to_days(cells[row]) is None)
        raise TableError(
            f"{place(row, name)}: {cells[row][:40]!r} looks like a date, but cannot be read. Write"
            " dates as 2026-03-01 or 01.03.2026, a time behind them as 08:30; or declare the column"
            " to hold categories (--categorical; pandas: astype('category')), or leave it out"
            " (--exclude)."
        )


def read_cells(
    name: str, kind: str, cells: Sequence[Any] | NDArray[Any], place: Place
) -> NDArray[Any]:
    """Cells [N] as numbers, NaN for gaps, or as labels of categories."""
    if kind == "category":
        return np.array([label_of(cell) for cell in cells], dtype=object)
    dtype = getattr(cells, "dtype", None)
    if dtype is not None and dtype.kind == "M" and kind == "date":
        days = np.asarray(cells).astype("datetime64[us]") - np.datetime64(EPOCH, "us")
        return np.asarray(days / np.timedelta64(1, "D"), dtype=np.float64)
    if dtype is not None and dtype.kind == "m" and kind == "duration":
        return np.asarray(np.asarray(cells) / np.timedelta64(1, "D"), dtype=np.float64)
    if dtype is not None and dtype.kind in "biuf" and kind == "number":
        values = np.asarray(cells, dtype=np.float64)
    else:
        values = np.array([cell_value(row, cells, name, kind, place) for row in range(len(cells))])
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise TableError(f"{place(int(infinite[0]), name)}: the number is infinite.")
    return values


def cell_value(row: int, cells: Any, name: str, kind: str, place: Place) -> float:
    """A cell as a number or as days, NaN if it is empty."""
    cell = cells[row]
    number = to_number(cell)
    if number is not None and (kind == "number" or number != number):
        return number
    days = READERS[kind](cell) if kind in READERS else None
    if days is None:
        what = {
            "date": "a date such as 2026-03-01 or 01.03.2026",
            "duration": "a duration such as 2 days 03:00",
        }
        raise TableError(
            f"{place(row, name)}: {str(cell)[:40]!r} is not {what.get(kind, 'a number')}."
            f" Mend the cell, or leave the column out.{how_to_write(cell)}"
        )
    return days


def to_days(cell: Any) -> float | None:
    """
    A date, with or without a time, as days since 1970; None for anything else.

    >>> to_days("1970-01-02"), to_days("1970-01-02 12:00"), to_days("2 January")
    (1.0, 1.5, None)
    >>> to_days("2.1.1970 12:00"), to_days("1/2/1970")
    (1.5, None)
    """
    if isinstance(cell, np.datetime64):
        return float((cell - np.datetime64(EPOCH)) / np.timedelta64(1, "D"))
    if isinstance(cell, str):
        text = year_first(cell.strip())
        if not DATE.fullmatch(text):
            return None
        try:
            cell = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            return None
    if isinstance(cell, datetime.datetime):
        if cell.tzinfo is not None:
            cell = cell.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return (cell - EPOCH) / datetime.timedelta(days=1)
    return float((cell - EPOCH.date()).days) if isinstance(cell, datetime.date) else None


def year_first(text: str) -> str:
    """
    A date such as 17.11.2026 or 2026/11/17 as 2026-11-17; other text as it is.

    >>> year_first("7.11.2026 08:30"), year_first("2026/11/7"), year_first("red")
    ('2026-11-07 08:30', '2026-11-07', 'red')
    """
    if found := DAY_FIRST.fullmatch(text):
        day, month, year, time = found.groups()
    elif found := YEAR_FIRST.fullmatch(text):
        year, month, day, time = found.groups()
    else:
        return text
    return f"{year}-{month:>02}-{day:>02}{time or ''}"


def to_duration(cell: Any) -> float | None:
    """
    A length of time, as pandas writes it, in days; None for anything else.

    >>> to_duration("2 days 12:00:00"), to_duration("-1 days"), to_duration("12:00")
    (2.5, -1.0, None)
    """
    if isinstance(cell, np.timedelta64):
        return float(cell / np.timedelta64(1, "D"))
    if isinstance(cell, datetime.timedelta):
        return cell / datetime.timedelta(days=1)
    found = DURATION.fullmatch(cell.strip()) if isinstance(cell, str) else None
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0.0) for part in found.groups())
    return days + hours / 24.0 + minutes / 1440.0 + seconds / 86400.0


READERS: dict[str, Callable[[Any], float | None]] = {"date": to_days, "duration": to_duration}
"""How words of a column become days."""


def label_of(cell: Any) -> str:
    """
    The category that a cell names; 1, 1.0 and "1" are the same one.

    >>> label_of(" red "), label_of(1.0), label_of("1"), label_of(None)
    ('red', '1', '1', '(missing)')
    """
    number = to_number(cell)
    if number is None:
        return str(cell).strip()
    if number != number:
        return GAP
    if isinstance(cell, str):  # postcodes: "0123" is not 123
        return cell.strip()
    return str(cell) if isinstance(cell, int | np.integer) else f"{number:.15g}"


def gaps_of(values: NDArray[Any]) -> NDArray[np.bool_]:
    """[N], where what :func:`read_cells` returns has gaps."""
    return values == GAP if values.dtype == object else np.isnan(values)


def holds_words(cells: NDArray[Any]) -> bool:
    """Whether a column holds dates, durations, or text that is not a number."""
    if cells.dtype.kind in "mM":
        return True
    if cells.dtype.kind not in "OUS":
        return False
    return any(
        isinstance(cell, str | datetime.date | datetime.timedelta | np.datetime64)
        and to_number(cell) is None
        for cell in cells
    )
