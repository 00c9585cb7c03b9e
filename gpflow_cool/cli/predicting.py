"""The command `predict`: what a saved model needs is checked before TensorFlow is loaded."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from ..table.encoding import Coding, Encoding
from ..table.files import (
    FileTable,
    TableError,
    check_names,
    check_output,
    did_you_mean,
    read_table,
    write_table,
)
from . import console
from .console import if_stopped, load_model, note, say
from .tables import chosen, decimals_for, matching

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
@click.option("--samples", type=click.IntRange(1), help="Write so many joint samples instead.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of --samples.")
@click.option(
    "--digits",
    type=click.IntRange(1, 17),
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
    without a name, as pandas writes its index, is copied. In CSV, a name that a spreadsheet would
    take for a formula, as =1+1, gets a ' before it.

    With --samples 100 the file has each row a hundred times: columns "sample" and "row", both from
    0, and one per target. A sample is one possible outcome of all rows and targets together: sums
    over rows, or differences between targets, have the right spread. The same --seed gives the same
    samples.

    Rows far from all training rows are counted: those where, for every target, the variance of the
    function is above 95% of what it was before any data.

    \b
      gpflow-cool predict model new.csv --out predictions.csv --given heat
      gpflow-cool predict model new.csv --out predictions.csv --keep id --quantiles 0.05,0.5,0.95
      gpflow-cool predict model new.csv --out samples.csv --samples 100 --seed 1
    """
    console.check_model(model)
    table = read_table(data, encoding=encoding, decimal=decimal)
    check_output(out, TABLES, force)
    if samples is not None and (cov or quantiles or given):
        raise TableError("--samples goes without --cov, --quantiles and --given: ask twice.")
    columns = saved_columns(model)
    rows = None if columns is None else new_rows(columns, table, given, quiet)
    if columns is not None:
        names = prediction_names(columns.targets, cov, quantiles or ())
        names = names if samples is None else sample_names(columns.targets)
        copied = copied_columns(table, keep, names)
    regressor = load_model(model)
    if columns is None or rows is None:
        raise TableError(f"{model} was fitted to arrays without names: predict from Python.")
    from ..table.remarks import certainty_lines
    from ..table.summary import far_rows

    X = named_inputs(columns, rows.X)
    with if_stopped(NOTHING):
        options: dict[str, Any] = {"include_noise": not functions}
        if samples is None:
            found = predicted_columns(regressor, X, rows.known, names, cov, quantiles, options)
            if out.suffix.lower() == ".csv":
                found = readable(found, columns.targets, digits)
            found = {**copied, **spread(found, rows.kept)}
        else:
            drawn = regressor.sample_y(X, samples, seed, **options)
            drawn = drawn.reshape(len(X), len(columns.targets), samples)
            shown = digits if out.suffix.lower() == ".csv" else None
            found = sample_columns(names, drawn, copied, rows.kept, shown)
        far = far_rows(regressor, X)
        write_table(out, found)
    for line in certainty_lines(regressor) if cov or given else []:
        note(line, quiet)
    note_far(far, len(X), quiet)
    result = {"out": str(out), "rows": len(X), "far_rows": far, "columns": list(found)}
    if samples is not None:
        result |= {"samples": samples, "seed": seed}
    what = "predicted" if samples is None else f"drawn {samples} times"
    say(result, [f"{len(X)} rows {what}, written to {out}."], quiet, as_json)


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
    encoded = columns.encoding.encode(
        {name: table.columns[name] for name in columns.inputs}, table.place
    )
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


# Columns of the file ---------------------------------------------------------------------------


def prediction_names(
    targets: Sequence[str], cov: bool = False, quantiles: Sequence[float] = ()
) -> list[str]:
    """
    Names of the columns of predictions: each target, its deviation and quantiles, then covariances.

    >>> prediction_names(["a", "b"], True, [0.05])
    ['a', 'a_std', 'a_q5', 'b', 'b_std', 'b_q5', 'cov_a_b']

    :raises TableError: If two of them would have the same name.
    """
    endings = ["", "_std", *(f"_q{100 * p:g}" for p in quantiles)]
    names = [f"{target}{ending}" for target in targets for ending in endings]
    if cov:
        names += [f"cov_{targets[t]}_{targets[u]}" for t, u in pairs_of(len(targets))]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        hint = "leave out --cov, or rename" if twice[0].startswith("cov_") else "rename"
        raise TableError(
            f"Two columns of predictions would be called {twice[0]!r}, since a target NAME gets the"
            f" columns NAME and NAME_std, and --cov adds cov_NAME_OTHER: {hint} a target in the"
            " table, and fit again."
        )
    return names


