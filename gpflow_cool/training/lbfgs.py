"""L-BFGS of a model's loss, which need not be finite everywhere."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import scipy.optimize
import tensorflow as tf
from gpflow.base import AnyNDArray

from .model import Evaluation
from .run import Outcome, Run, restore, snapshot
from .vector import ParameterVector

LBFGS_OPTIONS = {"ftol": 1e-10, "maxcor": 20}
GRADIENT_TOLERANCE = 1e-3

FAILURES = (tf.errors.InvalidArgumentError, np.linalg.LinAlgError, FloatingPointError)
"""What a factorisation raises when it fails."""

PENALTY_FACTOR = 3.0
"""A point without a finite loss gets the loss of the last step plus this many times the change that
the gradient predicted."""

LONGEST_MOVE = 5.0
"""A search moves no logarithm by more than this, a factor of 150: beyond a valley of the loss there
may be a plain where nothing leads back."""

NEAR = 0.2
"""Parameters whose logarithms differ by less lead to the same optimum."""

Evaluate = Callable[[], Evaluation]
"""A function that evaluates the loss at the model's present parameters."""


class RoundingReached(Exception):
    """A line search looks for a gain that is smaller than the rounding error of the loss."""


class DescentEnded(Exception):
    """Steps from another place have come near the best parameters, or somebody asks to stop."""


class Point(NamedTuple):
    """A point that a line search has evaluated."""

    x: AnyNDArray
    evaluation: Evaluation
    gradient: AnyNDArray


class LineSearch:
    """
    The loss for a line search, defined also at points where the model has none.

    A step may go so far that K has no factorisation or the loss overflows. Such a point gets a loss
    well above that of the last step, and a gradient of zero: the search then tries a shorter step.

    :param unit: A number or a matrix; its product with the search's vector is the parameter vector.
        The search's first step has length one.
    :param learn: Called with the points before and after each step.
    """

    def __init__(
        self,
        vector: ParameterVector,
        unit: float | AnyNDArray,
        run: Run,
        evaluate: Evaluate,
        learn: Callable[[Point, Point], None] | None = None,
    ) -> None:
        self.vector = vector
        self.unit = unit
        self.run = run
        self.evaluate, self.learn = evaluate, learn
        self.last: Point | None = None
        self.start: Point | None = None
        self.num_shortened = 0
        self.num_tried = 0

    def __call__(self, x: AnyNDArray) -> tuple[float, AnyNDArray]:
        if self.is_too_far(x):
            return self.penalty(x)
        self.stop_at_rounding(x)
        self.num_tried += 1
        try:
            self.vector.assign(np.dot(self.unit, x))
            evaluation = self.evaluate()
            by_parameters = self.vector.gradient(evaluation.gradients)
            gradient = np.dot(np.transpose(self.unit), by_parameters)
            if not (np.isfinite(evaluation.loss) and np.all(np.isfinite(gradient))):
                raise FloatingPointError(f"the loss became {evaluation.loss}")
        except FAILURES:
            if self.start is None:
                raise
            self.num_shortened += 1
            return self.penalty(x)
        self.run.keep_if_best(evaluation.loss)
        self.last = Point(np.copy(x), evaluation, gradient)
        if self.start is None:
            self.start, self.num_tried = self.last, 0
        return evaluation.loss, gradient

    def is_too_far(self, x: AnyNDArray) -> bool:
        """Whether a logarithm moves by more than `LONGEST_MOVE` from the start of the search."""
        if self.start is None:
            return False
        moves = np.abs(np.dot(self.unit, x - self.start.x))[self.vector.is_logarithm]
        return bool(np.any(moves > LONGEST_MOVE))

    def stop_at_rounding(self, x: AnyNDArray) -> None:
        """End a search whose longer steps failed and that now looks for less than rounding."""
        if self.start is not None and self.num_tried:
            if abs(self.predicted_change(x)) < self.start.evaluation.rounding:
                raise RoundingReached

    def predicted_change(self, x: AnyNDArray) -> float:
        """How much the loss would change from the start of the search to x, if it were linear."""
        assert self.start is not None
        return float(self.start.gradient @ (x - self.start.x))

    def penalty(self, x: AnyNDArray) -> tuple[float, AnyNDArray]:
        """Loss and gradient for a point where the model has none, or that is too far away."""
        assert self.start is not None
        rise = PENALTY_FACTOR * abs(self.predicted_change(x))
        return self.start.evaluation.loss + rise, np.zeros_like(x)

    def advance(self, _: AnyNDArray) -> None:
        """The search has ended at the last point, and the next one starts there."""
        self.start, self.num_tried = self.last, 0

    def accept(self, x: AnyNDArray) -> None:
        """The same, and record the step."""
        assert self.last is not None and self.start is not None
        if self.learn is not None:
            self.learn(self.start, self.last)
        self.advance(x)
        self.run.record_step(self.last.evaluation)


