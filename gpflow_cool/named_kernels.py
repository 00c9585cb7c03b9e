"""Kernels by name, for those who know GPflow only from the outside."""

import copy
from collections.abc import Callable

import gpflow
import numpy as np
from gpflow.kernels import Kernel

KERNELS: dict[str, Callable[..., Kernel]] = {
    "se": gpflow.kernels.SquaredExponential,
    "matern12": gpflow.kernels.Matern12,
    "matern32": gpflow.kernels.Matern32,
    "matern52": gpflow.kernels.Matern52,
    "linear": gpflow.kernels.Linear,
}


def make_kernel(kernel: str | Kernel, ard: bool, num_columns: int) -> Kernel:
    """
    A kernel to train: a new one by name, or a copy of the user's.

    :param ard: Whether a kernel given by name has a lengthscale (a variance, if it is linear) for
        each column.
    """
    if isinstance(kernel, Kernel):
        if ard:
            raise ValueError(
                "ard=True is for a kernel given by name: give the kernel object a lengthscale"
                " for each column instead, and leave ard out."
            )
        return copy.deepcopy(kernel)
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ValueError(
            f"kernel={kernel!r} is not known. Choose one of {', '.join(map(repr, KERNELS))}, or"
            " pass a gpflow.kernels.Kernel object."
        )
    name = "variance" if kernel == "linear" else "lengthscales"
    return KERNELS[kernel](**({name: np.ones(num_columns)} if ard else {}))
