"""
The command line: ``gpflow-cool fit | predict | impute | evaluate | report | demo | study``.

Everything that needs TensorFlow is imported inside the commands, after the user's mistakes are
found, so that ``--help`` and a wrong column are answered at once. A user's mistake is one line and
exit code 2.
"""

import os
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..table.costs import DEFAULT_ORDERS, MAX_ROWS
from ..table.files import Table, TableError, check_output, read_table, write_table, write_whole
from .console import (
    Names,
    OneLine,
    TrainingTable,
    check_gaps,
    check_model,
    check_size,
    check_writable,
    column_options,
    completed_columns,
    data_argument,
    force_option,
    inducing_points,
    known_targets,
    load_tensorflow,
    model_argument,
    model_options,
    prediction_columns,
    say,
    saying_options,
    training_table,
)

TABLES = (".csv", ".parquet")

restarts_option = click.option(
    "--restarts", type=click.IntRange(0), default=0, help="Train again so many times."
)

EPILOG = """
\b
Examples:
  gpflow-cool fit data.csv --targets heat,cold --ard --out model
  gpflow-cool predict model new.csv --out predictions.csv --cov
  gpflow-cool impute data.csv --targets heat,cold --out completed.csv
  gpflow-cool evaluate data.csv --targets heat,cold
  gpflow-cool report model

\b
Shell completion, for bash (zsh and fish likewise):
  eval "$(_GPFLOW_COOL_COMPLETE=bash_source gpflow-cool)"
"""


