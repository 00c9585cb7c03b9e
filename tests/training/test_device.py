"""Training as on a GPU: what is N x N stays on the device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

import gpflow_cool
from gpflow_cool import CoolMTGP, linalg
from gpflow_cool.training.profiled import ProfiledChain

N, T = 60, 3


@pytest.fixture(name="data")
def _data(rng):
    X = rng.uniform(-2.0, 2.0, size=(N, 2))
    Y = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1]), X[:, 0] * X[:, 1]], axis=1)
    return X, Y + 0.2 * rng.normal(size=(N, T))


def make(data, missing=False, **options):
    X, Y = data
    if missing:
        Y = np.where(np.arange(N * T).reshape(N, T) % 7 == 0, np.nan, Y)
    kernel = gpflow.kernels.Matern52(lengthscales=[0.8, 1.3])
    return CoolMTGP((X, Y), kernel, gpflow.mean_functions.Constant(0.1), **options)


@pytest.fixture(name="sizes")
def _sizes(monkeypatch):
    """The second largest dimension of every array that crosses between TensorFlow and NumPy."""
    sizes, numpy_function = [], tf.numpy_function

    def recorded(function, *args, **options):
        def call(*values):
            results = function(*values)
            several = results if isinstance(results, list | tuple) else [results]
            sizes.extend(sorted([0, 0, *np.shape(value)])[-2] for value in [*values, *several])
            return results

        kept.append(call)
        return numpy_function(call, *args, **options)

    kept = []
    monkeypatch.setattr(tf, "numpy_function", recorded)
    return sizes


@pytest.mark.parametrize("learning", ["hierarchical", "approximate"])
def test_nothing_of_size_n_by_n_leaves_the_device(data, sizes, learning):
    models = [make(data, learning=learning) for _ in range(2)]
    evaluations = []
    for model, device_eigh in zip(models, [True, False], strict=True):
        loss = ProfiledChain(model, device_eigh=device_eigh)
        for lengthscale in (0.9, 1.7):
            model.kernel.lengthscales.assign([lengthscale, 1.1])
            evaluations.append(loss.evaluate())
        assert loss.num_decompositions == 2
        assert sizes and (max(sizes) < N) == device_eigh
        sizes.clear()
    for actual, expected in zip(evaluations[:2], evaluations[2:], strict=True):
        assert_allclose(actual.loss, expected.loss, rtol=1e-10)
        assert_allclose(actual.terms, expected.terms, rtol=1e-8)
        for one, other in zip(actual.gradients, expected.gradients, strict=True):
            assert_allclose(one, other, rtol=1e-6, atol=1e-8)
    assert_allclose(models[0].b, models[1].b, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
def test_a_whole_fit_keeps_to_the_device(data, sizes, missing, monkeypatch):
    plain, on_device = make(data, missing), make(data, missing)
    options = {"rounds": 2, "steps": 4} if missing else {}
    plain.fit(verbose=0, **options)
    assert max(sizes) >= N
    sizes.clear()
    monkeypatch.setattr("gpflow_cool.training.profiled.prefers_device", lambda *_: True)
    monkeypatch.setattr(linalg, "prefers_device", lambda *_: True)
    on_device.fit(verbose=0, **options)
    assert max(sizes) < N
    assert_allclose(on_device.kernel.lengthscales, plain.kernel.lengthscales, rtol=1e-4)


def test_completions_too(data, sizes):
    model = make(data, missing=True)
    rng = np.random.default_rng(0)
    model.completions.assign(np.nan_to_num(data[1]) + 0.1 * rng.normal(size=(4, N, T)))
    losses = []
    for on_device in (True, False):
        losses.append(ProfiledChain(model, device_eigh=on_device).evaluate().loss)
        assert (max(sizes) < N) == on_device
    assert_allclose(*losses, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["error", "nan"])
def test_lapack_is_the_retry(data, failure, monkeypatch):
    def fail(K):
        if failure == "nan":
            return tf.linalg.diag_part(K) * np.nan, K
        bad = tf.debugging.assert_less(tf.reduce_max(K), tf.zeros([], K.dtype))
        with tf.control_dependencies([bad] if bad is not None else []):
            return tf.linalg.diag_part(K), tf.identity(K)

    expected = ProfiledChain(make(data), device_eigh=False).evaluate().loss
    monkeypatch.setattr(tf.linalg, "eigh", fail)
    loss = ProfiledChain(make(data), device_eigh=True)
    for _ in range(2):
        assert_allclose(loss.evaluate().loss, expected, rtol=1e-12)
    K = np.cov(data[0])
    lam, U = linalg.device_eigh(tf.constant(K))
    assert_allclose((U * lam) @ tf.transpose(U), K, atol=1e-12)


def test_a_trial_decides_once_per_size_and_dtype(monkeypatch):
    timed = [3.0, 1.0, 2.0, 3.0, 2.0, 1.0]  # the device twice, then LAPACK
    monkeypatch.setattr(linalg, "has_gpu", lambda: True)
    monkeypatch.setattr(linalg, "seconds", lambda _: timed.pop(0))
    linalg.device_is_faster.cache_clear()
    try:
        assert linalg.prefers_device(7, tf.float64) and linalg.prefers_device(7, tf.float64)
        assert len(timed) == 3
        assert linalg.prefers_device(None, tf.float64)
        assert not linalg.prefers_device(7, tf.float32)
        assert not timed
    finally:
        linalg.device_is_faster.cache_clear()
    monkeypatch.setattr(linalg, "has_gpu", lambda: False)
    assert not linalg.prefers_device(None, tf.float64)


def test_nothing_of_ours_is_compiled_by_xla():
    """Its eigendecomposition has known wrong results."""
    for path in Path(gpflow_cool.__file__).parent.rglob("*.py"):
        assert "jit_compile" not in path.read_text(), path


# Two logical devices, in one process for all tests -----------------------------------------------

LOGICAL = """
import json
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import gpflow
from gpflow_cool import CoolMTGP, SparseCoolMTGP, linalg
from gpflow_cool.systems.rows import ArrayRows
"""

AGREE = """
rng = np.random.default_rng(7)
X, Y = rng.normal(size=(15, 2)), rng.normal(size=(15, 3))
results = {}
for engine in ["spectral", "cholesky"]:
    for device in ["CPU:0", "CPU:1"]:
        with tf.device(device):
            model = CoolMTGP((X, Y), gpflow.kernels.Matern52(), engine=engine)

            def evaluate():
                with tf.device(device), tf.GradientTape() as tape:
                    loss = model.training_loss()
                return loss, tape.gradient(loss, model.trainable_variables)

            for name, function in [("eager", evaluate), ("graph", tf.function(evaluate))]:
                loss, gradients = function()
                flat = np.concatenate([np.ravel(g) for g in gradients])
                results[f"{engine} {device} {name}"] = [loss.numpy().item(), *flat.tolist()]
            mean, var = tf.function(model.predict_f)(X[:4])
            results[f"predict {engine} {device}"] = np.ravel([mean, var]).tolist()
            assert model.b.unconstrained_variable.device.endswith(device)
