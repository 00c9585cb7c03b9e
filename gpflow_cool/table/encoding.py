"""
Inputs as they come: words become indicators, dates become days, gaps are filled and flagged.

Nothing here needs TensorFlow or pandas, so that the command line reports a wrong cell at once. How
a table was encoded is part of the saved model, so that new rows are encoded in the same way.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .files import Numbers, TableError, decimal_comma, to_number

Columns = Mapping[str, Sequence[Any] | NDArray[Any]]
"""Name -> cells, one per row."""

Place = Callable[[int, str], str]
"""Where a cell is, for messages: row, counted from 0, and column."""

MISSING_INPUTS = ("refuse", "fill", "drop")
GAP = "(missing)"
"""The category of a cell that is empty."""

MOSTLY = 0.5
"""A column of which at least this part are numbers is meant to hold numbers."""

FEW_ROWS, MAX_CATEGORIES = 10, 1000
"""Beyond so many rows, categories may be no more than half the rows, and never more than these."""

EPOCH = datetime.datetime(1970, 1, 1)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")


class Coding(NamedTuple):
    """How one column becomes inputs of the model."""

    name: str
    kind: str
    """"number", "date" (days since 1970) or "category" (one indicator per category)."""

    categories: tuple[str, ...] = ()
    fill: float = 0.0
    """What stands for a gap in a column of numbers or dates: the median of the others."""

    flag: bool = False
    """Whether another column tells where the gaps were."""

    @property
    def inputs(self) -> list[str]:
        """
        Names of the inputs.

        >>> Coding("hue", "category", ("blue", "red")).inputs
        ['hue=blue', 'hue=red']
        """
        if self.kind == "category":
            return [f"{self.name}={category}" for category in self.categories]
        return [self.name] + ([f"{self.name} missing"] if self.flag else [])

    @property
    def indicators(self) -> list[bool]:
        """Which inputs are 0 or 1 by their meaning, and keep that scale."""
        return [self.kind == "category" or n > 0 for n in range(len(self.inputs))]

    def encode(self, values: NDArray[Any]) -> Numbers:
        """
        Inputs [N, number of inputs].

        :param values: Numbers with NaN for gaps, or labels of categories.
        """
        if self.kind == "category":
            return np.array(values[:, None] == np.array(self.categories), dtype=np.float64)
        gaps = np.isnan(values)
        filled = np.where(gaps, self.fill, values)
        return np.column_stack([filled, gaps] if self.flag else [filled]).astype(np.float64)


class Encoding(NamedTuple):
    """How a table becomes inputs of the model."""

    codings: tuple[Coding, ...]
    missing: str
    """What is done about gaps: "refuse", "fill" or "drop" their rows."""

    @property
    def inputs(self) -> list[str]:
        """Names of the model's inputs."""
        return [name for coding in self.codings for name in coding.inputs]

    @property
    def indicators(self) -> NDArray[np.bool_]:
        """[D], which inputs are 0 or 1 by their meaning."""
        return np.array([i for coding in self.codings for i in coding.indicators], dtype=bool)

    def encode(self, columns: Columns, place: Place) -> "Encoded":
        """The inputs of new rows; a cell that does not serve is refused."""
        parts: list[Numbers] = []
        remarks: list[str] = []
        complete = np.ones(len(next(iter(columns.values()))), dtype=bool)
        for coding in self.codings:
            values = read_cells(coding.name, coding.kind, columns[coding.name], place)
            gaps = gaps_of(values)
            complete &= ~gaps
            if self.missing == "refuse" and gaps.any():
                raise TableError(gap_message(gaps, coding.name, place))
            if coding.kind == "category":
                remarks += unknown_remarks(coding, values[~gaps] if gaps.any() else values)
            parts.append(coding.encode(values))
        whole = self.missing != "drop"
        return Encoded(np.hstack(parts), complete | whole, tuple(remarks))

    def to_json(self) -> dict[str, Any]:
        """The encoding as plain data."""
        return {"missing": self.missing, "columns": [coding._asdict() for coding in self.codings]}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Encoding":
        """The inverse of :meth:`to_json`."""
        codings = [
            Coding(**{**column, "categories": tuple(column["categories"])})
            for column in saved["columns"]
        ]
        return cls(tuple(codings), str(saved["missing"]))


