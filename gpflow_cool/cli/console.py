"""
What the commands share: errors in one line, options, checked tables, TensorFlow loaded quietly.

Nothing here imports TensorFlow before :func:`load_tensorflow` is called.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import numpy as np

from ..chain.variation import is_constant
from ..table import costs
from ..table.costs import MAX_ROWS
from ..table.files import FileTable, TableError, check_folder, read_table

LOG_LEVELS = {"TF_CPP_MIN_LOG_LEVEL": "3", "ABSL_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}


# Errors --------------------------------------------------------------------------------------


class OneLine(click.Group):
    """A group of commands that reports an error in one line, with exit code 2."""

    def main(self, *args: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        try:
            code = super().main(*args, **options)
        except click.exceptions.Abort:
            fail("stopped.", 130)
        except click.ClickException as error:
            fail(error.format_message(), 2)
        except (ValueError, OSError, ImportError) as error:
            fail(message_of(error), 2)
        except RuntimeError as error:  # training that failed in every attempt
            fail(str(error), 1)
        sys.exit(code if isinstance(code, int) else 0)


def message_of(error: Exception) -> str:
    """What an error says; for one of the operating system, the file and the reason."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}."
    return str(error)


def fail(message: str, code: int) -> NoReturn:
    """End with one line."""
    click.echo(f"gpflow-cool: {' '.join(message.split())}", err=True)
    sys.exit(code)


@contextmanager
def quietly() -> Iterator[None]:
    """
    Import TensorFlow without the lines that it writes to standard error.

    They come from C++ and bypass Python's streams, so the file descriptor itself is redirected.
    """
    for name, value in LOG_LEVELS.items():
        os.environ.setdefault(name, value)
    if "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def load_tensorflow() -> None:
    """Import TensorFlow and the estimator without a line of output."""
    with quietly():
        import tensorflow as tf

        from ..table import estimator  # noqa: F401

        tf.constant(0.0)  # looks for devices


# Options -------------------------------------------------------------------------------------


class Names(click.ParamType):
    """Names of columns with commas between them."""

    name = "a,b,c"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        if isinstance(value, list):
            return value
        names = [name.strip() for name in value.split(",")]
        if not all(names):
            self.fail(f"{value!r} has an empty name between its commas", param, ctx)
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            self.fail(f"{sorted(twice)[0]!r} is given twice", param, ctx)
        return names

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[Any]:
        """Columns of the file that the command line names already."""
        from click.shell_completion import CompletionItem

        done, _, start = incomplete.rpartition(",")
        # While an option still lacks its value, click keeps what it has not parsed in `args`.
        files = [ctx.params.get("data"), *ctx.args]
        try:
            names = read_table(next(file for file in files if file is not None)).names
        except (StopIteration, TableError):
            return []
        head = f"{done}," if done else ""
        taken = done.split(",")
        found = [n for n in names if n.startswith(start) and n not in taken]
        return [CompletionItem(head + name) for name in found]


def add(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several decorators as one, so that help shows their options in this order."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_argument = click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
data_argument = click.argument("data", type=click.Path(path_type=Path), metavar="DATA")
force_option = click.option("--force", is_flag=True, help="Replace what is there already.")
table_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help=".csv or .parquet file."
)
restarts_option = click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    help="Number of further fits from random parameters; the best is kept.",
)
output_options = add(
    click.option("--quiet", is_flag=True, help="No progress bar, no text."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)
training_options = add(
    data_argument,
    click.option("--targets", type=Names(), required=True, help="Columns to predict."),
    click.option("--inputs", type=Names(), help="Columns to predict from; by default all others."),
    click.option(
        "--kernel",
        type=click.Choice(["se", "matern12", "matern32", "matern52", "linear"]),
        default="se",
        show_default=True,
        help="Smoothness of the functions: se is the smoothest, matern12 the roughest.",
    ),
    click.option("--ard", is_flag=True, help="One lengthscale per input."),
    click.option(
        "--learning",
        type=click.Choice(["hierarchical", "approximate"]),
        default="hierarchical",
        show_default=True,
        help="Weights between tasks at their maximum, or integrated out.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
    click.option("--large", is_flag=True, help=f"Go ahead with more than {MAX_ROWS} rows."),
)


class Training(NamedTuple):
    """The values of `training_options` and `output_options`."""

    data: Path
    targets: list[str]
    inputs: list[str] | None
    kernel: str
    ard: bool
    learning: str
    seed: int
    large: bool
    quiet: bool
    as_json: bool


# Tables --------------------------------------------------------------------------------------


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


def inducing_points(num_rows: int, given: Training, inducing: int | None, fits: int) -> int:
    """How many inducing points a fit has, 0 for the exact model; says so where rows are many."""
    if inducing is not None:
        return inducing
    linear = given.kernel == "linear"
    if given.large:
        if not linear:
            check_size(num_rows, given, fits)
        return 0
    points = costs.default_inducing(num_rows, linear)
    if points and not given.quiet:
        note(
            f"{costs.inducing_sentence(num_rows, points)} Say --inducing M for another number, or"
            f" --large for the exact model, which would take {costs.fit_cost(num_rows, fits)}."
        )
    return points


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
    columns = {}
    for t, name in enumerate(names):
        columns[name] = mean[:, t]
        columns[f"{name}_std"] = std[:, t]
    if cov:
        pairs = [(t, u) for t in range(len(names)) for u in range(t + 1, len(names))]
        columns.update({f"cov_{names[t]}_{names[u]}": S[:, t, u] for t, u in pairs})
    return columns


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


# Places and output ------------------------------------------------------------------------------


def check_writable(out: Path) -> None:
    """Raise if a folder cannot be made there."""
    check_folder(next(parent for parent in Path(os.path.abspath(out)).parents if parent.exists()))


def check_model(model: Path) -> None:
    """Raise if a folder is no saved model."""
    if not (model / "model.json").is_file():
        what = "holds no saved model" if model.is_dir() else "is not there"
        raise TableError(f"{model} {what}: pass a folder that `gpflow-cool fit` wrote.")


def note(line: str, quiet: bool = False) -> None:
    """Print a remark to standard error."""
    if not quiet:
        click.echo(line, err=True)


def say(result: dict[str, Any], lines: Sequence[str], quiet: bool, as_json: bool) -> None:
    """Print a result as JSON or as text."""
    if as_json:
        click.echo(json.dumps(result, indent=1))
    elif not quiet:
        click.echo("\n".join(lines))
