"""Optimisers of a loss of one number: steps that go too far, their length, and Keras's steps."""

import gpflow
import numpy as np
import pytest
from gpflow.keras import tf_keras
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.callbacks import CallbackList
from gpflow_cool.training.lbfgs import LONGEST_MOVE, RISE, LineSearch, lbfgs
from gpflow_cool.training.model import Evaluation
from gpflow_cool.training.optimizers import KerasSteps, minimise_keras
from gpflow_cool.training.run import History, Run
from gpflow_cool.training.vector import ParameterVector


class OneNumber(gpflow.base.Module):
    """As little of a model as an optimiser needs."""

    completions = None

    def __init__(self, x):
        super().__init__()
        self.x = gpflow.Parameter(x)
        self.stop_training = False
        self.objective_term_names = ["all"]


def run_of(model):
    return Run(model, History({}), CallbackList([], None, {}))


def minimised(model, evaluate, unit=1.0):
    """How L-BFGS ended; the model has the best parameters seen."""
    run = run_of(model)
    outcome = lbfgs(ParameterVector([model.x]), unit, run, 200, evaluate)
    run.restore_best()
    return outcome


@pytest.mark.parametrize("beyond", ["no factorisation", "no loss", "no slope"])
def test_a_step_too_far_is_shortened_and_reported(beyond):
    """The first step from 1.5 on x - 0.2 log(x - 1) leads to 0.9, where there is no logarithm."""
    model = OneNumber(1.5)
    tried = []

    def evaluate():
        x = float(model.x.numpy())
        tried.append(x)
        if x > 1.0:
            loss = x - 0.2 * np.log(x - 1.0)
            return Evaluation(loss, [np.array(1.0 - 0.2 / (x - 1.0))], np.array([-loss]))
        if beyond == "no factorisation":
            raise np.linalg.LinAlgError("K is not positive definite")
        return Evaluation(np.nan if beyond == "no loss" else 0.0, [np.array(np.nan)], np.zeros(1))

    outcome = minimised(model, evaluate)
    assert tried[1] <= 1.0
    assert outcome.converged and "; 1 times a step was shortened: no finite" in outcome.message
    assert_allclose(model.x, 1.2, rtol=1e-3)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_valley_is_followed_to_its_end(offset):
    """Rosenbrock's function needs many shortened steps."""
    model = OneNumber([-1.2, 1.0])

    def evaluate():
        x, y = model.x.numpy()
        loss = 100.0 * (y - x**2) ** 2 + (1.0 - x) ** 2 + offset
        gradient = np.array([-400.0 * x * (y - x**2) - 2.0 * (1.0 - x), 200.0 * (y - x**2)])
        return Evaluation(loss, [gradient], np.array([-loss]))

    assert minimised(model, evaluate).converged
    x, y = model.x.numpy()
    allowed = 1e-5 * max(1.0, offset)  # the tolerance is relative to the loss
    assert 100.0 * (y - x**2) ** 2 + (1.0 - x) ** 2 < allowed


def parabola(model, centre):
    """(x - centre)^2, and a list of the x at which it was evaluated."""
    tried = []

    def evaluate():
        tried.append(float(model.x.numpy()))
        move = tried[-1] - centre
        return Evaluation(move**2, [np.array(2.0 * move)], np.array([-(move**2)]))

    return evaluate, tried


@pytest.mark.parametrize("unit", [0.5, 2.0])
def test_the_first_step_has_the_length_of_the_unit(unit):
    model = OneNumber(0.0)
    evaluate, tried = parabola(model, 50.0)
    outcome = minimised(model, evaluate, unit)
    assert_allclose(tried[:2], [0.0, unit])
    assert outcome.converged
    assert_allclose(model.x, 50.0, atol=1e-3)


def test_a_search_that_starts_at_its_minimum_records_one_step():
    model = OneNumber(3.0)
    evaluate, _ = parabola(model, 3.0)
    run = run_of(model)
    assert lbfgs(ParameterVector([model.x]), 1.0, run, 200, evaluate).converged
    assert run.history.history["loss"] == [0.0]


def of_logarithm(model):
    """(log x - 20)^2 and its gradient by the unconstrained variable."""

    def evaluate():
        z = np.log(model.x.numpy()) - 20.0
        u = model.x.unconstrained_variable
        slope = np.exp(model.x.transform.forward_log_det_jacobian(u, 0))
        return Evaluation(z**2, [np.array(2.0 * z / model.x.numpy() * slope)], np.zeros(1))

    return evaluate


def test_no_search_moves_a_logarithm_too_far():
    """Some searches lead to e^20 and none of them at once."""
    model = OneNumber(1.0)
    model.x = gpflow.Parameter(1.0, transform=gpflow.utilities.positive())
    vector, run, unit = ParameterVector([model.x], logarithms=True), run_of(model), 0.5
    search = LineSearch(vector, unit, run, of_logarithm(model))
    start, slope = search(np.zeros(1))
    near, far = (LONGEST_MOVE + move for move in (-0.05, 0.05))
    assert_allclose(search(np.array([near / unit]))[0], np.square(near - 20.0))
    loss, gradient = search(np.array([far / unit]))
    assert_allclose(loss, start + RISE * abs(far / unit * slope[0]))
    assert_array_equal(gradient, [0.0])
    assert_allclose(model.x, np.exp(near))  # the last point was not evaluated
    assert lbfgs(vector, unit, run, 200, of_logarithm(model)).converged
    run.restore_best()
    assert_allclose(np.log(model.x), 20.0, atol=1e-3)


def test_an_optimizer_of_keras_starts_afresh_in_every_round():
    """Without the momentum and the learning rate that the round before has left."""
    model, paths = OneNumber(0.0), []
    steps = KerasSteps(tf_keras.optimizers.Adam(0.1), model.trainable_variables)
    for _ in range(2):
        model.x.assign(0.0)
        evaluate, tried = parabola(model, 3.0)
        minimise_keras(steps, run_of(model), 5, evaluate)
        paths.append(tried)
        steps.optimizer.learning_rate.assign(0.7)
    assert_allclose(paths[0][:2], [0.0, 0.1], rtol=1e-5)  # Adam's first step has its rate's length
    assert_array_equal(paths[0], paths[1])


def test_adam_says_whether_the_gradient_is_small():
    for steps, flat in [(3, False), (400, True)]:
        model = OneNumber(0.0)
        evaluate, _ = parabola(model, 3.0)
        keras = KerasSteps(tf_keras.optimizers.Adam(0.1), model.trainable_variables)
        outcome = minimise_keras(keras, run_of(model), steps, evaluate)
        assert outcome.converged is flat
        assert ("is not small yet" in outcome.message) is not flat
