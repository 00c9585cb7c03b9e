"""A checkpoint keeps the best parameters, and no other file is overwritten."""

import os

import pytest
import tf_keras
from numpy.testing import assert_allclose, assert_array_equal
from problems import values
from short_fits import Record, make

from gpflow_cool.callbacks import Checkpoint, load_checkpoint


def test_a_missing_checkpoint_is_explained(rng, tmp_path):
    with pytest.raises(ValueError, match=r"none\.npz is not a file: a Checkpoint writes one"):
        load_checkpoint(make(rng), tmp_path / "none.npz")


@pytest.mark.parametrize("optimizer", ["profile", "adam"])
def test_checkpoint_round_trip(rng, optimizer, tmp_path):
    path = tmp_path / "best.npz"
    model, other = make(rng), make(rng)
    history = model.fit(optimizer, steps=3, callbacks=[Checkpoint(path)], verbose=0)
    load_checkpoint(other, path)
    for name, value in values(model).items():
        # A value read from a parameter and assigned again goes through its transform's inverse.
        assert_allclose(values(other)[name], value, rtol=1e-12)
    other.data = model.data
    # The loss of "profile" is interpolated between ratios of b and sigma2.
    assert_allclose(other.training_loss(), min(history.history["loss"]), atol=1e-3)
    assert os.listdir(tmp_path) == ["best.npz"]


def test_checkpoint_keeps_the_best_not_the_last(rng, tmp_path):
    path = tmp_path / "best.npz"
    model, record = make(rng), Record()
    model.fit(
        tf_keras.optimizers.Adam(3.0), steps=8, callbacks=[Checkpoint(path), record], verbose=0
    )
    losses = [logs["loss"] for logs in record.logs]
    assert losses[-1] > min(losses)
    load_checkpoint(model, path)
    assert_allclose(model.training_loss(), min(losses), rtol=1e-10)


def test_checkpoint_never_overwrites(rng, tmp_path):
    path = tmp_path / "mine.npz"
    early = Checkpoint(path)
    path.write_bytes(b"precious")
    with pytest.raises(ValueError, match="mine.npz exists already: choose another name, or over"):
        Checkpoint(path)
    with pytest.raises(ValueError, match="mine.npz exists already"):  # written since
        make(rng).fit("profile", callbacks=[early], verbose=0)
    assert path.read_bytes() == b"precious"
    make(rng).fit("profile", steps=1, callbacks=[Checkpoint(path, overwrite=True)], verbose=0)
    assert path.read_bytes() != b"precious"


def test_checkpoint_of_a_second_fit_overwrites_only_by_better(rng, tmp_path):
    path = tmp_path / "best.npz"
    checkpoint, model = Checkpoint(path), make(rng)
    model.fit("profile", callbacks=[checkpoint], verbose=0)
    content = path.read_bytes()
    model.kernel.lengthscales.assign(50.0)
    model.fit("scipy", steps=1, callbacks=[checkpoint], verbose=0)
    assert path.read_bytes() == content


def test_checkpoint_needs_a_folder(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder: create it first"):
        Checkpoint(tmp_path / "nowhere" / "best.npz")


def test_checkpoint_of_another_model_is_refused(rng, tmp_path):
    path = tmp_path / "best.npz"
    make(rng).fit("profile", steps=1, callbacks=[Checkpoint(path)], verbose=0)
    for other, text in [
        (make(rng, mean=True), r"holds \[.*\], but the model has \[.*mean_function.c.*same kernel"),
        (make(rng, T=3), r"holds .b of shape \(2,\), but the model's has shape \(3,\)"),
    ]:
        before = values(other)
        with pytest.raises(ValueError, match=text):
            load_checkpoint(other, path)
        for name, value in values(other).items():
            assert_array_equal(value, before[name])
