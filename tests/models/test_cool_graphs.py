"""CoolMTGP in graphs: traces, export to a new process, data that grows, memory."""

import os
import subprocess
import sys

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Matern52, Periodic, SquaredExponential
from numpy.testing import assert_allclose
from problems import LEARNINGS, perturbed

from gpflow_cool import CoolMTGP, KroneckerMTGP

D, T = 2, 3


@pytest.fixture
def data(rng):
    X = rng.uniform(size=(12, D))
    signal = np.hstack([np.sin(5 * X[:, :1]), np.cos(5 * X[:, 1:]), X[:, :1]])
    return X, signal + 0.2 * rng.normal(size=(12, T))


def build(data, **options):
    return CoolMTGP(data, SquaredExponential(lengthscales=0.4), **options)


def growing(X, Y):
    """The data as variables whose number of rows may change."""
    return tuple(tf.Variable(A, shape=[None, A.shape[1]], trainable=False) for A in (X, Y))


class Counted:
    """A function for `tf.function` that counts its traces."""

    def __init__(self, function):
        self.function = function
        self.traces = 0

    def __call__(self, *args):
        self.traces += 1
        return self.function(*args)


def compiled(function, *specs):
    counted = Counted(function)
    signature = specs or None
    return tf.function(lambda *args: counted(*args), input_signature=signature), counted


ROWS = tf.TensorSpec([None, D], tf.float64)


# Traces -------------------------------------------------------------------------------------------


def test_one_trace_of_the_loss_for_many_parameters(data):
    model = build(data)
    loss, counted = compiled(model.training_loss)
    for scale in [0.5, 1.0, 2.0]:
        model.b.assign([scale, 1.0, 1.0])
        model.kernel.lengthscales.assign(0.3 * scale)
        assert_allclose(loss(), model.training_loss(), rtol=1e-12)
    assert counted.traces == 1


@pytest.mark.slow
def test_one_trace_of_predictions_for_many_sizes(rng, data):
    model = build(data)
    functions = {
        "f": lambda X: model.predict_f(X),
        "f, everything": lambda X: model.predict_f(X, full_cov=True, full_output_cov=True),
        "y": lambda X: model.predict_y(X, full_output_cov=True),
        "cached": model.posterior().predict_f,
    }
    for name, function in functions.items():
        predict, counted = compiled(function, ROWS)
        for M in [1, 4]:
            Xnew = tf.constant(rng.uniform(size=(M, D)))
            for actual, expected in zip(predict(Xnew), function(Xnew), strict=True):
                assert_allclose(actual, expected, rtol=1e-9, atol=1e-12, err_msg=name)
        assert counted.traces == 1


def test_compiled_predictions_follow_the_parameters(data):
    model = build(data)
    predict = tf.function(model.predict_f)
    before = predict(data[0])[0].numpy()
    model.sigma2.assign([3.0, 3.0, 3.0])
    after = predict(data[0])[0].numpy()
    assert_allclose(after, model.predict_f(data[0])[0], rtol=1e-9, atol=1e-12)
    assert np.max(np.abs(after - before)) > 0.1


# Gradients of predictions -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("method", ["predict_f", "predict_y"])
def test_gradients_with_respect_to_test_inputs(rng, data, method, cached):
    model = build(data)
    predict = getattr(model.posterior() if cached else model, method)
    Xnew = rng.uniform(size=(2, D))
    weights = rng.normal(size=(2, T)), rng.normal(size=(2, T, T))

    def value(X):
        mean, cov = predict(X, full_output_cov=True)
        return tf.reduce_sum(weights[0] * mean), tf.reduce_sum(weights[1] * cov)

    variable = tf.Variable(Xnew)
    with tf.GradientTape(persistent=True) as tape:
        values = value(variable)
    for part, total in enumerate(values):
        gradient = tape.gradient(total, variable)
        for index in np.ndindex(2, D):
            step = np.zeros((2, D))
            step[index] = 1e-5
            up, down = (value(tf.constant(Xnew + s * step))[part] for s in [1, -1])
            assert_allclose(gradient[index], (up - down) / 2e-5, rtol=1e-6, atol=1e-7)


# Export -------------------------------------------------------------------------------------------

RELOAD = """
import sys
import numpy as np
import tensorflow as tf

module = tf.saved_model.load(sys.argv[1])
Xnew = np.load(sys.argv[2])
outputs = {}
for name in sys.argv[5:]:
    outputs[name + "_mean"], outputs[name + "_cov"] = getattr(module, name)(Xnew)
assert not {"gpflow", "gpflow_cool", "tensorflow_probability"} & set(sys.modules)

from gpflow_cool.loading import load

outputs["saved_mean"], outputs["saved_cov"] = load(sys.argv[4]).predict_f_full_cov(Xnew)
np.savez(sys.argv[3], **outputs)
"""


