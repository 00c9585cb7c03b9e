"""
Inputs as they come: words become indicators, dates become days, gaps are filled and flagged.

Nothing here needs TensorFlow or pandas, so that the command line reports a wrong cell at once. How
a table was encoded is part of the saved model, so that new rows are encoded in the same way.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cells import EPOCH, GAP, Place, gaps_of, holds_words, kind_of, read_cells
from .files import Numbers, TableError
from .marks import how_to_write

Columns = Mapping[str, Sequence[Any] | NDArray[Any]]
"""Name -> cells, one per row."""

MISSING_INPUTS = ("refuse", "fill", "drop")
FEW_ROWS, MAX_CATEGORIES = 10, 1000
"""Beyond so many rows, categories may be no more than half the rows, and never more than these."""


class Coding(NamedTuple):
    """How one column becomes inputs of the model."""

    name: str
    kind: str
    """"number", "date" (days since 1970), "duration" (days) or "category" (one indicator each)."""

    categories: tuple[str, ...] = ()
    fill: float = 0.0
    """What stands for a gap in a column that holds no categories: the median of the others."""

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

    def shown(self, value: float) -> str:
        """
        A value of the column as people write it.

        >>> Coding("day", "date").shown(1.0), Coding("t", "duration").shown(1.5)
        ('1970-01-02', '1.5 days')
        """
        if self.kind == "date":
            moment = EPOCH + datetime.timedelta(days=value)
            return moment.isoformat(" ", "minutes").removesuffix(" 00:00")
        return f"{value:g} days" if self.kind == "duration" else f"{value:g}"

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
        gaps_by_name: dict[str, NDArray[np.bool_]] = {}
        complete = np.ones(len(next(iter(columns.values()))), dtype=bool)
        for coding in self.codings:
            values = read_cells(coding.name, coding.kind, columns[coding.name], place)
            gaps = gaps_of(values)
            gaps_by_name[coding.name] = gaps
            complete &= ~gaps
            if self.missing == "refuse" and gaps.any():
                raise TableError(gap_of_new_rows(gaps, coding.name, place))
            if coding.kind == "category":
                remarks += unknown_remarks(coding, values[~gaps] if gaps.any() else values)
            parts.append(coding.encode(values))
        if self.missing == "fill":
            remarks += self.new_gap_remarks(gaps_by_name)
        whole = self.missing != "drop"
        return Encoded(np.hstack(parts), complete | whole, tuple(remarks))

    def typical(self, mean: Numbers) -> Numbers:
        """
        Inputs [D] of a typical row: the most frequent categories, no gap, else the means.

        >>> hue = Coding("hue", "category", ("blue", "red"))
        >>> Encoding((hue, Coding("size", "number")), "refuse").typical(np.array([0.2, 0.8, 3.5]))
        array([0. , 1. , 3.5])

        :param mean: [D], means of encoded rows.
        """
        typical, start = np.where(self.indicators, 0.0, mean), 0
        for coding in self.codings:
            count = len(coding.inputs)
            if coding.kind == "category" and count:
                typical[start + int(np.argmax(mean[start : start + count]))] = 1.0
            start += count
        return typical

    def new_gap_remarks(self, gaps: Mapping[str, NDArray[np.bool_]]) -> list[str]:
        """What to say of gaps that no flag tells of, since the fit has not seen such ones."""
        flags = [gaps[coding.name] for coding in self.codings if coding.flag]
        told = np.any(flags, axis=0) if flags else False
        remarks = []
        for coding in self.codings:
            is_category = coding.kind == "category"
            new = gaps[coding.name] & (GAP not in coding.categories if is_category else ~told)
            if not coding.flag and new.any():
                remarks.append(new_gap_remark(coding, int(new.sum())))
        return remarks

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
        if missing != "fill" and len(gaps) and gaps.all():
            raise TableError(f"Column {name!r} is empty in every row: leave it out (--exclude).")
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


def check_categories(name: str, labels: Sequence[str], num_rows: int) -> None:
    """Raise if a column of words looks like a name of each row."""
    half = num_rows > FEW_ROWS and 2 * len(labels) > num_rows
    if half or len(labels) > MAX_CATEGORIES:
        hint = how_to_write(labels[0])
        raise TableError(
            f"Column {name!r} holds {len(labels)} different categories in {num_rows} rows, for"
            f" example {labels[0][:40]!r}: too many to learn from.{hint}"
            f" {'Or leave' if hint else 'Leave'} the column out (--exclude), or join categories."
        )


# Remarks -------------------------------------------------------------------------------------


def gap_sentence(gaps: NDArray[np.bool_], name: str, place: Place) -> str:
    """Where a cell of an input is empty."""
    rows = np.flatnonzero(gaps)
    more = f"{len(rows)} such cells in the column" if len(rows) > 1 else "NaN"
    return f"{place(int(rows[0]), name)}: the cell is empty ({more})."


def gap_message(gaps: NDArray[np.bool_], name: str, place: Place) -> str:
    """What is wrong with an empty cell of an input in training, and what can be done."""
    return (
        f"{gap_sentence(gaps, name, place)} Say what to do about gaps in"
        ' inputs: --missing-inputs fill (in Python missing_inputs="fill") fills them and adds a'
        " flag, drop leaves their rows out. If the column is to be predicted, make it a target"
        " (--targets); or leave it out (--exclude)."
    )


def gap_of_new_rows(gaps: NDArray[np.bool_], name: str, place: Place) -> str:
    """The same of rows that are to be predicted."""
    return (
        f"{gap_sentence(gaps, name, place)} The model was fitted to inputs without gaps: fill the"
        " cell or leave the row out, or fit again with --missing-inputs fill (in Python"
        ' missing_inputs="fill").'
    )


def new_gap_remark(coding: Coding, count: int) -> str:
    """What to say of gaps in a column that had none in the fit."""
    cells = "cell is" if count == 1 else "cells are"
    taken = (
        "taken as of none of its categories"
        if coding.kind == "category"
        else f"filled with the median of the fit, {coding.shown(coding.fill)}"
    )
    return (
        f"Column {coding.name!r} had no such gap in the fit, so that the model has not learned what"
        f" one means: {count} empty {cells} {taken}."
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
    if type(series.dtype).__name__ == "PeriodDtype":  # months and the like, by their first day
        series = series.dt.to_timestamp()
    kind = getattr(series.dtype, "kind", "O")
    if kind == "M":  # dates, also with a time zone
        series = series.dt.tz_convert(None) if getattr(series.dtype, "tz", None) else series
        return np.asarray(series.to_numpy())
    if kind == "m":
        return np.asarray(series.to_numpy())
    if kind in "biuf":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series.to_numpy(dtype=object))
