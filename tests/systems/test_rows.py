"""Rows in chunks: arrays, memory maps and streams give the same, and bad ones are named."""

import numpy as np
import pytest
import tensorflow as tf
from problems import assert_close

from gpflow_cool.chain.starting import task_scales
from gpflow_cool.systems.rows import ArrayRows, DatasetRows, make_rows
from gpflow_cool.systems.summary import summarise


def joined(rows):
    parts = list(rows.chunks())
    return [np.concatenate([part[i] for part in parts]) for i in range(2)]


def sources(X, Y, folder, chunk_rows):
    """The same rows in every form."""
    for name, array in (("X", X), ("Y", Y)):
        np.save(folder / f"{name}.npy", array)
    mapped = tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "XY")
    single = tf.data.Dataset.from_tensor_slices((X, Y))
    return {
        "arrays": make_rows((X, Y), chunk_rows),
        "lists": make_rows((X.tolist(), Y.tolist()), chunk_rows),
        "memmap": make_rows(mapped, chunk_rows),
        "dataset of rows": make_rows(single, chunk_rows),
        "dataset of chunks": make_rows(single.batch(3), chunk_rows),
    }


@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
def test_every_source_yields_all_rows_in_order(rng, tmp_path, chunk_rows):
    X, Y = rng.normal(size=(11, 2)), rng.normal(size=(11, 3))
    for name, rows in sources(X, Y, tmp_path, chunk_rows).items():
        for _ in range(2):  # every pass anew
            assert_close(joined(rows)[0], X, rtol=0)
            assert_close(joined(rows)[1], Y, rtol=0)
        assert (rows.num_inputs, rows.num_tasks) == (2, 3), name


def test_memory_map_is_not_read_as_a_whole(rng, tmp_path):
    np.save(tmp_path / "X.npy", rng.normal(size=(9, 2)))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    rows = make_rows((X, X), 4)
    assert isinstance(rows.X, np.memmap)
    assert [len(part[0]) for part in rows.chunks()] == [4, 4, 1]


def shared_by(count, monkeypatch):
    """Let so many replicas share a pass, one after the other."""

    def sum_over_replicas(function, strategy):
        parts = [function(count, shard) for shard in range(count)]
        return [tf.add_n(tensors) for tensors in zip(*parts, strict=True)]

    monkeypatch.setattr("gpflow_cool.systems.summary.sum_over_replicas", sum_over_replicas)


@pytest.mark.parametrize("num_shards", [1, 2, 5])
@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
def test_summary_equals_that_of_all_rows(rng, monkeypatch, chunk_rows, num_shards):
    shared_by(num_shards, monkeypatch)
    X = rng.normal(size=(11, 2))
    Y = np.column_stack([3.0 + rng.normal(size=11), np.full(11, 0.7), np.zeros(11)])
    summary = summarise(
        ArrayRows(X, Y, chunk_rows), lambda X, Y: Y - 1.0, lambda X: tf.reduce_sum(X**2, axis=1)
    )
    assert summary.num_rows == 11
    assert_close(summary.scales, task_scales(Y - 1.0), rtol=1e-12)
    assert_close(summary.kernel_variance, np.mean(np.sum(X**2, axis=1)), rtol=1e-12)
    for actual, expected in zip(summary.sample.smallest(100), (X, Y), strict=True):
        assert_close(actual, expected, rtol=0)


def test_sample_of_many_rows_is_a_random_one(rng, monkeypatch):
    monkeypatch.setattr("gpflow_cool.systems.summary.SAMPLE_ROWS", 1500)
    N = 20_000
    X = np.arange(N, dtype=float)[:, None]
    rows = ArrayRows(X, X, 700)
    summary = summarise(rows, lambda X, Y: Y, lambda X: X[:, 0])
    drawn, targets = (part[:, 0] for part in summary.sample.smallest(1000))
    assert drawn.shape == (1000,) and len(np.unique(drawn)) == 1000
    assert np.all(drawn == targets)
    assert set(summary.sample.smallest(100)[0][:, 0]) < set(drawn)
    assert abs(drawn.mean() - N / 2) < 5 * N / np.sqrt(12 * 1000)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sample_does_not_depend_on_the_number_of_shards(rng, monkeypatch, dtype):
    monkeypatch.setattr("gpflow_cool.systems.summary.SAMPLE_ROWS", 10)
    rows = ArrayRows(rng.normal(size=(47, 2)), rng.normal(size=(47, 1)), 5)
    rows.dtype = tf.as_dtype(dtype)
    samples = []
    for count in (1, 3, 20):
        shared_by(count, monkeypatch)
        samples.append(summarise(rows, lambda X, Y: Y, lambda X: X[:, 0]).sample)
    for size in (4, 10):
        for sample in samples:
            for part, expected in zip(
                sample.smallest(size), samples[0].smallest(size), strict=True
            ):
                assert part.shape[0] == size and part.dtype == dtype
                assert_close(part, expected, rtol=0)


@pytest.mark.parametrize("name, column", [("X", 1), ("Y", 0)])
@pytest.mark.parametrize("kind", ["arrays", "dataset of rows", "dataset of chunks", "memmap"])
def test_not_a_number_in_the_middle_is_named_by_its_row(rng, tmp_path, kind, name, column):
    data = {"X": rng.normal(size=(11, 2)), "Y": rng.normal(size=(11, 3))}
    data[name][7, column] = np.nan
    rows = sources(data["X"], data["Y"], tmp_path, 4)[kind]
    with pytest.raises(ValueError, match=rf"{name}\[7, {column}\] is nan. Every entry must be fin"):
        summarise(rows, lambda X, Y: Y, lambda X: X[:, 0])


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays)


@pytest.mark.parametrize(
    "data, message",
    [
        (np.zeros((3, 2)), "data must be the pair"),
        ((np.zeros((3, 2)), np.zeros((4, 2))), "X has 3 rows and Y has 4"),
        ((np.zeros(3), np.zeros((3, 2))), r"X has shape \(3,\)"),
        ((np.zeros((3, 2)), np.zeros((3, 0))), r"Y has shape \(3, 0\)"),
        ((tf.Variable(np.zeros((3, 2))), np.zeros((3, 2))), "X is a tf.Variable"),
        (dataset(np.zeros((3, 2))), r"pairs \(x, y\) are needed"),
        (dataset(np.zeros(3), np.zeros(3)), r"\[D\] and \[T\], or \[n, D\]"),
    ],
)
def test_other_data_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        make_rows(data, 10)


def test_empty_dataset_is_refused():
    rows = DatasetRows(dataset(np.zeros((3, 2)), np.zeros((3, 1))).take(0), 10)
    with pytest.raises(ValueError, match="no rows"):
        summarise(rows, lambda X, Y: Y, lambda X: X[:, 0])


def test_chunk_rows_is_checked():
    with pytest.raises(ValueError, match="chunk_rows=0 must be"):
        make_rows((np.zeros((3, 2)), np.zeros((3, 1))), 0)
