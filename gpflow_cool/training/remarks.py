"""
What a user should know after a fit: noise at its floor, or nothing but noise, and data that teach
nothing.
"""

import warnings

import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import White

from ..chain.starting import mean_kernel_diagonal
from ..variation import is_constant
from .model import TrainableChain, TrainableModel
from .vector import constrained, lower_bound

AT_FLOOR = 1.01
"""sigma2 below this times its lower bound is at the bound."""


NAMED, MANY_TASKS = 3, 4
"""So many tasks are named; tasks are many if so many times their number are more than the rows."""

NO_SIGNAL = 1e-6
"""A signal's variance below this, relative to the noise, is none."""

COPIES_AGREE = (
    "training takes copies for measurements that agree without noise. Remove them, unless they were"
    " measured anew"
)


def note_of_floor(model: TrainableModel) -> str:
    """A warning for the history, if the noise of a task has been trained to its lower bound."""
    named = named_at_floor(model)
    if not named:
        return ""
    if has_white(model):
        return (
            f"; the noise, sigma2, of {named} is at its lower bound: the kernel contains White,"
            " noise that competes with Sigma. Leave White out: the model has noise of its own"
        )
    if interpolates(model):
        return (
            "; sigma2 of every task is at its lower bound: the model passes through all targets,"
            " and may be far too certain elsewhere unless they have no noise. Score it on rows held"
            " out" + ", or try fewer lengthscales" * has_several(model) + note_of_copies(model)
        )
    before = "given the tasks before, " * (named != model.task_names[0])
    crowded = ", and use more rows or fewer tasks: these are too many for so few rows"
    return (
        f"; the noise, sigma2, of {named} is at its lower bound: {before}nothing seems to be left"
        " to chance, and predictions of several tasks together may be far too certain. Score the"
        " model on rows held out" + crowded * is_crowded(model) + note_of_copies(model)
    )


def named_at_floor(model: TrainableModel) -> str:
    """
    The tasks whose noise has been trained to its lower bound, in words; nothing if there are none.
    Tasks that never change are not named.
    """
    at_floor = tasks_at_floor(model)
    if not np.any(at_floor):
        return ""
    if np.all(at_floor):
        return "every task"
    noiseless = np.flatnonzero(at_floor & ~constant_tasks(model)).tolist()
    names = ", ".join(model.task_names[n] for n in noiseless[:NAMED])
    return names + f" and {len(noiseless) - NAMED} more" * (len(noiseless) > NAMED)


def is_crowded(model: TrainableModel) -> bool:
    """Whether tasks are many, compared with the rows."""
    return MANY_TASKS * len(model.task_names) > model.num_rows


def shows_all_rows(model: TrainableModel) -> bool:
    """Whether `data` has all the rows; where they are read in chunks it has some."""
    return len(np.asarray(model.data[1])) == model.num_rows


def has_white(model: TrainableModel) -> bool:
    """Whether the kernel has noise inside."""
    return any(isinstance(part, White) for part in (model.kernel, *model.kernel.submodules))


def has_several(model: TrainableModel) -> bool:
    """Whether a kernel inside has several lengthscales."""
    kernel = model.kernel
    parts = (getattr(part, "lengthscales", None) for part in (kernel, *kernel.submodules))
    return any(np.size(part) > 1 for part in parts if part is not None)


def note_of_copies(model: TrainableModel) -> str:
    """A possible reason why noise is at its lower bound, if rows have been copied."""
    X, Y = (np.asarray(part) for part in model.data)
    copies = duplicate_rows(X, Y) if shows_all_rows(model) else 0
    if not copies:
        return ""
    what = "row is an exact copy" if copies == 1 else "rows are exact copies"
    return f". {copies} {what} of another: {COPIES_AGREE}"


def duplicate_rows(X: AnyNDArray, Y: AnyNDArray) -> int:
    """How many rows are exact copies of an earlier one, in inputs, targets and gaps."""
    cells = np.hstack([X, Y])
    return len(X) - len(np.unique(np.where(np.isnan(cells), np.inf, cells), axis=0))


def interpolates(model: TrainableModel) -> bool:
    """Whether the noise of every task has been trained to its lower bound."""
    at_floor = tasks_at_floor(model)
    return bool(np.any(at_floor) and np.all(at_floor))


def tasks_at_floor(model: TrainableModel) -> AnyNDArray:
    """[T], whether the noise of a task has been trained to its lower bound; [0] without one."""
    if not isinstance(model, TrainableChain) or not model.sigma2.trainable:
        return np.zeros(0, bool)
    bound = lower_bound(model.sigma2)
    if bound is None:
        return np.zeros(0, bool)
    return np.asarray(constrained(model.sigma2) <= AT_FLOOR * bound)


def note_of_noise(model: TrainableModel) -> str:
    """A warning for the history, if no task has been found to depend on the inputs."""
    if not is_all_noise(model):
        return ""
    return (
        "; everything looks like noise: no target was found to depend on the inputs. Other inputs,"
        " another kernel or restarts=5 may show more"
    )


def is_all_noise(model: TrainableModel) -> bool:
    """Whether b has been trained to next to nothing for every task."""
    if not isinstance(model, TrainableChain) or not model.b.trainable:
        return False
    signal = constrained(model.b) * mean_kernel_diagonal(model.kernel, np.asarray(model.data[0]))
    return bool(np.all(signal < NO_SIGNAL * constrained(model.sigma2)))


def constant_tasks(model: TrainableModel) -> AnyNDArray:
    """[T], whether the targets of a task never change, as far as they are at hand."""
    Y = np.asarray(model.data[1])
    return np.asarray(is_constant(np.nanmin(Y, axis=0), np.nanmax(Y, axis=0), Y.dtype))


def note_of_data(model: TrainableModel) -> str:
    """A warning for the history, if there is one row, or a task whose targets never change."""
    Y = np.asarray(model.data[1])
    if len(Y) == 1:
        return "; there is one row, which cannot tell noise from signal: more rows are needed"
    if not shows_all_rows(model):
        return ""
    constant = constant_tasks(model)
    names = [name for name, is_so in zip(model.task_names, constant, strict=True) if is_so]
    if not names:
        return ""
    return (
        f"; the targets of {', '.join(names)} never change, and nothing can be learnt from them:"
        " leave them out"
    )


REMARKS = ("sigma2 of", "the noise, sigma2, of", "everything looks like noise")
"""How the parts of a history's message begin that a user of tables is told of."""


def remark_lines(message: str) -> list[str]:
    """
    What the history of a training says about the noise.

    >>> remark_lines("CONVERGENCE; the noise, sigma2, of heat is at its lower bound: score it")
    ['Beware: the noise, sigma2, of heat is at its lower bound: score it.']
    """
    return [f"Beware: {part}." for part in message.split("; ") if part.startswith(REMARKS)]


def warn_of_remarks(message: str, stacklevel: int) -> None:
    """
    Raise one warning per line that the command line prints.

    :param stacklevel: Which caller the warnings point to, as for `warnings.warn`.
    """
    for line in remark_lines(message):
        warnings.warn(line, stacklevel=stacklevel + 1)