def run_python(script, *arguments):
    """Run a script in a process of its own, and return what it prints."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def operations_of(concrete):
    """Types of all operations of a graph, those of the functions inside it included."""
    types = {operation.type for operation in concrete.graph.get_operations()}
    for function in concrete.graph.as_graph_def().library.function:
        types |= {node.op for node in function.node_def}
    return types


@pytest.mark.slow
def test_export_and_reload_in_a_process_without_gpflow(rng, data, tmp_path):
    """
    As in GPflow's tutorial on saving: compiled methods on the model itself, and on a module.

    In the end the new process also loads a model that was saved as ours are.
    """
    kernel = SquaredExponential() * Periodic(Matern52(active_dims=[0]), period=2.0)
    ours = perturbed(CoolMTGP(data, kernel), rng)
    ours.save(tmp_path / "ours")
    model = build(data, engine="spectral")
    posterior = model.posterior()
    model.predict_f_compiled = tf.function(
        lambda Xnew: model.predict_f(Xnew, full_cov=False), input_signature=[ROWS]
    )
    model.predict_y_compiled = tf.function(
        lambda Xnew: model.predict_y(Xnew, full_output_cov=True), input_signature=[ROWS]
    )
    model.predict_f_cached = tf.function(
        lambda Xnew: posterior.predict_f(Xnew, full_cov=True), input_signature=[ROWS]
    )
    names = ["predict_f_compiled", "predict_y_compiled", "predict_f_cached"]
    for name in names:
        operations = operations_of(getattr(model, name).get_concrete_function())
        assert not {kind for kind in operations if "PyFunc" in kind}
    loss = tf.function(model.training_loss).get_concrete_function()
    assert "PyFunc" in operations_of(loss)  # where a callback is wanted, the look-out sees it

    Xnew = rng.uniform(size=(5, D))
    np.save(tmp_path / "Xnew.npy", Xnew)
    tf.saved_model.save(model, str(tmp_path / "model"))
    files = [tmp_path / name for name in ("model", "Xnew.npy", "out.npz", "ours")]
    run_python(RELOAD, *files, *names)
    outputs = np.load(tmp_path / "out.npz")
    expected = [
        model.predict_f(Xnew),
        model.predict_y(Xnew, full_output_cov=True),
        model.predict_f(Xnew, full_cov=True),
    ]
    for name, (mean, cov) in zip(names, expected, strict=True):
        assert_allclose(outputs[f"{name}_mean"], mean, rtol=1e-10, atol=1e-10)
        assert_allclose(outputs[f"{name}_cov"], cov, rtol=1e-10, atol=1e-10)
    mean, cov = ours.predict_f_full_cov(Xnew)
    assert_allclose(outputs["saved_mean"], mean, rtol=1e-10, atol=1e-12)
    assert_allclose(outputs["saved_cov"], cov, rtol=1e-10, atol=1e-12)


def test_a_module_that_holds_only_the_cached_posterior(rng, data, tmp_path):
    posterior = build(data).posterior()
    module = tf.Module()
    module.posterior = posterior  # so that the kernel's variables are exported as well
    module.predict = tf.function(posterior.predict_y, input_signature=[ROWS])
    tf.saved_model.save(module, str(tmp_path))
    Xnew = rng.uniform(size=(4, D))
    loaded = tf.saved_model.load(str(tmp_path))
    for actual, expected in zip(loaded.predict(Xnew), posterior.predict_y(Xnew), strict=True):
        assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


# Data that grows ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("learning", LEARNINGS)
def test_rows_may_change_under_one_compiled_loss(data, learning):
    X, Y = data
    variables = growing(X[:5], Y[:5])
    start = {"b": [1.0, 2.0, 0.5], "sigma2": [0.3, 0.2, 0.1]}
    model = build(variables, learning=learning, **start)

    def value_and_gradients():
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        return loss, tape.gradient(loss, model.trainable_variables)

    evaluate, counted = compiled(value_and_gradients)
    predict, counted_predict = compiled(model.predict_y, ROWS)
    for N in [5, 12, 1, 8]:
        variables[0].assign(X[:N])
        variables[1].assign(Y[:N])
        fresh = build((X[:N], Y[:N]), learning=learning)
        fresh.kernel, fresh.b, fresh.sigma2 = model.kernel, model.b, model.sigma2
        with tf.GradientTape() as tape:
            expected = fresh.training_loss()
        loss, gradients = evaluate()
        assert_allclose(loss, expected, rtol=1e-11)
        others = tape.gradient(expected, fresh.trainable_variables)
        for gradient, other in zip(gradients, others, strict=True):
            assert_allclose(gradient, other, rtol=1e-8, atol=1e-10)
        for actual, wanted in zip(predict(X), fresh.predict_y(X), strict=True):
            assert_allclose(actual, wanted, rtol=1e-8, atol=1e-10)
    assert counted.traces == counted_predict.traces == 1


@pytest.mark.parametrize("cache", ["tensor", "variable", "nocache"])
def test_a_cached_posterior_keeps_its_data_until_it_is_updated(data, cache):
    X, Y = data
    variables = growing(X[:6], Y[:6])
    model = build(variables, b=1.0, sigma2=0.1)
    posterior = model.posterior(cache)
    six, twelve = (build((X[:N], Y[:N]), b=1.0, sigma2=0.1) for N in [6, 12])
    assert_allclose(posterior.predict_y(X)[0], six.predict_y(X)[0], rtol=1e-9)
    variables[0].assign(X)
    variables[1].assign(Y)
    assert_allclose(model.predict_y(X)[0], twelve.predict_y(X)[0], rtol=1e-9)
    if cache == "variable":  # the cache's variables follow in place, under a compiled function too
        predict = tf.function(posterior.predict_f, input_signature=[ROWS])
    posterior.update_cache()
    assert_allclose(posterior.predict_y(X)[0], twelve.predict_y(X)[0], rtol=1e-9)
    if cache == "variable":
        assert_allclose(predict(X)[0], twelve.predict_f(X)[0], rtol=1e-9)


@pytest.mark.slow
def test_bayesian_optimisation(rng):
    """
    Choose a point, observe it, add a row, fit again: one compiled loss, and what a new model says.
    """

    def observe(X):
        return np.hstack([(X - 0.7) ** 2, np.sin(4 * X)]) + 0.01 * rng.normal(size=(len(X), 2))

    X = np.array([[0.05], [0.35], [0.95]])
    Y = observe(X)
    variables = growing(X, Y)
    model = CoolMTGP(variables, SquaredExponential(lengthscales=0.3), sigma2=[1e-3, 1e-3])
    loss, counted = compiled(model.training_loss)
    grid = np.linspace(0, 1, 41)[:, None]
    for _ in range(4):
        gpflow.optimizers.Scipy().minimize(
            loss, model.trainable_variables, options={"maxiter": 5}, compile=False
        )
        mean, var = model.predict_f(grid)
        chosen = grid[[np.argmin(mean[:, 0] - 2.0 * np.sqrt(var[:, 0]))]]
        X, Y = np.vstack([X, chosen]), np.vstack([Y, observe(chosen)])
        variables[0].assign(X)
        variables[1].assign(Y)
    assert counted.traces == 1
    assert abs(X[np.argmin(Y[:, 0]), 0] - 0.7) < 0.1
    fresh = CoolMTGP(
        (X, Y),
        SquaredExponential(lengthscales=model.kernel.lengthscales.numpy()),
        b=model.b,
        sigma2=model.sigma2,
        weight_variance=model.weight_variance.numpy(),
    )
    assert_allclose(loss(), fresh.training_loss(), rtol=1e-9)
    assert_allclose(model.predict_f(grid)[0], fresh.predict_f(grid)[0], atol=1e-7)
    leave_one_out = model.leave_one_out()
    assert_allclose(leave_one_out.mean, fresh.leave_one_out().mean, atol=1e-7)


# Memory -------------------------------------------------------------------------------------------


def largest_tensor(function, unknown):
    """
    Number of entries of the largest tensor of a traced function.

    :param unknown: What to take for a dimension that is not known before the function runs.
    """
    graph = tf.function(function).get_concrete_function().graph
    tensors = [tensor for op in graph.get_operations() for tensor in op.outputs]
    floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
    # What LAPACK returns has no shape until the next operation gives it one.
    shapes = [tensor.shape for tensor in floats if tensor.op.type != "PyFunc"]
    return max(int(np.prod([unknown if d is None else d for d in shape])) for shape in shapes)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_no_tensor_has_a_kernel_matrix_for_every_task(rng, learning):
    N, tasks = 60, 8
    X, Y = rng.normal(size=(N, 2)), rng.normal(size=(N, tasks))
    kernel = SquaredExponential()
    model = CoolMTGP((X, Y), kernel, learning=learning, engine="spectral")

    def value_and_gradients():
        with tf.GradientTape() as tape:
            loss = model.training_loss()
        return loss, tape.gradient(loss, model.trainable_variables)

    def batched():  # what must be found, if it were there
        return tf.linalg.cholesky(model.b[:, None, None] * kernel(X))

    assert largest_tensor(batched, N) == tasks * N * N
    # What is unknown counts tasks of a block, or pairs of them: a matrix for each would be found.
    assert largest_tensor(value_and_gradients, tasks) <= 2 * N * N


@pytest.mark.parametrize("model_class", [CoolMTGP, KroneckerMTGP])
def test_gaps_in_targets_that_were_complete_are_refused(data, model_class):
    X, Y = growing(*data)
    model = model_class((X, Y), SquaredExponential())
    gap = data[1].copy()
    gap[3, 1] = np.nan
    Y.assign(gap)
    for call in (lambda: model.predict_f(data[0]), lambda: model.fit(verbose=0)):
        with pytest.raises(ValueError, match=r"Y\[3, 1\] is nan. .* build a new model where"):
            call()


def test_drawn_functions_are_refused_after_a_change_of_the_inputs(data):
    X, Y = growing(*data)
    functions = build((X, Y)).posterior().sample_functions(2, seed=0)
    before = functions(data[0]).numpy()
    X.assign(data[0] + 1.0)
    with pytest.raises(ValueError, match="parameters or inputs have changed since"):
        functions(data[0])
    X.assign(data[0])
    assert_allclose(functions(data[0]), before, rtol=0)
