"""Columns of the files that `predict` writes: their names, and numbers that can be read."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..table.files import TableError
from .tables import decimals_for


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
