"""
What the commands share: errors in one line, options, output, TensorFlow loaded quietly.

Nothing here imports TensorFlow before :func:`load_tensorflow` is called.
"""

import csv
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from ..report.page import without_nan
from ..table.costs import MAX_ROWS
from ..table.files import TableError, read_table
from .wording import in_options, printable

KERNELS = [
    "auto",
    "se",
    "matern52",
    "matern32",
    "matern12",
    "rq",
    "se+linear",
    "matern32+laplacian",
    "linear",
]

LOG_LEVELS = {"TF_CPP_MIN_LOG_LEVEL": "3", "ABSL_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}


# Errors --------------------------------------------------------------------------------------


class Stopped(Exception):
    """The user pressed Ctrl-C; says what was kept."""


@contextmanager
def if_stopped(kept: str) -> Iterator[None]:
    """
    End with exit code 130 at Ctrl-C.

    :param kept: What was written until then.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Stopped(f"stopped by Ctrl-C: {kept}") from interrupt


class OneLine(click.Group):
    """A group of commands that reports an error in one line, with exit code 2."""

    def main(self, *args: Any, **options: Any) -> Any:
        options["standalone_mode"] = False
        try:
            code = super().main(*args, **options)
        except Stopped as stop:
            fail(str(stop), 130)
        except click.exceptions.Abort:
            fail("stopped.", 130)
        except click.exceptions.NoArgsIsHelpError as help_text:
            click.echo(help_text.format_message(), err=True)
            sys.exit(2)
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
    click.echo(f"gpflow-cool: {printable(in_options(' '.join(message.split())))}", err=True)
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
    """Import TensorFlow and the models without a line of output; scikit-learn is not needed yet."""
    with quietly():
        import tensorflow as tf

        from .. import models  # noqa: F401

        tf.constant(0.0)  # looks for devices


# Options -------------------------------------------------------------------------------------


def split_names(value: str) -> list[str]:
    """
    Names with commas between them; one that has a comma itself stands in double quotes.

    >>> split_names('heat, "cold, inside",y*')
    ['heat', 'cold, inside', 'y*']
    """
    return [name.strip() for name in next(csv.reader([value], skipinitialspace=True), []) or [""]]


class Names(click.ParamType):
    """Names of columns, or patterns, with commas between them."""

    name = "a,b,c"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        if isinstance(value, list):
            return value
        names = split_names(value)
        if not all(names):
            self.fail(f"{value!r} has an empty name: put commas between names", param, ctx)
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            self.fail(f"{sorted(twice)[0]!r} is given twice", param, ctx)
        return names

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[Any]:
        """Columns of the file that the command line names already."""
        from click.shell_completion import CompletionItem

        done, _, start = incomplete.rpartition(",")
        # While an option still lacks its value, click keeps what it has not parsed in `args`.
        data = ctx.params.get("data")
        files = [*(data if isinstance(data, tuple) else [data]), *ctx.args]
        try:
            names = read_table(next(file for file in files if file is not None)).names
        except (StopIteration, TableError):
            return []
        head = f"{done}," if done else ""
        taken = done.split(",")
        found = [n for n in names if n.startswith(start) and n not in taken]
        return [CompletionItem(head + name) for name in found]


TRANSFORMS = ("none", "log", "yeo-johnson")


class Transform(click.ParamType):
    """A transform for all targets, or target=transform with commas between them."""

    name = "none|log|yeo-johnson"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str) or value in TRANSFORMS:
            return value
        found = {}
        for part in split_names(value):
            target, equals, kind = part.rpartition("=")
            if not equals or kind not in TRANSFORMS:
                self.fail(
                    f"{part!r} is not one of {', '.join(TRANSFORMS)}, nor TARGET=one of them",
                    param,
                    ctx,
                )
            found[target.strip()] = kind
        return found


class Whole(click.IntRange):
    """A whole number, not too small, and where an end is given not too large."""

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            span = (
                f"of at least {self.min}" if self.max is None else f"from {self.min} to {self.max}"
            )
            self.fail(f"{value!r} is not a whole number {span}", param, ctx)


class Numbers(click.ParamType):
    """Numbers between 0 and 1 with commas between them."""

    name = "p,q"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[float]:
        if isinstance(value, list):
            return value
        try:
            numbers = [float(part) for part in value.split(",")]
        except ValueError:
            numbers = []
        if not numbers or not all(0.0 < number < 1.0 for number in numbers):
            self.fail(f"{value!r}: give numbers between 0 and 1, as 0.05,0.95", param, ctx)
        return numbers


def add(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several decorators as one, so that help shows their options in this order."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_argument = click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
data_argument = click.argument("data", type=click.Path(path_type=Path), metavar="DATA")
files_argument = click.argument(
    "data", type=click.Path(path_type=Path), metavar="DATA...", nargs=-1, required=True
)
force_option = click.option("--force", is_flag=True, help="Replace what is there already.")
table_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help=".csv or .parquet file."
)
restarts_option = click.option(
    "--restarts",
    type=Whole(0),
    default=0,
    help="Number of random parameters to try as a start of training.",
)
output_options = add(
    click.option("--quiet", is_flag=True, help="No progress bar, no text."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)
reading_options = add(
    click.option(
        "--decimal", type=click.Choice([".", ","]), default=".", help="Decimal mark in CSV."
    ),
    click.option(
        "--encoding", help="Encoding of a text file; by default utf-8, or what its mark says."
    ),
)
training_settings = add(
    click.option(
        "--targets",
        type=Names(),
        required=True,
        help="Columns to predict; patterns such as 'y*' serve as well.",
    ),
    click.option("--inputs", type=Names(), help="Columns to predict from; by default all others."),
    click.option(
        "--exclude",
        type=Names(),
        help="Columns that are neither, also where a pattern matches them.",
    ),
    click.option("--categorical", type=Names(), help="Inputs whose numbers are categories."),
    click.option(
        "--missing-inputs",
        type=click.Choice(["refuse", "fill", "drop"]),
        default="refuse",
        show_default=True,
        help="Empty cells of inputs: refuse them, fill them and add a flag, or drop their rows.",
    ),
    click.option(
        "--transform",
        type=Transform(),
        default="none",
        show_default=True,
        help="For skewed targets; also for some only, as rain=log,heat=yeo-johnson.",
    ),
    reading_options,
    click.option(
        "--kernel",
        type=click.Choice(KERNELS),
        default="auto",
        show_default=True,
        help="auto compares all by leave-one-out; se is the smoothest, matern12 the roughest.",
    ),
    click.option(
        "--ard/--no-ard",
        default=None,
        help="Free lengthscales, one per input, or a single one. By default one per input, pulled"
        " towards a common one; with --kernel auto only where that pays.",
    ),
    click.option(
        "--learning",
        type=click.Choice(["approximate", "hierarchical"]),
        default="approximate",
        show_default=True,
        help="Weights between tasks integrated out, or at their maximum.",
    ),
    click.option(
        "--seed",
        type=Whole(0),
        default=0,
        show_default=True,
        help="Seed of all that is random: restarts, folds, draws of missing targets.",
    ),
    click.option("--large", is_flag=True, help=f"Go ahead with more than {MAX_ROWS} rows."),
)
training_options = add(data_argument, training_settings)


class Training(NamedTuple):
    """The values of `training_settings` and `output_options`, and one file."""

    data: Path
    targets: list[str]
    inputs: list[str] | None
    exclude: list[str] | None
    categorical: list[str] | None
    missing_inputs: str
    transform: Any
    decimal: str
    encoding: str | None
    kernel: str
    ard: bool | None
    learning: str
    seed: int
    large: bool
    quiet: bool
    as_json: bool

    @property
    def lengthscales(self) -> bool | str:
        """The estimator's setting `ard`."""
        return "shrunk" if self.ard is None else self.ard


# Places and output ------------------------------------------------------------------------------


def check_model(model: Path) -> None:
    """Raise if a folder is no saved model."""
    if not (model / "model.json").is_file():
        what = "is a file, not a folder" if model.exists() else "is not there"
        what = "holds no saved model" if model.is_dir() else what
        raise TableError(f"{model} {what}: pass a folder that `gpflow-cool fit` wrote.")


def load_model(model: Path) -> Any:
    """The estimator in a folder."""
    load_tensorflow()
    from ..loading import load
    from ..table.estimator import CoolMTGPRegressor

    regressor = load(model)
    if not isinstance(regressor, CoolMTGPRegressor):
        raise TableError(
            f"{model} holds a {type(regressor).__name__} that Python code saved: use it from there,"
            " with gpflow_cool.load."
        )
    return regressor


def written(out: Path) -> str:
    """Where a file was written, with all its folders, some of which may be new."""
    return f"written to {os.path.abspath(out)}"


def note(line: str, quiet: bool = False) -> None:
    """Print a remark to standard error."""
    if not quiet:
        click.echo(printable(in_options(line)), err=True)


def say(result: dict[str, Any], lines: Sequence[str], quiet: bool, as_json: bool) -> None:
    """Print a result as JSON, with null for what is not a number, or as text."""
    if as_json:
        click.echo(json.dumps(without_nan(result), indent=1, allow_nan=False))
    elif not quiet:
        click.echo(printable(in_options("\n".join(lines))))
