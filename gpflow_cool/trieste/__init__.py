"""
Our models in Trieste, the toolbox for Bayesian optimisation: `pip install gpflow_cool[trieste]`.

* model: :class:`MultitaskRegression`, a model for every loop and acquisition function of Trieste.
* samplers: draws that are joint over outputs.
"""

from .model import MultitaskRegression
from .samplers import FunctionSampler, JointReparametrizationSampler

__all__ = ["FunctionSampler", "JointReparametrizationSampler", "MultitaskRegression"]
