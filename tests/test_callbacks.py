"""Real callbacks of Keras 3 and tf_keras, what they see, and how they stop a fit."""

import csv
import os

import gpflow
import keras
import numpy as np
import pytest
import tf_keras
from numpy.testing import assert_allclose, assert_array_equal
from problems import values
from short_fits import Record, make

from gpflow_cool.callbacks import Callback, KerasView, check_callbacks

LIBRARIES = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])

OPTIMIZERS = {
    "profile": lambda: "profile",
    "scipy": lambda: "scipy",
    "adam": lambda: "adam",
    "gpflow Scipy": gpflow.optimizers.Scipy,
    "Keras 3": lambda: keras.optimizers.Adam(0.1),
    "tf_keras": lambda: tf_keras.optimizers.SGD(1e-3),
}


# Keras's own callbacks, unmodified ----------------------------------------------------------------


@LIBRARIES
def test_early_stopping_restores_the_best(rng, library):
    model = make(rng)
    stopping = library.callbacks.EarlyStopping(
        monitor="loss", patience=3, restore_best_weights=True
    )
    # So large a rate overshoots soon.
    history = model.fit(tf_keras.optimizers.Adam(1.5), steps=60, callbacks=[stopping], verbose=0)
    loss = history.history["loss"]
    assert 4 <= len(loss) < 60
    assert stopping.stopped_epoch == len(loss) - 1
    assert np.argmin(loss) == len(loss) - 1 - 3
    assert history.message == f"stopped by a callback at step {len(loss) - 1}"
    assert not history.converged
    assert_allclose(model.training_loss(), min(loss), rtol=1e-12)
    assert loss[-1] > min(loss)


@LIBRARIES
def test_early_stopping_ends_lbfgs(rng, library):
    model = make(rng)
    stopping = library.callbacks.EarlyStopping(
        monitor="loss", min_delta=1e6, patience=2, restore_best_weights=True
    )
    history = model.fit("scipy", callbacks=[stopping], verbose=0)
    assert len(history.epoch) == 3
    assert_allclose(model.training_loss(), min(history.history["loss"]), rtol=1e-9)


@LIBRARIES
def test_terminate_on_nan(rng, library, capsys):
    model = make(rng, mean=True)
    poison = library.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: (
            model.mean_function.c.unconstrained_variable.assign([np.nan, 0.0])
            if epoch == 2
            else None
        )
    )
    history = model.fit(
        "adam", steps=20, callbacks=[library.callbacks.TerminateOnNaN(), poison], verbose=0
    )
    assert len(history.epoch) == 4 and np.isnan(history.history["loss"][3])
    assert "Invalid loss, terminating" in capsys.readouterr().out
    assert history.message == "stopped by a callback at step 3"
    assert_allclose(model.training_loss(), np.min(history.history["loss"][:3]), rtol=1e-12)


@LIBRARIES
@pytest.mark.parametrize("optimizer", ["profile", "adam"])
def test_csv_logger_writes_the_history(rng, library, optimizer, tmp_path):
    path = tmp_path / "log.csv"
    logger = library.callbacks.CSVLogger(str(path))
    history = make(rng).fit(optimizer, steps=3, callbacks=[logger], verbose=0)
    with open(path) as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == history.epoch
    assert {name for name in rows[0] if not name.startswith("val_")} == {"epoch", *history.history}
    for name, column in history.history.items():
        assert [float(row[name]) for row in rows] == column


@LIBRARIES
def test_lambda_callback_sees_every_hook(rng, library):
    calls = []
    hooks = ["train_begin", "epoch_begin", "train_batch_begin", "train_batch_end", "epoch_end"]
    callback = library.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: calls.append(("epoch_begin", epoch)),
        on_epoch_end=lambda epoch, logs: calls.append(("epoch_end", epoch, logs["loss"])),
        on_train_begin=lambda logs: calls.append(("train_begin",)),
        on_train_end=lambda logs: calls.append(("train_end", logs["loss"])),
    )
    callback.on_train_batch_begin = lambda batch, logs: calls.append(("train_batch_begin", batch))
    callback.on_train_batch_end = lambda batch, logs: calls.append(("train_batch_end", batch))
    history = make(rng).fit("profile", steps=2, callbacks=[callback], verbose=0)
    loss = history.history["loss"]
    assert len(loss) == 2
    expected = [("train_begin",)]
    for n in range(2):
        expected += [("epoch_begin", n), ("train_batch_begin", 0), ("train_batch_end", 0)]
        expected += [("epoch_end", n, loss[n])]
    assert calls == [*expected, ("train_end", loss[-1])]
    assert {name for name, *_ in calls} == {*hooks, "train_end"}


@LIBRARIES
def test_reduce_lr_on_plateau_lowers_the_rate(rng, library):
    """From the third step on the rate is a millionth of it: so are Adam's steps."""
    model, record = make(rng), Record()
    adam = library.optimizers.Adam(0.01)
    plateau = library.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=1e-6, patience=2, min_delta=1e9, min_lr=1e-8
    )
    history = model.fit(adam, steps=6, callbacks=[record, plateau], verbose=0)
    rate = float(np.asarray(adam.learning_rate))
    assert_allclose(rate, 1e-8, rtol=1e-5)
    key = "learning_rate" if library is keras else "lr"
    assert_allclose(history.history[key][:3], 0.01, rtol=1e-6)  # as Keras's own history has it
    assert_allclose(history.history[key][3:], 1e-8, rtol=1e-5)
    moved = np.max(np.abs(np.diff(record.weights, axis=0)), axis=1)
    assert np.all(moved[:2] > 0.005)
    assert np.all(moved[2:] < 2e-8) and np.all(moved[2:] > 0.0)


