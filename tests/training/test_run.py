"""What a run keeps: its steps, the best parameters, and the best round."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gpflow_cool.callbacks import Callback, CallbackList, KerasView
from gpflow_cool.training.model import Evaluation
from gpflow_cool.training.run import History, Run, TrainingStopped, joined


class OneNumber(gpflow.base.Module):
    """As little of a model as a run needs."""

    completions = None

    def __init__(self):
        super().__init__()
        self.x = gpflow.Parameter(0.0)
        self.stop_training = False
        self.objective_term_names = ["first", "second"]


@pytest.fixture(name="run")
def _run():
    return Run(OneNumber(), History({}), CallbackList([], None, {}))


def restored(run):
    run.restore_best()
    return float(run.model.x.numpy())


def evaluation(loss):
    return Evaluation(loss, [np.array([3.0]), np.array(4.0)], np.array([1.0, -loss - 1.0]))


def test_a_step_is_recorded_with_its_terms(run):
    for number, loss in enumerate([5.0, 2.0]):
        run.model.x.assign(number)
        run.record_step(evaluation(loss))
    history = run.history
    assert history.epoch == [0, 1]
    assert history.history["loss"] == [5.0, 2.0]
    assert history.history["gradient_norm"] == [5.0, 5.0]
    assert history.history["terms/first"] == [1.0, 1.0]
    assert history.history["terms/second"] == [-6.0, -3.0]
    assert "round" not in history.history
    assert run.last_logs["loss"] == 2.0


def test_the_best_parameters_are_restored(run):
    for x, loss in [(1.0, 3.0), (2.0, 1.0), (3.0, np.nan), (4.0, 2.0)]:
        run.model.x.assign(x)
        run.keep_if_best(loss)
    assert run.best_loss == 1.0 and restored(run) == 2.0


def test_without_a_finite_loss_the_start_is_restored(run):
    run.model.x.assign(7.0)
    run.keep_if_best(np.nan)
    assert restored(run) == 0.0


def test_after_forgetting_a_higher_loss_is_the_best(run):
    run.keep_if_best(1.0)
    run.model.x.assign(2.0)
    run.forget_best()
    assert restored(run) == 2.0
    run.model.x.assign(3.0)
    run.keep_if_best(5.0)
    assert run.best_loss == 5.0 and restored(run) == 3.0


@pytest.mark.parametrize(
    "prefer_last, scores, best",
    [
        (False, [1.0, 3.0, 2.0], 1),
        (False, [3.0, 2.0, np.nan], 0),
        (True, [3.0, 2.0], 1),
        (False, [np.nan], 0),
    ],
)
def test_the_best_round_decides(run, prefer_last, scores, best):
    """Without an evidence, losses do not compare, and the last round counts."""
    for number, score in enumerate(scores):
        run.model.x.assign(number)
        run.keep_round_if_best(score, prefer_last=prefer_last)
    run.use_best_round()
    assert restored(run) == best
    expected = -scores[best]
    assert_array_equal(run.best_loss, np.inf if np.isnan(expected) else expected)


def test_a_step_knows_its_round(run):
    for run.round in (0, 1):
        run.record_step(evaluation(2.0))
    assert run.history.history["round"] == [0.0, 1.0]


def test_without_rounds_the_best_loss_stays(run):
    run.keep_if_best(1.0)
    run.use_best_round()
    assert run.best_loss == 1.0


def test_a_callback_ends_the_run():
    class Stop(Callback):
        def on_epoch_end(self, epoch, logs):
            self.model.stop_training = epoch == 1

    model = OneNumber()
    run = Run(model, History({}), CallbackList([Stop()], KerasView(model), {}))
    run.record_step(evaluation(2.0))
    with pytest.raises(TrainingStopped, match="stopped by a callback at step 1"):
        run.record_step(evaluation(1.0))
    assert run.history.history["loss"] == [2.0, 1.0]


def test_a_loss_that_is_not_finite_is_recorded_and_raised(run):
    with pytest.raises(FloatingPointError, match="the loss became nan"):
        run.record_step(evaluation(np.nan))
    assert len(run.history.epoch) == 1 and run.best_loss == np.inf


def test_two_histories_are_joined_to_one():
    first, second = (
        History({"steps": n}, {"loss": [3.0, n], "seconds": [0.5, 1.0]}, [0, 1]) for n in (2, 1)
    )
    second.rounds, second.converged, second.message = [{"round": 0.0}], True, "done"
    both = joined(first, second)
    assert both.history == {"loss": [3.0, 2, 3.0, 1], "seconds": [0.5, 1.0, 1.5, 2.0]}
    assert both.epoch == [0, 1, 2, 3] and both.params == {"steps": 1}
    assert both.rounds == [{"round": 0.0}] and both.converged and both.message == "done"
