"""What the estimator chooses: the kernel, the exact model or inducing points, refinement."""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from gpflow import Parameter
from gpflow.base import AnyNDArray, RegressionData
from gpflow.kernels import Kernel, Linear, SquaredExponential, Stationary
from gpflow.utilities import positive

from .. import checks
from ..chain.starting import half_median_distance
from ..grid.kernels import grid_that_pays
from ..models.cool import CoolMTGP
from ..models.exact import KroneckerMTGP
from ..models.sparse import SparseCoolMTGP
from ..selection.candidates import CANDIDATES, named_candidates
from ..selection.choice import MAX_ROWS as ROWS_OF_CHOICE
from ..selection.choice import KernelTable, choose
from ..systems.features import choose_inducing_points, linear_parts
from ..training.run import History
from . import costs
from .costs import default_inducing, inducing_sentence, missing_sentence

Model = KroneckerMTGP | CoolMTGP | SparseCoolMTGP
"""A model after training and refinement."""


def choose_model(
    data: tuple[AnyNDArray, AnyNDArray],
    kernel: Kernel,
    *,
    inducing: int | None,
    learning: str,
    task_names: Sequence[str] | None,
    input_names: Sequence[str] | None = None,
) -> CoolMTGP | SparseCoolMTGP:
    """
    A model of the data, not trained yet.

    :param inducing: Number of inducing points, 0 for the exact model. None decides by the number
        of rows, with a warning where they are many; rows on a grid need none.
    """
    X, Y = data
    on_grid = inducing is None and grid_that_pays(kernel, X) is not None
    points = 0 if on_grid else num_inducing(len(X), kernel, inducing)
    options: dict[str, Any] = {"learning": learning, "task_names": task_names}
    if points == 0:
        return with_input_names(CoolMTGP(data, kernel, **options), input_names)
    if np.isnan(Y).any():
        raise ValueError(
            f"{missing_sentence(len(X), np.isnan(Y).any(axis=1).sum(), points)} Pass inducing=0 for"
            " the exact model, whose time grows with the cube of the rows, or drop these rows, or"
            " fill the gaps."
        )
    guess = copy.deepcopy(kernel)  # its lengthscales decide which points are chosen
    if isinstance(guess, Stationary) and np.all(guess.lengthscales.numpy() == 1.0):  # not learnt
        guess.lengthscales.assign(np.full(guess.lengthscales.shape, half_median_distance(X)))
    Z = choose_inducing_points(X, guess, points)
    return with_input_names(SparseCoolMTGP(data, kernel, Z, **options), input_names)


def with_input_names(model: Any, names: Sequence[str] | None) -> Any:
    """The model, whose inputs have names that TensorBoard shows."""
    model.input_names = None if names is None else tuple(names)
    return model


def is_big_grid(X: AnyNDArray) -> bool:
    """Whether many rows are a grid, on which the squared exponential needs no inducing points."""
    return len(X) > costs.MAX_ROWS and grid_that_pays(SquaredExponential(), X) is not None


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


def refine_where_possible(chain: CoolMTGP | SparseCoolMTGP, orders: int) -> Model:
    """
    The exact model that a trained chain is refined to. With one order, inducing points or a single
    task it is the chain as it is.
    """
    if orders > 1 and chain.num_tasks > 1 and isinstance(chain, CoolMTGP):
        return chain.refine()
    return chain


# Kernels by name ----------------------------------------------------------------------------------

TASKS_OF_CHOICE = 100
"""Kernels compete on so many tasks, if there are more: eight fits of 1000 tasks take long."""

AUTO = "auto"
SHRUNK = "shrunk"


def make_kernel(kernel: str | Kernel, ard: bool | str, num_columns: int) -> Kernel:
    """
    A kernel to train: a new one by name, or a copy of the user's.

    :param ard: True if a kernel given by name has one lengthscale (if linear, one variance) per
        column.
    """
    if isinstance(kernel, Kernel):
        if is_free(ard):
            raise ValueError(
                "ard=True is for a kernel given by name: give the kernel object a lengthscale"
                " for each column instead, and leave ard out."
            )
        return copy.deepcopy(kernel)
    if not isinstance(kernel, str) or kernel not in CANDIDATES:
        raise ValueError(
            f"kernel={kernel!r} is not known. Choose 'auto' or one of"
            f" {', '.join(map(repr, CANDIDATES))}, or pass a gpflow.kernels.Kernel object."
        )
    made = CANDIDATES[kernel]()
    if is_free(ard):
        parts = [part for part in (made, *made.submodules) if isinstance(part, Stationary)]
        for part in parts:
            part.lengthscales = Parameter(np.ones(num_columns), transform=positive())
        if isinstance(made, Linear):
            made.variance = Parameter(np.ones(num_columns), transform=positive())
    return made


