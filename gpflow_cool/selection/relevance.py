"""Which inputs matter: how much of a function's variance each of them moves."""

import copy

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel, White

from ..chain.kernels import shifted_kernel

TINY = 1e-20
"""A variance of noise that counts as none."""

NUM_ROWS = 32
"""Rows whose inputs are exchanged with each other; drawn at random where there are more."""


@check_shapes("X: [N, D]", "return: [D]")
def input_relevance(kernel: Kernel, X: AnyNDArray, *, seed: int = 0) -> AnyNDArray:
    r"""
    How much of a function's variance one input moves, if it alone is drawn again from the data.

    .. math:: r_d = \frac{\mathrm{E} [ (f(x) - f(x'))^2 ]}{\mathrm{E} [ (f(x) - f(x''))^2 ]}, \qquad
              \mathrm{E} [ (f(x) - f(x'))^2 ] = k(x, x) + k(x', x') - 2 k(x, x')

    f is a function of the kernel's Gaussian process, x'' is another row, and x' is the row x with
    the input d of that row: this is the total effect of an input as in an analysis of variance. It
    is 0 for an input that the kernel does not see, and 1 for one that alone decides everything.
    Several inputs may be near 1, because they act together.

    >>> from gpflow.kernels import SquaredExponential
    >>> X = np.random.default_rng(0).normal(size=[50, 2])
    >>> input_relevance(SquaredExponential(lengthscales=[1.0, 100.0]), X).round(3).tolist()
    [1.0, 0.0]
    """
    rng, kernel = np.random.default_rng(seed), without_noise(kernel)
    rows = X if len(X) <= NUM_ROWS else X[rng.choice(len(X), NUM_ROWS, replace=False)]
    moved, level = np.zeros(X.shape[1]), 0.0
    for row in rows:
        changed = exchanged(row, rows)  # [D, n, D]
        squares = squared_differences(kernel, row, changed.reshape(-1, X.shape[1]))
        moved += np.mean(squares.reshape(changed.shape[:2]), axis=1)
        level += float(np.mean(squared_differences(kernel, row, rows)))
    return np.maximum(moved, 0.0) / level if level > 0 else np.zeros_like(moved)


@check_shapes("row: [D]", "rows: [n, D]", "return: [n]")
def squared_differences(kernel: Kernel, row: AnyNDArray, rows: AnyNDArray) -> AnyNDArray:
    """Expected squares of f(x) - f(x'), for one x and several x'."""
    here, there, origin = tf.constant(row[None]), tf.constant(rows), tf.constant(row)
    own, other = (shifted_kernel(kernel, X, full_cov=False, origin=origin) for X in (here, there))
    return (own + other - 2.0 * shifted_kernel(kernel, here, there, origin=origin)[0]).numpy()


def without_noise(kernel: Kernel) -> Kernel:
    """The kernel, or a copy of it without its white noise, which no input moves."""
    if not any(isinstance(part, White) for part in (kernel, *kernel.submodules)):
        return kernel
    kernel = copy.deepcopy(kernel)
    for part in (kernel, *kernel.submodules):
        if isinstance(part, White):
            part.variance.assign(TINY)
    return kernel


@check_shapes("row: [D]", "rows: [n, D]", "return: [D, n, D]")
def exchanged(row: AnyNDArray, rows: AnyNDArray) -> AnyNDArray:
    """The row with its input d replaced by that of each of the rows, for every d."""
    num_inputs = len(row)
    changed = np.tile(row, (num_inputs, len(rows), 1))
    inputs = np.arange(num_inputs)
    changed[inputs, :, inputs] = rows.T
    return changed
