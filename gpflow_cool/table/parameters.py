"""Parameters that a fitted estimator has learned, in the user's units: kernel, signal and noise."""

from typing import Any

import numpy as np
from gpflow.base import AnyNDArray
from gpflow.kernels import Kernel, Stationary
from gpflow.utilities import parameter_dict

from .residuals import listed

LARGE_SIGNAL = 3.0
"""A function whose deviation before any data is more than so many times its target's is large."""


def kernel_parameters(regressor: Any) -> list[tuple[str, str]]:
    """Names and values of the kernel's parameters that belong to no single input."""
    kernel = regressor.model_.kernel
    shown = []
    for path, parameter in parameter_dict(kernel).items():
        values = np.atleast_1d(parameter.numpy())
        if path == ".lengthscales" and len(values) == len(regressor._inputs.scale):
            continue  # shown with the inputs
        fixed = "" if parameter.trainable else " (fixed)"
        shown.append((path.lstrip("."), ", ".join(f"{v:.4g}" for v in np.ravel(values)) + fixed))
    return shown


def lengthscales(regressor: Any) -> AnyNDArray | None:
    """
    Lengthscale of each input in its own units, [D]; None for a kernel that has none.

    It is infinite for a constant input, which the model does not use.
    """
    kernel: Kernel = regressor.model_.kernel
    if not isinstance(kernel, Stationary) or not isinstance(kernel.active_dims, slice):
        return None
    scale = regressor._inputs.scale
    return np.broadcast_to(kernel.lengthscales.numpy(), scale.shape) * scale


def deviations(regressor: Any) -> dict[str, AnyNDArray]:
    """Standard deviations of signal and noise of each target, [T], in its own units."""
    X = regressor.model_.data[0]
    level = float(np.mean(regressor.model_.kernel(X, full_cov=False)))
    C = np.asarray(regressor.task_covariance_)
    Sigma = np.asarray(regressor.noise_covariance_)
    return {"signal": np.sqrt(np.diag(C) * level), "noise": np.sqrt(np.diag(Sigma))}


def large_signal_sentence(regressor: Any) -> str:
    """Why functions may deviate much more, before any data, than their targets; or nothing."""
    signal, Z = deviations(regressor)["signal"], np.asarray(regressor.model_.data[1])
    own = np.nanstd(Z, axis=0) * regressor._targets.scale
    large = np.flatnonzero((own > 0.0) & (signal > LARGE_SIGNAL * own))
    if not len(large):
        return ""
    names = listed([regressor.target_names_[t] for t in large])
    return (
        f"The signal of {names} is more than {LARGE_SIGNAL:g} times the deviation of the target"
        " itself. This happens where lengthscales are long: the function varies little between the"
        " rows, which show only a part of what it may do. Predictions near the rows are not less"
        " certain for that."
    )
