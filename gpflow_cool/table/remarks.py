"""What a fit has said of the noise, told again of an estimator that may have been loaded."""

from typing import Any

from ..training.remarks import (
    has_white,
    is_crowded,
    named_at_floor,
    note_of_floor,
    note_of_noise,
    remark_lines,
)

UNKNOWN = (
    "Version 0.2 or before has saved this model, without the noise that its fit found: fit it again"
    " to learn whether the noise is at its lower bound."
)


def noise_lines(regressor: Any) -> list[str]:
    """What `fit` has said of noise at its lower bound, and of nothing but noise."""
    chain = regressor.chain_
    if chain is None:
        return [UNKNOWN]
    return remark_lines(note_of_floor(chain) + note_of_noise(chain))


def certainty_lines(regressor: Any) -> list[str]:
    """A short line for who asks for several targets together, where their noise is at its bound."""
    chain = regressor.chain_
    if chain is None or len(regressor.target_names_) == 1:
        return []
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
