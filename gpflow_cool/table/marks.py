"""
Marks in text files: what separates cells, decimals and thousands, and what may stand for a number.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""What an empty cell may hold, in lower case."""

DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
"""A number whose points may separate thousands."""

CURRENCY = "[$\u20ac\u00a3\u00a5]"
"""Dollar, euro, pound, yen."""


class TextStyle(NamedTuple):
    """How a table is written as text."""

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    def cell(self, value: Any) -> Any:
        """
        A cell as it is written: text as it is, nothing for NaN, numbers with the decimal mark.

        >>> TextStyle(";", ",").cell(-1.5), TextStyle(";", ",").cell("1.5")
        ('-1,5', '1.5')
        """
        if not isinstance(value, float):
            return value
        return "" if value != value else repr(float(value)).replace(".", self.decimal)


PLAIN = TextStyle()


def counted(number: int, word: str) -> str:
    """
    A number of things, in the singular or the plural.

    >>> counted(1, "row"), counted(0, "row"), counted(2, "row")
    ('1 row', '0 rows', '2 rows')
    """
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def to_number(cell: Any) -> float | None:
    """A cell as a number, NaN if it is empty, None if it is text."""
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING):
        return float("nan")
    if type(cell).__name__ in ("NAType", "NaTType"):  # what pandas has in an empty cell
        return float("nan")
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def with_point(cell: str) -> str:
    """
    A number that has a decimal comma, with a point; any other text as it is.

    >>> with_point("-3,5e2"), with_point("a, b"), with_point("1,234.5")
    ('-3.5e2', 'a, b', '1,234.5')
    """
    return cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell.strip()) else cell


def doubtful_point(cells: Sequence[str]) -> int | None:
    """
    The first row whose number has a point, where the decimal mark is a comma; None if all is clear.

    A column that has points, no commas, and a point that cannot separate thousands is clear.

    >>> doubtful_point(["740", "1.376"]), doubtful_point(["0,5", "12.5"])
    (1, 1)
    >>> doubtful_point(["12.5", "1.376"]), doubtful_point(["0,5", "1.3.2026"])
    (None, None)
    """
    rows = [row for row, cell in enumerate(cells) if "." in cell and to_number(cell) is not None]
    plain = any(not THOUSANDS.fullmatch(cells[row].strip()) for row in rows)
    return None if not rows or (plain and not has_decimal_comma(cells)) else rows[0]


def has_decimal_comma(cells: Iterable[str]) -> bool:
    """Whether a cell is a number with a decimal comma."""
    return any(DECIMAL_COMMA.fullmatch(cell.strip()) for cell in cells)


def how_to_write(cell: Any) -> str:
    """
    A hint for text that may stand for a number: how to write it. Nothing for other text.

    >>> how_to_write("11.6%"), how_to_write("-"), how_to_write("red")
    (' Write per cent without the sign: 11.6.', ' Leave it empty if the value is missing.', '')
    >>> how_to_write("$0.01")
    ' Write amounts of money without the sign of the currency, as 1234.5.'
    """
    text = cell.strip() if isinstance(cell, str) else ""
    return next((f" {hint(text)}" for form, hint in HINTS.items() if form.fullmatch(text)), "")


def not_a_number(cell: Any, values: Sequence[float | None]) -> str:
    """
    What to say of a cell of text in a column that must hold numbers.

    :param values: What :func:`to_number` gives for all cells of the column.
    """
    hint = how_to_write(cell)
    what = f"{str(cell)[:40]!r} is not a number"
    if not hint and all(value is None or value != value for value in values):
        return (
            f"{what}, nor is any other cell of the column. Targets must be numbers; a column of"
            " words may be an input."
        )
    return f"{what}. Mend the cell, or leave the column out.{hint}"


HINTS: dict[re.Pattern[str], Callable[[str], str]] = {
    re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+"): lambda _: (
        "If the comma separates thousands, remove it; if it is a decimal mark, say --decimal ','."
    ),
    DECIMAL_COMMA: lambda _: "Write numbers with a decimal point, or say --decimal ','.",
    re.compile(r"[-+]?\d{1,3}([,.' \u2019\u00a0\u202f])\d{3}(\1\d{3})*([.,]\d*)?"): lambda _: (
        "Write numbers without separators of thousands."
    ),
    re.compile(r"([-+]?[\d.,]+)\s*%"): lambda text: (
        f"Write per cent without the sign: {text.rstrip('% ')}."
    ),
    re.compile(rf"[-+]?\s*{CURRENCY}\s*[-+]?[\d.,]+|[-+]?[\d.,]+\s*{CURRENCY}"): lambda _: (
        "Write amounts of money without the sign of the currency, as 1234.5."
    ),
    re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"): lambda _: (
        "Write times of day as hours, 8.5 for 08:30, or with their date, as 2026-03-01 08:30."
    ),
    re.compile(r"\d{4}-\d{1,2}"): lambda text: (
        f"Write months with a day: {text[:5]}{text[5:]:>02}-01."
    ),
    re.compile(r"[-\u2010-\u2015.*_/]+|missing|unknown", re.IGNORECASE): lambda _: (
        "Leave it empty if the value is missing."
    ),
}
"""How text looks that may stand for a number, and what to say of it."""