class Encoded(NamedTuple):
    """Rows of a table as the model's inputs."""

    X: Numbers
    """[N, D]."""

    kept: NDArray[np.bool_]
    """[N], which rows can be used; with "drop", those without a gap."""

    remarks: tuple[str, ...]
    """What a user should know of these rows."""


# Learning how to encode -----------------------------------------------------------------------


def learn_encoding(
    columns: Columns, missing: str, place: Place, categorical: Iterable[str] = ()
) -> Encoding:
    """
    How a table is encoded, found from its cells.

    >>> table = {"size": ["1", "2.5", ""], "hue": ["red", "blue", "red"]}
    >>> learn_encoding(table, "fill", lambda row, name: f"row {row}, column {name!r}").inputs
    ['size', 'size missing', 'hue=blue', 'hue=red']

    :param missing: What to do about gaps, one of `MISSING_INPUTS`.
    :param categorical: Columns that hold categories even if their cells are numbers.
    """
    flagged: set[bytes] = set()
    codings, categorical = [], set(categorical)
    for name, cells in columns.items():
        kind = "category" if name in categorical else kind_of(name, cells, place)
        values = read_cells(name, kind, cells, place)
        gaps = gaps_of(values)
        if gaps.any() and missing == "refuse":
            raise TableError(gap_message(gaps, name, place))
        known = values[~gaps]
        if kind == "category":
            labels = sorted(set(known.tolist())) + [GAP] * (missing == "fill" and bool(gaps.any()))
            check_categories(name, labels, len(values))
            codings.append(Coding(name, kind, tuple(labels)))
            continue
        fill = float(np.median(known)) if len(known) else 0.0
        # Columns with gaps in the same rows share the flag of the first.
        flag = missing == "fill" and bool(gaps.any()) and gaps.tobytes() not in flagged
        flagged.add(gaps.tobytes())
        codings.append(Coding(name, kind, fill=fill, flag=flag))
    return Encoding(tuple(codings), missing)


def kind_of(name: str, cells: Sequence[Any] | NDArray[Any], place: Place) -> str:
    """What a column holds: "number", "date" or "category"."""
    dtype = getattr(cells, "dtype", None)
    if dtype is not None and dtype.kind in "biufmM":
        return "date" if dtype.kind == "M" else "number"
    numbers = [to_number(cell) for cell in cells]
    if None not in numbers:
        return "number"
    words = [row for row, number in enumerate(numbers) if number is None]
    if all(to_days(cells[row]) is not None for row in words):
        known = sum(number is None or number == number for number in numbers)
        if len(words) == known:
            return "date"
    known = sum(number is not None and number == number for number in numbers)
    if known >= MOSTLY * (known + len(words)):
        cell = cells[words[0]]
        raise TableError(
            f"{place(words[0], name)}: {str(cell)[:40]!r} is not a number, but {known} other"
            f" {'cell' if known == 1 else 'cells'} of the column {'is' if known == 1 else 'are'}."
            " Mend the cell, or leave the column out, or declare it to hold categories"
            f" (--categorical; pandas: astype('category')).{decimal_comma(cell)}"
        )
    return "category"


def check_categories(name: str, labels: Sequence[str], num_rows: int) -> None:
    """Raise if a column of words looks like a name of each row."""
    half = num_rows > FEW_ROWS and 2 * len(labels) > num_rows
    if half or len(labels) > MAX_CATEGORIES:
        raise TableError(
            f"Column {name!r} holds {len(labels)} different categories in {num_rows} rows, for"
            f" example {labels[0][:40]!r}: too many to learn from. Leave the column out"
            " (--exclude), or join categories."
        )


# Cells ---------------------------------------------------------------------------------------


def read_cells(
    name: str, kind: str, cells: Sequence[Any] | NDArray[Any], place: Place
) -> NDArray[Any]:
    """Cells [N] as numbers, NaN for gaps, or as labels of categories."""
    if kind == "category":
        return np.array([label_of(cell) for cell in cells], dtype=object)
    dtype = getattr(cells, "dtype", None)
    if dtype is not None and dtype.kind in "mM" and kind == "date":
        days = np.asarray(cells).astype("datetime64[us]") - np.datetime64(EPOCH, "us")
        return np.asarray(days / np.timedelta64(1, "D"), dtype=np.float64)
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
    days = to_days(cell) if kind == "date" else None
    if days is None:
        what = "a number" if kind == "number" else "a date such as 2026-03-01"
        raise TableError(
            f"{place(row, name)}: {str(cell)[:40]!r} is not {what}. Mend the cell, or leave the"
            f" column out.{decimal_comma(cell)}"
        )
    return days


