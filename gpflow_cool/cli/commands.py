"""
The command line: ``gpflow-cool fit | predict | impute | evaluate | report | map | demo | study``.

Everything that needs TensorFlow is imported inside the commands, after the arguments and the table
are checked, so that ``--help`` and a wrong column are answered at once. A user's mistake gives one
line and exit code 2.
"""

import os
import time
from pathlib import Path
from typing import Any

import click

from ..lowrank import DEFAULT_POINTS
from ..saving.files import write_whole
from ..table.costs import DEFAULT_ORDERS, MAX_ROWS
from ..table.files import FileTable, TableError, check_output, read_table, write_table
from . import console, tables
from .console import Training, if_stopped, load_model, load_tensorflow, note, say
from .maps import map_command
from .tables import TrainingTable

TABLES = (".csv", ".parquet")

NOTHING = "nothing was written."

EPILOG = """
\b
Examples:
  gpflow-cool fit data.csv --targets heat,cold --ard --out model
  gpflow-cool predict model new.csv --out predictions.csv --cov
  gpflow-cool impute data.csv --targets heat,cold --out completed.csv
  gpflow-cool evaluate data.csv --targets heat,cold
  gpflow-cool report model
  gpflow-cool map model --x lon --y lat --out map.png

\b
Shell completion, for bash (zsh and fish likewise):
  eval "$(_GPFLOW_COOL_COMPLETE=bash_source gpflow-cool)"
"""


@click.group(
    cls=console.OneLine, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="gpflow_cool", prog_name="gpflow-cool")
def main() -> None:
    """
    Multitask Gaussian process regression for tables.

    Several columns are predicted at once, with the covariances between them and between their
    noises.
    DATA is a CSV (or .tsv), Parquet or ARFF file with a header; MODEL is a folder that `fit` wrote.
    """


# Commands ------------------------------------------------------------------------------------


@main.command()
@console.training_options
@click.option(
    "--inducing",
    type=click.IntRange(1),
    help=f"Inducing points; by default {DEFAULT_POINTS} beyond {MAX_ROWS} rows, else none.",
)
@click.option(
    "--orders",
    type=click.IntRange(1),
    default=DEFAULT_ORDERS,
    show_default=True,
    help="Number of orders of the targets to average over; 1 for their own order.",
)
@console.restarts_option
@click.option("--no-standardize", is_flag=True, help="Leave the columns in their own units.")
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Folder to log training to.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@console.force_option
@console.output_options
def fit(
    inducing: int | None,
    orders: int,
    restarts: int,
    no_standardize: bool,
    tensorboard: Path | None,
    out: Path,
    force: bool,
    **options: Any,
) -> None:
    """
    Train a model on DATA and write it to a folder.

    Empty cells of targets count as missing; inputs must have none.

    \b
      gpflow-cool fit data.csv --targets heat,cold --kernel matern52 --ard --out model
    """
    given = Training(**options)
    found = tables.training_table(given)
    tables.prediction_names(given.targets, cov=False)
    points = tables.inducing_points(found, given, inducing, restarts + 1)
    console.check_writable(out)
    load_tensorflow()
    from ..saving.folder import check_place
    from ..table.summary import fit_lines, fit_summary

    check_place(out, force)
    settings = {"inducing": points, "orders": orders, "restarts": restarts}
    started = time.perf_counter()
    with if_stopped(NOTHING):
        regressor = train(given, found, tensorboard, standardize=not no_standardize, **settings)
        seconds = time.perf_counter() - started
        regressor.save(out, force=force)
    with if_stopped(f"the model was written to {out}."):
        result = fit_summary(regressor, out, seconds)
    say(result, fit_lines(result), given.quiet, given.as_json)


def train(
    given: Training, found: TrainingTable, tensorboard: Path | None = None, **settings: Any
) -> Any:
    """An estimator fitted to a table; first says which targets are missing."""
    import pandas as pd

    from ..table.estimator import CoolMTGPRegressor

    note_gaps(found, given.quiet)
    regressor = CoolMTGPRegressor(
        given.kernel,
        ard=given.lengthscales,
        learning=given.learning,
        random_state=given.seed,
        verbose=0 if given.quiet else 1,
        **settings,
    )
    X, Y = pd.DataFrame(found.X, columns=found.inputs), pd.DataFrame(found.Y, columns=found.targets)
    return regressor.fit(X, Y, tensorboard=tensorboard)


def note_gaps(found: TrainingTable, quiet: bool) -> None:
    """Tell how many cells of the targets are empty, if any is."""
    if any(found.gaps.values()):
        note(found.gaps_line(), quiet)


