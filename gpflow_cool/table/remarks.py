"""
What a fit has said of the noise, told again of an estimator that may have been loaded.

The model of an estimator is as a rule averaged over orders of its targets, and has no sigma2. So
the chain that was averaged is solved for again, which takes one eigendecomposition.
"""

import copy
import warnings
from typing import Any

import gpflow

from ..models.cool import CoolMTGP
from ..training.model import TrainableChain
from ..training.remarks import (
    has_white,
    is_crowded,
    named_at_floor,
    note_of_floor,
    note_of_noise,
    remark_lines,
)


def trained_chain(regressor: Any) -> TrainableChain:
    """The chain that an estimator has trained: b and sigma2 are the best for its kernel."""
    model = regressor.model_
    if isinstance(model, TrainableChain):
        return model
    parts = copy.deepcopy((model.kernel, model.mean_function))
    options = {"learning": regressor.learning, "task_names": model.task_names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit has warned of its data
        chain = CoolMTGP(model.data, *parts, **options)
    for part in parts:
        gpflow.set_trainable(part, False)
    chain.profile().evaluate()
    return chain


def noise_lines(regressor: Any) -> list[str]:
    """What `fit` has said of noise at its lower bound, and of nothing but noise."""
    chain = trained_chain(regressor)
    return remark_lines(note_of_floor(chain) + note_of_noise(chain))


def certainty_lines(regressor: Any) -> list[str]:
    """A short line for who asks for several targets together, where their noise is at its bound."""
    if len(regressor.target_names_) == 1:
        return []
    chain = trained_chain(regressor)
    named = named_at_floor(chain)
    if not named:
        return []
    if has_white(chain):
        return remark_lines(note_of_floor(chain))
    crowded = " There are too many targets for so few rows." * is_crowded(chain)
    return [
        f"Beware: the noise of {named} is at its lower bound, so that covariances between targets,"
        f" and predictions given some of them, may be far too certain.{crowded}"
    ]
