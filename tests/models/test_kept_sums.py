"""SparseCoolMTGP that keeps only sums over rows: the same predictions, at the same parameters."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool import SparseCoolMTGP, load

NEW = np.array([[0.3], [1.4]])


def make(rng):
    """A model of rows far from zero, whose mean function takes that away."""
    X = rng.uniform(-2.0, 2.0, size=(30, 1))
    Y = np.hstack([np.sin(2.0 * X), np.cos(X)]) + 1e6 + 0.1 * rng.normal(size=(30, 2))
    mean = gpflow.mean_functions.Constant(np.full(2, 1e6))
    kernel = gpflow.kernels.SquaredExponential()
    return SparseCoolMTGP((X, Y), kernel, X[::5], mean, b=[1.0, 1.0], sigma2=[0.1, 0.1])


def reload(model, folder):
    model.save(folder)
    return load(folder)


def test_predictions_are_those_of_all_rows(rng):
    model = make(rng)
    expected = [model.predict_y(NEW, full_output_cov=True), model.leave_one_out().log_density]
    model.keep_sums()
    for found, wanted in zip(model.predict_y(NEW, full_output_cov=True), expected[0], strict=True):
        assert_array_equal(found, wanted)
    assert_allclose(np.sort(model.leave_one_out().log_density), np.sort(expected[1]), rtol=1e-6)


def test_graphs_of_predictions(rng):
    model = make(rng)
    model.keep_sums()
    for predict in (model.predict_f, model.predict_y):
        for found, wanted in zip(tf.function(predict)(NEW), predict(NEW), strict=True):
            assert_allclose(found, wanted, rtol=1e-12)
    model.kernel.lengthscales.assign(0.5)
    with pytest.raises(ValueError, match="The kernel's parameters or the inducing"):
        tf.function(model.predict_f)(NEW)


def test_noise_may_change(rng):
    model = make(rng)
    model.sigma2.assign([0.2, 0.3])
    expected = model.predict_y(NEW)
    model.sigma2.assign([0.1, 0.1])
    model.keep_sums()
    model.sigma2.assign([0.2, 0.3])
    for found, wanted in zip(model.predict_y(NEW), expected, strict=True):
        assert_array_equal(found, wanted)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize(
    "parameter, change, text",
    [
        (lambda model: model.kernel.lengthscales, 0.5, "The kernel's parameters or the inducing"),
        (lambda model: model.inducing_variable.Z, 1.0, "or the inducing points have changed"),
        (lambda model: model.mean_function.c, 3.0, "The mean function has changed"),
        (lambda model: model.mean_function.c, [0.0, 1e-3], "The mean function has changed"),
    ],
)
def test_what_the_sums_were_taken_with_must_not_change(
    rng, tmp_path, loaded, parameter, change, text
):
    model = make(rng)
    model.keep_sums()
    model = reload(model, tmp_path / "model") if loaded else model
    expected, before = model.predict_y(NEW), parameter(model).numpy()
    parameter(model).assign(before + change)
    for act in (lambda: model.predict_y(NEW), lambda: model.save(tmp_path / "changed")):
        with pytest.raises(ValueError, match=f"{text}.*only sums.*build the model again on all"):
            act()
    assert not (tmp_path / "changed").exists()
    parameter(model).assign(before)
    for found, wanted in zip(model.predict_y(NEW), expected, strict=True):
        assert_array_equal(found, wanted)
