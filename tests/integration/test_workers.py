"""Sums over rows in shards, under a strategy, and by two worker processes."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import assert_close, random_problem

from gpflow_cool import SparseCoolMTGP
from gpflow_cool.callbacks import load_checkpoint
from gpflow_cool.systems.rows import make_rows, sum_over_rows
from gpflow_cool.training.losses import loss_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_workers.py"


def column_sums(X, Y):
    return [tf.reduce_sum(X, axis=0), tf.reduce_sum(Y, axis=0)]


@pytest.mark.parametrize("num_shards", [1, 2, 5])
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_shards_have_every_row_once(rng, kind, num_shards):
    X, Y = rng.normal(size=(11, 2)), rng.normal(size=(11, 3))
    data = (X, Y) if kind == "arrays" else tf.data.Dataset.from_tensor_slices((X, Y))
    rows = make_rows(data, 3)
    found = [part for n in range(num_shards) for part, _ in rows.chunks(num_shards, n)]
    found = np.concatenate(found)
    assert_close(found[np.lexsort(found.T)], X[np.lexsort(X.T)], rtol=0)


def test_sum_under_a_strategy_equals_that_without(rng):
    X, Y = rng.normal(size=(11, 2)), rng.normal(size=(11, 3))
    rows, zero = make_rows((X, Y), 3), [tf.zeros(2, tf.float64), tf.zeros(3, tf.float64)]
    for strategy in (None, tf.distribute.OneDeviceStrategy("CPU:0")):
        total = sum_over_rows(rows, column_sums, zero, strategy)
        assert_close(total[0], X.sum(axis=0), rtol=1e-12)
        assert_close(total[1], Y.sum(axis=0), rtol=1e-12)


def test_loss_under_a_strategy_equals_that_without(rng):
    p = random_problem(rng, 12, 2)
    models = [
        SparseCoolMTGP((p.X, p.Y), p.gpflow_kernel(), p.X[:4], chunk_rows=5, strategy=strategy)
        for strategy in (None, tf.distribute.MirroredStrategy(["CPU:0"]))
    ]
    for profile in (False, True):
        expected, actual = (loss_of(model, profile=profile).evaluate() for model in models)
        assert_allclose(actual.loss, expected.loss, rtol=1e-12)
        for a, e in zip(actual.gradients, expected.gradients, strict=True):
            assert_close(a, e, rtol=1e-10)


class Broken:
    """A strategy whose other worker is gone."""

    def run(self, function):
        raise tf.errors.UnavailableError(None, None, "Collective ops is aborted by: task:1")


def test_a_worker_that_is_gone_is_told(rng):
    rows = make_rows((rng.normal(size=(4, 2)), rng.normal(size=(4, 3))), 3)
    with pytest.raises(RuntimeError, match="Another worker does not answer.*checkpoint.*task:1"):
        sum_over_rows(rows, column_sums, [tf.zeros(2), tf.zeros(3)], Broken())


def start_worker(index, addresses, folder):
    """One worker of the example, with its output in a file."""
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])}
    with (folder / f"output_{index}").open("w") as output:
        return subprocess.Popen(
            [sys.executable, EXAMPLE, "--worker", "--folder", folder],
            env={**environment, "TF_CONFIG": json.dumps(config)},
            stdout=output,
            stderr=output,
        )


def wait_until(condition, seconds):
    """How long it took until something became true."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds
        time.sleep(0.01)
    return time.monotonic() - started


@pytest.fixture
def example():
    specification = importlib.util.spec_from_file_location("two_workers", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_worker_dies_the_other_says_so_and_a_restart_goes_on_as_one_worker_would(
    tmp_path, example
):
    example.write_data(tmp_path, 50_000)
    checkpoint = tmp_path / "checkpoint.npz"
    addresses = [f"127.0.0.1:{port}" for port in example.free_ports(2)]
    workers = [start_worker(index, addresses, tmp_path) for index in range(2)]
    try:
        wait_until(checkpoint.exists, 200.0)
        workers[1].kill()
        waited = wait_until(lambda: workers[0].poll() is not None, 60.0)  # docs/scaling.md says so
    finally:
        for worker in workers:
            worker.kill()
    assert workers[0].returncode > 0, f"ended well after {waited} s"
    assert "Another worker does not answer any more" in (tmp_path / "output_0").read_text()
    data = tuple(np.load(tmp_path / f"{name}.npy") for name in "XY")
    Z = np.linspace(0.0, 6.0, 20)[:, None]
    alone = SparseCoolMTGP(data, gpflow.kernels.SquaredExponential(), Z, chunk_rows=1000)
    start = alone.training_loss()
    load_checkpoint(alone, checkpoint)
    saved = alone.training_loss()
    assert saved < start - 1.0

    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])}
    command = [sys.executable, EXAMPLE, "--steps", "1", "--folder", tmp_path]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"worker_{n}.json").read_text()) for n in range(2))
    assert first == second
    # Losses of a fit are interpolated between ratios of b and sigma2.
    assert first["loss"] <= saved + 0.01
    load_checkpoint(alone, checkpoint)
    assert_allclose(alone.training_loss(), first["loss"], rtol=0.0, atol=0.01)
    assert_allclose(alone.kernel.lengthscales.numpy(), first["lengthscale"], rtol=1e-12)
