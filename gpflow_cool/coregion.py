"""
To and from GPflow's coregionalization layout.

There, X has a column with the number of the task, Y has one column, and the kernel is a base kernel
times `gpflow.kernels.Coregion`. Here, X has no such column, and Y has one column a task.
"""

import copy
import warnings
from collections import defaultdict
from itertools import zip_longest
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, MeanAndVariance
from gpflow.kernels import Combination, Coregion, Kernel, Product

from . import checks


class CoregionKernel(NamedTuple):
    """A product of a base kernel and `Coregion`, taken apart."""

    base: Kernel
    """A copy that sees the inputs without the task column."""

    num_tasks: int
    task_column: int


def split_kernel(kernel: Kernel, num_columns: int) -> CoregionKernel:
    """
    Take a base kernel times `Coregion` apart.

    :param num_columns: Of X, the task column included.
    """
    factors = kernel.kernels if isinstance(kernel, Product) else [kernel]
    coregions = [factor for factor in factors if isinstance(factor, Coregion)]
    others = [factor for factor in factors if not isinstance(factor, Coregion)]
    if len(coregions) != 1 or not others or any(map(contains_coregion, others)):
        raise ValueError(
            "The kernel must be one base kernel times one gpflow.kernels.Coregion, for example"
            " SquaredExponential(active_dims=[0]) * Coregion(2, 1, active_dims=[1])."
        )
    columns = np.atleast_1d(np.arange(num_columns)[coregions[0].active_dims])
    if len(columns) != 1:
        raise ValueError(
            f"Coregion sees columns {columns.tolist()} of X: give it active_dims=[the task column]."
        )
    task_column = int(columns[0])
    base = copy.deepcopy(others[0] if len(others) == 1 else Product(others))
    drop_column(base, task_column, num_columns)
    return CoregionKernel(base, int(coregions[0].output_dim), task_column)


def contains_coregion(kernel: Kernel) -> bool:
    return any(isinstance(part, Coregion) for part in (kernel, *kernel.submodules))


def drop_column(kernel: Kernel, column: int, num_columns: int) -> None:
    """Let a kernel see X without a column, in place."""
    if isinstance(kernel, Combination):
        for part in kernel.kernels:
            drop_column(part, column, num_columns)
        return
    dims = np.arange(num_columns)[kernel.active_dims]
    if column in dims:
        raise ValueError(
            f"{type(kernel).__name__} sees the task column, {column}, of X, so that the model is no"
            " product of inputs and tasks: give it active_dims without that column."
        )
    kernel.active_dims = [int(d) - (d > column) for d in dims]


def pivot(
    X_aug: AnyNDArray, Y: AnyNDArray, num_tasks: int, task_column: int
) -> tuple[AnyNDArray, AnyNDArray]:
    """
    Rows of single tasks, in any order, to inputs [N, D] and targets [N, T].

    Rows of X come in the order of the first task's, then those where the first task is not
    measured. Targets are NaN where a task is not measured; where it is measured k times at one
    input, its first measurement shares a row with the other tasks' first, and so on.
    """
    tasks = task_numbers(X_aug[:, task_column], num_tasks)
    X = np.delete(X_aug, task_column, axis=1)
    rows: dict[bytes, list[list[int]]] = defaultdict(lambda: [[] for _ in range(num_tasks)])
    for number, (x, task) in enumerate(zip(X + 0.0, tasks, strict=True)):  # -0.0 + 0.0 is 0.0
        rows[x.tobytes()][task].append(number)
    nowhere = len(X)
    index = np.array(
        [each for found in rows.values() for each in zip_longest(*found, fillvalue=nowhere)]
    )
    index = index[np.lexsort([index.min(axis=1), index[:, 0]])]
    return X[index.min(axis=1)], np.append(Y[:, 0], np.nan)[index]


def task_numbers(column: AnyNDArray, num_tasks: int) -> AnyNDArray:
    """The task column as integers; each of the T tasks must be there."""
    tasks = np.round(column).astype(int)
    bad = np.flatnonzero((tasks != column) | (tasks < 0) | (tasks >= num_tasks))
    if len(bad):
        raise ValueError(
            f"Row {bad[0]} has task {column[bad[0]]}: tasks are numbered 0 to {num_tasks - 1}."
        )
    return tasks


class SharedInputs(NamedTuple):
    """A coregionalization model's data and base kernel, one column of Y a task."""

    X: AnyNDArray
    Y: AnyNDArray
    kernel: Kernel
    task_column: int


