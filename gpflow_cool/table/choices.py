"""What the estimator chooses: the kernel, the exact model or inducing points, an average."""

import copy
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import gpflow
import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel, Stationary

from .. import checks
from ..chain.starting import half_median_distance
from ..grid.kernels import grid_that_pays
from ..lowrank.features import choose_inducing_points, linear_parts
from ..models.cool import CoolMTGP
from ..models.exact import KroneckerMTGP
from ..models.sparse import SparseCoolMTGP
from .costs import default_inducing, inducing_sentence, missing_sentence

Model = KroneckerMTGP | CoolMTGP | SparseCoolMTGP
"""A model after training and averaging."""


def choose_model(
    data: tuple[AnyNDArray, AnyNDArray],
    kernel: Kernel,
    *,
    inducing: int | None,
    learning: str,
    task_names: Sequence[str],
) -> CoolMTGP | SparseCoolMTGP:
    """
    A model of the data, not trained yet.

    :param inducing: Number of inducing points, 0 for the exact model. None decides by the number
        of rows, with a warning where they are many; rows on a grid need none.
    """
    X, Y = data
    on_grid = inducing is None and grid_that_pays(kernel, X) is not None
    points = 0 if on_grid else num_inducing(len(X), kernel, inducing)
    if points == 0:
        return CoolMTGP(data, kernel, learning=learning, task_names=task_names)
    if np.isnan(Y).any():
        raise ValueError(
            f"{missing_sentence(len(X), np.isnan(Y).any(axis=1).sum(), points)} Pass inducing=0 for"
            " the exact model, whose time grows with the cube of the rows, or drop these rows, or"
            " fill the gaps."
        )
    guess = copy.deepcopy(kernel)  # its lengthscales decide which points are chosen
    if isinstance(guess, Stationary):
        guess.lengthscales.assign(np.full(guess.lengthscales.shape, half_median_distance(X)))
    Z = choose_inducing_points(X, guess, points)
    return SparseCoolMTGP(data, kernel, Z, learning=learning, task_names=task_names)


def num_inducing(num_rows: int, kernel: Kernel, inducing: int | None) -> int:
    """How many inducing points; 0 for the exact model. Warns where it decides for a user."""
    if inducing is not None:
        return checks.whole_number(inducing, "inducing")
    points = default_inducing(num_rows, linear_parts(kernel) is not None)
    if points:
        warnings.warn(
            f"{inducing_sentence(num_rows, points)} Pass inducing={points} to say that this is"
            " meant, more for more detail, or inducing=0 for the exact model, whose time grows"
            " with the cube of the rows.",
            stacklevel=4,
        )
    return points


def average_where_possible(model: CoolMTGP | SparseCoolMTGP, orders: int, seed: int) -> Model:
    """
    A trained model, averaged over orders of its tasks. With inducing points, missing targets or a
    single task it is returned as it is.
    """
    several = orders > 1 and model.num_tasks > 1
    if several and isinstance(model, CoolMTGP) and model.observed is None:
        return model.average_over_orders(orders, seed=seed)
    return model


# Kernels by name ----------------------------------------------------------------------------------

KERNELS: dict[str, Callable[..., Kernel]] = {
    "se": gpflow.kernels.SquaredExponential,
    "matern12": gpflow.kernels.Matern12,
    "matern32": gpflow.kernels.Matern32,
    "matern52": gpflow.kernels.Matern52,
    "linear": gpflow.kernels.Linear,
}


def make_kernel(kernel: str | Kernel, ard: bool, num_columns: int) -> Kernel:
    """
    A kernel to train: a new one by name, or a copy of the user's.

    :param ard: Whether a kernel given by name has one lengthscale (if linear, one variance) per
        column.
    """
    if isinstance(kernel, Kernel):
        if ard:
            raise ValueError(
                "ard=True is for a kernel given by name: give the kernel object a lengthscale"
                " for each column instead, and leave ard out."
            )
        return copy.deepcopy(kernel)
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(
            f"kernel={kernel!r} is not known. Choose one of {', '.join(map(repr, KERNELS))}, or"
            " pass a gpflow.kernels.Kernel object."
        )
    name = "variance" if kernel == "linear" else "lengthscales"
    return KERNELS[kernel](**({name: np.ones(num_columns)} if ard else {}))


# Seeds --------------------------------------------------------------------------------------------


def drawn_seed(random_state: Any) -> int:
    """A seed drawn from scikit-learn's `random_state`."""
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31))


def seed_of_orders(random_state: Any) -> int:
    """0 for None, a seed as it is, and for a generator a seed drawn from it."""
    if random_state is None or isinstance(random_state, Integral):
        return int(random_state or 0)
    return drawn_seed(random_state)
