"""
gpflow_cool: multitask Gaussian processes for GPflow, with a full covariance between tasks and
between their noises, learnt through conditional one-output likelihoods (Cool-MTGP).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .chain.recovery import MultitaskParameters
    from .chain.starting import half_median_distance
    from .kernels import Laplacian
    from .loading import load
    from .models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP, SparseCoolMTGP
    from .selection.choice import choose_kernel
    from .systems.features import choose_inducing_points
    from .table.estimator import CoolMTGPRegressor

__all__ = [
    "ConvMT",
    "CoolMTGP",
    "CoolMTGPRegressor",
    "IndependentGPs",
    "KroneckerMTGP",
    "Laplacian",
    "MultitaskParameters",
    "SparseCoolMTGP",
    "choose_inducing_points",
    "choose_kernel",
    "half_median_distance",
    "load",
]
__version__ = "0.2.0"

_MODULES = {
    "ConvMT": "models",
    "CoolMTGP": "models",
    "CoolMTGPRegressor": "table.estimator",
    "IndependentGPs": "models",
    "KroneckerMTGP": "models",
    "Laplacian": "kernels",
    "MultitaskParameters": "chain.recovery",
    "SparseCoolMTGP": "models",
    "choose_inducing_points": "systems.features",
    "choose_kernel": "selection.choice",
    "half_median_distance": "chain.starting",
    "load": "loading",
}
"""Imported when asked for: `gpflow-cool --help` needs no TensorFlow, and not everybody has
scikit-learn, which the estimator needs."""


_SUBMODULES = ("callbacks", "coregion", "datasets", "metrics", "monitoring", "plotting", "studies")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES, "__version__"])
