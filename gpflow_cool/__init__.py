"""
gpflow_cool: multitask Gaussian processes for GPflow, with a full covariance between tasks and
between their noises, learnt through conditional one-output likelihoods (Cool-MTGP).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .estimator import CoolMTGPRegressor
    from .features import choose_inducing_points
    from .models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP, SparseCoolMTGP
    from .persistence import load
    from .recovery import MultitaskParameters

__all__ = [
    "ConvMT",
    "CoolMTGP",
    "CoolMTGPRegressor",
    "IndependentGPs",
    "KroneckerMTGP",
    "MultitaskParameters",
    "SparseCoolMTGP",
    "choose_inducing_points",
    "load",
]
__version__ = "0.1.0"

_MODULES = {
    "ConvMT": "models",
    "CoolMTGP": "models",
    "CoolMTGPRegressor": "estimator",
    "IndependentGPs": "models",
    "KroneckerMTGP": "models",
    "MultitaskParameters": "recovery",
    "SparseCoolMTGP": "models",
    "choose_inducing_points": "features",
    "load": "persistence",
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
