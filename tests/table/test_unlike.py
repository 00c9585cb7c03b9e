"""What is told of rows that are unlike the training rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.loading import load
from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.unlike import (
    constant_inputs,
    far_rows,
    outside_columns,
    outside_rows,
    row_lines,
)


def test_far_rows_are_those_with_the_prior_s_variance(small_regressor):
    table = pd.DataFrame([[0.0, 4.0], [1e3, 4.0], [-1e3, 4.0]], columns=["depth", "lamp"])
    assert_array_equal(far_rows(small_regressor, table), [False, True, True])
    variance = small_regressor.predict(table, True, include_noise=False)[1].to_numpy() ** 2
    assert_allclose(variance[1:], [np.diagonal(small_regressor.task_covariance_)] * 2, rtol=1e-6)


def test_columns_that_leave_their_range_or_change_at_last_are_named(small_regressor):
    depth = small_regressor.training_data()[0][:, 0]
    in_training = f"{depth.min():.4g} to {depth.max():.4g}"
    X = np.array([[0.0, 4.0], [1e3, 4.0], [-1e3, 6.0]])
    changed, far = row_lines(small_regressor, X, np.array([False, True, True]))
    assert changed == (
        "lamp was 4 in all training rows, and is 6 in 1 of 3 rows: the model cannot know what that"
        " changes."
    )
    assert far.startswith(
        "2 of 3 rows are far from all training rows: the data say next to nothing"
    )
    assert far.endswith(
        f" Outside of the training rows: depth is -1000 to 1000, in training {in_training}."
    )
    assert row_lines(small_regressor, X[:1], np.array([False])) == []
    (far,) = row_lines(small_regressor, X[:1], np.array([True]))
    assert far.endswith("the predictions are what they were before any data.")


def test_nothing_is_said_of_all_rows_where_some_are_left(small_regressor, monkeypatch):
    """A stream leaves a sample: a column may change in rows that are gone."""
    X = np.array([[1e3, 6.0]])
    assert constant_inputs(small_regressor) == {"lamp": "4"}
    assert len(outside_columns(small_regressor, X)) == 1
    monkeypatch.setattr(type(small_regressor.model_), "num_rows", 10**6)
    assert constant_inputs(small_regressor) == {}
    assert outside_columns(small_regressor, X) == []
    assert not outside_rows(small_regressor, X).any()


def test_rows_well_outside_are_told_where_a_line_goes_on(rng):
    """The variance of a linear function grows with its prior variance: no row is far by that."""
    x = np.linspace(0.0, 10.0, 20)
    table = pd.DataFrame({"x1": x, "x2": np.cos(3 * x)})
    Y = np.column_stack([x + table.x2, 2 * x]) + 0.5 * rng.normal(size=[20, 2])
    regressor = CoolMTGPRegressor("linear", orders=1).fit(table, Y)
    X = np.array([[500.0, 0.0], [-5.1, 0.0], [14.9, 1.4], [-4.9, 0.0], [3.0, 0.0]])
    far = far_rows(regressor, pd.DataFrame(X, columns=["x1", "x2"]))
    assert not far.any()
    outside = outside_rows(regressor, X)
    assert_array_equal(outside, [True, True, False, False, False])
    (line,) = row_lines(regressor, X, far)
    assert line == (
        "2 of 5 rows are outside of the training rows by more than half of a column's range: x1 is"
        " -5.1 to 500, in training 0 to 10. No data tell whether the model holds there."
    )
    assert row_lines(regressor, X[2:], far[2:]) == []
    (line,) = row_lines(regressor, X[1:], np.array([True, False, False, False]))
    assert line.startswith("1 of 4 rows are far from all training rows")  # told once


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A saved estimator with dates, categories, a constant of each kind, and gaps."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.uniform(size=12), "soil": ["clay"] * 12, "hue": ["r", "b"] * 6})
    table["day"] = pd.date_range("2026-01-01", periods=12)
    table["year"] = pd.Timestamp("2026-01-01")
    table["gap"] = [np.nan, *[3.0] * 11]
    settings = {"ard": False, "missing_inputs": "fill", "orders": 1}
    Y = np.sin(4 * table[["x"]].to_numpy()) + 0.3 * rng.normal(size=[12, 2])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Beware")  # so few rows hardly tell noise
        regressor = CoolMTGPRegressor("se", **settings).fit(table, Y)
    regressor.save(tmp_path_factory.mktemp("unlike") / "m")
    return table, load(tmp_path_factory.getbasetemp() / "unlike0" / "m")


def test_dates_categories_and_gaps(mixed):
    table, regressor = mixed
    assert constant_inputs(regressor) == {"soil": "clay", "year": "2026-01-01"}
    new = table.assign(day=pd.Timestamp("2027-05-01"), year=pd.Timestamp("2027-01-01"), x=5.0)[:2]
    columns = {name: new[name].to_numpy() for name in new}
    X = regressor._encoding.encode(columns, lambda row, name: name).X
    x = table["x"]
    assert outside_columns(regressor, X) == [
        "day is 2027-05-01, in training 2026-01-01 to 2026-01-12",
        f"x is 5, in training {x.min():.4g} to {x.max():.4g}",
    ]
    line, outside = row_lines(regressor, X, np.array([False, False]))
    days = "day is 2027-05-01, in training 2026-01-01 to 2026-01-12; x is 5, in training "
    assert outside.startswith("2 of 2 rows are outside of the training rows") and days in outside
    assert line.startswith("year was 2026-01-01 in all training rows, and is 2027-01-01 in 2 of 2")
