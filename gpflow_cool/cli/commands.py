"""
The command line: ``gpflow-cool fit | predict | impute | evaluate | report | map | demo | study``.

Everything that needs TensorFlow is imported inside the commands, after the arguments and the table
are checked, so that ``--help`` and a wrong column are answered at once. A user's mistake gives one
line and exit code 2.
"""

import os
import time
import warnings
from pathlib import Path
from typing import Any

import click

from ..saving.files import write_with_folders
from ..saving.folder import check_place
from ..systems import DEFAULT_POINTS
from ..table.costs import DEFAULT_ORDERS, MAX_ROWS
from ..table.files import TableError
from ..table.marks import counted
from ..table.writing import check_output, check_writable, write_table
from . import console, streams, tables
from .columns import prediction_names
from .console import Training, if_stopped, load_model, load_tensorflow, note, say
from .evaluating import evaluate
from .maps import map_command
from .predicting import DIGITS, NOTHING, TABLES, predict
from .streams import TrainingStream
from .tables import TrainingTable

EPILOG = """
\b
Examples:
  gpflow-cool fit data.csv --targets heat,cold --out model
  gpflow-cool fit folder/*.parquet --targets heat,cold --out model
  gpflow-cool predict model new.csv --out predictions.csv --cov
  gpflow-cool impute data.csv --targets heat,cold --out completed.csv
  gpflow-cool evaluate data.csv --targets heat,cold
  gpflow-cool report model
  gpflow-cool map model --x lon --y lat --out map.png

\b
Shell completion, for bash (zsh and fish likewise):
  eval "$(_GPFLOW_COOL_COMPLETE=bash_source gpflow-cool)"
"""

STUDY_HELP = """\
usage: gpflow-cool study NAME [--quick] [--out OUT] [--seed SEED] [--data DATA] ...

Run one of the paper's experiments, or continue it. `gpflow-cool study NAME --help` lists the options of one.

  synthetic    The paper's synthetic benchmark: fifteen tasks whose covariances have rank R, linear kernel.
  permutation  Does the order of the tasks matter? Four random orders, beside the tasks' own.
  variance     The paper's study of predictive variances: two tasks with correlated noise, inputs in two clusters.
  real         The paper's benchmark on real data: the Mulan regression sets, with linear and SE kernels.
  runtime      Time and error against the number of training rows: scm20d, four tasks, linear kernel.
  results      write a page from the results of the studies"""  # noqa: E501
"""Here, since the studies need TensorFlow; a test compares it with them."""


@click.group(
    cls=console.OneLine, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="gpflow_cool", prog_name="gpflow-cool")
def main() -> None:
    """
    Multitask Gaussian process regression for tables.

    Several columns are predicted at once, with the covariances between them and between their
    noises.
    DATA is a CSV (or .tsv), Parquet or ARFF file with a header, for `fit` also several Parquet
    files; MODEL is a folder that `fit` wrote.
    """


main.add_command(predict)
main.add_command(evaluate)


# Commands ------------------------------------------------------------------------------------


