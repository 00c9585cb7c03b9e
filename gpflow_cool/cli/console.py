"""
What the commands share: one line for a mistake, TensorFlow in silence, options, checked tables.

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

from ..lowrank import DEFAULT_POINTS
from ..table.costs import MAX_ROWS, fit_cost
from ..table.files import Table, TableError, check_folder, read_table

LOG_LEVELS = {"TF_CPP_MIN_LOG_LEVEL": "3", "ABSL_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}


# Mistakes ------------------------------------------------------------------------------------


class OneLine(click.Group):
    """A group of commands that tells of a mistake in one line, with exit code 2."""

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
    """What an error says; of the operating system's, the file and the reason."""
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

    They come from C++, past Python's streams, so that the file descriptor itself is turned away.
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
    """Import all that the commands share, and let it look for devices, in silence."""
    with quietly():
        import tensorflow as tf

        from ..table import estimator  # noqa: F401

        tf.constant(0.0)


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
        """Columns of the file that stands on the command line already."""
        from click.shell_completion import CompletionItem

        done, _, start = incomplete.rpartition(",")
        # Where an option still lacks its value, click leaves what it has not parsed in `args`.
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
    """Several options as one, in the order in which help shows them."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_argument = click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
data_argument = click.argument("data", type=click.Path(path_type=Path), metavar="DATA")
force_option = click.option("--force", is_flag=True, help="Replace what is there already.")
saying_options = add(
    click.option("--quiet", is_flag=True, help="No progress bar, no text."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)
column_options = add(
    click.option("--targets", type=Names(), required=True, help="Columns to predict."),
    click.option("--inputs", type=Names(), help="Columns to predict from; all others if left out."),
)
model_options = add(
    click.option(
        "--kernel",
        type=click.Choice(["se", "matern12", "matern32", "matern52", "linear"]),
        default="se",
        show_default=True,
        help="Smoothness of the functions: se is the smoothest, matern12 the roughest.",
    ),
    click.option("--ard", is_flag=True, help="A lengthscale of its own for each input."),
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


# Tables --------------------------------------------------------------------------------------


class TrainingTable(NamedTuple):
    """What a fit needs of a table."""

    table: Table
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
        """The same in words."""
        parts = [f"{count} of {name}" for name, count in self.gaps.items() if count]
        return f"Empty cells of {len(self.Y)} rows, taken as missing: {', '.join(parts)}."


def training_table(
    data: Path, targets: Sequence[str], inputs: Sequence[str] | None, learning: str
) -> TrainingTable:
    """Inputs and targets, checked to be good for a fit; cells of targets may be empty."""
    table = read_table(data)
    Y = table.numbers(targets, allow_missing=True)
    names = [n for n in table.names if n not in targets] if inputs is None else list(inputs)
    both = [name for name in names if name in targets]
    if both:
        raise TableError(f"Column {both[0]!r} is both an input and a target: choose.")
    if not names:
        raise TableError(f"{data} has no column left to predict from: every one is a target.")
    X = table.numbers(names)
    if len(X) < 2:
        raise TableError(f"{data} has one row: a model needs at least two, and better twenty.")
    check_variation(table, targets, Y)
    found = TrainingTable(table, names, list(targets), X, Y)
    if np.isnan(Y).any() and learning == "approximate":
        raise TableError(
            f"{data}: {found.gaps_line()} --learning approximate cannot do without them: use"
            " --learning hierarchical."
        )
    return found


def check_variation(table: Table, targets: Sequence[str], Y: Any) -> None:
    """Raise if a target never changes, or has no numbers."""
    for name, column in zip(targets, Y.T, strict=True):
        known = column[~np.isnan(column)]
        if not len(known):
            raise TableError(
                f"{table.path}: every cell of target {name!r} is empty. There is nothing to learn"
                " from: leave it out."
            )
        if np.ptp(known) <= 1e-14 * np.max(np.abs(known)):
            where = "every row" if len(known) == len(column) else "every row that has it"
            raise TableError(
                f"{table.path}: target {name!r} is {known[0]:g} in {where}. There is nothing to"
                " learn: leave it out."
            )


def check_size(num_rows: int, large: bool, quiet: bool, fits: int = 1) -> None:
    """Tell what many rows will cost, and go on only if that is wanted."""
    if num_rows <= MAX_ROWS:
        return
    cost = fit_cost(num_rows, fits)
    if not large:
        raise TableError(
            f"{num_rows} rows will take {cost}, since time grows with the cube of the rows and"
            " memory with their square. Use fewer rows, or say --large to go ahead."
        )
    if not quiet:
        click.echo(f"{num_rows} rows: this will take {cost}.", err=True)


def inducing_points(
    num_rows: int, kernel: str, inducing: int | None, large: bool, quiet: bool, fits: int
) -> int:
    """How many inducing points a fit has, 0 for the exact model; says so where rows are many."""
    if inducing is not None:
        return inducing
    if large and kernel != "linear":
        check_size(num_rows, large, quiet, fits)
    if large or num_rows <= MAX_ROWS or kernel == "linear":
        return 0
    if not quiet:
        click.echo(
            f"{num_rows} rows are more than {MAX_ROWS}: they are seen through {DEFAULT_POINTS}"
            " inducing points, an approximation. Say --inducing M for another number, or --large"
            f" for the exact model, which would take {fit_cost(num_rows, fits)}.",
            err=True,
        )
    return DEFAULT_POINTS


def known_targets(names: Sequence[str], table: Table, given: Sequence[str] | None) -> Any:
    """[M, T], NaN where a target is asked for."""
    known = np.full([table.num_rows, len(names)], np.nan)
    for name in given or []:
        if name not in names:
            raise TableError(f"--given {name}: the model's targets are {', '.join(names)}.")
        known[:, names.index(name)] = table.numbers([name], allow_missing=True)[:, 0]
    return known


def prediction_columns(
    names: Sequence[str], mean: Any, std: Any, S: Any, cov: bool
) -> dict[str, Any]:
    """Columns of the file of predictions; `S` is [M T, T] or [M, T, T]."""
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
    """The table with its targets completed, and a column of standard deviations for each."""
    columns: dict[str, Any] = dict(found.table.columns)
    columns.update(zip(found.inputs, found.X.T, strict=True))
    columns.update(zip(found.targets, completed.T, strict=True))
    columns.update({f"{n}_std": s for n, s in zip(found.targets, std.T, strict=True)})
    return columns


def check_gaps(found: TrainingTable) -> None:
    """Raise unless there is something to fill in, and names for the deviations."""
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


# Places and answers -----------------------------------------------------------------------------


def check_writable(out: Path) -> None:
    """Raise, before the work, if a folder cannot be made there."""
    check_folder(next(parent for parent in Path(os.path.abspath(out)).parents if parent.exists()))


def check_model(model: Path) -> None:
    """Raise at once if a folder is no saved model."""
    if not (model / "model.json").is_file():
        what = "holds no saved model" if model.is_dir() else "is not there"
        raise TableError(f"{model} {what}: pass a folder that `gpflow-cool fit` wrote.")


def say(result: dict[str, Any], lines: Sequence[str], quiet: bool, as_json: bool) -> None:
    """Print a result as it is wanted."""
    if as_json:
        click.echo(json.dumps(result, indent=1))
    elif not quiet:
        click.echo("\n".join(lines))