def from_coregion(model: Any) -> SharedInputs:
    """
    Data and base kernel of a GPflow model whose kernel is a base kernel times `Coregion`.

    :param model: A `gpflow.models.GPR` or `VGP`. A second column of Y (the likelihood's number, for
        `SwitchedLikelihood`) is ignored.
    """
    if not isinstance(getattr(model, "kernel", None), Kernel) or not hasattr(model, "data"):
        raise ValueError(f"{model!r} is no GPflow model with a kernel and data, such as GPR.")
    X_aug, Y = (np.asarray(part) for part in model.data)
    parts = split_kernel(model.kernel, X_aug.shape[1])
    X, Y = pivot(X_aug, Y, parts.num_tasks, parts.task_column)
    return SharedInputs(X, Y, parts.base, parts.task_column)


def predict_coregion(model: Any, X_aug: Any, *, noise: bool, task_column: int) -> MeanAndVariance:
    """
    Mean and variance, [M, 1] each, at rows that name their task in a column.

    :param noise: Whether observations are asked for, or functions.
    """
    num_columns = int(model.data[0].shape[1]) + 1
    X_aug = checks.inputs(X_aug, num_columns)
    column = task_column % num_columns
    tasks = task_numbers(X_aug[:, column].numpy(), model.num_tasks)
    X = tf.concat([X_aug[:, :column], X_aug[:, column + 1 :]], axis=1)
    mean, variance = model.predict_y(X) if noise else model.predict_f(X)
    pick = np.stack([np.arange(len(tasks)), tasks], axis=1)
    return tf.gather_nd(mean, pick)[:, None], tf.gather_nd(variance, pick)[:, None]


def to_coregion_gpr(model: Any) -> gpflow.models.GPR:
    """
    A GPflow `GPR` with `Coregion`, the task column last, at the model's C and noise variances.

    Its noise may differ between tasks but cannot correlate: a warning says how much is lost.
    """
    X, Y = (np.asarray(part) for part in model.data)
    num_rows, num_columns = X.shape
    num_tasks = model.num_tasks
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    lost = np.max(np.abs(model.noise_correlation().numpy() - np.eye(num_tasks)))
    if lost > 0.05:
        warnings.warn(
            f"GPflow's GPR knows no correlated noise: correlations of up to {lost:.2f} between the"
            " noises of two tasks are not carried over.",
            stacklevel=3,
        )
    base = copy.deepcopy(model.kernel)
    keep_columns(base, num_columns)
    coregion = Coregion(num_tasks, rank=num_tasks, active_dims=[num_columns])
    tiny = 1e-8 * float(np.mean(np.diag(C))) + 1e-12
    values, vectors = np.linalg.eigh(C)
    coregion.W.assign(vectors * np.sqrt(np.maximum(values - tiny, 0.0)))
    coregion.kappa.assign(np.full(num_tasks, tiny))
    X_aug = np.hstack(
        [np.tile(X, (num_tasks, 1)), np.repeat(np.arange(num_tasks), num_rows)[:, None]]
    )
    noise = gpflow.functions.SwitchedFunction(
        [gpflow.functions.Constant(variance) for variance in np.diag(Sigma)]
    )
    y = Y.reshape(-1, 1, order="F")
    measured = ~np.isnan(y[:, 0])
    return gpflow.models.GPR(
        (X_aug[measured], y[measured]),
        base * coregion,
        mean_function=last_column_dropped(model.mean_function, num_tasks),
        likelihood=gpflow.likelihoods.Gaussian(variance=noise),
    )


def keep_columns(kernel: Kernel, num_columns: int) -> None:
    """Let a kernel go on seeing the columns that it sees when X gets one more, in place."""
    if isinstance(kernel, Combination):
        for part in kernel.kernels:
            keep_columns(part, num_columns)
    else:
        kernel.active_dims = [int(d) for d in np.arange(num_columns)[kernel.active_dims]]


def last_column_dropped(
    mean_function: gpflow.mean_functions.MeanFunction, num_tasks: int
) -> gpflow.mean_functions.MeanFunction:
    """A mean function of the inputs as one of rows that end with their task."""

    class TaskMean(gpflow.mean_functions.MeanFunction):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mean_function

        def __call__(self, X_aug: tf.Tensor) -> tf.Tensor:
            mean = self.inner(X_aug[..., :-1]) + tf.zeros([num_tasks], X_aug.dtype)  # [..., T]
            task = tf.one_hot(tf.cast(X_aug[..., -1], tf.int32), num_tasks, dtype=X_aug.dtype)
            return tf.reduce_sum(mean * task, axis=-1, keepdims=True)

    return TaskMean()
