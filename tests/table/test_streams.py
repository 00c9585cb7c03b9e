"""Tables that are streamed: a tiny folder of Parquet files."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGPRegressor, SparseCoolMTGP, load
from gpflow_cool.report.data import Findings, most_surprising
from gpflow_cool.table.parquet import stream_columns
from gpflow_cool.table.streams import StreamRows
from gpflow_cool.table.summary import fit_lines, fit_summary


def columns_of(rng, N=90):
    X = rng.normal(size=(N, 2)) * [1.0, 20.0] + [5.0, 0.0]
    F = np.column_stack([np.sin(X[:, 0]), 100.0 + np.cos(X[:, 0]) + X[:, 1] / 20])
    Y = F + 0.1 * rng.normal(size=F.shape)
    return {"a": X[:, 0], "heat": Y[:, 0], "b": X[:, 1], "cold": Y[:, 1]}


@pytest.fixture
def folder(tmp_path, rng):
    """Three files, the last of which has few rows."""
    columns = columns_of(rng)
    for number, (start, stop) in enumerate([(0, 40), (40, 85), (85, 90)]):
        part = {name: values[start:stop] for name, values in columns.items()}
        pq.write_table(pa.table(part), tmp_path / f"part{number}.parquet")
    return tmp_path, columns


def test_a_stream_gives_the_model_of_the_table_in_memory(folder, rng):
    path, columns = folder
    options = {"kernel": "se", "ard": False, "inducing": 12}
    streamed = CoolMTGPRegressor(**options).fit(ds.dataset(path), ["heat", "cold"])
    model = streamed.model_
    assert model.num_rows == 90 and model.input_names == ("a", "b")
    X = np.column_stack([columns["a"], columns["b"]])
    Y = np.column_stack([columns["heat"], columns["cold"]])
    centre, scale = X.mean(axis=0), X.std(axis=0)
    again = SparseCoolMTGP(
        ((X - centre) / scale, (Y - Y.mean(axis=0)) / Y.std(axis=0)),
        model.kernel,
        model.inducing_variable,
        b=model.b.numpy(),
        sigma2=model.sigma2.numpy(),
        weight_variance=model.weight_variance.numpy(),
    )
    new = rng.normal(size=(4, 2)) * [1.0, 20.0] + [5.0, 0.0]
    mean, var = again.predict_y((new - centre) / scale)
    names = {"a": new[:, 0], "b": new[:, 1]}
    actual, std = streamed.predict(pd.DataFrame(names), return_std=True)
    assert_allclose(actual, mean * Y.std(axis=0) + Y.mean(axis=0), rtol=1e-6)
    assert_allclose(std, np.sqrt(var) * Y.std(axis=0), rtol=1e-6)
    moved = streamed.relevance_
    assert list(moved.index) == ["a", "b"] and moved["a"] > 0.0
    streamed.save(path / "model")
    assert_allclose(load(path / "model").relevance_, moved, rtol=1e-8)
    assert_allclose(again.leave_one_out().log_density, model.leave_one_out().log_density, rtol=1e-6)


def test_noise_in_a_stream_is_warned_of_at_the_call(rng, tmp_path):
    noise = rng.normal(size=20)
    twice = {"a": np.repeat(rng.normal(size=20), 2), "heat": np.column_stack([noise, -noise])}
    pq.write_table(pa.table({"a": twice["a"], "heat": twice["heat"].ravel()}), tmp_path / "p.pq")
    with pytest.warns(UserWarning, match="Beware: everything looks like noise") as caught:
        CoolMTGPRegressor("se", ard=False, inducing=5).fit(ds.dataset(tmp_path), ["heat"])
    assert [warning.filename for warning in caught] == [__file__]


def test_a_streamed_model_is_saved_with_its_sums(folder, tmp_path):
    path, _ = folder
    streamed = CoolMTGPRegressor("se", ard=False, inducing=8).fit(ds.dataset(path), "heat")
    streamed.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    X = np.array([[5.0, 1.0, 99.0], [4.0, -3.0, 101.0]])  # "cold" is an input here
    assert loaded.model_.num_rows == 90
    with pytest.warns(UserWarning, match="feature names"):
        assert_allclose(loaded.predict(X), streamed.predict(X), rtol=1e-10)
    with pytest.raises(ValueError, match="only sums and 90 rows are left.*not to train"):
        loaded.model_.fit(verbose=0)
    loaded.model_.kernel.lengthscales.assign(0.123)
    with pytest.raises(ValueError, match="parameters or the inducing .*build the model again"):
        loaded.model_.log_marginal_likelihood()


def test_every_pass_reads_all_rows_in_order_and_shards_share_them(folder):
    path, columns = folder
    dataset = ds.dataset(path)
    rows = StreamRows(dataset, stream_columns(dataset, ["heat", "cold"]))
    for _ in range(2):
        X = np.concatenate([chunk[0] for chunk in rows.chunks()])
        assert_allclose(X, np.column_stack([columns["a"], columns["b"]]))
    shards = [sum(len(X) for X, _ in rows.chunks(2, shard)) for shard in range(2)]
    assert sum(shards) == 90 and min(shards) > 0
    assert rows.num_passes == 4


@pytest.mark.parametrize(
    "change, targets, message",
    [
        ({}, ["warm"], "has no column 'warm'. It has: a, heat"),
        ({}, ["haet"], r"has no column 'haet'. Did you mean 'heat'\? It has: a, heat"),
        ({"a": [1.0, None, 2.0]}, ["heat"], r"part.parquet, row 2, column 'a': the cell is empty"),
        ({"heat": [1.0, 2.0, np.inf]}, ["heat"], "row 3, column 'heat': the number is infinite"),
        ({"a": ["x", "y", "z"]}, ["heat"], "'a' of the dataset holds string.*--exclude"),
        ({}, ["a", "heat", "b", "cold"], "leave at least one other column"),
        ({}, None, "names of the targets"),
    ],
)
def test_other_datasets_are_refused(rng, tmp_path, change, targets, message):
    columns = {name: values[:3] for name, values in columns_of(rng).items()} | change
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    with pytest.raises(ValueError, match=message):
        CoolMTGPRegressor("se", ard=False).fit(ds.dataset(tmp_path), targets)


def test_settings_for_tables_in_memory_are_refused(folder):
    path, _ = folder
    with pytest.raises(ValueError, match="streamed as it is: target_transform"):
        CoolMTGPRegressor(target_transform="log").fit(ds.dataset(path), ["heat"])
    with pytest.raises(ValueError, match="exact model cannot read a stream"):
        CoolMTGPRegressor("se", ard=False, inducing=0).fit(ds.dataset(path), ["heat"])


def test_what_is_known_of_a_sample_is_not_said_of_all_rows(tmp_path, rng):
    pq.write_table(pa.table(columns_of(rng, 1100)), tmp_path / "all.parquet")
    regressor = CoolMTGPRegressor(kernel="se", ard=False, inducing=5)
    regressor.fit(ds.dataset(tmp_path / "all.parquet"), ["heat", "cold"])
    said = fit_lines(fit_summary(regressor, tmp_path / "model", 1.0))
    assert said[0].startswith("1100 rows, ")
    assert "1000 rows drawn at random, each predicted from all the others" in "\n".join(said)
    assert not any("evaluate" in line for line in said)  # it takes one file
    assert any("compare what gpflow-cool predict says of another one" in line for line in said)
    assert most_surprising(Findings(regressor)) == []
    with pytest.raises(ValueError, match="fitted to a stream of rows, .* use predict_given"):
        regressor.impute(np.zeros([1100, 2]))
