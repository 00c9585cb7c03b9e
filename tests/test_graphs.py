"""Functions as graphs: they compute the same, are traced once, and AutoGraph leaves them alone."""

from functools import partial

import gpflow
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import LEARNINGS
from tensorflow.python.autograph.core import ag_ctx

from gpflow_cool import CoolMTGP, choose_inducing_points
from gpflow_cool.chain.optimum import best_of_grams, profile_of_grams
from gpflow_cool.graphs import compiled, shared_graph


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


def test_a_shared_graph_is_traced_once_for_all_sizes(rng):
    @shared_graph(tf.TensorSpec([None, None], tf.float64))
    def gram(A):
        return tf.matmul(A, A, transpose_a=True)

    for shape in [(3, 2), (5, 1), (1, 4)]:
        A = rng.normal(size=shape)
        assert_allclose(gram(tf.constant(A)), A.T @ A, rtol=1e-12, atol=1e-12)
    assert gram.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("learning", LEARNINGS)
def test_the_chain_is_traced_once_for_all_models(rng, learning):
    """Tracing takes longer than a fit of few rows."""
    for N, T in [(8, 2), (9, 3), (12, 1)]:
        data = rng.normal(size=(N, 2)), rng.normal(size=(N, T))
        model = CoolMTGP(data, gpflow.kernels.SquaredExponential(), learning=learning)
        model.fit(steps=1, verbose=0)
    for graph in (profile_of_grams(learning), best_of_grams(learning)):
        assert graph.experimental_get_tracing_count() == 1


def test_tensorflow_does_not_warn_of_many_functions(rng, caplog):
    X = rng.normal(size=(8, 1))
    for _ in range(7):
        choose_inducing_points(X, gpflow.kernels.Matern32(), 2)
    assert "retracing" not in caplog.text


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
