"""What a user should know after a fit: noise at its floor, and data that teach nothing."""

import numpy as np

from ..chain.variation import is_constant
from ..lowrank.rows import SAMPLE_ROWS
from .model import TrainableChain, TrainableModel
from .vector import lower_bound

AT_FLOOR = 1.01
"""sigma2 below this times its lower bound is at the bound."""


def note_of_floor(model: TrainableModel) -> str:
    """A warning for the history, if the noise of every task has been trained to its lower bound."""
    if not interpolates(model):
        return ""
    return (
        "; sigma2 of every task is at its lower bound: the model passes through all targets, and"
        " may be far too certain elsewhere unless they have no noise. Score it on rows held out,"
        " or try fewer lengthscales"
    )


def interpolates(model: TrainableModel) -> bool:
    """Whether the noise of every task has been trained to its lower bound."""
    if not isinstance(model, TrainableChain) or not model.sigma2.trainable:
        return False
    bound = lower_bound(model.sigma2)
    return bound is not None and bool(np.all(model.sigma2.numpy() <= AT_FLOOR * bound))


def note_of_data(model: TrainableModel) -> str:
    """A warning for the history, if there is one row, or a task whose targets never change."""
    Y = np.asarray(model.data[1])
    if len(Y) == 1:
        return "; there is one row, which cannot tell noise from signal: more rows are needed"
    if len(Y) >= SAMPLE_ROWS:  # perhaps not all rows
        return ""
    constant = is_constant(np.nanmin(Y, axis=0), np.nanmax(Y, axis=0), Y.dtype)
    names = [name for name, is_so in zip(model.task_names, constant, strict=True) if is_so]
    if not names:
        return ""
    return (
        f"; the targets of {', '.join(names)} never change, and nothing can be learnt from them:"
        " leave them out"
    )
