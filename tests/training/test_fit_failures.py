"""A fit that fails, is interrupted or is refused: what is told, and what the model keeps."""

import os
import signal

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from fits import Breaking, make, values
from gpflow.keras import tf_keras
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool import CoolMTGP, SparseCoolMTGP
from gpflow_cool.callbacks import Callback
from gpflow_cool.chain import newton
from gpflow_cool.training import optimizers
from gpflow_cool.training.fit import failure_message


def failing(monkeypatch, attempts):
    """Let L-BFGS fail in some attempts as a factorisation does."""
    original = optimizers.lbfgs

    def lbfgs(vector, unit, run, steps, evaluate):
        if run.restart in attempts:
            raise tf.errors.InvalidArgumentError(None, None, "Cholesky was not successful")
        return original(vector, unit, run, steps, evaluate)

    monkeypatch.setattr(optimizers, "lbfgs", lbfgs)


def test_a_failed_attempt_is_reported_and_the_others_count(data, monkeypatch):
    failing(monkeypatch, {0, 2})
    model = make(data)
    history = model.fit(restarts=2, seed=0, verbose=0)
    assert [text.startswith("failed: Cholesky") for text in history.attempts] == [True, False, True]
    assert "2 of 3 attempts failed" in history.message
    assert_allclose(model.training_loss(), min(history.history["loss"]), rtol=1e-9)


def test_if_all_attempts_fail_the_error_says_what_was_tried(data, monkeypatch):
    failing(monkeypatch, {0, 1})
    model = make(data)
    with pytest.raises(
        RuntimeError, match="failed in every one of 2 attempts(.|\n)*attempt 1: fai"
    ):
        model.fit(restarts=1, seed=0, verbose=0)
    assert np.isfinite(model.training_loss())


@pytest.mark.parametrize("optimizer", ["profile", "scipy"])
def test_a_kernel_without_a_finite_matrix_is_told(data, optimizer):
    model = CoolMTGP(data, Breaking(1.5), engine="spectral")
    model.kernel.lengthscales.assign(2.0)
    gpflow.set_trainable(model.kernel.lengthscales, False)
    with pytest.raises(ValueError, match="attempt 0: failed: The kernel matrix has entries"):
        model.fit(optimizer, verbose=0)


def test_a_mistake_in_the_inner_problem_is_not_taken_for_a_failed_fit(data, monkeypatch):
    def mistake(*args):
        raise ValueError("shapes do not match")

    monkeypatch.setattr(newton, "task_terms", mistake)
    with pytest.raises(ValueError, match="shapes do not match"):
        make(data).fit(verbose=0)


def test_a_failure_is_told_without_tensorflows_words():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.debugging.check_numerics(tf.constant(np.nan), "S has no factor: give more noise.")
    assert failure_message(caught.value) == "S has no factor: give more noise."


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
@pytest.mark.parametrize("restarts", [0, 2])
def test_an_error_of_a_callback_stays_what_it_is(data, optimizer, restarts):
    """Not "Training failed", and no restart."""
    calls = []

    class Mistake(Callback):
        def on_epoch_end(self, epoch, logs):
            calls.append(epoch)
            raise np.linalg.LinAlgError("my own mistake")

    with pytest.raises(np.linalg.LinAlgError, match="^my own mistake$"):
        make(data).fit(optimizer, restarts=restarts, verbose=0, callbacks=[Mistake()])
    assert calls == [0]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_built_inside_a_strategy_is_refused(data, sparse):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        kernel = gpflow.kernels.SquaredExponential()
        model = SparseCoolMTGP(data, kernel, data[0][:5]) if sparse else CoolMTGP(data, kernel)
    with pytest.raises(ValueError, match="built inside the scope of a tf.distribute.Strategy"):
        model.fit(verbose=0)


def test_a_loss_that_is_no_number_leaves_the_best_parameters(data):
    model = make(data)
    before = float(model.training_loss())
    with pytest.raises(RuntimeError, match="the loss became nan"):
        model.fit(tf_keras.optimizers.SGD(1e300), steps=5, verbose=0)
    assert np.isfinite(model.training_loss()) and model.training_loss() <= before


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
def test_interrupt_stops_after_the_step_and_keeps_the_best(data, optimizer):
    model = make(data)

    class Interrupt(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    history = model.fit(optimizer, callbacks=[Interrupt()], verbose=0)
    assert len(history.epoch) <= 3
    assert "Ctrl-C" in history.message and not history.converged and history.interrupted
    assert_allclose(model.training_loss(), min(history.history["loss"]), rtol=1e-6)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_while_others_are_tried_is_told(data, monkeypatch):
    def interrupting(*_):
        os.kill(os.getpid(), signal.SIGINT)
        return iter(())

    monkeypatch.setattr("gpflow_cool.training.trials.other_lengthscales", interrupting)
    model = make([part[:20] for part in data])
    history = model.fit(restarts=2, verbose=0)
    assert history.message == "stopped by Ctrl-C while other parameters were tried"
    assert history.interrupted and not history.converged and len(history.attempts) == 1
    assert_allclose(model.training_loss(), min(history.history["loss"]), rtol=1e-6)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"optimizer": "newton"}, "optimizer='newton' is not known"),
        ({"optimizer": 3}, "optimizer=3 is not known"),
        (
            {"optimizer": gpflow.optimizers.NaturalGradient(0.1)},
            "NaturalGradient is for variational distributions .* Pass one of 'profile', 'scipy',",
        ),
        ({"steps": 0}, "steps=0 must be a whole number"),
        ({"steps": -3}, "steps=-3 must be a whole number"),
        ({"restarts": -1}, "restarts=-1 must be a whole number"),
        ({"callbacks": [print]}, r"callbacks\[0\] is .* not a Keras callback object"),
        ({"seed": "x"}, "seed"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"tolerance": None}, "tolerance=None must be a number of at least 0"),
        ({"tolerance": "small"}, "tolerance='small' must be a number"),
    ],
)
def test_bad_input_is_refused_at_once(data, options, text):
    model = make(data)
    before = values(model)
    with pytest.raises(ValueError, match=text):
        model.fit(verbose=0, **options)
    for one, other in zip(values(model), before, strict=True):
        assert_array_equal(one, other)
