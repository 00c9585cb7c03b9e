"""kernel="auto" and ard="shrunk", the estimator's defaults."""

import json

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from gpflow_cool import CoolMTGPRegressor, SparseCoolMTGP, choose_kernel, load
from gpflow_cool.selection.choice import KernelTable
from gpflow_cool.selection.ranking import Candidate
from gpflow_cool.table.learned import table_from_json, table_to_json


@pytest.fixture(scope="module")
def tables():
    """Two targets of the first of three inputs, in units of their own."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=[36, 3]) * [1.0, 10.0, 0.1] + [0.0, 50.0, 3.0]
    Y = np.stack([np.sin(2 * X[:, 0]), 100 + 20 * np.cos(2 * X[:, 0])], axis=1)
    Y += rng.normal(size=Y.shape) * [0.05, 1.0]
    index = [f"row {n}" for n in range(36)]
    X = pd.DataFrame(X, columns=["age", "size", "weight"], index=index)
    return X, pd.DataFrame(Y, columns=["heat", "cold"], index=index)


@pytest.fixture(scope="module")
def regressor(tables):
    return CoolMTGPRegressor(orders=1).fit(*tables)


def test_it_is_the_choice_on_standardised_data(regressor, tables):
    X, Y = ((t - t.mean()) / t.std(ddof=0) for t in tables)
    choice = choose_kernel((X.to_numpy(), Y.to_numpy()), verbose=0)
    table = regressor.kernel_choice_
    assert table.chosen == choice.table.chosen
    for ours, theirs in zip(table.candidates, choice.table.candidates, strict=True):
        assert ours.name == theirs.name
        assert ours.log_density == pytest.approx(theirs.log_density, rel=1e-4)
    mean = choice.model.predict_f(X.to_numpy())[0] * tables[1].std(ddof=0).to_numpy()
    assert_allclose(regressor.predict(tables[0]), mean + tables[1].mean().to_numpy(), rtol=1e-3)


def test_relevance_by_name(regressor):
    relevance = regressor.relevance_
    assert list(relevance.index) == ["age", "size", "weight"]
    assert relevance["age"] > 10 * relevance["size"] and relevance["age"] > 10 * relevance["weight"]
    assert 0.3 < relevance["age"] <= 1.0


def test_the_choice_is_saved(regressor, tables, tmp_path):
    regressor.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.kernel_choice_ == regressor.kernel_choice_
    assert str(loaded.kernel_choice_) == str(regressor.kernel_choice_)
    assert loaded.get_params()["kernel"] == "auto"
    assert_allclose(loaded.relevance_, regressor.relevance_)
    assert_allclose(loaded.predict(tables[0]), regressor.predict(tables[0]), rtol=1e-9)


def test_a_table_with_a_kernel_that_failed_is_saved():
    good = Candidate("se", -1.0, 0.5, -10.0, 3, 0.1, "", -12.0, True)
    bad = Candidate("rq", -np.inf, np.nan, np.nan, 0, 0.1, "no luck")
    saved = json.loads(
        json.dumps(table_to_json(KernelTable((good, bad), "se", 12)), allow_nan=False)
    )
    table = table_from_json(saved)
    assert table.candidates[0] == good and table.num_rows == 12
    assert table.candidates[1].log_density == -np.inf and np.isnan(table.candidates[1].rmse)
    assert "failed: no luck" in str(table)
    saved["candidates"] = [row[:7] for row in saved["candidates"]]  # before there was a score
    assert table_from_json(saved).candidates[0] == good._replace(score=None, interpolates=False)


@pytest.mark.slow
def test_tensorboard_shows_lengthscales_by_name(tables, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fitted = CoolMTGPRegressor("se", orders=1).fit(*tables, tensorboard=tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert fitted.model_.input_names == ("age", "size", "weight")
    found = {tag for tag in events.Tags()["tensors"] if tag.startswith("kernel/lengthscales")}
    assert found == {f"kernel/lengthscales[{name}]" for name in ("age", "size", "weight")}


@pytest.mark.slow
def test_a_named_kernel_gets_shrunk_relevance_and_an_object_stays(tables):
    import gpflow

    X, Y = tables
    named = CoolMTGPRegressor("matern52").fit(X, Y)
    assert named.kernel_choice_ is None
    assert named.model_.kernel.lengthscales.shape == (3,)
    given = CoolMTGPRegressor(gpflow.kernels.Matern52()).fit(X, Y)
    assert given.model_.kernel.lengthscales.shape == ()
    assert named.leave_one_out_.log_density.mean() > given.leave_one_out_.log_density.mean()


@pytest.mark.slow
def test_inducing_points_and_a_sample_of_rows(tables, monkeypatch):
    monkeypatch.setattr("gpflow_cool.table.choices.ROWS_OF_CHOICE", 24)
    X, Y = tables
    fitted = CoolMTGPRegressor(inducing=30, ard=False).fit(X, Y)
    assert isinstance(fitted.model_, SparseCoolMTGP)
    assert fitted.kernel_choice_.num_rows == 24
    assert_allclose(fitted.predict(X), Y, atol=6.0)


@pytest.mark.slow
def test_callbacks_see_the_training(tables):
    from gpflow.keras import tf_keras

    steps = []
    seen = tf_keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: steps.append(epoch))
    CoolMTGPRegressor(ard=False).fit(tables[0][["age"]], tables[1], callbacks=[seen])
    assert steps
