"""
The command line: ``gpflow-cool fit | predict | evaluate | report | demo``.

Everything that needs TensorFlow is imported inside the commands, after the user's mistakes are
found, so that ``--help`` and a wrong column are answered at once. A user's mistake is one line and
exit code 2.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np

from .costs import Cost, fit_cost
from .tables import Table, TableError, check_folder, check_output, read_table, write_table

MAX_ROWS = 5000
"""More rows than these are fitted only on request, since time grows with their cube."""

TABLES = (".csv", ".parquet")
LOG_LEVELS = {"TF_CPP_MIN_LOG_LEVEL": "3", "ABSL_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}

EPILOG = """
\b
Examples:
  gpflow-cool fit data.csv --targets heat,cold --ard --out model
  gpflow-cool predict model new.csv --out predictions.csv --cov
  gpflow-cool evaluate data.csv --targets heat,cold
  gpflow-cool report model

\b
Shell completion, for bash (zsh and fish likewise):
  eval "$(_GPFLOW_COOL_COMPLETE=bash_source gpflow-cool)"
"""


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

        from . import estimator  # noqa: F401

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


@click.group(cls=OneLine, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpflow_cool", prog_name="gpflow-cool")
def main() -> None:
    """
    Multitask Gaussian process regression for tables.

    Several columns are predicted at once, with covariances between them and between their noises.
    DATA is a CSV (or .tsv), Parquet or ARFF file with a header; MODEL is a folder that `fit` wrote.
    """


# Tables --------------------------------------------------------------------------------------


def training_table(
    data: Path, targets: Sequence[str], inputs: Sequence[str] | None
) -> tuple[list[str], Any, Any]:
    """Names of the inputs, X and Y, checked to be good for a fit."""
    table = read_table(data)
    Y = table.numbers(targets)
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
    return names, X, Y


def check_variation(table: Table, targets: Sequence[str], Y: Any) -> None:
    """Raise if a target never changes."""
    for name, column in zip(targets, Y.T, strict=True):
        if np.ptp(column) <= 1e-14 * np.max(np.abs(column)):
            raise TableError(
                f"{table.path}: target {name!r} is {column[0]:g} in every row. There is nothing to"
                " learn: leave it out."
            )


def check_size(num_rows: int, large: bool, quiet: bool, fits: int = 1) -> None:
    """Tell what many rows will cost, and go on only if that is wanted."""
    if num_rows <= MAX_ROWS:
        return
    cost: Cost = fit_cost(num_rows, fits)
    if not large:
        raise TableError(
            f"{num_rows} rows will take {cost}, since time grows with the cube of the rows and"
            " memory with their square. Use fewer rows, or say --large to go ahead."
        )
    if not quiet:
        click.echo(f"{num_rows} rows: this will take {cost}.", err=True)


# Commands ------------------------------------------------------------------------------------


@main.command()
@data_argument
@column_options
@model_options
@click.option("--restarts", type=click.IntRange(0), default=0, help="Train again so many times.")
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

    \b
      gpflow-cool fit data.csv --targets heat,cold --kernel matern52 --ard --out model
    """
    names, X, Y = training_table(data, targets, inputs)
    check_size(len(X), large, quiet, restarts + 1)
    check_writable(out)
    load_tensorflow()
    import pandas as pd

    from .archive import check_place
    from .estimator import CoolMTGPRegressor

    check_place(out, force)
    regressor = CoolMTGPRegressor(
        kernel,
        ard=ard,
        learning=learning,
        standardize=not no_standardize,
        restarts=restarts,
        random_state=seed,
        verbose=0 if quiet else 1,
    )
    started = time.perf_counter()
    regressor.fit(
        pd.DataFrame(X, columns=names), pd.DataFrame(Y, columns=targets), tensorboard=tensorboard
    )
    seconds = time.perf_counter() - started
    regressor.save(out, force=force)
    result = fit_summary(regressor, out, seconds)
    say(result, fit_lines(result), quiet, as_json)


def check_writable(out: Path) -> None:
    """Raise, before the work, if a folder cannot be made there."""
    check_folder(next(parent for parent in Path(os.path.abspath(out)).parents if parent.exists()))


