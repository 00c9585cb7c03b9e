"""Inputs and targets that predictions are asked for: what is refused, and in which words."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from refusals import D, N, T, exactly

from gpflow_cool import checks

PREDICTIONS = {
    "f": lambda model, Xnew: model.predict_f(Xnew),
    "y": lambda model, Xnew: model.predict_y(Xnew),
    "full": lambda model, Xnew: model.predict_f_full_cov(Xnew),
    "f samples": lambda model, Xnew: model.predict_f_samples(Xnew),
    "y samples": lambda model, Xnew: model.predict_y_samples(Xnew),
    "density": lambda model, Xnew: model.predict_log_density((Xnew, np.zeros((4, T)))),
    "f given": lambda model, Xnew: model.predict_f_given(Xnew, np.zeros((4, T))),
    "y given": lambda model, Xnew: model.predict_y_given(Xnew, np.zeros((4, T))),
}


@pytest.mark.parametrize("predict", PREDICTIONS.values(), ids=PREDICTIONS)
def test_test_inputs_that_are_refused(model, predict):
    for shape in [(4, 3), (4, 1), (4,), (), (2, 4, 5)]:
        text = f"Xnew has shape {shape}, but the model was trained on 2 input columns: pass [M, 2]."
        with pytest.raises(ValueError, match=exactly(text)):
            predict(model, np.zeros(shape))
    Xnew = np.zeros((2, 4, D))
    Xnew[1, 3, 0] = np.nan
    text = "Xnew[1, 3, 0] is nan. Every entry must be finite: drop the row or fill the gap."
    with pytest.raises(ValueError, match=exactly(text)):
        predict(model, Xnew)
    with pytest.raises(
        ValueError, match="Xnew is a tensor of string, but real numbers are needed."
    ):
        predict(model, tf.constant([["a", "b"]]))
    with pytest.raises(ValueError, match="Xnew is a tensor of complex128, but real numbers"):
        predict(model, tf.complex(np.zeros((4, D)), np.zeros((4, D))))


def test_test_inputs_are_checked_in_a_graph_too(model):
    for spec in [tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([5], tf.float64)]:
        graph = tf.function(model.predict_f)
        with pytest.raises(ValueError, match="the model was trained on 2 input columns"):
            graph.get_concrete_function(spec)


@pytest.mark.parametrize("name", ["density", "f given", "y given"])
def test_test_targets_that_are_refused(X, Y, model, name):
    def predict(Xnew, Ynew):
        if name == "density":
            return model.predict_log_density((Xnew, Ynew))
        method = model.predict_f_given if name == "f given" else model.predict_y_given
        return method(Xnew, Ynew)

    for shape in [(N, 2), (N,), ()]:
        text = f"Ynew has shape {shape}, but the model has 3 tasks: pass [M, 3]."
        with pytest.raises(ValueError, match=exactly(text)):
            predict(X, np.zeros(shape))
    for rows, shape in [(X, (4, T)), (X[None], (N, T))]:
        text = (
            f"Xnew has shape {rows.shape} and Ynew has shape {shape}: row m of Ynew must hold the"
            " targets at row m of Xnew."
        )
        with pytest.raises(ValueError, match=exactly(text)):
            predict(rows, np.zeros(shape))
    Y[1, 2] = np.inf
    texts = {"density": r"^Ynew\[1, 2\] is inf. Every entry must be finite: drop the row"}
    given = r"^Ynew\[1, 2\] is infinite: pass a number where a task is known and NaN where it is"
    with pytest.raises(ValueError, match=texts.get(name, given)):
        predict(X, Y)


def test_densities_need_every_target(X, Y, model):
    with pytest.raises(
        ValueError, match="^data must be the pair .Xnew, Ynew., shapes .*type ndarray"
    ):
        model.predict_log_density(X)
    Y[2, 0] = np.nan
    with pytest.raises(ValueError, match=r"^Ynew\[2, 0\] is nan. Every entry must be finite"):
        model.predict_log_density((X, Y))
    assert np.isfinite(model.predict_y_given(X, Y)[0]).all()


def test_checks_let_gradients_through(X):
    Xnew = tf.Variable(X)
    parameter = gpflow.Parameter(X)
    with tf.GradientTape() as tape:
        squares = checks.inputs(Xnew, D, tf.float64) ** 2
        total = tf.reduce_sum(squares + checks.inputs(parameter, D, tf.float64))
    by_Xnew, by_parameter = tape.gradient(total, [Xnew, parameter.unconstrained_variable])
    assert_allclose(by_Xnew, 2.0 * X, rtol=1e-12)
    assert_allclose(by_parameter, np.ones_like(X), rtol=1e-12)
