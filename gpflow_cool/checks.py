"""
What comes from a user is cast and checked here.

Every error says what is wrong, where, and what to do. Kernels, mean functions and covariances are
checked in :mod:`gpflow_cool.models.arguments`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, Parameter, RegressionData
from gpflow.config import default_float
from gpflow.kernels import Kernel

INPUTS_ARE_COLUMNS = "the inputs are the columns of X"
TASKS_ARE_COLUMNS = "the tasks are the columns of Y"


# Options ------------------------------------------------------------------------------------------


def option(value: Any, name: str, allowed: Sequence[str]) -> str:
    """
    Return `value` if it is one of the `allowed` strings.

    >>> option("map", "correlation", ["map", "monte_carlo"])
    'map'
    """
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name}={value!r} is not known. Choose one of: {choices}.")
    return str(value)


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer, of Python or NumPy; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def whole_number(value: Any, name: str, lowest: int = 0, alternative: str = "") -> int:
    """
    Return `value` as an int if it is a whole number of at least `lowest`.

    :param alternative: What else may be passed, for the error.
    """
    if not is_whole(value) or value < lowest:
        raise ValueError(
            f"{name}={value!r} must be a whole number of at least {lowest}{alternative}."
        )
    return int(value)


def positive_integer(value: Any, name: str) -> int:
    """Return `value` as an int if it is a whole number of at least one."""
    return whole_number(value, name, lowest=1)


def seed(value: Any) -> int | None:
    """Return `value` if it is None or a whole number that is not negative."""
    alternative = ", or None for a different draw every time"
    return None if value is None else whole_number(value, "seed", alternative=alternative)


def rank(value: Any, name: str, num_tasks: int, alternative: str) -> int:
    """Return `value` as an int if a matrix between tasks may have this rank."""
    if not is_whole(value) or not 0 <= value <= num_tasks:
        raise ValueError(
            f"{name}={value!r} is not possible for {num_tasks} tasks: pass a whole number from"
            f" 0 to {num_tasks}, {alternative}."
        )
    return int(value)


def kernel(value: Any) -> Kernel:
    """Return `value` if it is a GPflow kernel."""
    if not isinstance(value, Kernel):
        raise ValueError(
            f"kernel is {value!r}, but a gpflow.kernels.Kernel object is needed,"
            " for example gpflow.kernels.SquaredExponential()."
        )
    return value


def strategy(value: Any) -> tf.distribute.Strategy | None:
    """Return `value` if it is None or a strategy of TensorFlow."""
    if value is not None and not isinstance(value, tf.distribute.Strategy):
        raise ValueError(
            f"strategy={value!r} must be a tf.distribute.Strategy object, for example"
            " tf.distribute.MirroredStrategy(), or None."
        )
    return value


# Numbers ------------------------------------------------------------------------------------------


def numbers(value: Any, name: str) -> AnyNDArray:
    """
    Read lists, arrays, tensors and data frames of real numbers, in float64; missing is NaN.

    Text and dates are refused, although NumPy would turn them into numbers.
    """
    try:
        raw = np.asarray(value)
        check_kind(raw)
        if isinstance(value, np.ma.MaskedArray):
            raw = np.where(np.ma.getmaskarray(value), np.nan, raw)
        elif raw.dtype.kind == "O" and hasattr(value, "isna"):  # pandas' NA is no float
            raw = np.where(value.isna(), np.nan, raw)
        return raw.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} cannot be read as numbers ({error}). Pass an array, a nested list or a data"
            " frame of real numbers."
        ) from error


def check_kind(raw: AnyNDArray) -> None:
    """Raise unless `raw` holds numbers, or objects that may be numbers."""
    if raw.dtype.kind not in "biufO":
        raise TypeError(f"its type is {raw.dtype}")
    if raw.dtype.kind == "O":
        if raw.ndim == 0:
            raise TypeError(f"it is of type {type(raw.item()).__name__}")
        for where, entry in np.ndenumerate(raw):
            if isinstance(entry, str | bytes):
                raise TypeError(f"entry {place(where)} is {entry!r}")


def place(where: Iterable[Any]) -> str:
    """
    How an entry is indexed.

    >>> place((3, 1))
    '[3, 1]'
    """
    return f"[{', '.join(map(str, where))}]"


def check_finite(array: AnyNDArray, name: str, advice: str) -> None:
    """Raise if an entry is NaN or infinite, naming the first."""
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        more = f" ({len(bad)} such entries in all)" if len(bad) > 1 else ""
        raise ValueError(
            f"{name}{place(bad[0])} is {array[tuple(bad[0])]}{more}. Every entry must be finite:"
            f" {advice}."
        )


def positive_vector(value: Any, name: str, num_tasks: int) -> AnyNDArray:
    """Cast one positive number per task to an array [T]; a single number is for all tasks."""
    array = numbers(value, name).astype(default_float())
    if array.shape not in [(), (num_tasks,)]:
        raise ValueError(
            f"{name} has shape {array.shape}, but Y has {num_tasks} tasks: pass one number, or one"
            f" per task, shape ({num_tasks},)."
        )
    array = np.broadcast_to(array, (num_tasks,)).copy()
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}] is {array[bad[0]]}: every entry must be positive and finite. Leave"
            f" {name} out to start from the data."
        )
    return array


# Training data ------------------------------------------------------------------------------------


def regression_data(data: Any, *, missing: bool = False) -> RegressionData:
    """
    Cast and check the pair (X, Y) of inputs [N, D] and targets [N, T].

    :param missing: Whether Y may have NaN, for what was not measured.
    """
    X, Y = pair(data, "data must be the pair (X, Y), shapes [N, D] and [N, T]")
    X = matrix(X, "X", INPUTS_ARE_COLUMNS)
    Y = matrix(Y, "Y", TASKS_ARE_COLUMNS, missing=missing)
    rows_X, rows_Y = int(tf.shape(X)[0]), int(tf.shape(Y)[0])
    if rows_X != rows_Y:
        raise ValueError(
            f"X has {rows_X} rows and Y has {rows_Y}: row n of Y must hold all the targets"
            " observed at row n of X."
        )
    return X, Y


def pair(data: Any, what: str) -> tuple[Any, Any]:
    """Return the two parts of a pair; an array or a frame with two rows is no pair."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        length = f" of {len(data)} parts" if isinstance(data, tuple | list) else ""
        raise ValueError(f"{what}, but it is of type {type(data).__name__}{length}.")
    return data[0], data[1]


