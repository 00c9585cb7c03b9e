"""The tables of the commands: checked before work, and the columns that are written."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..chain.variation import is_constant
from ..table import costs
from ..table.files import FileTable, TableError, read_table
from .console import Training, note


class TrainingTable(NamedTuple):
    """The part of a table that a fit needs."""

    table: FileTable
    inputs: list[str]
    targets: list[str]
    X: Any
    Y: Any
    """NaN where a cell is empty."""

    @property
    def gaps(self) -> dict[str, int]:
        """How many cells of each target are empty."""
        return dict(zip(self.targets, np.isnan(self.Y).sum(axis=0).tolist(), strict=True))

    def gaps_line(self) -> str:
        """The gaps in words."""
        parts = [f"{count} of {name}" for name, count in self.gaps.items() if count]
        return f"Empty cells of {len(self.Y)} rows, taken as missing: {', '.join(parts)}."


def training_table(given: Training) -> TrainingTable:
    """Inputs and targets, checked to be good for a fit; cells of targets may be empty."""
    data, targets = given.data, given.targets
    table = read_table(data)
    Y = table.numbers(targets, allow_missing=True)
    names = given.inputs or [name for name in table.names if name not in targets]
    both = [name for name in names if name in targets]
    if both:
        raise TableError(f"Column {both[0]!r} is both an input and a target: choose.")
    if not names:
        raise TableError(f"{data} has no column left to predict from: every one is a target.")
    X = table.numbers(names)
    if len(X) < 2:
        raise TableError(f"{data} has one row: a model needs at least two, and better twenty.")
    check_variation(table, targets, Y)
    found = TrainingTable(table, names, targets, X, Y)
    if np.isnan(Y).any() and given.learning == "approximate":
        raise TableError(
            f"{data}: {found.gaps_line()} --learning approximate cannot do without them: use"
            " --learning hierarchical."
        )
    return found


def check_variation(table: FileTable, targets: Sequence[str], Y: Any) -> None:
    """Raise if a target never changes, or has no numbers."""
    for name, column in zip(targets, Y.T, strict=True):
        known = column[~np.isnan(column)]
        if not len(known):
            raise TableError(
                f"{table.path}: every cell of target {name!r} is empty. There is nothing to learn"
                " from: leave it out."
            )
        if is_constant(known.min(), known.max()):
            where = "every row" if len(known) == len(column) else "every row that has it"
            raise TableError(
                f"{table.path}: target {name!r} is {known[0]:g} in {where}. There is nothing to"
                " learn: leave it out."
            )


def check_size(num_rows: int, given: Training, fits: int) -> None:
    """Tell what many rows will cost, and raise unless that is wanted."""
    if num_rows <= costs.MAX_ROWS:
        return
    cost = costs.fit_cost(num_rows, fits)
    if not given.large:
        raise TableError(
            f"{num_rows} rows will take {cost}, since time grows with the cube of the rows and"
            " memory with their square. Use fewer rows, or say --large to go ahead."
        )
    note(f"{num_rows} rows: this will take {cost}.", given.quiet)


def inducing_points(found: TrainingTable, given: Training, inducing: int | None, fits: int) -> int:
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


def known_targets(names: Sequence[str], table: FileTable, given: Sequence[str] | None) -> Any:
    """[M, T], the targets that a table knows; NaN where one is to be predicted."""
    known = np.full([table.num_rows, len(names)], np.nan)
    for name in given or []:
        if name not in names:
            raise TableError(f"--given {name}: the model's targets are {', '.join(names)}.")
        known[:, names.index(name)] = table.numbers([name], allow_missing=True)[:, 0]
    return known


def prediction_columns(
    names: Sequence[str], mean: Any, std: Any, S: Any, cov: bool
) -> dict[str, Any]:
    """
    Columns of the file of predictions.

    :param S: Covariances between targets, [M T, T] or [M, T, T].
    :param cov: Whether to write them.
    """
    mean, std = np.asarray(mean), np.asarray(std)
    S = np.reshape(S, [len(mean), len(names), len(names)])
    values = [column for part in zip(mean.T, std.T, strict=True) for column in part]
    if cov:
        values += [S[:, t, u] for t, u in pairs_of(len(names))]
    return dict(zip(prediction_names(names, cov), values, strict=True))


def pairs_of(count: int) -> list[tuple[int, int]]:
    """Pairs of different numbers below `count`."""
    return [(t, u) for t in range(count) for u in range(t + 1, count)]


def prediction_names(targets: Sequence[str], cov: bool) -> list[str]:
    """
    Names of the columns of predictions: each target, its deviation, and covariances of pairs.

    :raises TableError: If two of them would have the same name.
    """
    names = [name for target in targets for name in (target, f"{target}_std")]
    if cov:
        names += [f"cov_{targets[t]}_{targets[u]}" for t, u in pairs_of(len(targets))]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        hint = "leave out --cov, or rename" if twice[0].startswith("cov_") else "rename"
        raise TableError(
            f"Two columns of predictions would be called {twice[0]!r}, since a target NAME gets the"
            f" columns NAME and NAME_std, and --cov adds cov_NAME_OTHER: {hint} a target in the"
            " table, and fit again."
        )
    return names


def completed_columns(found: TrainingTable, completed: Any, std: Any) -> dict[str, Any]:
    """The table with its targets completed, and one column of standard deviations per target."""
    columns: dict[str, Any] = dict(found.table.columns)
    columns.update(zip(found.inputs, found.X.T, strict=True))
    columns.update(zip(found.targets, np.asarray(completed).T, strict=True))
    columns.update(zip((f"{name}_std" for name in found.targets), np.asarray(std).T, strict=True))
    return columns


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
