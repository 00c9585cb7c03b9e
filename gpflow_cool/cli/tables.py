"""The tables of the commands: checked before work, and the columns that are written."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from ..table import costs
from ..table.cells import read_cells
from ..table.encoding import Encoding, learn_encoding
from ..table.files import FileTable, TableError, check_names, did_you_mean, read_table
from ..table.sentinels import sentinel_lines
from ..variation import is_constant
from .console import Training, note

PATTERN_SIGNS = "*?["
"""A name with one of these may be a pattern."""


class TrainingTable(NamedTuple):
    """The part of a table that a fit needs."""

    table: FileTable
    inputs: list[str]
    targets: list[str]
    encoding: Encoding
    """How the inputs become numbers."""

    kept: Any
    """[N], the rows of the table that are used; all but those with gaps that are to be dropped."""

    X: Any
    """Encoded inputs of these rows."""

    Y: Any
    """Their targets, NaN where a cell is empty."""

    @property
    def gaps(self) -> dict[str, int]:
        """How many cells of each target are empty."""
        return dict(zip(self.targets, np.isnan(self.Y).sum(axis=0).tolist(), strict=True))

    def gaps_line(self) -> str:
        """The gaps in words."""
        parts = [f"{count} of {name}" for name, count in self.gaps.items() if count]
        return f"Empty cells of {len(self.Y)} rows, taken as missing: {', '.join(parts)}."

    def cells(self, name: str) -> Any:
        """Cells of a column in the rows that are used."""
        column = self.table.columns[name]
        return [column[row] for row in np.flatnonzero(self.kept)]

    def labels(self) -> Any:
        """Labels of the rows that are used."""
        return [(self.table.labels or [])[row] for row in np.flatnonzero(self.kept)]

    def input_columns(self) -> dict[str, Any]:
        """Inputs as the estimator takes them: numbers as such, other cells as they are."""
        return {
            coding.name: read_cells(
                coding.name, coding.kind, self.cells(coding.name), self.table.place
            )
            if coding.kind == "number"
            else self.cells(coding.name)
            for coding in self.encoding.codings
        }


def chosen(patterns: Sequence[str], table: FileTable) -> list[str]:
    """The columns that are named, or that match a pattern such as 'y*'; each once."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = matching(pattern, table.names)
        if not matches and any(sign in pattern for sign in PATTERN_SIGNS):
            raise TableError(f"{table.path} has no column that matches {pattern!r}.")
        if not matches:
            check_names([pattern], table)
        found.update(dict.fromkeys(matches))
    return list(found)


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The name itself, if it is one of them, else those that match it as a pattern."""
    if pattern in names:
        return [pattern]
    is_pattern = any(sign in pattern for sign in PATTERN_SIGNS)
    return [name for name in names if is_pattern and fnmatchcase(name, pattern)]


def not_excluded(patterns: Sequence[str], table: FileTable, given: Training) -> list[str]:
    """The columns that are named, and of those that match a pattern the ones not excluded."""
    excluded = chosen(given.exclude or [], table)
    both = [name for name in patterns if name in excluded and name in (given.exclude or [])]
    if both:
        raise TableError(f"Column {both[0]!r} is asked for, and excluded (--exclude): choose.")
    return [name for name in chosen(patterns, table) if name in patterns or name not in excluded]


def target_names(table: FileTable, given: Training) -> list[str]:
    """The columns to predict."""
    names = not_excluded(given.targets, table, given)
    if not names:
        raise TableError(
            f"{table.path} has no target left: all columns that match --targets are excluded"
            " (--exclude)."
        )
    return names


def input_names(table: FileTable, given: Training, targets: Sequence[str]) -> list[str]:
    """The columns to predict from."""
    if given.inputs is None:
        excluded = {*targets, *chosen(given.exclude or [], table)}
        names = [name for name in table.names if name not in excluded]
    else:
        both = [name for name in given.inputs if name in targets]
        if both:
            raise TableError(f"Column {both[0]!r} is both an input and a target: choose.")
        names = [n for n in not_excluded(given.inputs, table, given) if n not in targets]
    if not names:
        raise TableError(
            f"{table.path} has no column left to predict from: every one is a target, or excluded."
        )
    return names


def training_table(given: Training, apart: Sequence[str] = ()) -> TrainingTable:
    """
    Inputs and targets, checked to be good for a fit; cells of targets may be empty.

    :param apart: Columns that are not inputs unless they are named as such.
    """
    table = read_table(given.data, encoding=given.encoding, decimal=given.decimal)
    targets = target_names(table, given)
    Y = table.numbers(targets, allow_missing=True)
    if given.inputs is None and apart:
        check_names(apart, table)
        given = given._replace(exclude=[*(given.exclude or []), *apart])
    names = input_names(table, given, targets)
    if table.num_rows < 2:
        raise TableError(
            f"{given.data} has one row: a model needs at least two, and better twenty."
        )
    categorical = chosen(given.categorical or [], table)
    columns = table.cells_of(names, categorical)
    encoding = learn_encoding(columns, given.missing_inputs, table.place, categorical)
    encoded = encoding.encode(columns, table.place)
    note_dropped(encoded.kept, given)
    found = TrainingTable(
        table, names, targets, encoding, encoded.kept, encoded.X[encoded.kept], Y[encoded.kept]
    )
    check_training(found, given)
    return found


def note_dropped(kept: Any, given: Training) -> None:
    """Tell how many rows are left out, if any is; raise if too few are left."""
    count = int(np.sum(~kept))
    if np.sum(kept) < 2:
        raise TableError(
            f"{given.data}: {np.sum(kept)} of {len(kept)} rows have no empty cell in the inputs."
            " Say --missing-inputs fill, or leave out columns with many gaps (--exclude)."
        )
    if count:
        note(
            f"{count} of {len(kept)} rows have an empty cell in the inputs and are left out.",
            given.quiet,
        )


def check_training(found: TrainingTable, given: Training) -> None:
    """Raise if the targets are not good for a fit as it is asked for; tell what is doubtful."""
    check_variation(found.table, found.targets, found.Y, given.quiet)
    check_transform(found, given.transform)
    columns, names = np.hstack([found.X, found.Y]), [*found.encoding.inputs, *found.targets]
    for line in sentinel_lines(columns, names):
        note(line, given.quiet)


def check_transform(found: TrainingTable, transform: Any) -> None:
    """Raise if a transform is for no target, or a target has no logarithm."""
    kinds = transform if isinstance(transform, dict) else dict.fromkeys(found.targets, transform)
    for name, kind in kinds.items():
        if name not in found.targets:
            known, meant = ", ".join(found.targets), did_you_mean(name, found.targets)
            raise TableError(f"--transform {name}: the targets are {known}.{meant}")
        rows = np.flatnonzero(found.Y[:, found.targets.index(name)] <= 0.0)
        if kind == "log" and len(rows):
            row = int(np.flatnonzero(found.kept)[rows[0]])
            raise TableError(
                f"{found.table.place(row, name)}: the number is not positive, and has no logarithm."
                " Say --transform yeo-johnson, which takes any number."
            )


def check_variation(table: FileTable, targets: Sequence[str], Y: Any, quiet: bool) -> None:
    """Raise if a target has no numbers; tell which never change."""
    for name, column in zip(targets, Y.T, strict=True):
        known = column[~np.isnan(column)]
        if not len(known):
            raise TableError(
                f"{table.path}: every cell of target {name!r} is empty. There is nothing to learn"
                " from: leave it out."
            )
        if is_constant(known.min(), known.max()):
            where = "every row" if len(known) == len(column) else "every row that has it"
            note(
                f"Target {name!r} is {known[0]:g} in {where}: there is nothing to learn, and it"
                " is predicted to stay so. Better leave it out.",
                quiet,
            )


def check_size(num_rows: int, given: Training, fits: int = 1) -> None:
    """Tell what many rows will cost, and raise unless that is wanted."""
    if num_rows <= costs.MAX_ROWS:
        return
    cost = costs.fit_cost(num_rows, fits)
    if not given.large:
        raise TableError(
            f"{num_rows} rows will take {cost}, since time grows with the cube of the rows and"
            " memory with their square. Use fewer rows, or say --large to go ahead."
        )
    if cost.gigabytes > costs.machine_gigabytes():
        raise TableError(
            f"{num_rows} rows would take {cost}, but this machine has"
            f" {costs.machine_gigabytes():.0f} GB. Leave out --large, or use fewer rows."
        )
    note(f"{num_rows} rows: this will take {cost}.", given.quiet)


def inducing_points(
    found: TrainingTable, given: Training, inducing: int | None, fits: int = 1
) -> int:
    """How many inducing points a fit has, 0 for the exact model; says so where rows are many."""
    num_rows, num_missing = len(found.X), int(np.isnan(found.Y).any(axis=1).sum())
    if inducing is not None:
        if num_missing:
            raise TableError(
                f"{costs.missing_sentence(num_rows, num_missing, inducing)} Leave out --inducing"
                " (with many rows, say --large), or drop these rows, or fill the cells."
            )
        return inducing
    linear = given.kernel == "linear" or is_big_grid(found.X, given)
    if given.large:
        if not linear:
            check_size(num_rows, given, fits)
        return 0
    points = costs.default_inducing(num_rows, linear)
    if points and num_missing:
        raise TableError(
            f"{costs.missing_sentence(num_rows, num_missing, points)} Say --large for the exact"
            f" model, which would take {costs.fit_cost(num_rows, fits)}, or drop these rows, or"
            " fill the cells."
        )
    if points and not given.quiet:
        note(
            f"{costs.inducing_sentence(num_rows, points)} Say --inducing M for another number, or"
            f" --large for the exact model, which would take {costs.fit_cost(num_rows, fits)}."
        )
    return points


def is_big_grid(X: Any, given: Training) -> bool:
    """
    Whether many rows are a grid that the exact model knows how to use; says so.

    Of the kernels that have a name, the squared exponential is a product over the axes.
    """
    if given.kernel not in ("auto", "se") or len(X) <= costs.MAX_ROWS:
        return False
    from gpflow.kernels import SquaredExponential

    from ..grid.kernels import grid_that_pays

    grid = grid_that_pays(SquaredExponential(), X)
    if grid is not None:
        shape = " x ".join(map(str, grid.shape))
        note(f"{len(X)} rows are a grid of {shape} points: the exact model.", given.quiet)
    return grid is not None


def completed_columns(
    found: TrainingTable, completed: Any, std: Any, digits: int | None
) -> dict[str, Any]:
    """
    The table with its targets completed, and one column of standard deviations per target.

    :param digits: For CSV: cells of the table stay as they are, and what is filled in has as many
        decimals as give the smallest deviation of its target so many digits. None for numbers.
    """
    if digits is not None:
        found = found._replace(table=found.table.as_written())
    labels = {} if found.table.labels is None else {"": found.labels()}
    columns: dict[str, Any] = {**labels, **{name: found.cells(name) for name in found.table.names}}
    if digits is None:
        columns |= found.input_columns()
    deviations = {}
    for name, was, values, spread in zip(
        found.targets, found.Y.T, np.asarray(completed).T, np.asarray(std).T, strict=True
    ):
        if digits is not None:
            decimals = decimals_for(spread, digits)
            spread, rounded = np.round(spread, decimals), np.round(values, decimals).tolist()
            cells = zip(columns[name], rounded, np.isnan(was), strict=True)
            values = [new if is_gap else cell for cell, new, is_gap in cells]
        columns[name], deviations[f"{name}_std"] = values, spread
    return columns | deviations


def decimals_for(std: Any, digits: int) -> int:
    """
    How many decimals show so many digits of the smallest deviation that is above zero.

    >>> decimals_for(np.array([0.0, 0.0123, 5.0]), 4)
    5
    """
    smallest = np.min(std, where=std > 0.0, initial=np.inf)
    return min(digits - 1 - int(np.floor(np.log10(smallest))), 300) if smallest < np.inf else 17


def check_gaps(found: TrainingTable) -> None:
    """Raise unless a cell is empty and the names of the new columns are free."""
    if not any(found.gaps.values()):
        raise TableError(
            f"{found.table.path} has no empty cell in {', '.join(found.targets)}: there is nothing"
            " to fill in."
        )
    taken = [f"{name}_std" for name in found.targets if f"{name}_std" in found.table.names]
    if taken:
        raise TableError(
            f"{found.table.path} has a column {taken[0]!r}, where a standard deviation would go:"
            " rename it."
        )