def observed_entries(Y: tf.Tensor | tf.Variable) -> AnyNDArray | None:
    """[N, T], where Y is a number and not NaN; None if nothing is missing."""
    observed = ~np.isnan(Y.numpy())
    if observed.all():
        return None
    if isinstance(Y, tf.Variable):
        raise ValueError(
            "Y is a tf.Variable with NaN. What is missing must not change once the model is built:"
            " pass an array."
        )
    check_observed(observed, [f"Y[:, {task}]" for task in range(observed.shape[1])])
    return observed


def check_observed(observed: AnyNDArray, names: Sequence[str]) -> None:
    """
    Raise if a task has no observed target.

    :param observed: [N, T], where a target is a number and not NaN.
    :param names: What the user calls each of the tasks.
    """
    never = np.flatnonzero(~observed.any(axis=0))
    if len(never):
        raise ValueError(
            f"{names[never[0]]} is NaN in every row: a task that was never observed cannot be"
            " learnt. Leave it out."
        )


def matrix(
    value: Any, name: str, columns: str, *, missing: bool = False
) -> tf.Tensor | tf.Variable:
    """
    Cast lists, arrays and data frames to a finite matrix of GPflow's default float.

    A `tf.Variable` is kept, so that its value may change later; its dtype must fit already.

    :param name: What the user calls it, for the error.
    :param columns: What the columns are, for the error.
    :param missing: Whether entries may be NaN.
    """
    if isinstance(value, tf.Variable):
        check_matrix(numbers(value.numpy(), name), name, columns, missing=missing)
        check_variable(value, name)
        return value
    if isinstance(value, tf.Tensor) and not hasattr(value, "numpy"):
        raise ValueError(
            f"{name} is a tensor without a value, because the model is built inside a tf.function:"
            " build it outside, and give the data as tf.Variable if it changes."
        )
    array = numbers(value, name)
    check_matrix(array, name, columns, missing=missing)
    return tf.constant(array, dtype=default_float())


