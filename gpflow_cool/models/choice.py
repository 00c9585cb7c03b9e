"""The exact model or inducing points, and the mean over orders of the tasks where there is one."""

import copy
import warnings
from collections.abc import Sequence

import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel, Stationary

from .. import checks
from ..costs import DEFAULT_POINTS, MAX_ROWS
from ..features import choose_inducing_points, linear_parts
from ..starting import half_median_distance
from .cool import CoolMTGP
from .exact import KroneckerMTGP
from .sparse import SparseCoolMTGP

Model = KroneckerMTGP | CoolMTGP | SparseCoolMTGP
"""What a model may have become after training."""


def choose_model(
    data: tuple[AnyNDArray, AnyNDArray],
    kernel: Kernel,
    *,
    inducing: int | None,
    learning: str,
    task_names: Sequence[str],
) -> CoolMTGP | SparseCoolMTGP:
    """
    A model of the data, exact if there are up to 5000 rows or the kernel is linear.

    :param inducing: Number of inducing points, 0 for the exact model; None to decide by the rows,
        and to say so in a warning where they are many.
    """
    X, _ = data
    points = num_inducing(len(X), kernel, inducing)
    if points == 0:
        return CoolMTGP(data, kernel, learning=learning, task_names=task_names)
    guess = copy.deepcopy(kernel)  # its lengthscales decide which rows tell of each other
    if isinstance(guess, Stationary):
        guess.lengthscales.assign(np.full(guess.lengthscales.shape, half_median_distance(X)))
    Z = choose_inducing_points(X, guess, points)
    return SparseCoolMTGP(data, kernel, Z, learning=learning, task_names=task_names)


def num_inducing(num_rows: int, kernel: Kernel, inducing: int | None) -> int:
    """How many inducing points; 0 for the exact model."""
    if inducing is not None:
        return checks.whole_number(inducing, "inducing")
    if num_rows <= MAX_ROWS or linear_parts(kernel) is not None:
        return 0
    warnings.warn(
        f"{num_rows} rows are more than {MAX_ROWS}: they are seen through {DEFAULT_POINTS} inducing"
        f" points, an approximation. Pass inducing={DEFAULT_POINTS} to say that this is meant, more"
        " for more detail, or inducing=0 for the exact model, whose time grows with the cube of the"
        " rows.",
        stacklevel=4,
    )
    return DEFAULT_POINTS


def average_where_possible(model: CoolMTGP | SparseCoolMTGP, orders: int, seed: int) -> Model:
    """
    A trained model averaged over orders of its tasks; with inducing points, missing targets or a
    single task as it is.
    """
    if isinstance(model, SparseCoolMTGP) or model.observed is not None:
        return model
    if orders == 1 or model.num_tasks == 1:
        return model
    return model.average_over_orders(orders, seed=seed)
