"""The models."""

from .competitors import ConvMT, IndependentGPs
from .cool import CoolMTGP
from .exact import KroneckerMTGP

__all__ = ["ConvMT", "CoolMTGP", "IndependentGPs", "KroneckerMTGP"]