def check_variable(variable: tf.Variable, name: str) -> None:
    """Raise unless a variable can be data: right type, fixed columns, and not trainable."""
    if variable.dtype != default_float():
        raise ValueError(
            f"{name} is a tf.Variable of {variable.dtype.name}, but GPflow works in"
            f" {np.dtype(default_float()).name}: create the variable in that type, or change"
            " GPflow's with gpflow.config.set_default_float."
        )
    if variable.shape.rank is None or variable.shape[1] is None:
        raise ValueError(
            f"{name} is a tf.Variable of shape {variable.shape}. Its rows may change, its columns"
            f" may not: create it with shape=[None, {variable.numpy().shape[1]}]."
        )
    if variable.trainable:
        raise ValueError(
            f"{name} is a trainable tf.Variable, so that an optimizer would change the data: create"
            " it with trainable=False."
        )


def check_matrix(array: AnyNDArray, name: str, columns: str, *, missing: bool = False) -> None:
    """Raise unless `array` is a finite, non-empty matrix whose entries can be squared."""
    if array.ndim != 2:
        fix = f"{name}[:, None]" if array.ndim == 1 else "one row per data point"
        raise ValueError(
            f"{name} has shape {array.shape}, but a matrix is needed: {columns}. Pass {fix}."
        )
    if array.size == 0:
        raise ValueError(
            f"{name} has shape {array.shape}, but a model needs at least one row and one column:"
            f" {columns}."
        )
    advice = "drop the row or fill the gap"
    if missing:
        array, advice = np.where(np.isnan(array), 0.0, array), "pass NaN where it is not known"
    check_finite(array, name, advice)
    largest = np.unravel_index(np.argmax(np.abs(array)), array.shape)
    if np.abs(array[largest]) > np.sqrt(np.finfo(default_float()).max / array.size):
        raise ValueError(
            f"{name}{place(largest)} is {array[largest]:.3g}, whose square is too large for"
            f" {np.dtype(default_float()).name}: rescale the column."
        )