@click.group(cls=OneLine, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpflow_cool", prog_name="gpflow-cool")
def main() -> None:
    """
    Multitask Gaussian process regression for tables.

    Several columns are predicted at once, with covariances between them and between their noises.
    DATA is a CSV (or .tsv), Parquet or ARFF file with a header; MODEL is a folder that `fit` wrote.
    """


# Commands ------------------------------------------------------------------------------------


@main.command()
@data_argument
@column_options
@model_options
@click.option(
    "--inducing",
    type=click.IntRange(1),
    help=f"Inducing points; 300 if there are more than {MAX_ROWS} rows, else none.",
)
@click.option(
    "--orders",
    type=click.IntRange(1),
    default=DEFAULT_ORDERS,
    show_default=True,
    help="Orders of the targets to average over; 1 for their own.",
)
@restarts_option
@click.option("--no-standardize", is_flag=True, help="Leave the columns in their own units.")
@click.option("--tensorboard", type=click.Path(path_type=Path), help="Folder to log training to.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@force_option
@saying_options
def fit(
    data: Path,
    targets: list[str],
    inputs: list[str] | None,
    kernel: str,
    ard: bool,
    learning: str,
    seed: int,
    large: bool,
    inducing: int | None,
    orders: int,
    restarts: int,
    no_standardize: bool,
    tensorboard: Path | None,
    out: Path,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """
    Train a model on DATA and write it to a folder.

    Empty cells of targets are taken as missing; inputs must not have any.

    \b
      gpflow-cool fit data.csv --targets heat,cold --kernel matern52 --ard --out model
    """
    found = training_table(data, targets, inputs, learning)
    points = inducing_points(len(found.X), kernel, inducing, large, quiet, restarts + 1)
    check_writable(out)
    load_tensorflow()
    from ..saving.folder import check_place
    from ..table import summary
    from ..table.estimator import CoolMTGPRegressor

    check_place(out, force)
    regressor = CoolMTGPRegressor(
        kernel,
        ard=ard,
        learning=learning,
        standardize=not no_standardize,
        inducing=points,
        orders=orders,
        restarts=restarts,
        random_state=seed,
        verbose=0 if quiet else 1,
    )
    started = time.perf_counter()
    train(regressor, found, quiet, tensorboard=tensorboard)
    seconds = time.perf_counter() - started
    regressor.save(out, force=force)
    result = summary.fit_summary(regressor, out, seconds)
    say(result, summary.fit_lines(result), quiet, as_json)


def train(regressor: Any, found: TrainingTable, quiet: bool, **options: Any) -> None:
    """Fit an estimator to a table, and tell before what is missing of it."""
    import pandas as pd

    if any(found.gaps.values()) and not quiet:
        click.echo(found.gaps_line(), err=True)
    X, Y = pd.DataFrame(found.X, columns=found.inputs), pd.DataFrame(found.Y, columns=found.targets)
    regressor.fit(X, Y, **options)


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


@main.command()
@model_argument
@data_argument
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help=".csv or .parquet file."
)
@click.option("--cov", is_flag=True, help="Also covariances between the targets of a row.")
@click.option("--given", type=Names(), help="Targets that DATA knows, in part; empty if not.")
@click.option("--functions", is_flag=True, help="Of the functions, without the noise.")
@force_option
@saying_options
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

    The file gets, for each target NAME, columns NAME and NAME_std, and with --cov a column
    cov_NAME_OTHER for each pair.

    \b
      gpflow-cool predict model new.csv --out predictions.csv --given heat
    """
    check_model(model)
    table = read_table(data)
    check_output(out, TABLES, force)
    regressor = load_model(model)
    names = list(regressor.target_names_)
    X = inputs_of(regressor, table)
    known = known_targets(names, table, given)
    mean, std, S = regressor.predict_given(
        X, known, return_std=True, return_cov=True, include_noise=not functions
    )
    columns = prediction_columns(names, np.asarray(mean), np.asarray(std), np.asarray(S), cov)
    write_table(out, columns)
    result = {"out": str(out), "rows": len(X), "columns": list(columns)}
    say(result, [f"{len(X)} rows predicted, written to {out}."], quiet, as_json)


def inputs_of(regressor: Any, table: Table) -> Any:
    """The model's inputs out of a table, as a frame."""
    import pandas as pd

    names = list(regressor.feature_names_in_)
    return pd.DataFrame(table.numbers(names), columns=names)


@main.command(short_help="Fill in the empty cells of targets.")
@data_argument
@column_options
@model_options
@restarts_option
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help=".csv or .parquet file."
)
@force_option
@saying_options
def impute(
    data: Path,
    targets: list[str],
    inputs: list[str] | None,
    kernel: str,
    ard: bool,
    learning: str,
    seed: int,
    large: bool,
    restarts: int,
    out: Path,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """
    Fill in the empty cells of targets, from all that DATA holds.

    The file gets the columns of DATA, the targets completed, and for each target NAME a column
    NAME_std with the standard deviation of what was filled in, 0 for what was there.

    \b
      gpflow-cool impute data.csv --targets heat,cold --out completed.csv
    """
    found = training_table(data, targets, inputs, learning)
    check_gaps(found)
    check_size(len(found.X), large, quiet, restarts + 1)
    check_output(out, TABLES, force)
    load_tensorflow()
    from ..table.estimator import CoolMTGPRegressor

    regressor = CoolMTGPRegressor(
        kernel, ard=ard, restarts=restarts, random_state=seed, verbose=0 if quiet else 1
    )
    train(regressor, found, quiet)
    filled = regressor.impute(found.Y)
    columns = completed_columns(found, np.asarray(filled.completed), np.asarray(filled.std))
    write_table(out, columns)
    count = sum(found.gaps.values())
    result = {"out": str(out), "rows": len(found.X), "filled": found.gaps, "columns": list(columns)}
    say(result, [f"{count} empty cells filled in, written to {out}."], quiet, as_json)


@main.command(short_help="Does the coupling pay? Cross-validate beside other models.")
@data_argument
@column_options
@model_options
@click.option("--folds", type=click.IntRange(2), default=5, show_default=True)
@saying_options
def evaluate(
    data: Path,
    targets: list[str],
    inputs: list[str] | None,
    kernel: str,
    ard: bool,
    learning: str,
    seed: int,
    large: bool,
    folds: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """
    Does the coupling pay? Cross-validate Cool-MTGP beside independent GPs and Std-MT.

    Joint NLPD is the negative log density of a held-out row, all its targets together: the lower
    the better. aRRMSE is the error relative to predicting the mean: 1 is no better than that.
    Empty cells of targets are taken as missing, in training and in scores.

    \b
      gpflow-cool evaluate data.csv --targets heat,cold --folds 10
    """
    found = training_table(data, targets, inputs, learning)
    check_size(len(found.X), large, quiet, folds * (2 + len(targets)))
    load_tensorflow()
    from tqdm.auto import tqdm

    from ..table import evaluation
    from ..table.choices import make_kernel

    evaluation.check_folds(folds, len(found.X))
    evaluation.check_known(found.Y, targets, folds, seed)
    if any(found.gaps.values()) and not quiet:
        click.echo(found.gaps_line(), err=True)
    kernel_object = make_kernel(kernel, ard, len(found.inputs))
    count = folds * len(evaluation.methods(len(targets), learning))
    with tqdm(total=count, unit="fit", disable=True if quiet else None) as bar:
        scores = evaluation.cross_validate(
            found.X,
            found.Y,
            kernel_object,
            folds=folds,
            learning=learning,
            seed=seed,
            progress=lambda name: bar.update(),
        )
    result, lines = evaluation.summary(scores, targets, len(found.X), folds)
    say(result, lines, quiet, as_json)


@main.command(short_help="Write one HTML page about MODEL.")
@model_argument
@click.option(
    "--out", type=click.Path(path_type=Path), help="HTML file; MODEL_report.html if left out."
)
@force_option
@saying_options
def report(model: Path, out: Path | None, force: bool, quiet: bool, as_json: bool) -> None:
    """
    Write one HTML page about MODEL: correlations, calibration, scores, parameters, data.

    The page needs nothing else, no network either: send it to a colleague.
    """
    check_model(model)
    name = Path(os.path.abspath(model)).name
    out = Path(f"{name}_report.html") if out is None else out
    check_output(out, (".html",), force)
    regressor = load_model(model)
    from ..table.report import report_page

    write_whole(out, report_page(regressor, name).encode())
    say({"out": str(out)}, [f"Written to {out}: open it in a browser."], quiet, as_json)


@main.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo_output"))
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def demo(out: Path, seed: int) -> None:
    """Fit the paper's two-task data; print and draw what was learned."""
    check_writable(out)
    load_tensorflow()
    from .demo import main as run

    run(["--out", str(out), "--seed", str(seed)])


@main.command(short_help="Run one of the paper's experiments.")
@click.argument(
    "name", type=click.Choice(["synthetic", "permutation", "variance", "real", "runtime"])
)
@click.option("--quick", is_flag=True, help="Small sizes, under a minute.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("study_output"))
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--data", type=click.Path(path_type=Path), help="Folder with Mulan's ARFF files.")
@click.option("--sets", help="Data sets, with commas between them.")
@click.option("--methods", help="Methods, with commas between them.")
@click.option("--kernels", help="linear, se, or both with a comma.")
@click.option("--draws", type=click.IntRange(1), help="Number of draws.")
@click.option("--splits", type=click.IntRange(1), help="Number of random partitions.")
@click.option("--repeats", type=click.IntRange(1), help="Number of repetitions.")
@click.option("--sizes", type=click.IntRange(2), multiple=True, help="Numbers of training rows.")
@click.option("--max-rows", type=click.IntRange(2), help="First rows to keep of every set.")
@click.option("--steps", type=click.IntRange(1), help="Most steps of L-BFGS.")
def study(name: str, **options: Any) -> None:
    """
    Run one of the paper's experiments, or go on with it; results stay in --out.

    \b
      gpflow-cool study variance --quick
    """
    check_writable(options["out"])
    load_tensorflow()
    from ..studies import StudyError, run

    given = {key: value for key, value in options.items() if value not in (None, ())}
    try:
        run(name, **given)
    except StudyError as error:
        raise TableError(str(error)) from error


if __name__ == "__main__":
    main()