def is_free(ard: bool | str) -> bool:
    """Whether lengthscales are trained without a prior."""
    return not isinstance(ard, str) and bool(ard)


def check_settings(restarts: Any, orders: Any, standardize: Any) -> None:
    """Raise unless settings that need no data are known."""
    checks.whole_number(restarts, "restarts")
    checks.positive_integer(orders, "orders")
    if not isinstance(standardize, bool | np.bool_):
        raise ValueError(
            f"standardize={standardize!r} is not known: pass True, or False to leave the columns in"
            " their own units."
        )


def check_ard(kernel: Any, ard: Any) -> None:
    """Raise unless the two settings are known and go together."""
    if not (isinstance(ard, bool) or (isinstance(ard, str) and ard == SHRUNK)):
        raise ValueError(
            f"ard={ard!r} is not known: pass 'shrunk' for a lengthscale per column that is pulled"
            " towards a common one, True for free ones, or False for a single one."
        )
    if isinstance(kernel, str) and kernel == AUTO and is_free(ard):
        raise ValueError(
            "ard=True does not go with kernel='auto': free lengthscales overfit, and leave-one-out"
            " cannot see it. Name a kernel (--kernel se), or use ard='shrunk' (leave --ard out)."
        )


def of_some_tasks(make: Callable[..., Any], data: RegressionData, kernel: Kernel) -> Any:
    """A model of `TASKS_OF_CHOICE` tasks, evenly spaced, without their names."""
    X, Y = data
    some = np.linspace(0, Y.shape[1] - 1, TASKS_OF_CHOICE).round().astype(int)
    return make((X, Y[:, some]), kernel, task_names=None)


class Training(NamedTuple):
    """A trained model, its history, and the kernels it was chosen among, if it was."""

    model: Model
    history: History
    table: KernelTable | None = None


def train_model(
    data: tuple[AnyNDArray, AnyNDArray],
    kernel: str | Kernel,
    ard: bool | str,
    make: Callable[..., CoolMTGP | SparseCoolMTGP],
    *,
    inducing: int | None,
    restarts: int,
    seed: int | None,
    **options: Any,
) -> Training:
    """
    A model of the data with a kernel by name, an object, or the best of all that have a name. With
    more than `TASKS_OF_CHOICE` tasks the latter compete on so many of them, evenly spaced.

    :param make: Makes a model of data and a kernel; `inducing=0` asks for the exact one, which is
        used to choose a kernel.
    :param options: Options of `fit`.
    :raises KeyboardInterrupt: If the user has ended training.
    """
    check_ard(kernel, ard)
    if isinstance(kernel, str) and kernel == AUTO:
        relevance = SHRUNK if ard else "given"
        exact, many = partial(make, inducing=0), data[1].shape[1] > TASKS_OF_CHOICE
        exact = partial(of_some_tasks, exact) if many else exact
        kernels = named_candidates(["se"] if is_big_grid(data[0]) else None)
        options |= {"restarts": restarts, "relevance": relevance, "seed": seed}
        options |= {"max_rows": ROWS_OF_CHOICE, "train_again": bool(inducing) or many}
        return Training(*choose(data, kernels, exact, make, **options))
    model = make(data, make_kernel(kernel, ard, data[0].shape[1]))
    by_name = isinstance(kernel, str) and ard == SHRUNK
    relevance = SHRUNK if by_name else "given"
    history = model.fit(relevance=relevance, restarts=restarts, seed=seed, **options)
    if history.interrupted:
        raise KeyboardInterrupt(history.message)
    return Training(model, history)


# Seeds --------------------------------------------------------------------------------------------


def drawn_seed(random_state: Any) -> int:
    """A seed drawn from scikit-learn's `random_state`."""
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31))


def seed_of_fit(random_state: Any) -> int:
    """0 for None, so that fits repeat themselves; a seed as it is; one drawn from a generator."""
    if random_state is None or isinstance(random_state, Integral):
        return int(random_state or 0)
    return drawn_seed(random_state)
