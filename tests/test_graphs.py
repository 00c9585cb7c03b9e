"""Compiled functions are gone when nobody holds them: a service may fit all day."""

import gc
import weakref
from functools import partial

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from numpy.testing import assert_allclose
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.framework import ops

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP, choose_inducing_points
from gpflow_cool.graphs import GRAPHS, MORE_GRAPHS, compiled


def loss_and_gradient(parameter):
    """A function with gradients of its own and a cached bijector, also inside a loop."""

    def compute(x):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(parameter * x)
            total = tf.while_loop(
                lambda value: value < 10.0,
                lambda value: [value + 1.0 + parameter.transform.forward(value)],
                [total],
            )[0]
        return total, tape.gradient(total, parameter.unconstrained_variable)

    return compute


def registered():
    return len(ops.gradient_registry.list()), len(tfp.bijectors.Bijector._cache.storage)


def test_a_compiled_function_computes_the_same():
    compute = loss_and_gradient(gpflow.Parameter(2.0, transform=gpflow.utilities.positive()))
    x = tf.constant([1.0, 2.0], tf.float64)
    for actual, expected in zip(compiled(compute, x)(x), compute(x), strict=True):
        assert_allclose(actual, expected, rtol=1e-12)


class Watching(gpflow.mean_functions.Zero):
    """A mean function that sees whether AutoGraph converts what it is called by."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __call__(self, X):
        self.seen.append(ag_ctx.control_status_ctx().status)
        return super().__call__(X)


Watching.__module__ = "gpflow.mean_functions"  # one of a user's own would be converted


def test_autograph_leaves_predictions_and_losses_alone(rng):
    """Converting takes seconds, and there is nothing to convert."""
    X, Y, mean = rng.normal(size=(6, 1)), rng.normal(size=(6, 2)), Watching()
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), mean)
    data = tf.constant(X), tf.constant(Y)
    calls = {
        "predict_f": data[:1],
        "predict_y": data[:1],
        "predict_log_density": [data],
        "predict_f_samples": data[:1],
        "training_loss": [],
        "log_marginal_likelihood": [],
    }
    for name, arguments in calls.items():
        method = getattr(model, name)
        mean.seen.clear()
        graph = tf.function(method)(*arguments)
        assert set(mean.seen) == {ag_ctx.Status.DISABLED}, name
        if name != "predict_f_samples":
            tf.nest.map_structure(partial(assert_allclose, rtol=1e-9), graph, method(*arguments))


@pytest.mark.slow
def test_a_compiled_function_is_gone_with_its_graph():
    parameter = gpflow.Parameter(2.0, transform=gpflow.utilities.positive())
    gc.collect()
    before = registered()
    graph = compiled(loss_and_gradient(parameter), tf.TensorSpec([None], tf.float64))
    assert registered() == before
    held = weakref.ref(graph.graph)
    del graph
    gc.collect()
    assert held() is None


def fit(data, **options):
    CoolMTGP(data, gpflow.kernels.SquaredExponential()).fit(steps=1, verbose=0, **options)


def fit_sparse(data):
    kernel = gpflow.kernels.SquaredExponential()
    SparseCoolMTGP(data, kernel, data[0][:3]).fit(steps=1, verbose=0)


def fit_em(data):
    KroneckerMTGP(data, gpflow.kernels.SquaredExponential()).fit("em", steps=1, verbose=0)


USES = {
    "profile": fit,
    "scipy": lambda data: fit(data, optimizer="scipy"),
    "adam": lambda data: fit(data, optimizer="adam"),
    "sparse": fit_sparse,
    "em": fit_em,
    "points": lambda data: choose_inducing_points(data[0], gpflow.kernels.Matern32(), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_no_graph_stays(rng, use):
    data = rng.normal(size=(8, 2)), rng.normal(size=(8, 2))
    use(data)
    gc.collect()
    before, graphs = registered(), count_graphs()
    use(data)
    gc.collect()
    assert registered() == before
    assert count_graphs() <= graphs


def count_graphs():
    return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())


def test_graphs_that_wait_for_python_do_not_pile_up():
    """A graph is a cycle, which Python's counting of references does not free."""
    gc.collect()
    before = len(GRAPHS.existing)
    gc.disable()
    try:
        for _ in range(3 * MORE_GRAPHS):
            assert compiled(lambda: 2.0 * tf.constant(3.0))().numpy() == 6.0
            assert len(GRAPHS.existing) <= before + MORE_GRAPHS
    finally:
        gc.enable()


def test_tensorflow_does_not_warn_of_many_functions(rng, caplog):
    X = rng.normal(size=(8, 1))
    for _ in range(7):
        choose_inducing_points(X, gpflow.kernels.Matern32(), 2)
    assert "retracing" not in caplog.text


def test_numbers_are_kept(rng):
    """The registry is not needed where a graph is differentiated inside."""
    data = rng.normal(size=(8, 2)), rng.normal(size=(8, 2))
    model = CoolMTGP(data, gpflow.kernels.SquaredExponential())
    model.fit(steps=2, verbose=0)
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    gradients = tape.gradient(loss, model.trainable_variables)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


class Branching(gpflow.kernels.SquaredExponential):
    """A user's kernel that leaves a branch to AutoGraph."""

    def K_r2(self, r2):
        if tf.reduce_max(r2) > 1e3:
            r2 = tf.minimum(r2, 1e3)
        return super().K_r2(r2)


def test_autograph_converts_kernels_of_a_users_own(rng):
    X, Y = rng.normal(size=(6, 1)), rng.normal(size=(6, 2))
    model, plain = (CoolMTGP((X, Y), k()) for k in (Branching, gpflow.kernels.SquaredExponential))
    graph = tf.function(model.predict_f)(tf.constant(X))
    tf.nest.map_structure(partial(assert_allclose, rtol=1e-9), graph, plain.predict_f(X))
    assert_allclose(tf.function(model.training_loss)(), plain.training_loss(), rtol=1e-9)
