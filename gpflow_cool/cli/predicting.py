"""The command `predict`: what a saved model needs is checked before TensorFlow is loaded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..table.encoding import Coding, Encoding
from ..table.files import FileTable, TableError, check_names, did_you_mean, read_table
from ..table.marks import counted
from ..table.writing import check_output, write_table
from . import console
from .columns import (
    prediction_columns,
    prediction_names,
    readable,
    sample_columns,
    sample_names,
    spread,
)
from .console import if_stopped, load_model, note, say
from .tables import chosen, matching

TABLES = (".csv", ".parquet")

NOTHING = "nothing was written."

DIGITS = 4
"""Digits of the smallest standard deviation that are written; means have as many decimals."""


class SavedColumns(NamedTuple):
    """The columns that a saved estimator was fitted to."""

    inputs: list[str]
    targets: list[str]
    encoding: Encoding | None

    @property
    def codings(self) -> dict[str, Coding]:
        """How each column of the inputs becomes numbers."""
        codings = () if self.encoding is None else self.encoding.codings
        return {c.name: c for c in codings} or {n: Coding(n, "number") for n in self.inputs}


class NewRows(NamedTuple):
    """Rows to be predicted."""

    X: Any
    """Numbers [M, D], of the rows that can be predicted."""

    known: Any
    """[M, T], NaN for what is asked for."""

    kept: Any
    """Which rows of the table these are."""


@click.command()
@console.model_argument
@console.data_argument
@console.table_option
@click.option("--cov", is_flag=True, help="Add covariances between the targets of each row.")
@click.option(
    "--quantiles", type=console.Numbers(), help="Add quantiles; 0.05,0.95 is a 90% interval."
)
@click.option(
    "--given",
    type=console.Names(),
    help="Targets that DATA knows, as heat or 'y*'; cells may be empty.",
)
@click.option("--keep", type=console.Names(), help="Columns of DATA to copy, as id or 'x*'.")
@click.option("--functions", is_flag=True, help="Predict the functions, without noise.")
@click.option("--samples", type=console.Whole(1), help="Write so many joint samples instead.")
@click.option("--seed", type=console.Whole(0), default=0, show_default=True, help="Of --samples.")
@click.option(
    "--digits",
    type=console.Whole(1, 17),
    default=DIGITS,
    show_default=True,
    help="Digits of the deviations in CSV; means have as many decimals.",
)
@console.reading_options
@console.force_option
@console.output_options
def predict(
    model: Path,
    data: Path,
    out: Path,
    cov: bool,
    quantiles: list[float] | None,
    given: list[str] | None,
    keep: list[str] | None,
    functions: bool,
    samples: int | None,
    seed: int,
    digits: int,
    decimal: str,
    encoding: str | None,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """
    Predict the targets at the rows of DATA.

    The file gets columns NAME and NAME_std for each target NAME; with --quantiles 0.05 also
    NAME_q5, and with --cov one column cov_NAME_OTHER for each pair of targets. A column of DATA
    without a name, as pandas writes its index, is copied. CSV is written as DATA is: the same
    separator, decimal mark and encoding. A name that a spreadsheet would take for a formula, as
    =1+1, gets a ' before it.

    With --samples 100 the file has each row a hundred times: columns "sample" and "row", both from
    0, and one per target. A sample is one possible outcome of all rows and targets together: sums
    over rows, or differences between targets, have the right spread. The same --seed gives the same
    samples.

    Rows far from all training rows are counted: those where, for every target, the variance of the
    function is above 95% of what it was before any data. So are rows in which a number or a date
    is beyond its range in training by more than half of that range. It is told which columns these
    are, and which never changed in training and are other now.

    \b
      gpflow-cool predict model new.csv --out predictions.csv --given heat
      gpflow-cool predict model new.csv --out predictions.csv --keep id --quantiles 0.05,0.5,0.95
      gpflow-cool predict model new.csv --out samples.csv --samples 100 --seed 1
    """
    console.check_model(model)
    table = read_table(data, encoding=encoding, decimal=decimal)
    check_output(out, TABLES, force, [data, model])
    if samples is not None and (cov or quantiles or given):
        raise TableError("--samples goes without --cov, --quantiles and --given: ask twice.")
    columns = saved_columns(model)
    rows = None if columns is None else new_rows(columns, table, given, quiet)
    if columns is not None:
        names = prediction_names(columns.targets, cov, quantiles or (), fitted=True)
        names = names if samples is None else sample_names(columns.targets)
        is_text = out.suffix.lower() == ".csv"
        copied = copied_columns(table.as_written() if is_text else table, keep, names)
    regressor = load_model(model)
    if columns is None or rows is None:
        raise TableError(f"{model} was fitted to arrays without names: predict from Python.")
    from ..table.remarks import certainty_lines
    from ..table.unlike import far_rows, outside_rows, row_lines

    X = named_inputs(columns, rows.X)
    with if_stopped(NOTHING):
        options: dict[str, Any] = {"include_noise": not functions}
        if samples is None:
            found = predicted_columns(regressor, X, rows.known, names, cov, quantiles, options)
            if is_text:
                found = readable(found, columns.targets, digits)
            found = {**copied, **spread(found, rows.kept)}
        else:
            drawn = regressor.sample_y(X, samples, seed, **options)
            drawn = drawn.reshape(len(X), len(columns.targets), samples)
            found = sample_columns(names, drawn, copied, rows.kept, digits if is_text else None)
        far, outside = far_rows(regressor, X), outside_rows(regressor, rows.X)
        write_table(out, found, table.style)
    doubts = certainty_lines(regressor) if cov or given else []
    for line in [*doubts, *row_lines(regressor, rows.X, far)]:
        note(line, quiet)
    counts = {"far_rows": int(far.sum()), "outside_rows": int(outside.sum())}
    result = {"out": str(out), "rows": len(X), **counts, "columns": list(found)}
    if samples is not None:
        result |= {"samples": samples, "seed": seed}
    say(result, [predicted_line(len(X), samples, out)], quiet, as_json)


def predicted_line(num_rows: int, samples: int | None, out: Path) -> str:
    """What was done."""
    what = "predicted" if samples is None else f"drawn {samples} times"
    return f"{counted(num_rows, 'row')} {what}, {console.written(out)}."


def predicted_columns(
    regressor: Any,
    X: Any,
    known: Any,
    names: list[str],
    cov: bool,
    quantiles: list[float] | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Columns of predictions, by :func:`prediction_names`."""
    mean, std, *S = regressor.predict_given(X, known, return_std=True, return_cov=cov, **options)
    if options["include_noise"]:  # a known target, to its last digit
        mean = np.where(np.isnan(known), mean, known)
    values = [mean, std, S[0] if cov else None]
    if quantiles:
        values.append(regressor.predict_quantiles(X, quantiles, known, **options))
    return prediction_columns(names, *(None if v is None else np.asarray(v) for v in values))


