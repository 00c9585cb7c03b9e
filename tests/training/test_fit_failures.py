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
from gpflow_cool.training.fit import failure_message
from gpflow_cool.training.run import TrainingFailed

GRID_ERROR = 5e-3
"""Nats by which a loss that is interpolated between ratios may differ from the one at its b and
sigma2."""


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam", gpflow.optimizers.Scipy()])
def test_where_no_start_has_a_loss_the_error_says_why_and_nothing_changes(data, optimizer):
    model = CoolMTGP(data, Breaking(1.5))
    model.kernel.lengthscales.assign(2.0)
    gpflow.set_trainable(model.kernel.lengthscales, False)
    before = values(model)
    with pytest.raises(TrainingFailed, match="Training failed: The kernel matrix has entries"):
        model.fit(optimizer, verbose=0)
    for one, other in zip(values(model), before, strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("optimizer", ["profile", "scipy"])
def test_a_start_without_a_loss_does_no_harm_where_another_has_one(data, optimizer):
    model = CoolMTGP(data, Breaking(2.5))  # half the median distance is about one
    model.kernel.lengthscales.assign(3.0)
    history = model.fit(optimizer, steps=5, verbose=0)
    assert np.all(np.isfinite(history.history["loss"]))
    assert_allclose(model.training_loss(), min(history.history["loss"]), atol=GRID_ERROR)


def test_a_failure_is_told_without_tensorflows_words():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.debugging.check_numerics(tf.constant(np.nan), "S has no factor: give more noise.")
    assert failure_message(caught.value) == "S has no factor: give more noise."


@pytest.mark.parametrize("optimizer", ["profile", "scipy", "adam"])
def test_an_error_of_a_callback_stays_what_it_is(data, optimizer):
    """Not "Training failed", although a factorisation fails with the same error."""
    calls = []

    class Mistake(Callback):
        def on_epoch_end(self, epoch, logs):
            calls.append(epoch)
            raise np.linalg.LinAlgError("my own mistake")

    with pytest.raises(np.linalg.LinAlgError, match="^my own mistake$"):
        make(data).fit(optimizer, verbose=0, callbacks=[Mistake()])
    assert calls == [0]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_built_inside_a_strategy_is_refused(data, sparse):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        kernel = gpflow.kernels.SquaredExponential()
        model = SparseCoolMTGP(data, kernel, data[0][:5]) if sparse else CoolMTGP(data, kernel)
    with pytest.raises(ValueError, match="built inside the scope of a tf.distribute.Strategy"):
        model.fit(verbose=0)


def test_steps_that_lead_to_no_loss_leave_the_best_parameters(data):
    model = make(data)
    before = float(model.training_loss())
    history = model.fit(tf_keras.optimizers.SGD(1e300), steps=5, verbose=0)
    assert not history.converged and history.message.startswith("failed: ")
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
    assert_allclose(model.training_loss(), min(history.history["loss"]), atol=GRID_ERROR)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "options, text",
    [
        ({"optimizer": "newton"}, "optimizer='newton' is not known"),
        ({"optimizer": 3}, "optimizer=3 is not known"),
        ({"optimizer": "em"}, 'CoolMTGP has no optimizer="em": .*to_exact'),
        (
            {"optimizer": gpflow.optimizers.NaturalGradient(0.1)},
            "NaturalGradient is for variational distributions .* Pass one of 'profile', 'scipy',",
        ),
        ({"steps": 0}, "steps=0 must be a whole number"),
        ({"steps": -3}, "steps=-3 must be a whole number"),
        ({"restarts": -1}, "restarts=-1 must be a whole number"),
        ({"callbacks": [print]}, r"callbacks\[0\] is .* not a Keras callback object"),
        ({"seed": "x"}, "seed='x' must be a whole number"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"rounds": 0}, "rounds=0 must be a whole number of at least 1"),
        ({"draws": 3}, "draws=3 must be even: draws come in pairs"),
        ({"tolerance": -1.0}, "tolerance=-1.0 must be a number of at least 0"),
        ({"tolerance": None}, "tolerance=None must be a number of at least 0"),
        ({"tolerance": "small"}, "tolerance='small' must be a number"),
        ({"relevance": "free"}, "relevance='free'.*given.*shrunk"),
    ],
)
def test_bad_input_is_refused_at_once(data, options, text):
    model = make(data)
    before = values(model)
    with pytest.raises(ValueError, match=text):
        model.fit(verbose=0, **options)
    for one, other in zip(values(model), before, strict=True):
        assert_array_equal(one, other)
