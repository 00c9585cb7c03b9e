"""Real data sets for studies: where they are, whether they can be used, how they are split."""

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from ..datasets import MulanData, load_mulan
from .methods import Names, choose
from .paper import DATA_SETS
from .records import StudyError

VARIABLE = "GPFLOW_COOL_DATA"

FILES = (
    f"The folder should hold one ARFF file per set: {', '.join(f'{n}.arff' for n in DATA_SETS)}."
)

LARGE = 1000
"""Sets with more rows than this are shortened."""

FIRST_ROWS = 400
"""Large sets keep so many of their first rows. This reproduces the paper's numbers; the 1000 rows
that its text mentions do not."""


class Partition(NamedTuple):
    """Training and test rows, standardised with the mean and deviation of the training rows."""

    X: AnyNDArray
    Y: AnyNDArray
    X_test: AnyNDArray
    Y_test: AnyNDArray


def data_folder(data: str | PathLike[str] | None) -> Path | None:
    """
    The folder with the ARFF files.

    :param data: The folder; None for the one that the environment variable GPFLOW_COOL_DATA names.
        If that is not set either, there is none.
    """
    named = data if data is not None else os.environ.get(VARIABLE) or None
    if named is not None and not Path(named).is_dir():
        raise StudyError(
            f"The data folder {named} is not a folder: check --data, or the environment variable"
            f" {VARIABLE}. {FILES}"
        )
    return None if named is None else Path(named)


def needed_folder(data: str | PathLike[str] | None) -> Path:
    """The folder with the ARFF files, or an error that tells how to name one."""
    folder = data_folder(data)
    if folder is None:
        raise StudyError(
            "This needs the Mulan regression sets, which are not part of the package: get them"
            " from the Mulan project or OpenML, and name their folder with --data FOLDER or the"
            f" environment variable {VARIABLE}. {FILES}"
        )
    return folder


def load_sets(
    sets: Names,
    folder: Path,
    max_rows: int | None = None,
    preferred: Sequence[str] = (),
) -> dict[str, MulanData]:
    """
    The chosen sets, checked, before any work is done.

    :param sets: Names; None for all ten, where those that are not there are named and left out.
    :param max_rows: Keep so many first rows of every set; None for `FIRST_ROWS` of a large one.
    :param preferred: Taken instead of all ten, as far as they are there.
    """
    if preferred:
        sets = sets or [name for name in preferred if (folder / f"{name}.arff").is_file()] or None
    names = choose("sets", sets, DATA_SETS)
    missing = [name for name in names if not (folder / f"{name}.arff").is_file()]
    if sets is not None and missing:
        raise StudyError(f"{', '.join(missing)}: no such .arff file in {folder}.")
    if len(missing) == len(names):
        raise StudyError(f"None of the ten sets is in {folder}: check --data. {FILES}")
    if missing:
        print(f"Left out, since not in {folder}: {', '.join(missing)}")
    return {name: load_set(name, folder, max_rows) for name in names if name not in missing}


def load_set(name: str, folder: Path, max_rows: int | None = None) -> MulanData:
    """One set, its first rows; refuses a file that is damaged or has gaps."""
    leave_out = f"mend the file, or leave it out by naming the others: --sets A,B (not {name})"
    try:
        data = load_mulan(name, folder)
    except (ValueError, OSError) as error:
        raise StudyError(f"{error} To go on: {leave_out}.") from error
    table = np.hstack([data.X, data.Y])
    if not np.isfinite(table).all():
        n, column = np.argwhere(~np.isfinite(table))[0]
        label = (data.input_names + data.target_names)[column]
        raise StudyError(
            f"{folder / name}.arff: row {n + 1} of the data has no finite value in column"
            f" {label!r}, and the methods compared need complete data: {leave_out}."
        )
    limit = max_rows or (FIRST_ROWS if len(data.X) > LARGE else len(data.X))
    return data._replace(X=data.X[:limit], Y=data.Y[:limit])


@check_shapes("X: [N, D]", "Y: [N, T]")
def partition(
    X: AnyNDArray, Y: AnyNDArray, seed: int, split: int, fraction: float = 0.2
) -> Partition:
    """
    A random partition, standardised with the training rows; inputs constant in these are dropped.

    :param fraction: The part of the rows that is held out.
    """
    rows = np.random.default_rng([seed, split]).permutation(len(X))
    count = max(1, round(fraction * len(X)))
    test, train = rows[:count], rows[count:]
    return standardised(X[train], Y[train], X[test], Y[test])


def standardised(X: AnyNDArray, Y: AnyNDArray, X_test: AnyNDArray, Y_test: AnyNDArray) -> Partition:
    """The same rows, standardised with the training rows."""
    varies = np.ptp(X, axis=0) > 0
    X, X_test = X[:, varies], X_test[:, varies]
    X_mean, X_scale = X.mean(axis=0), X.std(axis=0)
    Y_mean, Y_scale = Y.mean(axis=0), Y.std(axis=0)
    Y_scale[Y_scale == 0] = 1.0
    return Partition(
        (X - X_mean) / X_scale,
        (Y - Y_mean) / Y_scale,
        (X_test - X_mean) / X_scale,
        (Y_test - Y_mean) / Y_scale,
    )


def row_limit(max_rows: Any) -> Any:
    """The limit of rows, as the file of results shows it."""
    return f"{FIRST_ROWS} of >{LARGE}" if max_rows is None else max_rows
