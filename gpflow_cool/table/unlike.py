"""
What is told of rows to be predicted that are unlike the training rows: far from all of them,
outside of their ranges, or other in a column that never changed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gpflow.base import AnyNDArray

from ..chain.variation import is_constant
from .columns import in_blocks
from .encoding import Coding
from .learned import codings_of, columns_of_inputs

FAR = 0.95
"""A row is far from all training rows if, of every target, more than this part of the function's
prior variance is left."""

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


def row_lines(regressor: Any, X: AnyNDArray, far: AnyNDArray) -> list[str]:
    """
    What a user should know of rows that are predicted.

    :param X: [M, D], encoded.
    :param far: What :func:`far_rows` gives.
    """
    return changed_lines(regressor, X) + far_lines(regressor, X, far)


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
    outside = outside_columns(regressor, X[far])
    why = f" Outside of the training rows: {'; '.join(outside[:MOST])}." if outside else ""
    more = f" So are {len(outside) - MOST} other columns." if len(outside) > MOST else ""
    return [
        f"{far.sum()} of {len(far)} rows are far from all training rows: the data say next to"
        " nothing there, and the predictions are what they were before any data."
        f"{why}{more}"
    ]


def outside_columns(regressor: Any, X: AnyNDArray) -> list[str]:
    """The columns that leave their range in training, farthest first, with both ranges in words."""
    trained, _ = regressor.training_data()
    found: dict[str, float] = {}
    if is_sample(regressor, trained):
        return []
    for coding, own in own_inputs(regressor):
        if coding.kind == "category":
            continue
        was, now = trained[:, own[0]], X[:, own[0]]
        beyond = max(was.min() - now.min(), now.max() - was.max())
        if not never_changes(was) and beyond > 0.0:
            text = f"{coding.name} is {span(coding, now)}, in training {span(coding, was)}"
            found[text] = beyond / (was.max() - was.min())
    return sorted(found, key=lambda text: -found[text])


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
