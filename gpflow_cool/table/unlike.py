"""
What is told of rows to be predicted that are unlike the training rows: far from all of them,
well outside of their ranges, or other in a column that never changed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gpflow.base import AnyNDArray

from ..variation import is_constant
from .columns import in_blocks
from .encoding import Coding
from .learned import codings_of, columns_of_inputs
from .marks import counted

FAR = 0.95
"""A row is far from all training rows if, of every target, more than this part of the function's
prior variance is left."""

OUTSIDE = 0.5
"""A row is well outside of the training rows if a column is beyond an end of its range by more than
this part of the range."""

MOST = 3
"""So many columns are named that are outside of their range."""


def far_rows(regressor: Any, X: Any) -> AnyNDArray:
    r"""
    [M], which rows are far from all training rows, so that the data say next to nothing there.

    .. math:: \mathrm{var}(f_t(x) \mid Y) > 0.95 \, C_{tt} \, k(x, x) \quad \text{for every task } t
    """
    Z, posterior = regressor._standardised_inputs(X), regressor.posterior_
    C = np.diagonal(regressor.task_covariance_) / np.square(regressor._targets.scale)  # [T]

    def moments(Z: Any) -> Any:
        return posterior.predict_f(Z)[1], posterior.kernel(Z, full_cov=False)

    variance, prior = in_blocks(moments, [Z])
    return np.asarray(np.all(variance > FAR * prior[:, None] * C, axis=1))


def outside_rows(regressor: Any, X: AnyNDArray) -> AnyNDArray:
    """
    [M], which rows are well outside of the range of a column in training, whatever the kernel.

    A linear function goes on and on, and its variance never reaches what it was before any data:
    :func:`far_rows` does not see such rows.

    :param X: [M, D], encoded.
    """
    outside = np.zeros(len(X), dtype=bool)
    for _, was, now in changing_columns(regressor, X):
        outside |= beyond_range(was, now) > OUTSIDE
    return outside


def row_lines(regressor: Any, X: AnyNDArray, far: AnyNDArray) -> list[str]:
    """
    What a user should know of rows that are predicted.

    :param X: [M, D], encoded.
    :param far: What :func:`far_rows` gives.
    """
    outside = outside_rows(regressor, X) & ~far
    changed, alone = changed_lines(regressor, X), far_lines(regressor, X, far)
    return changed + alone + outside_lines(regressor, X, outside)


# Columns that never changed ----------------------------------------------------------------------


def constant_inputs(regressor: Any) -> dict[str, str]:
    """The columns that are the same in all training rows, and what they are."""
    X, _ = regressor.training_data()
    found: dict[str, str] = {}
    if is_sample(regressor, X):
        return found
    for coding, own in own_inputs(regressor):
        if coding.kind == "category" and len(coding.categories) == 1:
            found[coding.name] = coding.categories[0]
        elif coding.kind != "category" and all(never_changes(X[:, d]) for d in own):
            found[coding.name] = coding.shown(float(X[0, own[0]]))
    return found


def is_sample(regressor: Any, X: AnyNDArray) -> bool:
    """Whether these are some of the training rows: of a stream no others are left."""
    return len(X) < regressor.model_.num_rows


def never_changes(values: AnyNDArray) -> bool:
    return bool(is_constant(values.min(), values.max()))


def constant_lines(constant: dict[str, str]) -> list[str]:
    """
    What `fit` says of them.

    >>> constant_lines({"height": "5"})
    ["Input 'height' is 5 in every row: nothing can be learnt of its effect. Better leave it out."]
    """
    return [
        f"Input {name!r} is {value} in every row: nothing can be learnt of its effect. Better leave"
        " it out."
        for name, value in constant.items()
    ]


def changed_lines(regressor: Any, X: AnyNDArray) -> list[str]:
    """What to say of columns that never changed in training, and are other now."""
    trained, _ = regressor.training_data()
    constant, lines = constant_inputs(regressor), []
    for coding, own in own_inputs(regressor):
        if coding.name not in constant or coding.kind == "category":
            continue  # categories that are new are told of where they are read
        was, now = trained[0, own[0]], X[:, own[0]]
        other = ~is_constant(np.minimum(was, now), np.maximum(was, now))
        if other.any():
            lines.append(
                f"{coding.name} was {constant[coding.name]} in all training rows, and is"
                f" {span(coding, now[other])} in {other.sum()} of {len(X)} rows: the model cannot"
                " know what that changes."
            )
    return lines


# Rows far from all others ------------------------------------------------------------------------


def far_lines(regressor: Any, X: AnyNDArray, far: AnyNDArray) -> list[str]:
    """How many rows are far from all training rows, and in which columns; nothing if none is."""
    if not far.any():
        return []
    columns = columns_in_words(outside_columns(regressor, X[far]))
    why = f" Outside of the training rows: {columns}" if columns else ""
    return [
        f"{far.sum()} of {len(far)} rows are far from all training rows: the data say next to"
        " nothing there, and the predictions are what they were before any data."
        f"{why}"
    ]


def outside_lines(regressor: Any, X: AnyNDArray, outside: AnyNDArray) -> list[str]:
    """How many rows are well outside of the training rows, and in which columns."""
    if not outside.any():
        return []
    columns = columns_in_words(outside_columns(regressor, X[outside], OUTSIDE))
    return [
        f"{outside.sum()} of {len(outside)} rows are outside of the training rows by more than half"
        f" of a column's range: {columns} No data tell whether the model holds there."
    ]


def columns_in_words(columns: Sequence[str]) -> str:
    """
    The first columns, and how many more there are; nothing if there are none.

    >>> columns_in_words(["x is 9", "y is 9", "z is 9", "a is 9", "b is 9"])
    'x is 9; y is 9; z is 9. So are 2 other columns.'
    """
    if not columns:
        return ""
    more = len(columns) - MOST
    told = (
        f" So {'is' if more == 1 else 'are'} {counted(more, 'other column')}." if more > 0 else ""
    )
    return f"{'; '.join(columns[:MOST])}.{told}"


def outside_columns(regressor: Any, X: AnyNDArray, margin: float = 0.0) -> list[str]:
    """
    The columns that leave their range in training, farthest first, with both ranges in words.

    :param margin: By more than this part of the range.
    """
    found: dict[str, float] = {}
    for coding, was, now in changing_columns(regressor, X):
        beyond = float(beyond_range(was, now).max())
        if beyond > margin:
            text = f"{coding.name} is {span(coding, now)}, in training {span(coding, was)}"
            found[text] = beyond
    return sorted(found, key=lambda text: -found[text])


def beyond_range(was: AnyNDArray, now: AnyNDArray) -> AnyNDArray:
    """
    [M], how far numbers are beyond the range of others, as a part of it; below 0 inside.

    >>> beyond_range(np.array([0.0, 10.0]), np.array([15.0, 4.0, -20.0]))
    array([ 0.5, -0.4,  2. ])
    """
    low, high = was.min(), was.max()
    return np.asarray(np.maximum(low - now, now - high) / (high - low))


def changing_columns(regressor: Any, X: AnyNDArray) -> list[tuple[Coding, AnyNDArray, AnyNDArray]]:
    """The columns of numbers and dates that change in training: what they were, and are in X."""
    trained, _ = regressor.training_data()
    if is_sample(regressor, trained):
        return []  # perhaps not the whole range
    pairs = [(c, trained[:, own[0]], X[:, own[0]]) for c, own in own_inputs(regressor)]
    return [
        (c, was, now) for c, was, now in pairs if c.kind != "category" and not never_changes(was)
    ]


def span(coding: Coding, values: AnyNDArray) -> str:
    """The smallest and the largest value, in words."""
    low, high = (shown(coding, float(value)) for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def shown(coding: Coding, value: float) -> str:
    """A value as people write it, with four digits."""
    return coding.shown(value if coding.kind == "date" else float(f"{value:.4g}"))


def own_inputs(regressor: Any) -> list[tuple[Coding, Sequence[int]]]:
    """Each column of the user's table, and the numbers of its inputs."""
    codings = codings_of(regressor)
    return [
        (coding, own)
        for coding, own in zip(codings, columns_of_inputs(codings), strict=True)
        if len(own)
    ]
