"""The models."""

from .competitors import ConvMT, IndependentGPs
from .cool import CoolMTGP
from .exact import KroneckerMTGP
from .sparse import SparseCoolMTGP

__all__ = ["ConvMT", "CoolMTGP", "IndependentGPs", "KroneckerMTGP", "SparseCoolMTGP"]
