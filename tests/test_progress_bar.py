"""The bar that shows a fit: in a terminal, in a notebook and in a pipe."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import types

import gpflow
import keras
import numpy as np
import pytest
from short_fits import make

from gpflow_cool import CoolMTGP
from gpflow_cool.callbacks import in_notebook


def in_a_terminal(monkeypatch, run):
    """What a run writes to standard error if that is a terminal (a real one, of the system)."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))  # rows, columns
    with os.fdopen(writer, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        run()
        terminal.write("\nend of output")
        terminal.flush()
        text = b""
        while b"end of output" not in text:
            text += os.read(reader, 65536)
    os.close(reader)
    return text.decode()


def frames(text):
    """What a bar showed, one string for each time it was drawn."""
    return [line for line in re.split(r"[\r\n]+", text) if line.startswith("fit (")]


@pytest.mark.slow
def test_bar_in_a_terminal(rng, monkeypatch):
    model, histories = make(rng), []
    text = in_a_terminal(monkeypatch, lambda: histories.append(model.fit("adam", steps=7)))
    last = frames(text)[-1]
    history = histories[0].history
    assert last.startswith("fit (adam): 100%") and "7/7 [" in last
    expected = f"loss {history['loss'][-1]:.6g}, gradient {history['gradient_norm'][-1]:.2g}"
    assert expected in last
    assert re.search(r"\[\d\d:\d\d<\d\d:\d\d", text)  # time gone < time left


def test_bar_of_lbfgs_ends_full(rng, monkeypatch):
    model, histories = make(rng), []
    text = in_a_terminal(monkeypatch, lambda: histories.append(model.fit()))
    num_steps = len(histories[0].epoch)
    assert f"{num_steps}/{num_steps} [" in frames(text)[-1]
    assert "0/200 [" in text


@pytest.mark.slow
def test_bar_shows_the_round_where_targets_are_missing(rng, monkeypatch):
    X, Y = rng.normal(size=(8, 1)), rng.normal(size=(8, 2))
    Y[2, 1] = np.nan
    model, histories = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential()), []
    options = {"steps": 2, "rounds": 3, "tolerance": 0.0, "seed": 0}
    text = in_a_terminal(monkeypatch, lambda: histories.append(model.fit("adam", **options)))
    loss, rounds = histories[0].history["loss"][-1], len(histories[0].rounds)
    assert "round 1 of 3, loss" in text
    assert f"round {rounds} of 3, loss {loss:.6g}," in frames(text)[-1]


def test_bar_of_an_interrupted_fit_stays_where_it_was(rng, monkeypatch):
    model = make(rng)
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 1)
    )
    text = in_a_terminal(monkeypatch, lambda: model.fit("adam", steps=50, callbacks=[stop]))
    assert "2/50 [" in frames(text)[-1]


def test_no_bar_without_being_asked(rng, monkeypatch):
    model = make(rng)
    text = in_a_terminal(monkeypatch, lambda: model.fit("profile", steps=2, verbose=0))
    assert text.strip() == "end of output"


@pytest.mark.parametrize("verbose", [0, 1])
def test_silence_in_a_pipe(rng, capfd, verbose):
    model = make(rng)
    capfd.readouterr()
    model.fit("profile", steps=2, verbose=verbose)
    assert capfd.readouterr() == ("", "")


def test_bar_in_a_notebook(rng, monkeypatch, capfd):
    assert not in_notebook()
    shell = types.SimpleNamespace(kernel="a Jupyter kernel")
    python = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", python)
    assert in_notebook()
    capfd.readouterr()
    make(rng).fit("profile", steps=2)
    assert "fit (profile): 100%" in capfd.readouterr().err
    del shell.kernel  # IPython in a terminal has none, and its pipes are as silent as others
    assert not in_notebook()