def fit_summary(regressor: Any, out: Path, seconds: float) -> dict[str, Any]:
    """What a fit has found, as JSON."""
    from .summaries import leave_one_out_scores

    model = regressor.model_
    return {
        "model": str(out),
        "rows": int(model.data[0].shape[0]),
        "inputs": list(regressor.feature_names_in_),
        "targets": list(regressor.target_names_),
        "converged": bool(regressor.history_.converged),
        "message": regressor.history_.message,
        "steps": len(regressor.history_.epoch),
        "seconds": seconds,
        "log_evidence": float(model.log_marginal_likelihood()),
        "leave_one_out": leave_one_out_scores(regressor),
        "task_correlation": np.asarray(regressor.task_correlation_).tolist(),
        "noise_correlation": np.asarray(regressor.noise_correlation_).tolist(),
    }


def fit_lines(result: dict[str, Any]) -> list[str]:
    """What a fit has found, as text."""
    from .summaries import score_lines

    ended = "" if result["converged"] else f", not converged ({result['message']})"
    return [
        f"{result['rows']} rows, {len(result['inputs'])} inputs, {len(result['targets'])} targets:"
        f" {result['steps']} steps in {result['seconds']:.1f} s{ended}",
        "",
        "Every row predicted from all the others:",
        *score_lines(result["leave_one_out"]),
        "",
        f"Written to {result['model']}. Look at it: gpflow-cool report {result['model']}",
    ]


def say(result: dict[str, Any], lines: Sequence[str], quiet: bool, as_json: bool) -> None:
    """Print a result as it is wanted."""
    if as_json:
        click.echo(json.dumps(result, indent=1))
    elif not quiet:
        click.echo("\n".join(lines))


def load_model(model: Path) -> Any:
    """The estimator in a folder."""
    load_tensorflow()
    from .estimator import CoolMTGPRegressor
    from .persistence import load

    regressor = load(model)
    if not isinstance(regressor, CoolMTGPRegressor):
        raise TableError(
            f"{model} holds a {type(regressor).__name__} that Python code saved: use it from there,"
            " with gpflow_cool.load."
        )
    return regressor


def check_model(model: Path) -> None:
    """Raise at once if a folder is no saved model."""
    if not (model / "model.json").is_file():
        what = "holds no saved model" if model.is_dir() else "is not there"
        raise TableError(f"{model} {what}: pass a folder that `gpflow-cool fit` wrote.")


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


@main.command()
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

    \b
      gpflow-cool evaluate data.csv --targets heat,cold --folds 10
    """
    names, X, Y = training_table(data, targets, inputs)
    check_size(len(X), large, quiet, folds * (2 + len(targets)))
    load_tensorflow()
    from tqdm.auto import tqdm

    from . import evaluation
    from .estimator import CoolMTGPRegressor

    evaluation.check_folds(folds, len(X))
    kernel_object = CoolMTGPRegressor(kernel, ard=ard)._make_kernel(len(names))
    count = folds * len(evaluation.methods(len(targets), learning))
    with tqdm(total=count, unit="fit", disable=True if quiet else None) as bar:
        scores = evaluation.cross_validate(
            X,
            Y,
            kernel_object,
            folds=folds,
            learning=learning,
            seed=seed,
            progress=lambda name: advance(bar),
        )
    result, lines = evaluation_result(scores, targets, len(X), folds)
    say(result, lines, quiet, as_json)


def advance(bar: Any) -> None:
    """One step of a progress bar."""
    bar.update()


def evaluation_result(
    scores: dict[str, Any], targets: Sequence[str], num_rows: int, folds: int
) -> tuple[dict[str, Any], list[str]]:
    """What a comparison has found, as JSON and as text."""
    from . import evaluation

    against = {name: evaluation.difference(scores, name) for name in scores}
    del against[evaluation.COOL]
    result = {
        "rows": num_rows,
        "folds": folds,
        "scores": {
            name: {
                "rmse": dict(zip(targets, map(float, score.rmse), strict=True)),
                "arrmse": score.arrmse,
                "joint_nlpd": score.joint_nlpd,
                "seconds": score.seconds,
            }
            for name, score in scores.items()
        },
        "gain_in_joint_nlpd": {
            name: {"mean": d.mean, "standard_error": d.standard_error, "verdict": d.verdict}
            for name, d in against.items()
        },
    }
    lines = [f"{num_rows} rows, {folds} folds", "", *evaluation.table(scores, targets), ""]
    lines += [
        f"Cool-MTGP against {name}: {d.verdict}, joint NLPD {d.mean:+.3f} lower a row"
        f" (standard error {d.standard_error:.3f})"
        for name, d in against.items()
    ]
    return result, lines


@main.command()
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
    from .report import report_page
    from .tables import write_whole

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


if __name__ == "__main__":
    main()
