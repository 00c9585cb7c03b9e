"""Columns of the files that `predict` writes: their names, and numbers that can be read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..table.files import TableError
from .tables import decimals_for


class PredictionColumn(NamedTuple):
    """A column of the file of predictions."""

    name: str
    what: str
    """What it holds, in words."""

    option: str = ""
    """The option that asks for it."""


def prediction_names(
    targets: Sequence[str],
    cov: bool = False,
    quantiles: Sequence[float] = (),
    fitted: bool = False,
) -> list[str]:
    """
    Names of the columns of predictions: each target, its deviation and quantiles, then covariances.

    >>> prediction_names(["a", "b"], True, [0.05])
    ['a', 'a_std', 'a_q5', 'b', 'b_std', 'b_q5', 'cov_a_b']

    :param fitted: Whether there is a model already, so that other names take another fit.
    :raises TableError: If two of them would have the same name.
    """
    columns = [column for target in targets for column in columns_of_target(target, quantiles)]
    for t, u in pairs_of(len(targets)) if cov else []:
        what = f"the covariance of {targets[t]!r} and {targets[u]!r}"
        columns.append(PredictionColumn(f"cov_{targets[t]}_{targets[u]}", what, "--cov"))
    seen: dict[str, PredictionColumn] = {}
    for column in columns:
        if column.name in seen:
            raise TableError(clash_line(seen[column.name], column, fitted))
        seen[column.name] = column
    return list(seen)


def columns_of_target(target: str, quantiles: Sequence[float]) -> list[PredictionColumn]:
    """The columns of one target: its mean, its deviation, its quantiles."""
    parts = [(f"{100 * p:g}", f"{target}_q{100 * p:g}") for p in quantiles]
    return [
        PredictionColumn(target, f"the target {target!r}"),
        PredictionColumn(f"{target}_std", f"the deviation of {target!r}"),
        *(
            PredictionColumn(name, f"the {percent}% quantile of {target!r}", "--quantiles")
            for percent, name in parts
        ),
    ]


def clash_line(first: PredictionColumn, second: PredictionColumn, fitted: bool) -> str:
    """What to say of two columns of the same name."""
    if first.what == second.what and second.option:
        return f"{second.option} asks twice for {second.what}: ask once."
    option = second.option or first.option
    leave = f"Leave out {option}, or rename" if option else "Rename"
    return (
        f"Two columns of predictions would be called {second.name!r}: {first.what} and"
        f" {second.what}. {leave} a target in the table{', and fit again' if fitted else ''}."
    )


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