@main.command()
@console.files_argument
@console.training_settings
@click.option(
    "--inducing",
    type=console.Whole(1),
    help=f"Inducing points; by default {DEFAULT_POINTS} beyond {MAX_ROWS} rows, else none.",
)
@click.option(
    "--orders",
    type=console.Whole(1),
    default=DEFAULT_ORDERS,
    show_default=True,
    help="Orders of the targets over which C and Sigma are averaged; 1 keeps the trained chain.",
)
@console.restarts_option
@click.option("--no-standardize", is_flag=True, help="Leave the columns in their own units.")
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Folder to log training to.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--report", type=click.Path(path_type=Path), help="HTML page to write as well.")
@console.force_option
@console.output_options
def fit(
    data: tuple[Path, ...],
    inducing: int | None,
    orders: int,
    restarts: int,
    no_standardize: bool,
    tensorboard: Path | None,
    out: Path,
    report: Path | None,
    force: bool,
    **options: Any,
) -> None:
    """
    Train a model on DATA and write it to a folder.

    Empty cells of targets count as missing. Columns of words become one input per category, and
    dates become days. A column without a name, as pandas writes its index, is not an input.

    Several Parquet files, a folder of them, or one with more than 100000 rows are read in chunks:
    they need not fit into memory. Their columns must hold numbers, without empty cells.

    \b
      gpflow-cool fit data.csv --targets heat,cold --kernel matern52 --ard --out model
      gpflow-cool fit data.csv --targets 'y*' --exclude id --missing-inputs fill --out model
      gpflow-cool fit folder/*.parquet --targets heat,cold --inducing 200 --out model
    """
    given = Training(data=data[0], **options)
    found = streams.training_stream(data, given) or tables.training_table(given)
    prediction_names(found.targets)
    check_writable(out)
    check_place(out, force)
    if report is not None:
        check_report(report, out, force)
    points = inducing_points(found, given, inducing)
    load_tensorflow()
    from ..table.summary import fit_lines, fit_summary

    settings = {"inducing": points, "orders": orders, "restarts": restarts}
    started = time.perf_counter()
    with if_stopped(NOTHING):
        regressor = train(given, found, tensorboard, standardize=not no_standardize, **settings)
        seconds = time.perf_counter() - started
        regressor.save(out, force=force)
    with if_stopped(f"the model was written to {out}."):
        result = fit_summary(regressor, out, seconds)
        if report is not None:
            write_report(regressor, out, report)
            result["report"] = str(report)
    say(result, fit_lines(result), given.quiet, given.as_json)


def check_report(report: Path, model: Path, force: bool) -> None:
    """Raise if no page can be written beside a model that is not there yet."""
    folder = Path(os.path.realpath(model))
    if Path(os.path.realpath(report)) in (folder, *folder.parents):
        raise TableError(
            f"--report {report} is a file, but --out {model} makes a folder there: choose another"
            " name for one of them."
        )
    check_output(report, (".html",), force)


def write_report(regressor: Any, model: Path, out: Path) -> None:
    """Write the page about a model."""
    from ..report.sections import report_page

    name = Path(os.path.abspath(model)).name
    write_with_folders(out, report_page(regressor, name).encode())


def inducing_points(
    found: TrainingTable | TrainingStream, given: Training, inducing: int | None
) -> int:
    """How many inducing points a fit has, 0 for the exact model."""
    if isinstance(found, TrainingTable):
        return tables.inducing_points(found, given, inducing)
    points = inducing or DEFAULT_POINTS
    streams.note_stream(found, points, given.quiet)
    return points


