"""Optimisers of a loss: steps that go too far, rounding, and evaluations that are not repeated."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGP
from gpflow_cool.callbacks import CallbackList
from gpflow_cool.training import optimizers
from gpflow_cool.training.lbfgs import PENALTY_FACTOR, LineSearch
from gpflow_cool.training.model import Evaluation, Loss
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


def minimised(model, evaluate, unit=1.0):
    """How L-BFGS ended; the model has the best parameters seen."""
    run = Run(model, History({}), CallbackList([], None, {}))
    outcome = optimizers.lbfgs(ParameterVector([model.x]), unit, run, 200, evaluate)
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


def test_a_search_that_meets_rounding_ends_and_has_converged():
    """(x - 3)^2 with rounding of 0.001: L-BFGS alone takes 40 evaluations and more."""
    model = OneNumber(1.0)
    rng = np.random.default_rng(0)
    tried = []

    def evaluate():
        x = float(model.x.numpy())
        tried.append(x)
        loss = 1000.0 + (x - 3.0) ** 2 + rng.uniform(0.0, 1e-3)
        return Evaluation(loss, [np.array(2.0 * (x - 3.0) + 0.05)], np.array([-loss]), 1e-3)

    outcome = minimised(model, evaluate)
    assert outcome.converged
    assert len(tried) <= 10
    assert_allclose(model.x, 3.0, atol=0.06)


def test_a_search_that_has_not_failed_goes_on_below_rounding():
    """The first trial of each search on a parabola is good enough, and the second one exact."""
    model = OneNumber(0.0)

    def evaluate():
        x = float(model.x.numpy())
        return Evaluation((x - 3.0) ** 2, [np.array(2.0 * (x - 3.0))], np.zeros(1), rounding=100.0)

    assert minimised(model, evaluate, 2.0).converged
    assert_allclose(model.x, 3.0, atol=1e-3)


def test_a_large_loss_does_not_count_as_rounding():
    """Rosenbrock's function needs many shortened steps, whatever is added to it."""
    model = OneNumber([-1.2, 1.0])

    def evaluate():
        x, y = model.x.numpy()
        loss = 100.0 * (y - x**2) ** 2 + (1.0 - x) ** 2 + 1e4
        gradient = np.array([-400.0 * x * (y - x**2) - 2.0 * (1.0 - x), 200.0 * (y - x**2)])
        return Evaluation(loss, [gradient], np.array([-loss]), 1e-10)

    assert minimised(model, evaluate).converged
    assert_allclose(model.x, [1.0, 1.0], atol=0.01)


@pytest.mark.parametrize("unit", [0.5, 2.0])
def test_the_first_step_has_the_length_of_the_unit(unit):
    model = OneNumber(0.0)
    tried = []

    def evaluate():
        x = float(model.x.numpy())
        tried.append(x)
        return Evaluation((x - 50.0) ** 2, [np.array(2.0 * (x - 50.0))], np.zeros(1))

    outcome = minimised(model, evaluate, unit)
    assert_allclose(tried[:2], [0.0, unit])
    assert outcome.converged
    assert_allclose(model.x, 50.0, atol=1e-3)


def test_an_evaluation_is_not_repeated_where_one_of_the_last_five_ended():
    model = OneNumber(0.0)
    tried = []

    def evaluate():
        tried.append(float(model.x.numpy()))
        return Evaluation(tried[-1], [np.zeros(())], np.zeros(1))

    evaluate_if_new = optimizers.cached(model, evaluate)
    for x in (1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 3.0, 6.0, 1.0):
        model.x.assign(x)
        assert evaluate_if_new().loss == x
    assert tried == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0]


def test_what_is_evaluated_anew_is_known_to_the_other_function():
    model = OneNumber(0.0)
    tried = []

    class Both(Loss):
        def evaluate(self):
            tried.append("last")
            return Evaluation(float(model.x.numpy()), [np.zeros(())], np.zeros(1))

        def evaluate_anew(self):
            tried.append("anew")
            return Evaluation(float(model.x.numpy()), [np.zeros(())], np.zeros(1))

    evaluate, anew = optimizers.cached_both(model, Both())
    for function, x in [(anew, 1.0), (anew, 1.0), (evaluate, 1.0), (evaluate, 2.0), (anew, 2.0)]:
        model.x.assign(x)
        assert function().loss == x
    assert tried == ["anew", "anew", "last", "anew"]


def test_a_logarithm_moves_by_at_most_five_in_one_search():
    """From 1 on a loss with a small slope, L-BFGS's second search would try a step of e^40."""
    model = OneNumber(1.0)
    model.x = gpflow.Parameter(1.0, transform=gpflow.utilities.positive())
    vector = ParameterVector([model.x], logarithms=True)
    run = Run(model, History({}), CallbackList([], None, {}))
    search = LineSearch(vector, 0.5, run, lambda: evaluation(model))
    start, slope = search(np.zeros(1))
    assert_allclose(search(np.array([9.9]))[0], np.square(4.95 - 20.0))
    loss, gradient = search(np.array([10.1]))
    assert_allclose(loss, start + PENALTY_FACTOR * abs(10.1 * slope[0]))
    assert gradient == [0.0]
    assert_allclose(model.x, np.exp(4.95))  # the last point was not evaluated
    assert optimizers.lbfgs(vector, 0.5, run, 200, lambda: evaluation(model)).converged
    run.restore_best()
    assert_allclose(np.log(model.x), 20.0, atol=1e-3)


def evaluation(model):
    """(log x - 20)^2 and its gradient by the unconstrained variable."""
    z = np.log(model.x.numpy()) - 20.0
    slope = np.exp(model.x.transform.forward_log_det_jacobian(model.x.unconstrained_variable, 0))
    return Evaluation(z**2, [np.array(2.0 * z / model.x.numpy() * slope)], np.zeros(1))


def nearly_constant(seed):
    """Inputs, targets and a kernel of a problem where a search once jumped onto a plain."""
    rng = np.random.default_rng(seed)
    N, T, D = (int(rng.choice(sizes)) for sizes in ([2, 3, 5, 10, 20, 40], [1, 2, 3], [1, 2]))
    X = rng.normal(size=(N, D))
    kind = rng.choice(["near const", "offset", "noise"])
    Y = np.sin(X[:, :1] + rng.normal(size=T)) + 0.1 * rng.normal(size=(N, T))
    scale = 10 ** rng.uniform(-8, -1)
    Y = {"near const": 1 + scale * Y, "offset": Y + 10 ** rng.uniform(0, 4)}.get(
        str(kind), rng.normal(size=(N, T))
    )
    names = ["SquaredExponential", "Matern12", "Matern32"]
    name = str(np.random.default_rng(seed).choice(names))
    return X, Y, getattr(gpflow.kernels, name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The targets of task:UserWarning")
@pytest.mark.parametrize("seed", [10, 17, 26])
def test_profiled_training_of_nearly_constant_targets_is_as_good_as_scipy(seed):
    X, Y, kernel = nearly_constant(seed)
    losses, models = {}, {}
    for optimizer in ("profile", "scipy"):
        models[optimizer] = CoolMTGP((X, Y), kernel())
        history = models[optimizer].fit(optimizer, verbose=0)
        losses[optimizer] = min(history.history["loss"])
    rounding = models["profile"].profile().evaluate().rounding
    assert losses["profile"] <= losses["scipy"] + max(0.1, rounding)
