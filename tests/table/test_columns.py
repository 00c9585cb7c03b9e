"""Columns standardised and back, and answers in the form in which the targets came."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.table.columns import (
    TargetForm,
    check_pair,
    check_targets,
    constant_columns,
    in_blocks,
    index_of,
    scalings,
    standardising,
    target_form,
)

VALUES = np.array([[1.0, 20.0], [np.nan, 50.0], [4.0, np.nan], [5.0, 90.0]])
FULL = np.array([[1.0, 20.0], [3.0, 50.0], [4.0, 10.0]])


def test_scaling_ignores_nan_and_changes_no_digit_of_what_has_none():
    scaling = standardising(VALUES, constant_scale=1.0)
    assert_allclose(np.nanmean(scaling.standardised(VALUES), axis=0), 0.0, atol=1e-13)
    assert_allclose(np.nanstd(scaling.standardised(VALUES), axis=0), 1.0)
    whole = standardising(FULL, constant_scale=1.0)
    assert_array_equal(whole.centre, np.mean(FULL, axis=0))
    assert_array_equal(whole.scale, np.std(FULL, axis=0))


def test_standardised_values_come_back():
    scaling = standardising(FULL, constant_scale=1.0)
    assert_allclose(scaling.mean(scaling.standardised(FULL)), FULL, rtol=1e-14)
    cov = scaling.covariance(np.cov(scaling.standardised(FULL).T))
    assert_allclose(cov, np.cov(FULL.T), rtol=1e-12)


def test_a_constant_column_becomes_zero_although_its_mean_is_rounded():
    column = np.full((7, 1), 0.7)
    column[3] = np.nan
    assert np.nanmean(column) != column[0]
    scaled = standardising(column, constant_scale=1.0).standardised(column)
    assert np.nanmax(np.abs(scaled)) == 0.0


def test_densities_are_of_the_known_columns():
    scaling = standardising(VALUES, constant_scale=1.0)
    known = np.array([[True, False], [False, False], [True, True]])
    logs = np.log(scaling.scale)
    assert_allclose(scaling.log_density(np.zeros(3), known), [-logs[0], 0.0, -logs.sum()])
    assert_allclose(scaling.log_density(np.ones(3)), 1.0 - logs.sum())


def test_constant_columns_are_found_and_not_divided_by_zero():
    values = np.array([[1.0, 0.1, 1.0], [np.nan, 0.1 + 1e-17, 2.0]])
    assert constant_columns(values).tolist() == [True, True, False]
    inputs, targets = scalings(np.ones([3, 1]), 7.0 * np.ones([3, 1]))
    assert (inputs.scale[0], targets.scale[0]) == (np.inf, 1.0)


def test_nothing_is_scaled_where_that_is_not_wanted():
    for scaling, values in zip(scalings(FULL, VALUES[:3], False), (FULL, VALUES[:3]), strict=True):
        assert_array_equal(scaling.standardised(values), values)


def test_targets_are_checked():
    with pytest.raises(ValueError, match="Target 'b' is NaN in every row.*Leave it out"):
        check_targets(np.array([[1.0, np.nan], [2.0, np.nan]]), ["a", "b"])
    with pytest.warns(UserWarning, match="Targets that never vary: a. They are predicted"):
        check_targets(np.array([[1.0, 3.0], [1.0, 4.0]]), ["a", "b"])


@pytest.mark.parametrize(
    "y, form",
    [
        (FULL, TargetForm("array", ("task_0", "task_1"))),
        (FULL[:, 0], TargetForm("vector", ("y",))),
        (pd.DataFrame(FULL, columns=["a", 3]), TargetForm("frame", ("a", "3"))),
        (pd.Series(FULL[:, 0], name="a"), TargetForm("series", ("a",))),
        (pd.Series(FULL[:, 0]), TargetForm("series", ("y",))),
    ],
)
def test_answers_have_the_form_of_the_targets(y, form):
    assert target_form(y, np.asarray(y)) == form
    rows = form.rows(FULL[:, : len(form.names)], index_of(y))
    assert type(rows) is type(y)
    assert_array_equal(rows, y)


def test_matrices_of_a_frame_have_rows_and_tasks():
    form = TargetForm("frame", ("a", "b"))
    cov = np.arange(8.0).reshape(2, 2, 2)
    found = form.matrices(cov, pd.Index(["x", "y"]))
    assert_array_equal(found.loc["y"], cov[1])
    assert found.loc[("x", "b"), "a"] == cov[0, 1, 0]
    assert form.matrix(cov[0]).loc["b", "a"] == cov[0, 1, 0]
    column = form.column(np.array([1.0, 2.0]), "density", pd.Index(["x", "y"]))
    assert column.name == "density" and column["y"] == 2.0


def test_blocks_of_rows_are_put_together(monkeypatch):
    monkeypatch.setattr("gpflow_cool.table.columns.ROWS_AT_ONCE", 2)
    sizes = []

    def function(A, b, factor):
        sizes.append(len(A))
        return factor * A, tf.reduce_sum(A, axis=1) + b

    A, b = np.arange(10.0).reshape(5, 2), np.arange(5.0)
    double, total = in_blocks(function, [A, b], factor=2.0)
    assert_array_equal(double, 2.0 * A)
    assert_array_equal(total, A.sum(axis=1) + b)
    assert sizes == [2, 2, 1]
    monkeypatch.setattr("gpflow_cool.table.columns.MAX_NUMBERS", 6)
    sizes.clear()
    (again, _) = in_blocks(function, [A, b], numbers=5, factor=2.0)
    assert_array_equal(again, double)
    assert sizes == [1] * 5


def test_targets_that_are_times_are_refused():
    days, dates = np.arange(3).astype("timedelta64[D]"), np.arange(3).astype("datetime64[D]")
    months = pd.Series(pd.period_range("2026-01", periods=3, freq="M"), name="m")
    divided = "but numbers are needed: divide by pd.Timedelta"
    for y, message in [
        (days, f"y holds durations, {divided}"),
        (pd.Series(days, name="d"), f"Column 'd' of y holds durations, {divided}"),
        (pd.DataFrame({"a": [1.0] * 3, "d": dates}), "Column 'd' of y holds dates, .* subtract a"),
        (months, "Column 'm' of y holds dates, but numbers are needed: subtract a date, then"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_pair(FULL, y)
    check_pair(FULL, FULL)
