"""Whether a kernel fits the columns of X: checked before a kernel matrix is computed."""

import numpy as np
from gpflow.kernels import Combination, Kernel, Matern32, Matern52, Periodic

ONE_PER_COLUMN = ("lengthscales", "variance", "weight_variances")
"""Parameters of kernels that may have one entry per column."""


def check_columns(kernel: Kernel, num_columns: int) -> None:
    """Raise unless the kernel and every kernel inside sums and products fit the columns of X."""
    if isinstance(kernel, Combination):
        for part in kernel.kernels:
            check_columns(part, num_columns)
        return
    name, active = type(kernel).__name__, kernel.active_dims
    dims = range(num_columns)[active] if isinstance(active, slice) else [int(d) for d in active]
    if not dims or max(dims) >= num_columns or min(dims) < 0:
        raise ValueError(
            f"{name} has active_dims={active}, but X has {num_columns} columns: they"
            f" are counted from 0 to {num_columns - 1}."
        )
    check_definite(kernel, len(dims))
    for attribute in ONE_PER_COLUMN:
        size = np.size(getattr(kernel, attribute, 1.0))
        if size not in (1, len(dims)):
            raise ValueError(
                f"{name} has {size} {attribute}, but it sees {len(dims)} columns of X: pass one"
                " number, or one per column."
            )


def check_definite(kernel: Kernel, num_columns: int) -> None:
    r"""
    Raise if the kernel is certainly not positive definite.

    GPflow's `Periodic` adds absolute sines of several columns. Matern 3/2 of a sum of distances,
    with a and b in units of the lengthscale, is :math:`(1 + a + b) e^{-a - b} = (1 + a) e^{-a}
    e^{-b} + e^{-a} (1 + b) e^{-b} - e^{-a} e^{-b}`. Its spectral density is proportional to
    :math:`h(v) h(w) (2 h(v) + 2 h(w) - 1)` with :math:`h(w) = 1 / (1 + w^2)`, which is negative for
    high frequencies; likewise for Matern 5/2.
    """
    base = kernel.base_kernel if isinstance(kernel, Periodic) else None
    if num_columns > 1 and type(base) in (Matern32, Matern52):
        raise ValueError(
            f"Periodic({type(base).__name__}()) of {num_columns} columns is not positive definite,"
            " so that it is no kernel of a Gaussian process. Use"
            " Periodic(SquaredExponential()), or a product of periodic kernels of one column each,"
            " with active_dims=[0], active_dims=[1], ..."
        )
