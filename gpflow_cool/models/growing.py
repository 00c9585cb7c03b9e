"""Data of a model that take more rows."""

import numpy as np
import tensorflow as tf
from gpflow.base import RegressionData

from ..training.model import TrainableModel


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


def joined_completions(model: TrainableModel, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor | None:
    """[S, N + q, T], present completions and predicted new targets; None if none is missing."""
    if model.completions is None and not np.isnan(Y).any():
        return None
    old = model.data[1][None] if model.completions is None else model.completions
    new, _ = model.posterior().predict_given(X, Y, noise=True)
    new = tf.broadcast_to(new, [tf.shape(old)[0], *new.shape])
    return tf.concat([old, new], axis=1)
