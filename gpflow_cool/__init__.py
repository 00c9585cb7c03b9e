"""
gpflow_cool: multitask Gaussian processes for GPflow, with a full covariance between tasks and
between their noises, learnt through conditional one-output likelihoods (Cool-MTGP).
"""

from .models import ConvMT, CoolMTGP, IndependentGPs, KroneckerMTGP
from .recovery import MultitaskParameters

__all__ = ["ConvMT", "CoolMTGP", "IndependentGPs", "KroneckerMTGP", "MultitaskParameters"]
__version__ = "0.1.0"
