"""
To and from GPflow's coregionalization layout.

There, X has a column with the number of the task, Y has one column, and the kernel is a base kernel
times `gpflow.kernels.Coregion`. Here, X has no such column, and Y has one column per task.
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
from gpflow.kernels import Combination, Coregion, Kernel, Product, White
from gpflow.likelihoods import Gaussian
from gpflow.mean_functions import MeanFunction, Zero

from . import checks
from .joint.model import JointModel

NEGLIGIBLE = 0.05
"""Correlations that are lost are told if they are larger."""


class CoregionKernel(NamedTuple):
    """A product of a base kernel and `Coregion`, taken apart."""

    base: Kernel
    """A copy that sees the inputs without the task column."""

    num_tasks: int
    task_column: int


def split_kernel(kernel: Kernel, num_columns: int) -> CoregionKernel:
    """
    Take a base kernel times `Coregion` apart.

    :param num_columns: Number of columns of X, with the task column.
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
    number_columns(base, num_columns, task_column)
    return CoregionKernel(base, int(coregions[0].output_dim), task_column)


def contains_coregion(kernel: Kernel) -> bool:
    return contains(kernel, Coregion)


def contains(kernel: Kernel, kind: type[Kernel]) -> bool:
    """Whether a kernel, or a kernel inside it, is of some kind."""
    return any(isinstance(part, kind) for part in (kernel, *kernel.submodules))


def number_columns(kernel: Kernel, num_columns: int, task_column: int) -> None:
    """
    Let a kernel name the columns that it sees by their numbers without the task column, in place.

    :param task_column: Where it is; `num_columns` where X gets it as a new last column.
    """
    if isinstance(kernel, Combination):
        for part in kernel.kernels:
            number_columns(part, num_columns, task_column)
        return
    dims = np.arange(num_columns)[kernel.active_dims]
    if task_column in dims:
        raise ValueError(
            f"{type(kernel).__name__} sees the task column, {task_column}, of X, so that the model"
            " is not a product of inputs and tasks: give it active_dims without that column."
        )
    kernel.active_dims = [int(d) - (d > task_column) for d in dims]


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
    """The task column as integers, each from 0 to T - 1."""
    with np.errstate(invalid="ignore"):  # NaN becomes some integer, and is refused below
        tasks = np.round(column).astype(int)
    bad = np.flatnonzero((tasks != column) | (tasks < 0) | (tasks >= num_tasks))
    if len(bad):
        raise ValueError(
            f"Row {bad[0]} has task {column[bad[0]]}: tasks are numbered 0 to {num_tasks - 1}."
        )
    return tasks


class SharedInputs(NamedTuple):
    """A coregionalization model's data and base kernel, with one column of Y per task."""

    X: AnyNDArray
    Y: AnyNDArray
    kernel: Kernel
    mean_function: MeanFunction | None
    task_column: int


WHITE_BECOMES_CORRELATED = (
    "The kernel contains White, whose noise is independent between tasks in GPflow's layout, where"
    " every row is of one task. Here it is part of the kernel of all tasks, so that the noises of"
    " two tasks in a row correlate as C says: this is another model."
)
WHITE_BECOMES_INDEPENDENT = (
    "The kernel contains White, whose noises of two tasks in a row correlate as C says, by up to"
    " {:.2f}. In GPflow's layout, where every row is of one task, they are independent: these"
    " correlations are not carried over."
)
WITHOUT_WHITE = "Leave White out of the kernel: the noise covariance Sigma is learnt in its place."