print(json.dumps(results))
"""

SHARED = """
class CountedRows(ArrayRows):
    read = 0

    def chunks(self, num_shards=1, shard=0):
        for X, Y in super().chunks(num_shards, shard):
            self.read += len(X)
            yield X, Y

rng = np.random.default_rng(7)
X, Y = rng.normal(size=(3000, 2)), rng.normal(size=(3000, 3))
results = []
for strategy in (None, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    rows = CountedRows(X, Y, 100)
    model = SparseCoolMTGP(rows, gpflow.kernels.Matern52(), X[:7], strategy=strategy)
    read = rows.read
    evaluation = model.streamed_loss().evaluate()
    parts = [model.scales, model.data[0], model.b, *evaluation.gradients, evaluation.loss]
    results.append([read, *np.concatenate([np.ravel(part) for part in parts]).tolist()])
Y[2222, 1] = np.inf
try:
    SparseCoolMTGP((X, Y), gpflow.kernels.Matern52(), X[:7], chunk_rows=100, strategy=strategy)
except ValueError as error:
    results.append(str(error))
print(json.dumps(results))
"""

FITTED = """
rng = np.random.default_rng(0)
X = rng.uniform(size=(30, 1))
Y = np.sin(6 * X) + 0.1 * rng.normal(size=(30, 2))
ends = []
for gpu in (False, True):
    linalg.has_gpu = lambda: gpu
    with tf.device("CPU:1"):
        model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential())
        assert model.b.unconstrained_variable.device.endswith("CPU:1")
        model.fit(verbose=0)
        mean, variance = model.predict_y(X)
        assert mean.device.endswith("CPU:1"), mean.device
    ends.append(np.hstack([mean, variance]))
np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-6)
"""
"""With the timed trial, as where there is a GPU: the last, since it changes what is said of one."""


@pytest.fixture(scope="module")
def printed():
    """What each part prints."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(Path(gpflow_cool.__file__).parents[1])
    command = [sys.executable, "-c", LOGICAL + AGREE + SHARED + FITTED + "print('fitted')"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()[-3:]


@pytest.mark.slow
def test_two_logical_devices_agree(printed):
    results = json.loads(printed[0])
    assert len(results) == 12
    predictions = [value for name, value in results.items() if name.startswith("predict")]
    objectives = [value for name, value in results.items() if not name.startswith("predict")]
    for values in [predictions, objectives]:
        for value in values[1:]:
            assert_allclose(value, values[0], rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_two_devices_share_the_pass_that_builds_a_model(printed):
    alone, shared, error = json.loads(printed[1])
    assert alone[0] == shared[0] == 3000 + 100  # every row once, and the first chunk
    assert_allclose(shared, alone, rtol=1e-9, atol=1e-12)
    assert error.startswith("Y[2222, 1] is inf. Every entry must be finite")


@pytest.mark.slow
def test_on_a_second_logical_device(printed):
    """The part that fits has asserted it."""
    assert printed[2] == "fitted"
