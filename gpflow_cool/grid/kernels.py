r"""
Kernels that are products over the axes of a grid, and their matrices.

.. math:: k(x, x') = \prod_a k_a(x_a, x'_a), \qquad K = K_1 \otimes K_2 \otimes \dots

with :math:`x_a` the columns of axis a. Such are products of kernels that see different columns; a
squared exponential or a Laplacian kernel, whatever its lengthscales; and any of these times a
constant or a white kernel.

Letters: N rows, D inputs, n points of an axis, M test points.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType
from gpflow.kernels import Constant, Kernel, Product, SquaredExponential, Sum, White

from ..kernels import Laplacian, shifted_kernel
from ..systems.products import KroneckerProduct
from .axes import LEAST_SHARE, Grid, find_grid

MIN_ROWS = 300
"""With fewer rows, a decomposition of the whole kernel matrix takes milliseconds."""

MAX_COLUMNS = 16
"""Tables with more columns that vary are not searched for a grid: it would have 2^17 rows or more,
and searching takes time."""

MAX_SHARE = 0.25
"""An axis with a larger share of the rows' number leaves little to gain."""


# Which columns a kernel keeps apart ---------------------------------------------------------------


def factors_of(kernel: Kernel) -> list[Kernel]:
    """The factors of a product, of products in it too; a kernel that is none is its own factor."""
    if type(kernel) is not Product:
        return [kernel]
    return [factor for part in kernel.kernels for factor in factors_of(part)]


def is_separable(factor: Kernel) -> bool:
    """Whether a factor is itself a product over its columns."""
    return type(factor) in (SquaredExponential, Laplacian)


def columns_of(factor: Kernel, num_inputs: int) -> tuple[int, ...]:
    """
    The columns that a factor sees; none for a constant and for white noise.

    White noise knows rows and not columns: a sum with such a term is no product.
    """
    every = range(num_inputs)
    if isinstance(factor, Constant | White):
        return ()
    if any(isinstance(part, White) for part in factor.submodules):
        return tuple(every)
    if type(factor) in (Sum, Product):
        parts = (columns_of(part, num_inputs) for part in factor.kernels)
        return tuple(sorted({column for part in parts for column in part}))
    columns = factor.active_dims
    return tuple(every[columns] if isinstance(columns, slice) else map(int, np.ravel(columns)))


def column_groups(kernel: Kernel, num_inputs: int) -> list[tuple[int, ...]]:
    """
    Groups of columns over which a kernel is a product, as many as possible.

    >>> import gpflow
    >>> column_groups(gpflow.kernels.SquaredExponential(), 3)
    [(0,), (1,), (2,)]
    >>> space, time = gpflow.kernels.Matern52(active_dims=[0, 2]), gpflow.kernels.Matern12
    >>> column_groups(space * time(active_dims=[1]), 3)
    [(0, 2), (1,)]
    """
    groups = [{column} for column in range(num_inputs)]
    for factor in factors_of(kernel):
        columns = set() if is_separable(factor) else set(columns_of(factor, num_inputs))
        joined = set().union(*(group for group in groups if group & columns))
        groups = [group for group in groups if not group & columns] + ([joined] if joined else [])
    return sorted(tuple(sorted(group)) for group in groups)


# The grid of a model ------------------------------------------------------------------------------


def grid_that_pays(kernel: Kernel, X: AnyNDArray) -> Grid | None:
    """The grid of a kernel and its inputs if it saves much work, else None."""
    num_rows, num_inputs = X.shape
    groups = column_groups(kernel, num_inputs)
    if num_rows < MIN_ROWS or len(groups) == 1:
        return None
    if np.count_nonzero(np.ptp(X, axis=0)) > MAX_COLUMNS:
        return None
    try:
        grid = find_grid(X, groups)
    except ValueError:  # repeated rows
        return None
    return grid if max(grid.shape) <= MAX_SHARE * num_rows else None


def grid_that_is_asked_for(kernel: Kernel, X: AnyNDArray | tf.Tensor | tf.Variable) -> Grid:
    """The grid of a kernel and its inputs; an error tells why there is none."""
    if isinstance(X, tf.Variable):
        raise ValueError(
            'engine="grid": X is a tf.Variable, and the grid must not change: pass X as an array.'
            ' Where rows do change, as they do in Trieste, use engine="auto".'
        )
    X = np.asarray(X)
    num_inputs = X.shape[1]
    if num_inputs == 1:
        raise ValueError(
            'engine="grid" needs at least two columns of X, and it has one: use engine="auto".'
        )
    groups = column_groups(kernel, num_inputs)
    grid = find_grid(X, groups)
    if len(grid.groups) > 1:
        return grid
    by_columns = find_grid(X)
    if len(by_columns.groups) == 1:
        raise ValueError(f'engine="grid": {why_no_grid(X)}')
    guilty = [factor for factor in factors_of(kernel) if joins(factor, by_columns, num_inputs)]
    names = " and ".join(type(factor).__name__ for factor in guilty)
    axes = ", ".join(str(list(group)) for group in by_columns.groups)
    raise ValueError(
        f'engine="grid" needs a kernel that is a product over the axes of X, whose columns are'
        f" {axes}. {names} sees columns of several axes: multiply kernels that see one axis each,"
        f" for example Matern52(active_dims={list(by_columns.groups[0])}) *"
        f" Matern52(active_dims={list(by_columns.groups[1])}). SquaredExponential and"
        " gpflow_cool.Laplacian are such products by themselves."
    )


