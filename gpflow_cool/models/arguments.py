"""Kernels, mean functions and covariances that a user passes to a model: checked before work."""

import re
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.config import default_float
from gpflow.kernels import Coregion, Kernel, MultioutputKernel
from gpflow.mean_functions import MeanFunction

from .. import checks
from ..kernels import check_columns


def input_names(X: Any) -> tuple[str, ...] | None:
    """Names of the inputs: the columns of a data frame X, else None."""
    columns = getattr(X, "columns", None)
    return None if columns is None else tuple(str(name) for name in columns)


def check_kernel(kernel: Any, X: tf.Tensor | tf.Variable) -> Kernel:
    """Return `kernel` if it is a GPflow kernel over inputs alone, and fits the columns of X."""
    checks.kernel(kernel)
    for part in (kernel, *kernel.submodules):
        if isinstance(part, MultioutputKernel):
            raise ValueError(
                f"{type(part).__name__} is a multi-output kernel. This model learns the covariance"
                " between tasks itself: pass the kernel over inputs that all tasks share, for"
                " example gpflow.kernels.SquaredExponential()."
            )
        if isinstance(part, Coregion):
            raise ValueError(
                "The kernel contains Coregion. This model learns the covariance between tasks"
                " itself: pass the base kernel alone, without the task column in X, and one column"
                " of Y per task."
            )
    check_columns(kernel, int(X.shape[1]))
    check_one_row(kernel, X)
    return kernel


def check_one_row(kernel: Kernel, X: tf.Tensor | tf.Variable) -> None:
    """Raise unless the kernel has a finite value at the first row, whatever goes wrong there."""
    row = tf.convert_to_tensor(X)[:1]
    try:
        K = np.asarray(kernel(row))
    except Exception as error:
        raise ValueError(
            f"The kernel fails at the first row of X, {row.shape[1]} columns of {row.dtype.name}"
            f" ({summary(error)}). Look at its parameters, active_dims and data type."
        ) from error
    if K.shape != (1, 1) or not np.isfinite(K).all():
        raise ValueError(
            f"At the first row of X the kernel gives {K.tolist()}, but one finite number, shape"
            " (1, 1), is needed. Look at its parameters and at the scale of X."
        )


def check_mean_function(
    function: Any, X: tf.Tensor | tf.Variable, num_tasks: int
) -> MeanFunction | None:
    """Return `function` if it is None, or gives one number, or one per task, at every row of X."""
    if function is None:
        return None
    if isinstance(function, type) or not callable(function):
        raise ValueError(
            f"mean_function is {function!r}, but a gpflow.mean_functions.MeanFunction object is"
            " needed, for example gpflow.mean_functions.Constant()."
        )
    try:
        mean = np.asarray(function(tf.convert_to_tensor(X)))
    except Exception as error:
        raise ValueError(
            f"The mean function fails at X of shape {tuple(X.shape)} ({summary(error)}). It must"
            f" give shape (N, 1) or (N, {num_tasks}) in {np.dtype(default_float()).name}."
        ) from error
    num_rows = int(tf.shape(X)[0])
    if mean.shape not in [(num_rows, 1), (num_rows, num_tasks)]:
        raise ValueError(
            f"The mean function gives shape {mean.shape} at X, but one number per row, shape"
            f" ({num_rows}, 1), or one per task, shape ({num_rows}, {num_tasks}), is needed."
        )
    checks.check_finite(mean, "The mean function at X, ", "look at its parameters")
    return function


def summary(error: Exception) -> str:
    """What an error says, on one line, shortened, and without the name of TensorFlow's node."""
    text = " ".join(re.sub(r"{{function_node [^}]*}}", "", str(error)).split())
    return text[:200] or type(error).__name__


def check_covariance(value: Any, name: str, num_tasks: int) -> AnyNDArray:
    """Cast a covariance between tasks to an array [T, T], symmetric and positive semidefinite."""
    array = checks.numbers(value, name).astype(default_float())
    if array.shape != (num_tasks, num_tasks):
        raise ValueError(
            f"{name} has shape {array.shape}, but Y has {num_tasks} tasks: pass"
            f" ({num_tasks}, {num_tasks})."
        )
    checks.check_finite(array, name, "look at how it was computed")
    scale = float(np.max(np.abs(array)))
    tolerance = 1e-6 if array.dtype == np.float64 else 1e-3
    if np.max(np.abs(array - array.T)) > tolerance * scale:
        row, column = np.unravel_index(np.argmax(np.abs(array - array.T)), array.shape)
        raise ValueError(
            f"{name} is not symmetric: {array[row, column]} at [{row}, {column}], but"
            f" {array[column, row]} at [{column}, {row}]."
        )
    smallest = float(np.linalg.eigvalsh(array)[0])
    if scale == 0 or smallest < -tolerance * scale:
        raise ValueError(
            f"{name} is not a covariance: its smallest eigenvalue is {smallest:.3g}, but none may"
            " be negative, nor all of them zero."
        )
    return 0.5 * (array + array.T)