@LIBRARIES
@pytest.mark.parametrize("weights_only", [False, True])
def test_model_checkpoint_is_refused_at_once(rng, library, weights_only, tmp_path):
    model = make(rng)
    before = values(model)
    checkpoint = library.callbacks.ModelCheckpoint(
        str(tmp_path / "best.weights.h5"), save_weights_only=weights_only
    )
    with pytest.raises(ValueError, match=r"callbacks\[1\]: .*gpflow_cool.callbacks.Checkpoint"):
        model.fit(callbacks=[Callback(), checkpoint], verbose=0)
    for name, value in values(model).items():
        assert_array_equal(value, before[name])
    assert os.listdir(tmp_path) == []
    view = KerasView(model)
    for save in (view.save, view.save_weights):  # what a callback of a user's own may call
        with pytest.raises(ValueError, match="use gpflow_cool.callbacks.Checkpoint"):
            save("model.keras", overwrite=True)


@LIBRARIES
@pytest.mark.parametrize(
    "name, advice",
    [
        ("TensorBoard", r"gpflow_cool\.monitoring\.TensorBoardCallback"),
        ("BackupAndRestore", r"gpflow_cool\.callbacks\.Checkpoint"),
    ],
)
def test_callbacks_that_need_a_keras_model_are_refused(rng, library, name, advice, tmp_path):
    callback = getattr(library.callbacks, name)(str(tmp_path / "files"))
    with pytest.raises(ValueError, match=rf"callbacks\[0\]: Keras's {name} .*{advice}"):
        make(rng).fit(callbacks=[callback], verbose=0)
    assert os.listdir(tmp_path) == []


# What callbacks see -------------------------------------------------------------------------------


def test_the_view_reads_and_writes_weights(rng):
    model = make(rng)
    view = KerasView(model)
    weights = view.get_weights()
    for weight, variable in zip(weights, model.trainable_variables, strict=True):
        assert_array_equal(weight, variable)
    view.set_weights([weight + 1.0 for weight in weights])
    for weight, variable in zip(weights, model.trainable_variables, strict=True):
        assert_array_equal(weight + 1.0, variable)
    view.stop_training = True
    assert model.stop_training is True and view.stop_training is True
    assert view.task_names == model.task_names
    with pytest.raises(AttributeError, match="no_such_thing"):
        view.no_such_thing  # noqa: B018


def test_params_are_those_of_the_history(rng):
    callback = Callback()
    history = make(rng).fit("profile", steps=2, restarts=1, seed=3, callbacks=callback, verbose=0)
    assert callback.params == history.params
    assert history.params == {
        "optimizer": "profile",
        "steps": 2,
        "epochs": 2,
        "restarts": 1,
        "seed": 3,
        "verbose": 0,
    }


@pytest.mark.parametrize(
    "bad", [print, Callback, keras.callbacks.EarlyStopping, None, "EarlyStopping", object()]
)
def test_what_is_no_callback_is_refused(bad):
    with pytest.raises(ValueError, match=r"callbacks\[1\] is .*not a Keras callback object: pass"):
        check_callbacks([Callback(), bad])


def test_none_stands_for_no_callbacks():
    assert check_callbacks(None) == check_callbacks(()) == []


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_end", "on_train_end"])
def test_an_error_in_a_callback_leaves_the_best_parameters(rng, hook):
    model = make(rng)

    def fail(*_):
        raise KeyError("my own mistake")

    callback, record = Callback(), Record()
    setattr(callback, hook, fail)
    before = float(model.training_loss())
    with pytest.raises(KeyError, match="my own mistake"):
        model.fit("scipy", steps=3, callbacks=[record, callback], verbose=0)
    losses = [before, *(logs["loss"] for logs in record.logs)]
    assert float(model.training_loss()) <= min(losses) + 1e-9


# Stopping -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
@LIBRARIES
def test_stop_training_is_honoured(rng, kind, library):
    model = make(rng)
    if library is keras:  # a callback through its own model, and the user through theirs

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = epoch == 1

        stop = Stop()
    else:
        stop = tf_keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 1)
        )
    history = model.fit(OPTIMIZERS[kind](), callbacks=[stop], restarts=2, seed=0, verbose=0)
    assert history.epoch == [0, 1]
    assert history.message == "stopped by a callback at step 1"
    assert not history.converged
    assert model.training_loss() <= min(history.history["loss"]) + 1e-9


@pytest.mark.slow
def test_a_second_fit_starts_afresh(rng):
    model = make(rng)
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True)
    )
    assert len(model.fit("scipy", callbacks=[stop], verbose=0).epoch) == 1
    history = model.fit("scipy", verbose=0)
    assert history.converged and len(history.epoch) > 1