def joins(factor: Kernel, grid: Grid, num_inputs: int) -> bool:
    """Whether a factor sees several axes of a grid and is no product over them."""
    columns = set(columns_of(factor, num_inputs))
    seen = [group for group in grid.groups if columns & set(group)]
    return len(seen) > 1 and not is_separable(factor)


def why_no_grid(X: AnyNDArray) -> str:
    """What keeps a table from being a grid, and what to do."""
    gappy = find_grid(X, least_share=LEAST_SHARE)
    if len(gappy.groups) > 1:
        return (
            f"X has {len(X)} of the {gappy.num_cells} rows of a grid of"
            f" {' x '.join(map(str, gappy.shape))} points. Fill the gaps with NaN:"
            " X, Y = gpflow_cool.grid.complete_grid(X, Y)."
        )
    counts = ", ".join(str(len(np.unique(column))) for column in X.T)
    return (
        f"the {len(X)} rows of X are not a grid. Its columns have {counts} different values, and"
        ' not all combinations of them occur: use engine="auto".'
    )


# Matrices -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelOnGrid:
    """A kernel that is a product over the axes of a grid."""

    kernel: Kernel
    grid: Grid
    axes: tuple[tf.Tensor, ...]
    """[n, D] each, the points of an axis; columns of other axes are those of the origin."""

    origin: tf.Tensor
    """[D]."""

    def matrix(self) -> KroneckerProduct:
        """The kernel matrix of all rows."""
        parts = [self.factor(number, axis) for number, axis in enumerate(self.axes)]
        return KroneckerProduct(tuple(parts), self.grid.rows)

    def cross(self, Xnew: TensorType) -> tuple[tf.Tensor, ...]:
        """[n, batch..., M] each: covariances of an axis with test points, whose product counts."""
        return tuple(self.factor(number, axis, Xnew) for number, axis in enumerate(self.axes))

    def factor(self, number: int, X: tf.Tensor, X2: TensorType | None = None) -> tf.Tensor:
        """The kernel of one axis, k(X, X) or k(X, X2)."""
        X2 = None if X2 is None else self.on_axis(number, X2)
        num_inputs = X.shape[1]
        parts = []
        for factor in factors_of(self.kernel):
            numbers = axes_of(factor, self.grid, num_inputs)
            if number not in numbers:
                continue
            K = shifted_kernel(factor, X, X2, origin=self.origin)
            parts.append(K if number == numbers[0] else K / factor.variance)
        if not parts:  # no factor sees these columns
            parts = [tf.ones_like(shifted_kernel(SquaredExponential(), X, X2, origin=self.origin))]
        return functools.reduce(tf.multiply, parts)

    def on_axis(self, number: int, X: TensorType) -> tf.Tensor:
        """Inputs [..., D], with the origin in all columns but those of an axis."""
        own = np.zeros(X.shape[-1], bool)
        own[list(self.grid.groups[number])] = True
        return tf.where(own, X, self.origin)


def axes_of(factor: Kernel, grid: Grid, num_inputs: int) -> list[int]:
    """
    The axes whose matrices a factor is in.

    A constant is in the first. White noise is in all: two rows are the same if all axes say so.
    """
    if isinstance(factor, White):
        return list(range(len(grid.groups)))
    if isinstance(factor, Constant):
        return [0]
    columns = set(columns_of(factor, num_inputs))
    return [number for number, group in enumerate(grid.groups) if columns & set(group)]


@check_shapes("X: [N, D]", "origin: [D]")
def kernel_on_grid(kernel: Kernel, grid: Grid, X: TensorType, origin: TensorType) -> KernelOnGrid:
    """
    A kernel on the grid that its inputs are.

    :param origin: Relative to which kernels that are translation invariant see the inputs.
    """
    start = kernel_axes(grid, X)
    asked = KernelOnGrid(kernel, grid, start, tf.convert_to_tensor(origin))
    return replace(
        asked, axes=tuple(asked.on_axis(number, axis) for number, axis in enumerate(start))
    )


def kernel_axes(grid: Grid, X: TensorType) -> tuple[tf.Tensor, ...]:
    """[n, D] each, a row of X for each point of an axis."""
    rows = grid.rows.reshape(grid.shape)
    corner = [0] * rows.ndim
    lines = (tuple([*corner[:a], slice(None), *corner[a + 1 :]]) for a in range(rows.ndim))
    return tuple(tf.gather(X, rows[line]) for line in lines)