# Before TensorFlow is loaded -------------------------------------------------------------------


def saved_columns(model: Path) -> SavedColumns | None:
    """
    The columns of a saved estimator; None where it has no names of columns, or is damaged.

    What is wrong with a folder is told when it is loaded.
    """
    try:
        saved = json.loads((model / "model.json").read_text(encoding="utf-8"))
        encoding = saved.get("encoding")
        inputs = [str(name) for name in saved["input_names"]]
        known = None if encoding is None else Encoding.from_json(encoding)
        return SavedColumns(inputs, [str(name) for name in saved["layout"][1]], known)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def new_rows(
    columns: SavedColumns, table: FileTable, given: Sequence[str] | None, quiet: bool
) -> NewRows:
    """Inputs and known targets of a table; tells of categories that the fit has not seen."""
    check_names(columns.inputs, table)
    known = known_targets(columns.targets, table, given)
    if columns.encoding is None:
        return NewRows(table.numbers(columns.inputs), known, np.ones(len(known), dtype=bool))
    words = [name for name, coding in columns.codings.items() if coding.kind == "category"]
    encoded = columns.encoding.encode(table.cells_of(columns.inputs, words), table.place)
    for remark in encoded.remarks:
        note(remark, quiet)
    count = int(np.sum(~encoded.kept))
    if count == len(known):
        raise TableError(f"{table.path}: every row has an empty cell in the inputs.")
    if count:
        note(
            f"{count} of {len(known)} rows have an empty cell in the inputs, and the model was"
            " fitted without such rows: their predictions are left empty.",
            quiet,
        )
    return NewRows(encoded.X[encoded.kept], known[encoded.kept], encoded.kept)


def named_inputs(columns: SavedColumns, X: Any) -> Any:
    """Inputs as the estimator takes them: a frame, or encoded numbers."""
    import pandas as pd

    return pd.DataFrame(X, columns=columns.inputs) if columns.encoding is None else X


def known_targets(names: Sequence[str], table: FileTable, given: Sequence[str] | None) -> Any:
    """
    [M, T], the targets that a table knows; NaN where one is to be predicted.

    :param given: Targets that the table must have, and patterns for those that it may have.
    """
    known = np.full([table.num_rows, len(names)], np.nan)
    for pattern in given or []:
        found = matching(pattern, names)
        if not found:
            listed, meant = ", ".join(names), did_you_mean(pattern, names)
            raise TableError(f"--given {pattern}: the model's targets are {listed}.{meant}")
        for name in found if pattern in names else [n for n in found if n in table.columns]:
            known[:, list(names).index(name)] = table.numbers([name], allow_missing=True)[:, 0]
    return known


def copied_columns(
    table: FileTable, keep: Sequence[str] | None, names: Sequence[str]
) -> dict[str, Any]:
    """Labels of the rows, and columns that are kept; a pattern leaves out names that are taken."""
    copied: dict[str, Any] = {} if table.labels is None else {"": table.labels}
    for name in chosen(keep or [], table):
        if name not in names:
            copied[name] = table.columns[name]
        elif name in (keep or []):
            raise TableError(
                f"--keep {name}: a column of predictions has this name. Rename it in {table.path}."
            )
    return copied
