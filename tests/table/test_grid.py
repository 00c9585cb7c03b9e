"""Tables whose rows are a grid need no inducing points, however many they are."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from gpflow.kernels import Matern52, SquaredExponential

from gpflow_cool.cli.console import Training
from gpflow_cool.cli.tables import TrainingTable, inducing_points
from gpflow_cool.grid import grid_inputs
from gpflow_cool.models import CoolMTGP, SparseCoolMTGP
from gpflow_cool.table.choices import choose_model, is_big_grid
from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.learned import grid_of
from gpflow_cool.table.summary import fit_lines, fit_summary


@pytest.fixture(name="few", autouse=True)
def _few(monkeypatch):
    """More than 350 rows count as many."""
    monkeypatch.setattr("gpflow_cool.table.costs.MAX_ROWS", 350)
    monkeypatch.setattr("gpflow_cool.table.costs.DEFAULT_POINTS", 10)


@pytest.fixture(name="data")
def _data(rng):
    X = grid_inputs(np.arange(20.0), np.arange(20.0))
    X = X[rng.permutation(len(X))]
    return X, np.sin(X) + 0.1 * rng.normal(size=X.shape)


def choose(data, kernel, inducing=None):
    options = {"learning": "hierarchical", "task_names": ["a", "b"]}
    return choose_model(data, kernel, inducing=inducing, **options)


def test_the_exact_model_is_chosen_for_a_grid(data):
    model = choose(data, SquaredExponential(lengthscales=[1.0, 2.0]))
    assert isinstance(model, CoolMTGP)
    assert model.is_on_grid
    assert isinstance(choose(data, SquaredExponential(), inducing=10), SparseCoolMTGP)
    with pytest.warns(UserWarning, match="400 rows are more than 350"):
        assert isinstance(choose(data, Matern52()), SparseCoolMTGP)


def test_of_the_named_kernels_the_squared_exponential_is_taken(data):
    assert is_big_grid(data[0])
    assert not is_big_grid(data[0][:340])
    assert not is_big_grid(data[0] + data[1])


def test_the_command_line_says_that_rows_are_a_grid(data, capsys):
    options = {"kernel": "se", "large": False, "quiet": False}
    given = Training(**{**dict.fromkeys(Training._fields), **options})
    parts = {"X": data[0], "Y": data[1]}
    found = TrainingTable(**{**dict.fromkeys(TrainingTable._fields), **parts})
    assert inducing_points(found, given, None, 1) == 0
    assert capsys.readouterr().err == "400 rows are a grid of 20 x 20 points: the exact model.\n"
    assert inducing_points(found, given._replace(kernel="auto"), None, 1) == 0
    capsys.readouterr()
    assert inducing_points(found, given._replace(kernel="matern52"), None, 1) == 10
    assert "400 rows are more than 350" in capsys.readouterr().err
    assert inducing_points(found._replace(X=data[0] + data[1]), given, None, 1) == 10


def fitted(X, kernel):
    table = pd.DataFrame(np.column_stack([X, np.ones(len(X))]), columns=["lat", "lon", "one"])
    Y = np.sin(X / 3.0) + 0.1 * np.random.default_rng(0).normal(size=X.shape)
    targets = pd.DataFrame(Y, columns=["heat", "rain"])
    return CoolMTGPRegressor(kernel, ard=False, orders=1, inducing=0).fit(table, targets)


@pytest.mark.parametrize(
    "kernel, shape, said",
    [
        ("se", (16, 20), "16 x 20 points over lat x lon, of which the exact model makes use"),
        ("matern52", (16, 20), "16 x 20 points over lat x lon, of which this model makes no use"),
        ("se", (4, 5), "4 x 5 points over lat x lon; they are too few"),
    ],
)
def test_a_fit_says_that_rows_are_a_grid(kernel, shape, said):
    regressor = fitted(grid_inputs(*map(np.arange, shape)), kernel)
    found = fit_summary(regressor, Path("model"), 1.0)
    assert found["grid"]["shape"] == list(shape)
    assert any(line.startswith(f"grid:    {said}") for line in fit_lines(found))


def test_other_rows_are_no_grid(rng):
    for X in (rng.normal(size=(20, 2)), np.repeat(grid_inputs([1, 2], [3, 4]), 5, axis=0)):
        assert grid_of(fitted(X, "se")) is None
