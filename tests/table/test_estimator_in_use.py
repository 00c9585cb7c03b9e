"""The estimator and its user: Ctrl-C, warnings, columns of text, memory in a long life."""

import os
import resource
import signal
import warnings
from pathlib import Path

import gpflow
import numpy as np
import pandas as pd
import pytest
from gpflow.keras import tf_keras
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict

from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.evaluation import cross_validate
from gpflow_cool.training.remarks import remark_lines


def make_data():
    """Two targets, three inputs."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=[24, 3])
    return X, np.stack([np.sin(2 * X[:, 0]), X[:, 1]], axis=1) + 0.1 * rng.normal(size=[24, 2])


X, Y = make_data()
X_NEW = X[:4] + 0.1
SIGNS = np.tile([[1.0], [-1.0]], [12, 1])


@pytest.fixture(scope="module")
def regressor():
    return CoolMTGPRegressor("se", ard=False).fit(X, Y)


# Interrupts --------------------------------------------------------------------------------------


class Interrupt(tf_keras.callbacks.Callback):
    """Ctrl-C after the first step."""

    def on_epoch_end(self, epoch, logs=None):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_an_interrupt_is_raised_and_changes_nothing():
    regressor = CoolMTGPRegressor("se", ard=False).fit(X, Y)
    before, history = regressor.predict(X_NEW), regressor.history_
    with pytest.raises(KeyboardInterrupt, match="stopped by Ctrl-C at step"):
        regressor.fit(X + 1.0, 5.0 * Y, callbacks=[Interrupt()])
    assert_array_equal(regressor.predict(X_NEW), before)
    assert regressor.history_ is history
    new = CoolMTGPRegressor("se", ard=False)
    with pytest.raises(KeyboardInterrupt):
        new.fit(X, Y, callbacks=[Interrupt()])
    with pytest.raises(NotFittedError):
        new.predict(X)


def test_a_search_does_not_score_a_candidate_that_was_interrupted():
    search = GridSearchCV(CoolMTGPRegressor("se", ard=False), {"kernel": ["se", "linear"]}, cv=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, Y, callbacks=[Interrupt()])
    assert not hasattr(search, "best_score_")


# Remarks -----------------------------------------------------------------------------------------


def warned(function, *arguments):
    """What a call returns, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*arguments)
    return result, [warning for warning in caught if warning.category is UserWarning]


LINE = np.linspace(0.0, 6.0, 30)[:, None]
NOISELESS = LINE, np.hstack([np.sin(LINE), np.cos(LINE)])
AT_FLOOR = (
    "Beware: sigma2 of every task is at its lower bound: the model passes through all targets, and"
    " may be far too certain elsewhere unless they have no noise. Score it on rows held out."
)
ONLY_NOISE = (
    "Beware: everything looks like noise: no target was found to depend on the inputs. Other"
    " inputs, another kernel or restarts=5 may show more."
)


@pytest.mark.parametrize(
    "X, Y, expected",
    [
        (X, Y, []),
        (*NOISELESS, [AT_FLOOR]),
        (np.repeat(X[:12], 2, axis=0), np.repeat(Y[:12], 2, axis=0) * SIGNS, [ONLY_NOISE]),
    ],
    ids=["nothing", "noiseless", "noise"],
)
def test_what_the_command_line_warns_of_is_a_warning_at_the_call(X, Y, expected):
    regressor, found = warned(CoolMTGPRegressor("se", ard=False).fit, X, Y)
    assert [str(warning.message) for warning in found] == expected
    assert remark_lines(regressor.history_.message) == expected
    assert {Path(warning.filename).name for warning in found} <= {Path(__file__).name}


@pytest.mark.slow
def test_scikit_learn_gets_one_warning_per_fit():
    _, found = warned(cross_val_predict, CoolMTGPRegressor("se", ard=False), *NOISELESS)
    assert [str(warning.message) for warning in found] == [AT_FLOOR] * 5


@pytest.mark.slow
def test_fits_that_nobody_asked_for_do_not_warn():
    """Of all kernels that are compared, and of all orders: one estimator, one warning."""
    _, found = warned(CoolMTGPRegressor(orders=3).fit, *NOISELESS)
    assert [str(warning.message) for warning in found] == [AT_FLOOR]
    kernel = gpflow.kernels.SquaredExponential()
    scores, found = warned(lambda: cross_validate(*NOISELESS, kernel, folds=2))
    assert len(scores) == 3 and found == []


# Text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["object", "category", "string"])
def test_a_target_of_text_is_named(kind):
    colours = pd.Series(["red", "blue"] * 12, dtype=kind)
    table = pd.DataFrame(X, columns=["x", "y", "z"]).assign(colour=colours)
    with pytest.raises(ValueError, match="Column 'colour' of y holds text, for example '"):
        CoolMTGPRegressor("se", ard=False).fit(X, table[["x", "colour"]])


def test_text_among_numbers_is_told_by_its_place(regressor):
    mixed = X.astype(object)
    mixed[3, 1] = "tall"
    for given in (mixed, mixed.tolist()):
        with pytest.raises(ValueError, match="X, row 3, column 'x1': 'tall' is not a number, but"):
            CoolMTGPRegressor("se", ard=False).fit(given, Y)
    with pytest.raises(ValueError, match="Column 1 of X holds text, .* the fit had numbers there"):
        regressor.predict(mixed)


def test_numbers_in_other_clothes_are_taken(regressor):
    words = pd.DataFrame(X_NEW.astype(str))
    assert_allclose(regressor.predict(words), regressor.predict(X_NEW))
    assert_allclose(regressor.predict(words.astype("category")), regressor.predict(X_NEW))


# Memory ------------------------------------------------------------------------------------------


def resident_megabytes():
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
def test_draws_leave_no_memory_behind(missing):
    targets = Y.copy()
    targets[0, 0] = np.nan if missing else Y[0, 0]
    regressor = CoolMTGPRegressor("se", ard=False, random_state=0).fit(X, targets)
    for seed in range(20):
        regressor.sample_y(X_NEW, 3, random_state=seed)
    before = resident_megabytes()
    for seed in range(100):
        regressor.sample_y(X_NEW, 3, random_state=seed)
    assert resident_megabytes() - before < 2.0