def train(
    given: Training,
    found: TrainingTable | TrainingStream,
    tensorboard: Path | None = None,
    **settings: Any,
) -> Any:
    """An estimator fitted to a table or a stream."""
    from ..table.estimator import CoolMTGPRegressor

    regressor = CoolMTGPRegressor(
        given.kernel,
        ard=given.lengthscales,
        learning=given.learning,
        random_state=given.seed,
        verbose=0 if given.quiet else 1,
        missing_inputs=given.missing_inputs,
        target_transform=given.transform,
        **settings,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Beware: ")  # the commands print it
        if isinstance(found, TrainingTable):
            return fit_to_table(regressor, given, found, tensorboard)
        warnings.showwarning = lambda text, *_, **__: note(str(text), given.quiet)
        return regressor.fit(found.dataset, found.targets, tensorboard=tensorboard)


def fit_to_table(
    regressor: Any, given: Training, found: TrainingTable, tensorboard: Path | None
) -> Any:
    """An estimator fitted to a table; first says which targets are missing."""
    import pandas as pd

    note_gaps(found, given.quiet)
    X, Y = pd.DataFrame(found.input_columns()), pd.DataFrame(found.Y, columns=found.targets)
    for coding in found.encoding.codings:
        if coding.kind == "category":
            X[coding.name] = X[coding.name].astype("category")
    with warnings.catch_warnings():
        for said in ("Targets that never vary", "-?9+ occurs "):  # the command has told them
            warnings.filterwarnings("ignore", said)
        return regressor.fit(X, Y, tensorboard=tensorboard)


def note_gaps(found: TrainingTable, quiet: bool) -> None:
    """Tell how many cells of the targets are empty, if any is."""
    if any(found.gaps.values()):
        note(found.gaps_line(), quiet)


@main.command(short_help="Fill in the empty cells of targets.")
@console.training_options
@console.restarts_option
@console.table_option
@console.force_option
@console.output_options
def impute(restarts: int, out: Path, force: bool, **options: Any) -> None:
    """
    Fill in the empty cells of targets, from all that DATA holds.

    The file gets the columns of DATA with the targets completed, and for each target NAME a column
    NAME_std: the standard deviation of what was filled in, 0 for what was there. In CSV, cells that
    were not empty stay as they are, and so do separator, decimal mark and encoding. A name that a
    spreadsheet would take for a formula, as =1+1, gets a ' before it. DATA itself is not replaced,
    even with --force: only there it is plain what was measured.

    \b
      gpflow-cool impute data.csv --targets heat,cold --out completed.csv
    """
    given = Training(**options)
    found = tables.training_table(given)
    tables.check_gaps(found)
    tables.check_size(len(found.X), given)
    check_output(out, TABLES, force, [given.data])
    load_tensorflow()
    from ..training.remarks import remark_lines

    with if_stopped(NOTHING):
        regressor = train(given, found, restarts=restarts)
        digits = DIGITS if out.suffix.lower() == ".csv" else None
        filled = regressor.impute(found.Y)
        columns = tables.completed_columns(found, filled.completed, filled.std, digits)
        write_table(out, columns, found.table.style)
    count = sum(found.gaps.values())
    result = {"out": str(out), "rows": len(found.X), "filled": found.gaps, "columns": list(columns)}
    lines = [f"{counted(count, 'empty cell')} filled in, {console.written(out)}."]
    lines += remark_lines(regressor.history_.message)
    say(result, lines, given.quiet, given.as_json)


@main.command(short_help="Write one HTML page about MODEL.")
@console.model_argument
@click.option(
    "--out", type=click.Path(path_type=Path), help="HTML file; by default MODEL_report.html."
)
@console.force_option
@console.output_options
def report(model: Path, out: Path | None, force: bool, quiet: bool, as_json: bool) -> None:
    """
    Write one HTML page about MODEL: correlations, calibration, scores, parameters, data.

    The page needs no other file and no network: send it to a colleague.
    """
    console.check_model(model)
    if out is None:
        out = Path(f"{Path(os.path.abspath(model)).name}_report.html")
    check_output(out, (".html",), force, [model])
    regressor = load_model(model)
    with if_stopped(NOTHING):
        write_report(regressor, model, out)
    line = f"The page was {console.written(out)}: open it in a browser."
    say({"out": str(out)}, [line], quiet, as_json)


main.add_command(map_command)


@main.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo_output"),
    show_default=True,
    help="Folder for the figures; a number is added to its name if it exists.",
)
@click.option(
    "--seed", type=console.Whole(0), default=0, show_default=True, help="Seed of the data."
)
def demo(out: Path, seed: int) -> None:
    """Fit the paper's two-task data; print and draw what was learned."""
    check_writable(out)
    load_tensorflow()
    from .demo import run_demo

    run_demo(out, seed)


@main.command(
    short_help="Run one of the paper's experiments.",
    add_help_option=False,  # --help and all other options are the studies' own
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def study(arguments: tuple[str, ...]) -> None:
    """Run one of the paper's experiments, or continue it: see `gpflow-cool study --help`."""
    if arguments in (("-h",), ("--help",)):
        click.echo(STUDY_HELP)
        return
    load_tensorflow()
    from ..studies import StudyError
    from ..studies.__main__ import run_command

    try:
        run_command(arguments, "gpflow-cool study")
    except StudyError as error:
        raise TableError(str(error)) from error