def task_names(names: Sequence[str] | None, data: Any, num_tasks: int) -> tuple[str, ...]:
    """Names of the tasks: as given, or the columns of a data frame Y, or task_0, task_1, ..."""
    where = "task_names"
    if names is None:
        columns = getattr(data[1], "columns", None)
        where = "the columns of Y"
        names = [f"task_{t}" for t in range(num_tasks)] if columns is None else list(columns)
    if isinstance(names, str) or not np.iterable(names):
        raise ValueError(f"task_names={names!r} must be a list of {num_tasks} names, one per task.")
    names = tuple(str(name) for name in names)
    if len(names) != num_tasks:
        raise ValueError(
            f"task_names has {len(names)} names, but Y has {num_tasks} columns: pass one name"
            " per column."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Names of tasks must differ, but {where} have {twice} more than once.")
    return names


# Test data ----------------------------------------------------------------------------------------


def tensor(value: Any, name: str, dtype: tf.DType) -> tf.Tensor:
    """Cast anything array-like to a tensor; gradients pass."""
    if isinstance(value, tf.Tensor | tf.Variable | Parameter):
        if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
            raise ValueError(
                f"{name} is a tensor of {value.dtype.name}, but real numbers are needed."
            )
        return tf.cast(value, dtype)
    return tf.constant(numbers(value, name), dtype)


def columns(value: Any, name: str, num_columns: int, dtype: tf.DType, reason: str) -> tf.Tensor:
    """
    Cast to a tensor [batch..., M, C] and check C, the number of columns.

    :param reason: Why there must be so many, for the error.
    """
    tested = tensor(value, name, dtype)
    rank = tested.shape.rank
    if rank is not None and (rank < 2 or tested.shape[-1] not in (None, num_columns)):
        raise ValueError(
            f"{name} has shape {tuple(tested.shape)}, but {reason}: pass [M, {num_columns}]."
        )
    return tested


def inputs(Xnew: Any, num_columns: int, dtype: tf.DType) -> tf.Tensor:
    """Cast test inputs [batch..., M, D] and check D, the number of columns."""
    reason = f"the model was trained on {num_columns} input columns"
    Xnew = columns(Xnew, "Xnew", num_columns, dtype, reason)
    if hasattr(Xnew, "numpy"):
        check_finite(Xnew.numpy(), "Xnew", "drop the row or fill the gap")
    return Xnew


def targets(Ynew: Any, num_tasks: int, dtype: tf.DType) -> tf.Tensor:
    """Cast test targets [batch..., M, T] and check T, the number of columns."""
    return columns(Ynew, "Ynew", num_tasks, dtype, f"the model has {num_tasks} tasks")


def inputs_and_targets(
    Xnew: Any, Ynew: Any, num_columns: int, num_tasks: int, dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cast test inputs and targets, and check that they have the same rows."""
    Xnew, Ynew = inputs(Xnew, num_columns, dtype), targets(Ynew, num_tasks, dtype)
    if not Xnew.shape[:-1].is_compatible_with(Ynew.shape[:-1]):
        raise ValueError(
            f"Xnew has shape {tuple(Xnew.shape)} and Ynew has shape {tuple(Ynew.shape)}: row m of"
            " Ynew must hold the targets at row m of Xnew."
        )
    return Xnew, Ynew


def scored_data(
    data: Any, num_columns: int, num_tasks: int, dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor]:
    """The pair (Xnew, Ynew) whose density is asked for: every target must be known."""
    Xnew, Ynew = pair(data, "data must be the pair (Xnew, Ynew), shapes [M, D] and [M, T]")
    Xnew, Ynew = inputs_and_targets(Xnew, Ynew, num_columns, num_tasks, dtype)
    if hasattr(Ynew, "numpy"):
        check_finite(Ynew.numpy(), "Ynew", "drop the row or fill the gap")
    return Xnew, Ynew


def known_data(
    Xnew: Any, Ynew: Any, num_columns: int, num_tasks: int, dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor]:
    """Test inputs, and targets with NaN where a task is asked for; infinity is refused."""
    Xnew, Ynew = inputs_and_targets(Xnew, Ynew, num_columns, num_tasks, dtype)
    if hasattr(Ynew, "numpy") and np.isinf(Ynew.numpy()).any():
        where = np.argwhere(np.isinf(Ynew.numpy()))[0]
        raise ValueError(
            f"Ynew{place(where)} is infinite: pass a number where a task is known and NaN where it"
            " is asked for."
        )
    return Xnew, Ynew


def groups(values: Any, num_rows: int) -> list[AnyNDArray]:
    """The rows of each group, of one label per row; the groups in their sorted order."""
    labels = np.asarray(values)
    if labels.ndim != 1 or len(labels) != num_rows:
        raise ValueError(
            f"groups has shape {labels.shape}, but X has {num_rows} rows: pass one group per row,"
            f" shape ({num_rows},)."
        )
    _, number = np.unique(labels, return_inverse=True)
    if not np.any(number):
        raise ValueError(
            "All rows are in one group, so that none is left to predict it from: pass the groups of"
            " which each is to be predicted from the others."
        )
    return [np.flatnonzero(number == group) for group in range(number.max() + 1)]
