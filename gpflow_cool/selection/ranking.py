r"""
Which of several trained kernels is taken.

Three questions are asked, in this order:

1. Is it clearly worse than the best by leave-one-out? Its mean log density per row then is lower by
   more than `CLEARLY` standard errors of the difference.
2. Of those that are left, does the model pass through every target? Where the noise of all tasks
   has run to its lower bound, rows that are left out look better predicted than new rows are. Such
   a kernel is taken only if all others are like that.
3. Of those that are left, which one explains the data best, charged for its parameters (the
   Bayesian information criterion)?

.. math:: J - \tfrac{1}{2} p \log N

with the training objective J, p trained parameters and N rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gpflow.base import AnyNDArray

CLEARLY = 2.0
"""A difference of mean densities counts if it is more than so many standard errors."""

ROUNDING = 1e-6
"""Differences of log density per row that do not count: one kernel may become another."""

DECIDED = 4.0
"""Lengthscales per input are taken if the objective gains so many times what the prior takes, of
many rows."""

FEW_ROWS = 10.0
"""With so many rows it must gain twice as much."""

CLOSER = 0.98
"""Their RMSE by leave-one-out must be at most so many times that of one lengthscale."""


class Candidate(NamedTuple):
    """A kernel, and how well the model with it predicts rows that it was not given."""

    name: str
    log_density: float
    """Mean over rows of the log density of a row's targets, given all the other rows."""

    rmse: float
    """Of every target predicted from the other rows, averaged over the tasks."""

    log_evidence: float
    num_parameters: int
    seconds: float
    error: str = ""
    """Why the kernel could not be fitted."""

    score: float | None = None
    """The training objective, charged for the parameters: it decides between kernels that
    leave-one-out cannot tell apart. Lengthscales per input, which are pulled together, count as
    one, and what their prior takes is charged."""

    interpolates: bool = False
    """Whether the noise of every task is at its lower bound."""

    @property
    def score_text(self) -> str:
        """The score, or a dash where there is none, and a mark where it does not count."""
        mark = "!" if self.interpolates else ""
        return "-" if self.score is None else f"{self.score:.1f}{mark}"


class Trained(NamedTuple):
    """A row of the table, with its model and the history of its training."""

    row: Candidate
    model: Any = None
    history: Any = None
    densities: AnyNDArray | None = None
    """Log density of each row given the others."""

    failure: Exception | None = None
    objective: float = np.nan
    """What training has maximised, without priors."""

    common: Any = None
    """The kernel with one lengthscale for all inputs, where this one has one per input."""


def charged(objective: float, num_parameters: int, num_rows: int) -> float:
    r"""The Bayesian information criterion, :math:`J - \tfrac{1}{2} p \log N`."""
    return objective - 0.5 * num_parameters * float(np.log(num_rows))


def best_of(trained: Sequence[Trained]) -> Trained:
    """The kernel to take, see the head of this module; a failed one if all have failed."""
    fitted = [item for item in trained if item.failure is None]
    if not fitted:
        return trained[0]
    best = max(fitted, key=lambda item: item.row.log_density)
    near = [item for item in fitted if not is_clearly_worse(item, best)]
    noisy = [item for item in near if not item.row.interpolates]
    return max(noisy or near, key=lambda item: item.row.score or 0.0)


def is_clearly_worse(item: Trained, best: Trained) -> bool:
    """Whether rows are less likely under one model than under another, beyond chance."""
    assert item.densities is not None and best.densities is not None
    loss = best.densities - item.densities
    error = np.std(loss) / np.sqrt(len(loss))
    return bool(np.mean(loss) > CLEARLY * error + ROUNDING)


def is_better(freed: Trained, best: Trained, prior_cost: float) -> bool:
    r"""
    Whether one lengthscale per input is better than one for all: rows are at least as likely, their
    means are closer to the targets by 2%, and the data decide more than the prior,

    .. math:: J_1 - J_0 \ge 4 \left(1 + \frac{10}{N}\right) P, \qquad
              P = \sum_d \frac{(\log l_d - \log l_0)^2}{2 \tau^2}

    with the training objectives :math:`J_0` and :math:`J_1`. If these are quadratic near their
    maximum, with curvature :math:`h_d` by :math:`\log l_d`, then :math:`J_1 - J_0 - P = \sum_d
    (h_d + 1 / \tau^2) (\log l_d - \log l_0)^2 / 2`: with many rows the condition says that
    :math:`h_d \ge 2 / \tau^2` on average over the lengthscales that moved. Where the data say
    less, leave-one-out cannot see that lengthscales follow the noise. It is optimistic, because the
    lengthscales have seen the rows: means that are no closer there are farther from new targets.

    :param prior_cost: P.
    """
    gain = freed.objective - best.objective
    assert freed.densities is not None
    decided = DECIDED * (1.0 + FEW_ROWS / len(freed.densities)) * prior_cost
    as_likely = freed.row.log_density >= best.row.log_density
    return as_likely and freed.row.rmse <= CLOSER * best.row.rmse and gain >= decided


def surpasses(item: Trained, chosen: Trained) -> bool:
    """
    Whether another kernel with one lengthscale per input is taken in place of the best kernel's:
    its score is higher, rows are at least as likely, and means are closer to the targets by 2%. It
    must not pass through every target, unless the other does.
    """
    rows = item.row, chosen.row
    higher = all(getattr(rows[0], n) >= getattr(rows[1], n) for n in ("score", "log_density"))
    closer = rows[0].rmse <= CLOSER * rows[1].rmse
    return higher and closer and rows[0].interpolates <= rows[1].interpolates
