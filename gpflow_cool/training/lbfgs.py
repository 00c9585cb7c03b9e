"""L-BFGS of a model's loss, which need not be finite everywhere."""

from collections.abc import Callable

import numpy as np
import scipy.optimize
import tensorflow as tf
from gpflow.base import AnyNDArray

from .model import Evaluation
from .run import Outcome, Run
from .vector import ParameterVector

LBFGS_OPTIONS = {"ftol": 1e-7, "maxcor": 20}
GRADIENT_TOLERANCE = 1e-3

FAILURES = (tf.errors.InvalidArgumentError, np.linalg.LinAlgError, FloatingPointError)
"""What a factorisation raises when it fails."""

RISE = 3.0
"""A point without a finite loss gets that of the last step plus this many times the change that the
gradient predicted: the line search then tries a shorter step."""

LONGEST_MOVE = 5.0
"""A line search moves no logarithm by more than this, a factor of 150: no gradient leads back from
where a kernel is flat."""

Evaluate = Callable[[], Evaluation]
"""A function that evaluates the loss at the model's present parameters."""


class LineSearch:
    """
    The loss as SciPy asks for it, defined also at points where the model has none.

    :param unit: The parameter vector is this times the vector of the search, whose first step has
        length one.
    """

    def __init__(self, vector: ParameterVector, unit: float, run: Run, evaluate: Evaluate) -> None:
        self.vector, self.unit, self.run, self.evaluate = vector, unit, run, evaluate
        self.start: tuple[AnyNDArray, float, AnyNDArray] | None = None
        self.last: tuple[AnyNDArray, Evaluation, AnyNDArray] | None = None
        self.num_shortened = 0

    def __call__(self, x: AnyNDArray) -> tuple[float, AnyNDArray]:
        if self.start is not None:
            moves = np.abs(self.unit * (x - self.start[0]))[self.vector.is_logarithm]
            if np.any(moves > LONGEST_MOVE):
                return self.penalty(x)
        try:
            self.vector.assign(self.unit * x)
            evaluation = self.evaluate()
            gradient = self.unit * self.vector.gradient(evaluation.gradients)
            if not (np.isfinite(evaluation.loss) and np.all(np.isfinite(gradient))):
                raise FloatingPointError(f"the loss became {evaluation.loss}")
        except FAILURES:
            if self.start is None:
                raise
            self.num_shortened += 1
            return self.penalty(x)
        self.run.keep_if_best(evaluation.loss)
        self.last = np.copy(x), evaluation, gradient
        if self.start is None:
            self.start = x, evaluation.loss, gradient
        return evaluation.loss, gradient

    def penalty(self, x: AnyNDArray) -> tuple[float, AnyNDArray]:
        """Loss and gradient for a point where the model has none, or that is too far away."""
        assert self.start is not None
        start, loss, gradient = self.start
        return loss + RISE * abs(float(gradient @ (x - start))), np.zeros_like(x)

    def accept(self, _: AnyNDArray) -> None:
        """The search has ended at the last point, and the next one starts there."""
        assert self.last is not None
        x, evaluation, gradient = self.last
        self.start = x, evaluation.loss, gradient
        self.run.record_step(evaluation)


def lbfgs(
    vector: ParameterVector, unit: float, run: Run, steps: int, evaluate: Evaluate
) -> Outcome:
    """
    SciPy's L-BFGS-B: each iteration is a step, and each evaluation may be the best.

    :param unit: Length of the first step.
    """
    if vector.size == 0:
        run.record_step(evaluate())
        return Outcome(True, "solved: no parameter is left to iterate over")
    num_steps = len(run.history.epoch)
    search = LineSearch(vector, unit, run, evaluate)
    limits = {"gtol": unit * GRADIENT_TOLERANCE, "maxiter": steps, "maxfun": 20 * steps}
    result = scipy.optimize.minimize(
        search,
        vector.numpy() / unit,
        jac=True,
        method="L-BFGS-B",
        callback=search.accept,
        options={**LBFGS_OPTIONS, **limits},
    )
    if len(run.history.epoch) == num_steps:  # no step was better than the start
        run.restore_best()
        run.record_step(evaluate())
    message = str(result.message)
    if search.num_shortened:
        message += f"; {search.num_shortened} times a step was shortened: no finite loss there"
    return Outcome(bool(result.success), message)