def from_coregion(model: Any) -> SharedInputs:
    """
    Data, base kernel and mean function of a GPflow model whose kernel is a base kernel times
    `Coregion`.

    >>> from gpflow.kernels import SquaredExponential
    >>> X_aug = np.array([[0.0, 0], [1.0, 0], [0.0, 1], [1.0, 1]])
    >>> Y_aug = np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> kernel = SquaredExponential(active_dims=[0]) * Coregion(2, 1, active_dims=[1])
    >>> shared = from_coregion(gpflow.models.GPR((X_aug, Y_aug), kernel))
    >>> shared.X.tolist(), shared.Y.tolist()
    ([[0.0], [1.0]], [[1.0, 3.0], [2.0, 4.0]])

    :meth:`gpflow_cool.CoolMTGP.from_coregion` makes a model of it.

    :param model: A `gpflow.models.GPR` or `VGP`. A second column of Y (the likelihood's number, for
        `SwitchedLikelihood`) is ignored. A likelihood that is not Gaussian raises a warning, and so
        does a `White` kernel: its noise is independent there, and correlates between tasks here.
    """
    if not isinstance(getattr(model, "kernel", None), Kernel) or not hasattr(model, "data"):
        raise ValueError(f"{model!r} is not a GPflow model with a kernel and data, such as GPR.")
    X_aug, Y = (np.asarray(part) for part in model.data)
    parts = split_kernel(model.kernel, X_aug.shape[1])
    warn_of_likelihood(getattr(model, "likelihood", None))
    if parts.num_tasks > 1 and contains(parts.base, White):
        warnings.warn(f"{WHITE_BECOMES_CORRELATED} {WITHOUT_WHITE}", stacklevel=3)
    X, Y = pivot(X_aug, Y, parts.num_tasks, parts.task_column)
    check_every_task(Y)
    mean_function = None
    if not isinstance(model.mean_function, Zero):
        mean_function = MeanOfTasks(
            copy.deepcopy(model.mean_function), parts.num_tasks, parts.task_column
        )
    return SharedInputs(X, Y, parts.base, mean_function, parts.task_column)


def check_every_task(Y: AnyNDArray) -> None:
    """Raise if a task of `Coregion` has no row."""
    measured = (~np.isnan(Y)).any(axis=0)
    if not measured.all():
        count, missing = int(measured.sum()), int(np.argmin(measured))
        numbered = "" if measured[:count].all() else f"number the tasks 0 to {count - 1}, and "
        raise ValueError(
            f"No row has task {missing}, but Coregion has output_dim={len(measured)}:"
            f" {numbered}use output_dim={count}."
        )


def warn_of_likelihood(likelihood: Any) -> None:
    """Warn if a likelihood is not Gaussian, naming it."""
    parts = getattr(likelihood, "likelihoods", [likelihood])  # those of SwitchedLikelihood
    others = [type(part).__name__ for part in parts if not isinstance(part, Gaussian)]
    if likelihood is not None and others:
        warnings.warn(
            f"The model's likelihood, {', '.join(dict.fromkeys(others))}, becomes Gaussian: our"
            " models know no other noise. Where noise has heavy tails, outliers now count in full.",
            stacklevel=4,
        )


def predict_coregion(
    model: JointModel, X_aug: Any, *, noise: bool, task_column: int
) -> MeanAndVariance:
    """
    Mean and variance, [M, 1] each, at rows that name their task in a column.

    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> data = X, np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> model = CoolMTGP(data, gpflow.kernels.SquaredExponential(lengthscales=0.3))
    >>> mean, var = predict_coregion(model, [[0.5, 0], [0.5, 1]], noise=False, task_column=-1)
    >>> np.allclose(mean[:, 0], model.predict_f([[0.5]])[0][0])
    True

    :param noise: Whether observations are asked for, or functions.
    """
    num_columns = int(model.data[0].shape[1]) + 1
    X_aug = checks.tensor(X_aug, "X_aug", model.data[0].dtype)
    if X_aug.shape.rank != 2 or X_aug.shape[1] not in (None, num_columns):
        raise ValueError(
            f"X_aug has shape {tuple(X_aug.shape)}, but {num_columns - 1} inputs and the number of"
            f" the task are needed in every row: pass [M, {num_columns}]."
        )
    column = task_column % num_columns
    if hasattr(X_aug, "numpy"):
        checks.check_finite(X_aug.numpy(), "X_aug", "drop the row or fill the gap")
        task_numbers(X_aug[:, column].numpy(), model.num_tasks)
    X = tf.concat([X_aug[:, :column], X_aug[:, column + 1 :]], axis=1)
    mean, variance = model.predict_y(X) if noise else model.predict_f(X)
    tasks = tf.cast(X_aug[:, column : column + 1], tf.int32)  # [M, 1]
    return tf.gather(mean, tasks, batch_dims=1), tf.gather(variance, tasks, batch_dims=1)


