"""Remarks in the history: noise at its bound, and data that teach nothing."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from gpflow_cool import CoolMTGP
from gpflow_cool.training.remarks import note_of_floor, remark_lines
from gpflow_cool.training.vector import lower_bound


def test_noise_at_its_bound_is_told_in_the_history(rng):
    X = np.linspace(0, 6, 20)[:, None]
    exact = np.hstack([np.sin(X), np.cos(X)])
    for Y, at_bound in ((exact, True), (exact + 0.3 * rng.normal(size=exact.shape), False)):
        history = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential()).fit(verbose=0)
        assert ("; sigma2 of every task is at its lower bound" in history.message) is at_bound
        assert "lengthscales" not in history.message  # there is one


def test_fewer_lengthscales_are_advised_where_there_are_several():
    X = np.hstack([np.linspace(0, 6, 20)[:, None]] * 2) ** [1, 2]
    Y = np.hstack([np.sin(X[:, :1]), np.cos(X[:, :1])])
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])
    message = CoolMTGP((X, Y), kernel + gpflow.kernels.Linear()).fit(verbose=0, steps=30).message
    assert "Score it on rows held out, or try fewer lengthscales" in message


def test_noise_inside_the_kernel_is_told_where_it_takes_that_of_the_model(rng):
    X = rng.uniform(size=[30, 1])
    Y = np.hstack([np.sin(6 * X), np.cos(6 * X)]) + 0.1 * rng.normal(size=[30, 2])
    kernel = gpflow.kernels.SquaredExponential() + gpflow.kernels.White()
    model = CoolMTGP((X, Y), kernel)
    model.sigma2.assign(np.full(2, lower_bound(model.sigma2)))
    (line,) = remark_lines(note_of_floor(model))
    assert line == (
        "Beware: the noise, sigma2, of every task is at its lower bound: the kernel contains White,"
        " noise that competes with Sigma. Leave White out: the model has noise of its own."
    )
    model.sigma2.assign([0.1, 0.1])
    assert note_of_floor(model) == ""


def test_the_first_task_has_none_before_it(rng):
    """Its noise is at the bound, and that of the second task is not."""
    X = np.linspace(0, 6, 30)[:, None]
    Y = np.hstack([np.sin(X), np.sin(X) + 0.5 * rng.normal(size=[30, 1])])
    message = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential()).fit(verbose=0).message
    assert "of task_0 is at its lower bound: nothing seems to be left to chance" in message
    message = CoolMTGP((X, Y[:, ::-1]), gpflow.kernels.SquaredExponential()).fit(verbose=0).message
    assert "of task_1 is at its lower bound: given the tasks before, nothing seems" in message


@pytest.mark.parametrize("copies, told", [(0, ""), (20, "20 rows are exact copies of another")])
def test_copies_of_rows_are_told_where_they_hide_the_noise(rng, copies, told):
    X = rng.uniform(0.0, 6.0, size=[40, 2])
    Y = np.sin(X) + 0.3 * rng.normal(size=[40, 2])
    data = np.vstack([X, X[:copies]]), np.vstack([Y, Y[:copies]])
    message = CoolMTGP(data, gpflow.kernels.Matern12()).fit(verbose=0).message
    assert ("; sigma2 of every task is at its lower bound" in message) is bool(copies)
    reason = (
        f"{told}: training takes copies for measurements that agree without noise. Remove them,"
        " unless they were measured anew"
    )
    assert ("copies" in message) is message.endswith(f"rows held out. {reason}") is bool(told)


def test_tasks_that_others_explain_without_noise_are_named_in_the_history(rng):
    """Twenty rows of eight tasks: the last five are sums of the first three."""
    X = np.linspace(0.0, 6.0, 20)[:, None]
    first = np.sin(X + [0.0, 1.5, 3.0]) + 0.5 * rng.normal(size=(20, 3))
    Y = np.hstack([first, first @ rng.normal(size=(3, 5))])
    message = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential()).fit(verbose=0).message
    told = "; the noise, sigma2, of task_3, task_4, task_5 and 2 more is at its lower bound"
    assert told in message
    assert "too many for so few rows" in message


def test_a_task_without_noise_among_many_rows(rng):
    """A constant target has a message of its own, and is not counted here."""
    X = rng.normal(size=(30, 1))
    Y = np.hstack([rng.normal(size=(30, 1)), X, np.ones((30, 1))])
    data = tuple(tf.Variable(part, trainable=False) for part in (X, Y))  # as Trieste has them
    message = CoolMTGP(data, gpflow.kernels.SquaredExponential()).fit(verbose=0).message
    assert "; the noise, sigma2, of task_1 is at its lower bound" in message
    assert "so few rows" not in message


def test_data_that_teach_nothing_are_told_in_the_history(rng):
    X, Y = rng.normal(size=(5, 1)), np.tile([1.0, 2.0, 0.0], (5, 1))
    Y[:, 0] = [1.0, -0.5, 0.3, -1.2, 0.8]
    for rows, text in [
        (5, "; the targets of task_1, task_2 never change, and nothing can be learnt from them"),
        (1, "; there is one row, which cannot tell noise from signal: more rows are needed"),
    ]:
        model = CoolMTGP((X[:rows], Y[:rows]), gpflow.kernels.SquaredExponential())
        assert text in model.fit(verbose=0, steps=2).message
    assert "never" not in CoolMTGP((X, Y[:, :1]), model.kernel).fit(verbose=0, steps=2).message