def lbfgs(
    vector: ParameterVector,
    unit: float | AnyNDArray,
    run: Run,
    steps: int,
    evaluate: Evaluate,
    *,
    tolerance: float | None = None,
    most_tries: int = 20,
    learn: Callable[[Point, Point], None] | None = None,
) -> Outcome:
    """
    SciPy's L-BFGS-B: each iteration is a step, and each evaluation may be the best.

    :param unit: See :class:`LineSearch`, and for `learn` as well.
    :param tolerance: It ends when no entry of the search's gradient is larger.
    :param most_tries: Evaluations of a line search, after which it gives up.
    """
    if vector.size == 0:
        run.record_step(evaluate())
        return Outcome(True, "solved: no parameter is left to iterate over")
    num_steps = len(run.history.epoch)
    search = LineSearch(vector, unit, run, evaluate, learn)
    gtol = unit * GRADIENT_TOLERANCE if tolerance is None else tolerance
    limits = {"gtol": gtol, "maxiter": steps, "maxfun": 20 * steps, "maxls": most_tries}
    start = vector.numpy()
    try:
        result = scipy.optimize.minimize(
            search,
            start / unit if np.ndim(unit) == 0 else np.linalg.solve(unit, start),
            jac=True,
            method="L-BFGS-B",
            callback=search.accept,
            options={**LBFGS_OPTIONS, **limits},
        )
        converged, message = bool(result.success), str(result.message)
    except RoundingReached:
        converged, message = True, "converged: what is left to gain is lost in rounding"
    if len(run.history.epoch) == num_steps:  # no step was better than the start
        run.restore_best()
        run.record_step(evaluate())
    if search.num_shortened:
        message += f"; {search.num_shortened} times a step was shortened: no finite loss there"
    return Outcome(converged, message)


def descend(
    vector: ParameterVector,
    unit: float,
    run: Run,
    steps: int,
    evaluate: Evaluate,
    *,
    near: float = NEAR,
) -> None:
    """
    A few steps of the same from the present parameters, until they come near the run's best ones.
    They are not recorded, but the run keeps the best parameters.

    :param near: How near, in logarithms.
    """
    here = snapshot(run.state)
    run.restore_best()
    best = vector.numpy()
    restore(run.state, here)
    search = LineSearch(vector, unit, run, evaluate)

    def advance(x: AnyNDArray) -> None:
        search.advance(x)
        distances = np.abs(unit * x - best)[vector.is_logarithm]
        if run.model.stop_training or (distances.size and np.max(distances) < near):
            raise DescentEnded

    limits = {"gtol": unit * GRADIENT_TOLERANCE, "maxiter": steps, "maxfun": 2 * steps}
    with suppress(DescentEnded, RoundingReached, *FAILURES):
        scipy.optimize.minimize(
            search,
            vector.numpy() / unit,
            jac=True,
            method="L-BFGS-B",
            callback=advance,
            options={**LBFGS_OPTIONS, **limits},
        )
