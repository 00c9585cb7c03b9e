"""
Who is compared.

All have one squared exponential kernel, started at the same lengthscale, except `cool-auto`, which
chooses its kernel, and `botorch`, which keeps the kernel that BoTorch has by default; BoTorch's
priors of task covariance and noise stay.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from .fitted import Fitted, Lengthscale


class Method(NamedTuple):
    """Where a method is, and what it can."""

    name: str
    package: str
    """What must be installed."""
    function: str
    """Module and name of the function that fits X [N, D], Y [N, T] and a lengthscale."""
    arguments: dict[str, Any] = {}
    coupled: bool = True
    """Whether a task's targets tell something of another's."""
    correlated_noise: bool = False
    largest: float = np.inf
    """Targets, N T, beyond which it is not tried."""

    @property
    def ours(self) -> bool:
        return self.package == "gpflow_cool"

    def installed(self) -> bool:
        return find_spec(self.package) is not None

    def load(self) -> Callable[[np.ndarray, np.ndarray, Lengthscale], Fitted]:
        """The function, its package imported."""
        module, name = self.function.split(".")
        found = getattr(import_module(f"benchmarks.peers.{module}"), name)
        return partial(found, **self.arguments)


def cool(name: str, learning: str, optimizer: str = "profile", orders: int = 1) -> Method:
    arguments = {"learning": learning, "optimizer": optimizer, "orders": orders}
    return Method(name, "gpflow_cool", "tensorflow_methods.cool", arguments, correlated_noise=True)


def gpytorch(noise: str, steps: int) -> Method:
    full = noise == "full"
    arguments = {"full_noise": full, "steps": steps}
    name = f"gpytorch-{noise}-{steps}"
    return Method(name, "gpytorch", "torch_methods.multitask", arguments, correlated_noise=full)


def botorch(name: str, full_noise: bool, shared_kernel: bool) -> Method:
    arguments = {"full_noise": full_noise, "shared_kernel": shared_kernel}
    function = "botorch_methods.kronecker"
    return Method(name, "botorch", function, arguments, correlated_noise=full_noise)


ALL = (
    cool("cool-hierarchical", "hierarchical"),
    cool("cool-averaged", "hierarchical", orders=8),
    Method("cool-auto", "gpflow_cool", "tensorflow_methods.auto", correlated_noise=True),
    cool("cool-approximate", "approximate"),
    gpytorch("full", 50),
    gpytorch("iid", 50),
    botorch("botorch", full_noise=False, shared_kernel=False),
    botorch("botorch-full", full_noise=True, shared_kernel=True),
    gpytorch("full", 200),
    gpytorch("iid", 200),
    Method("gpflow-coregion", "gpflow", "tensorflow_methods.coregion", largest=2000),
    Method("gpflow-svgp", "gpflow", "tensorflow_methods.svgp", coupled=False),
    Method("gpflow-independent", "gpflow", "tensorflow_methods.independent", coupled=False),
    Method("sklearn-independent", "sklearn", "sklearn_methods.independent", coupled=False),
    cool("cool-hierarchical-scipy", "hierarchical", "scipy"),
    cool("cool-approximate-scipy", "approximate", "scipy"),
)
BY_NAME = {method.name: method for method in ALL}
