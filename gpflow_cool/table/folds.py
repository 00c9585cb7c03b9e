"""
Which rows are trained on and which are held out: at random, by groups, or by blocks of places.

Nothing here needs TensorFlow, so that folds that cannot be are reported at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import Numbers

Rows = NDArray[np.int64]
Fold = tuple[Rows, Rows]
"""Training and test rows."""


def check_folds(folds: int, num_rows: int) -> None:
    """Raise unless every fold has rows, and leaves at least two to train on."""
    if not 2 <= folds <= num_rows or num_rows - -(-num_rows // folds) < 2:
        raise ValueError(
            f"folds={folds} is not possible for {num_rows} rows: choose from 2 to {num_rows}, with"
            " at least two rows left to train on."
        )


def check_trainable(Y: Numbers, names: Sequence[str], parts: Sequence[Fold]) -> None:
    """Raise if a fold leaves a target without numbers to train on."""
    known = ~np.isnan(Y)
    for train, _ in parts:
        if len(train) < 2:
            raise ValueError(
                f"One of {len(parts)} folds leaves {len(train)} rows to train on: use smaller"
                " groups or blocks, or more folds."
            )
        for t in np.flatnonzero(~known[train].any(axis=0)):
            raise ValueError(
                f"Target {names[t]!r} has {known[:, t].sum()} known rows, and none to train on in"
                f" one of {len(parts)} folds: use more folds, or leave it out."
            )


def split_rows(num_rows: int, folds: int, seed: int) -> Iterator[Fold]:
    """Training and test rows of every fold, at random."""
    order = np.random.default_rng(seed).permutation(num_rows)
    for test in np.array_split(order, folds):
        yield np.setdiff1d(order, test), np.sort(test)


def split_groups(groups: Sequence[Any], folds: int, seed: int) -> list[Fold]:
    """
    Training and test rows of every fold; all rows of a group are held out together.

    Groups are taken from the largest to the smallest, those of equal size at random, and go to the
    fold that has the fewest rows.

    >>> [test.tolist() for _, test in split_groups(["a", "b", "a", "c", "b"], 2, seed=0)]
    [[0, 2, 3], [1, 4]]

    :param groups: The group of every row.
    """
    _, codes = np.unique([str(group) for group in groups], return_inverse=True)
    sizes = np.bincount(codes)
    if len(sizes) < folds:
        raise ValueError(
            f"There are {len(sizes)} groups, but {folds} folds: use fewer folds, or smaller groups."
        )
    order = np.random.default_rng(seed).permutation(len(sizes))
    fold_of, filled = np.empty(len(sizes), dtype=np.int64), np.zeros(folds)
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        fold_of[group] = np.argmin(filled)
        filled[fold_of[group]] += sizes[group]
    held = fold_of[codes]  # [N]
    return [(np.flatnonzero(held != fold), np.flatnonzero(held == fold)) for fold in range(folds)]


def blocks_of(places: Numbers, count: int) -> list[str]:
    """
    The block of every row: each column's range is cut into so many parts of equal length.

    >>> blocks_of(np.array([[0.0, 0.0], [1.0, 9.0], [10.0, 10.0]]), 2)
    ['0,0', '0,1', '1,1']

    :param places: [N, P], most often two coordinates.
    """
    low, high = places.min(axis=0), places.max(axis=0)
    width = np.where(high > low, (high - low) / count, 1.0)
    cells = np.minimum((places - low) // width, count - 1).astype(int)
    return [",".join(map(str, cell)) for cell in cells.tolist()]