def to_coregion_gpr(model: JointModel) -> gpflow.models.GPR:
    """
    A GPflow `GPR` with `Coregion`, the task column last, at the model's C and noise variances.

    Its noise, that of `White` included, may differ between tasks but cannot correlate: a warning
    says how much is lost.

    >>> from gpflow_cool import KroneckerMTGP
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> data = X, np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    >>> model = KroneckerMTGP(data, kernel, noise_rank=0)
    >>> gpr = to_coregion_gpr(model)
    >>> mean, _ = gpr.predict_f(np.array([[0.55, 1.0]]))
    >>> np.allclose(mean, model.predict_f([[0.55]])[0][:, 1:], atol=1e-4)
    True
    """
    X, Y = (np.asarray(part) for part in model.data)
    num_rows, num_columns = X.shape
    num_tasks = model.num_tasks
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    lost = largest_correlation(model.noise_correlation())
    if lost > NEGLIGIBLE:
        warnings.warn(
            f"GPflow's GPR knows no correlated noise: correlations of up to {lost:.2f} between the"
            " noises of two tasks are not carried over.",
            stacklevel=3,
        )
    lost = largest_correlation(model.task_correlation())
    if lost > NEGLIGIBLE and contains(model.kernel, White):
        warnings.warn(f"{WHITE_BECOMES_INDEPENDENT.format(lost)} {WITHOUT_WHITE}", stacklevel=3)
    base = copy.deepcopy(model.kernel)
    number_columns(base, num_columns, task_column=num_columns)
    coregion = Coregion(num_tasks, rank=num_tasks, active_dims=[num_columns])
    tiny = 1e-8 * float(np.mean(np.diag(C))) + 1e-12
    values, vectors = np.linalg.eigh(C)
    coregion.W.assign(vectors * np.sqrt(np.maximum(values - tiny, 0.0)))
    coregion.kappa.assign(np.full(num_tasks, tiny))
    tasks = np.repeat(np.arange(num_tasks, dtype=X.dtype), num_rows)
    X_aug = np.hstack([np.tile(X, (num_tasks, 1)), tasks[:, None]])
    noise = gpflow.functions.SwitchedFunction(
        [gpflow.functions.Constant(variance) for variance in np.diag(Sigma)]
    )
    y = Y.reshape(-1, 1, order="F")
    measured = ~np.isnan(y[:, 0])
    return gpflow.models.GPR(
        (X_aug[measured], y[measured]),
        base * coregion,
        mean_function=MeanOfRows(copy.deepcopy(model.mean_function), num_tasks),
        likelihood=gpflow.likelihoods.Gaussian(variance=noise),
    )


def largest_correlation(correlation: tf.Tensor) -> float:
    """The largest correlation of two different tasks, in absolute value; 0 if there is one task."""
    R = correlation.numpy()
    return float(np.max(np.abs(R - np.eye(len(R)))))


class MeanOfTasks(MeanFunction):
    """
    A mean function of rows that name their task, as one of the inputs alone: [N, T].

    :param inner: Gives one number per row.
    """

    def __init__(self, inner: MeanFunction, num_tasks: int, task_column: int) -> None:
        super().__init__()
        self.inner, self.num_tasks, self.task_column = inner, num_tasks, task_column

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        before, after = X[..., : self.task_column], X[..., self.task_column :]
        task = tf.zeros_like(X[..., :1])
        rows = [tf.concat([before, task + t, after], axis=-1) for t in range(self.num_tasks)]
        return tf.concat([self.inner(X_aug) for X_aug in rows], axis=-1)


class MeanOfRows(MeanFunction):
    """
    A mean function of inputs, as one of rows that end with their task: [N, 1].

    :param inner: Gives one number per row, or one per row and task.
    """

    def __init__(self, inner: MeanFunction, num_tasks: int) -> None:
        super().__init__()
        self.inner, self.num_tasks = inner, num_tasks

    def __call__(self, X_aug: tf.Tensor) -> tf.Tensor:
        mean = self.inner(X_aug[..., :-1]) + tf.zeros([self.num_tasks], X_aug.dtype)  # [..., T]
        task = tf.one_hot(tf.cast(X_aug[..., -1], tf.int32), self.num_tasks, dtype=X_aug.dtype)
        return tf.reduce_sum(mean * task, axis=-1, keepdims=True)
