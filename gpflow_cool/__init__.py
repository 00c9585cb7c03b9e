"""
gpflow_cool: multitask Gaussian processes for GPflow, with a full covariance between tasks and
between their noises, learnt through conditional one-output likelihoods (Cool-MTGP).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP
from .recovery import MultitaskParameters

if TYPE_CHECKING:
    from .estimator import CoolMTGPRegressor
    from .persistence import load

__all__ = [
    "ConvMT",
    "CoolMTGP",
    "CoolMTGPRegressor",
    "IndependentGPs",
    "KroneckerMTGP",
    "MultitaskParameters",
    "load",
]
__version__ = "0.1.0"

_LAZY = {"CoolMTGPRegressor": "estimator", "load": "persistence"}
"""Imported when asked for: the estimator needs scikit-learn, which not everybody has."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
