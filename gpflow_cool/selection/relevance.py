"""Which inputs matter: how much of a function's variance each of them moves."""

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel

NUM_ROWS = 32
"""Rows whose inputs are exchanged with each other; drawn at random where there are more."""


@check_shapes("X: [N, D]", "return: [D]")
def input_relevance(kernel: Kernel, X: AnyNDArray, *, seed: int = 0) -> AnyNDArray:
    r"""
    How much of a function's variance one input moves, if it alone is drawn again from the data.

    .. math:: r_d = \frac{\mathrm{E} [ (f(x) - f(x'))^2 ]}{2 \, \mathrm{E} [ k(x, x) ]}
              = \frac{\mathrm{E} [ k(x, x) + k(x', x') - 2 k(x, x') ]}{2 \, \mathrm{E} [ k(x, x) ]}

    f is a function of the kernel's Gaussian process, and x' is the row x with the input d of
    another row: this is the total effect of an input as in an analysis of variance. It is 0 for an
    input that the kernel does not see, and near 1 for one that alone decides everything. Several
    inputs may be near 1, because they act together.

    >>> from gpflow.kernels import SquaredExponential
    >>> X = np.random.default_rng(0).normal(size=[50, 2])
    >>> input_relevance(SquaredExponential(lengthscales=[1.0, 100.0]), X).round(3).tolist()
    [0.37, 0.0]
    """
    rng = np.random.default_rng(seed)
    rows = X if len(X) <= NUM_ROWS else X[rng.choice(len(X), NUM_ROWS, replace=False)]
    moved, level = np.zeros(X.shape[1]), 0.0
    for row in rows:
        changed = exchanged(row, rows)  # [D, n, D]
        flat = tf.constant(changed.reshape(-1, X.shape[1]))
        here = tf.constant(row[None])
        own, other = kernel(here, full_cov=False), kernel(flat, full_cov=False)
        squares = own + other - 2.0 * kernel(here, flat)[0]
        moved += np.mean(squares.numpy().reshape(changed.shape[:2]), axis=1)
        level += 2.0 * float(own[0])
    return np.maximum(moved, 0.0) / level if level > 0 else moved


@check_shapes("row: [D]", "rows: [n, D]", "return: [D, n, D]")
def exchanged(row: AnyNDArray, rows: AnyNDArray) -> AnyNDArray:
    """The row with its input d replaced by that of each of the rows, for every d."""
    num_inputs = len(row)
    changed = np.tile(row, (num_inputs, len(rows), 1))
    inputs = np.arange(num_inputs)
    changed[inputs, :, inputs] = rows.T
    return changed