def prediction_columns(
    names: Sequence[str], mean: Any, std: Any, S: Any = None, quantiles: Any = None
) -> dict[str, Any]:
    """
    Columns of the file of predictions, by :func:`prediction_names`.

    :param S: Covariances between targets, [M T, T] or [M, T, T]; None for none.
    :param quantiles: [M, T, number of quantiles]; None for none.
    """
    M, T = mean.shape
    parts = [mean[..., None], std[..., None]] + ([] if quantiles is None else [quantiles])
    values = list(np.concatenate(parts, axis=-1).reshape(M, -1).T)
    if S is not None:
        cov = np.reshape(S, [M, T, T])
        values += [cov[:, t, u] for t, u in pairs_of(T)]
    return dict(zip(names, values, strict=True))


def sample_names(targets: Sequence[str]) -> list[str]:
    """Names of the columns of samples: the sample, the row of DATA, and the targets."""
    taken = [name for name in targets if name in ("sample", "row")]
    if taken:
        raise TableError(
            f"With --samples, a column of the file is called {taken[0]!r}, and so is a target:"
            " rename it in the table, and fit again."
        )
    return ["sample", "row", *targets]


def sample_columns(
    names: Sequence[str], drawn: Any, copied: dict[str, Any], kept: Any, digits: int | None
) -> dict[str, Any]:
    """
    Columns of the file of samples: all rows of the first sample, then all of the second.

    :param names: What :func:`sample_names` gives.
    :param drawn: [M, T, S].
    :param copied: Columns of DATA that are repeated in every sample.
    :param kept: Which rows of DATA were drawn.
    :param digits: Of the smallest deviation of a row over samples; None for all digits.
    """
    M, T, S = drawn.shape
    rows = np.flatnonzero(kept)
    found: dict[str, Any] = {names[0]: np.repeat(np.arange(S), M), names[1]: np.tile(rows, S)}
    for name, cells in copied.items():
        found[name] = [cells[row] for row in rows] * S
    for t, name in enumerate(names[2:]):
        values, spread_of_rows = drawn[:, t].T.ravel(), drawn[:, t].std(axis=1)
        if digits is not None and np.any(spread_of_rows > 0.0):
            values = np.round(values, decimals_for(spread_of_rows, digits))
        found[name] = values
    return found


def pairs_of(count: int) -> list[tuple[int, int]]:
    """Pairs of different numbers below `count`."""
    return [(t, u) for t in range(count) for u in range(t + 1, count)]


def readable(columns: dict[str, Any], targets: Sequence[str], digits: int) -> dict[str, Any]:
    """
    Numbers without digits that mean nothing.

    The columns of a target have as many decimals as give its smallest deviation so many digits;
    covariances have some more digits. A target that is known keeps its value.
    """
    names, num_targets = list(columns), len(targets)
    pairs = len(pairs_of(num_targets))
    has_cov = num_targets > 1 and names[-1] == f"cov_{targets[-2]}_{targets[-1]}"
    width = (len(names) - pairs * has_cov) // num_targets
    result = dict(columns)
    for t in range(num_targets):
        own = names[width * t : width * (t + 1)]
        std = columns[own[1]]
        if not np.any(std > 0.0):
            continue
        decimals = decimals_for(std, digits)
        for name in own:
            rounded = np.round(columns[name], decimals)
            result[name] = np.where(std > 0.0, rounded, columns[name])
    for name in names[width * num_targets :]:
        result[name] = np.array([float(f"{value:.{digits + 2}g}") for value in columns[name]])
    return result


def spread(columns: dict[str, Any], kept: Any) -> dict[str, Any]:
    """Columns of all rows: NaN, an empty cell in CSV, for those that were not predicted."""
    full = {name: np.full(len(kept), np.nan) for name in columns}
    for name, values in columns.items():
        full[name][kept] = values
    return full


def note_far(far: int, rows: int, quiet: bool) -> None:
    """Tell how many rows are far from all training rows, if any is."""
    if far:
        note(
            f"{far} of {rows} rows are far from all training rows: the data say next to nothing"
            " there, and the predictions are what they were before any data.",
            quiet,
        )