def to_days(cell: Any) -> float | None:
    """
    A date, with or without a time, as days since 1970; None for anything else.

    >>> to_days("1970-01-02"), to_days("1970-01-02 12:00"), to_days("2 January")
    (1.0, 1.5, None)
    """
    if isinstance(cell, np.datetime64):
        return float((cell - np.datetime64(EPOCH)) / np.timedelta64(1, "D"))
    if isinstance(cell, str):
        text = cell.strip()
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


def gap_message(gaps: NDArray[np.bool_], name: str, place: Place) -> str:
    """What is wrong with an empty cell of an input, and what can be done."""
    rows = np.flatnonzero(gaps)
    more = f" ({len(rows)} such cells in the column)" if len(rows) > 1 else ""
    return (
        f"{place(int(rows[0]), name)}: the cell is empty{more} (NaN). Say what to do about gaps in"
        ' inputs: missing_inputs="fill" fills them and adds a flag, "drop" leaves their rows out'
        " (--missing-inputs). If the column is to be predicted, make it a target (--targets); or"
        " leave it out (--exclude)."
    )


def unknown_remarks(coding: Coding, labels: NDArray[Any]) -> list[str]:
    """What to say of categories that the fit has not seen."""
    found = {label: int(np.sum(labels == label)) for label in set(labels.tolist())}
    unknown = sorted(label for label in found if label not in coding.categories)
    if not unknown:
        return []
    count = sum(found[label] for label in unknown)
    shown = ", ".join(coding.categories[:10]) + (", ..." if len(coding.categories) > 10 else "")
    return [
        f"Column {coding.name!r} holds {', '.join(map(repr, unknown[:3]))}, which the fit has not"
        f" seen (it has seen: {shown}): {count} {'row is' if count == 1 else 'rows are'} predicted"
        " as of none of these categories."
    ]


# Tables in memory ------------------------------------------------------------------------------


class RawTable(NamedTuple):
    """Columns of a data frame or an array."""

    columns: dict[str, NDArray[Any]]
    categorical: frozenset[str]
    """Columns that pandas declares to hold categories."""

    @property
    def is_plain(self) -> bool:
        """Whether there are numbers only, or what only scikit-learn can refuse."""
        return not self.categorical and not any(map(holds_words, self.columns.values()))


def holds_words(cells: NDArray[Any]) -> bool:
    """Whether a column holds dates, or text that is not a number."""
    if cells.dtype.kind == "M":
        return True
    if cells.dtype.kind not in "OUS":
        return False
    return any(
        isinstance(cell, str | datetime.date | np.datetime64) and to_number(cell) is None
        for cell in cells
    )


def raw_table(X: Any) -> RawTable | None:
    """The columns of a frame, or of an array or list with two dimensions; else None."""
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        series = [X.iloc[:, number] for number in range(X.shape[1])]
        names = [str(name) for name in X.columns]
        declared = [
            name
            for name, s in zip(names, series, strict=True)
            if getattr(s.dtype, "categories", None) is not None
        ]
        cells = [column_array(s) for s in series]
        return RawTable(dict(zip(names, cells, strict=True)), frozenset(declared))
    if isinstance(X, list | tuple | np.ndarray):
        try:
            array = np.asarray(X)
        except ValueError:  # rows of different lengths: told elsewhere
            return None
        if array.ndim == 2:
            return RawTable({f"x{d}": array[:, d] for d in range(array.shape[1])}, frozenset())
    return None


def column_array(series: Any) -> NDArray[Any]:
    """Cells of a pandas column: numbers and dates as arrays of them, the rest as objects."""
    kind = getattr(series.dtype, "kind", "O")
    if kind == "M":  # dates, also with a time zone
        series = series.dt.tz_convert(None) if getattr(series.dtype, "tz", None) else series
        return np.asarray(series.to_numpy())
    if kind in "biuf":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series.to_numpy(dtype=object))
