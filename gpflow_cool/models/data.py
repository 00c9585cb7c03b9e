"""Data in memory: which targets are observed, completions of the others, rows that join."""

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, RegressionData

from .. import checks
from ..variation import check_ranges


class Completions(tf.__internal__.tracking.AutoTrackable):
    """
    Holds a model's completed targets, [S, N, T]: state of training, but no parameter.

    It is no `tf.Module`, so that `parameter_dict`, `print_summary` and `variables` of the model do
    not list it. A SavedModel does keep it.
    """

    def __init__(self, start: tf.Tensor) -> None:
        shape = [None, *start.shape[1:]]
        self.variable = tf.Variable(start, trainable=False, shape=shape)


def separate_pairs(observed: AnyNDArray) -> list[tuple[int, int]]:
    """Pairs of tasks that are never observed in the same row, from `observed` [N, T]."""
    together = observed.T.astype(np.float64) @ observed.astype(np.float64)
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(together == 0.0))]


def check_can_grow(data: RegressionData, Y: tf.Tensor) -> None:
    """Raise if data are variables that cannot hold more rows, or must not hold NaN."""
    for part, name in zip(data, "XY", strict=True):
        if isinstance(part, tf.Variable) and part.shape[0] is not None:
            raise ValueError(
                f"{name} is a tf.Variable of {part.shape[0]} rows, which cannot take more: create"
                f" it with shape=[None, {part.shape[1]}]."
            )
    if isinstance(data[1], tf.Variable) and np.isnan(Y).any():
        raise ValueError(
            "Y is a tf.Variable, which must not have NaN: build the model with an array, or leave"
            " out rows with missing targets."
        )


def grown(old: tf.Tensor | tf.Variable, joined: tf.Tensor) -> tf.Tensor | tf.Variable:
    """Data with more rows: a variable is kept, and its value replaced."""
    if not isinstance(old, tf.Variable):
        return joined
    old.assign(joined)
    return old


def check_targets(Y: tf.Tensor | tf.Variable) -> None:
    """Raise if the scale of a task is too small or too large to compute with, NaN left aside."""
    array = Y.numpy()
    low, high = np.fmin.reduce(array), np.fmax.reduce(array)
    observed = ~np.isnan(low)
    check_ranges(np.where(observed, low, 0.0), np.where(observed, high, 0.0), array.dtype)


def rows_of_task(X: tf.Tensor, Y: tf.Tensor, task: int) -> RegressionData:
    """Inputs and targets, [n, 1], of one task, without the rows where it was not observed."""
    observed = checks.observed_entries(Y)
    y = Y[:, task : task + 1]
    if observed is None:
        return X, y
    return tf.boolean_mask(X, observed[:, task]), tf.boolean_mask(y, observed[:, task])