@main.command()
@console.model_argument
@console.data_argument
@console.table_option
@click.option("--cov", is_flag=True, help="Add covariances between the targets of each row.")
@click.option("--given", type=console.Names(), help="Targets that DATA knows; cells may be empty.")
@click.option("--functions", is_flag=True, help="Predict the functions, without noise.")
@console.force_option
@console.output_options
def predict(
    model: Path,
    data: Path,
    out: Path,
    cov: bool,
    given: list[str] | None,
    functions: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """
    Predict the targets at the rows of DATA.

    The file gets columns NAME and NAME_std for each target NAME, and with --cov one column
    cov_NAME_OTHER for each pair of targets. In CSV, a name that a spreadsheet would take for a
    formula, as =1+1, gets a ' before it.

    Rows far from all training rows are counted: those where, for every target, the variance of the
    function is above 95% of what it was before any data.

    \b
      gpflow-cool predict model new.csv --out predictions.csv --given heat
    """
    console.check_model(model)
    table = read_table(data)
    check_output(out, TABLES, force)
    regressor = load_model(model)
    from ..table.summary import far_rows

    names = list(regressor.target_names_)
    tables.prediction_names(names, cov)  # before the work
    X = inputs_of(regressor, table)
    known = tables.known_targets(names, table, given)
    with if_stopped(NOTHING):
        mean, std, S = regressor.predict_given(
            X, known, return_std=True, return_cov=True, include_noise=not functions
        )
        columns = tables.prediction_columns(names, mean, std, S, cov)
        far = far_rows(regressor, X)
        write_table(out, columns)
    note_far(far, len(X), quiet)
    result = {"out": str(out), "rows": len(X), "far_rows": far, "columns": list(columns)}
    say(result, [f"{len(X)} rows predicted, written to {out}."], quiet, as_json)


def note_far(far: int, rows: int, quiet: bool) -> None:
    """Tell how many rows are far from all training rows, if any is."""
    if far:
        note(
            f"{far} of {rows} rows are far from all training rows: the data say next to nothing"
            " there, and the predictions are what they were before any data.",
            quiet,
        )


def inputs_of(regressor: Any, table: FileTable) -> Any:
    """The columns of a table that are the model's inputs, as a frame."""
    import pandas as pd

    names = list(regressor.feature_names_in_)
    return pd.DataFrame(table.numbers(names), columns=names)


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
    NAME_std: the standard deviation of what was filled in, 0 for what was there.

    \b
      gpflow-cool impute data.csv --targets heat,cold --out completed.csv
    """
    given = Training(**options)
    found = tables.training_table(given)
    tables.check_gaps(found)
    tables.check_size(len(found.X), given, restarts + 1)
    check_output(out, TABLES, force)
    load_tensorflow()
    with if_stopped(NOTHING):
        regressor = train(given, found, restarts=restarts)
        columns = tables.completed_columns(found, *regressor.impute(found.Y)[:2])
        write_table(out, columns)
    count = sum(found.gaps.values())
    result = {"out": str(out), "rows": len(found.X), "filled": found.gaps, "columns": list(columns)}
    lines = [f"{count} empty cells filled in, written to {out}."]
    say(result, lines, given.quiet, given.as_json)


@main.command(short_help="Does the coupling pay? Cross-validate beside other models.")
@console.training_options
@click.option("--folds", type=click.IntRange(2), default=5, show_default=True)
@console.output_options
def evaluate(folds: int, **options: Any) -> None:
    """
    Does the coupling pay? Cross-validate Cool-MTGP beside independent GPs and Std-MT.

    Joint NLPD is the negative log density per held-out row, all its targets together: the lower
    the better. aRRMSE is the error relative to predicting the mean: 1 is no better than that.
    Empty cells of targets count as missing, in training and in scores.

    \b
      gpflow-cool evaluate data.csv --targets heat,cold --folds 10
    """
    given = Training(**options)
    found = tables.training_table(given)
    tables.check_size(len(found.X), given, folds * (2 + len(given.targets)))
    load_tensorflow()
    from tqdm.auto import tqdm

    from ..table import evaluation
    from ..table.choices import make_kernel

    evaluation.check_folds(folds, len(found.X))
    evaluation.check_trainable(found.Y, given.targets, folds, given.seed)
    note_gaps(found, given.quiet)
    count = folds * len(evaluation.compared_methods(len(given.targets), given.learning))
    bar = tqdm(total=count, unit="fit", disable=True if given.quiet else None)
    with if_stopped("nothing was written, and no score is told."), bar:
        scores = evaluation.cross_validate(
            found.X,
            found.Y,
            make_kernel(given.kernel, given.lengthscales, len(found.inputs)),
            folds=folds,
            learning=given.learning,
            seed=given.seed,
            progress=lambda name: bar.update(),
        )
    result = evaluation.comparison(scores, given.targets, len(found.X), folds)
    say(result, evaluation.comparison_lines(result), given.quiet, given.as_json)


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
    name = Path(os.path.abspath(model)).name
    out = Path(f"{name}_report.html") if out is None else out
    check_output(out, (".html",), force)
    regressor = load_model(model)
    from ..table.report import report_page

    with if_stopped(NOTHING):
        write_whole(out, report_page(regressor, name).encode())
    say({"out": str(out)}, [f"Written to {out}: open it in a browser."], quiet, as_json)


main.add_command(map_command)


@main.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo_output"),
    show_default=True,
    help="Folder for the figures; a number is added to its name if it exists.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def demo(out: Path, seed: int) -> None:
    """Fit the paper's two-task data; print and draw what was learned."""
    console.check_writable(out)
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
    load_tensorflow()
    from ..studies import StudyError
    from ..studies.__main__ import run_command

    try:
        run_command(arguments, "gpflow-cool study")
    except StudyError as error:
        raise TableError(str(error)) from error
