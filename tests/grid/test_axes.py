"""Inputs made from axes, and axes found in tables."""

import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gpflow_cool.grid import complete_grid, find_grid, grid_inputs

PLACES = np.array([[1.0, 7.0], [2.0, 5.0], [4.0, 6.0]])
MONTHS = np.array([1.0, 2.0, 3.0, 4.0])


def test_inputs_are_all_combinations_with_the_last_axis_fastest():
    X = grid_inputs(PLACES, MONTHS)
    expected = [[*place, month] for place in PLACES for month in MONTHS]
    assert_array_equal(X, expected)


@pytest.mark.parametrize(
    "axes, groups, shape",
    [
        ([[1.0, 2.0], [3.0, 4.0, 5.0]], ((0,), (1,)), (2, 3)),
        ([PLACES, MONTHS], ((0, 1), (2,)), (3, 4)),
        ([[5.0], MONTHS, [0.0, 1.0]], ((0,), (1,), (2,)), (1, 4, 2)),
        ([[5.0], [6.0]], ((0,), (1,)), (1, 1)),
    ],
)
def test_axes_are_found_in_shuffled_rows(rng, axes, groups, shape):
    X = grid_inputs(*axes)
    order = rng.permutation(len(X))
    grid = find_grid(X[order])
    assert (grid.groups, grid.shape, grid.is_full) == (groups, shape, True)
    assert_array_equal(grid.inputs()[grid.cells], X[order])
    assert_array_equal(X[order][grid.rows], grid.inputs())


def test_columns_that_are_not_adjacent_form_an_axis():
    X = grid_inputs(PLACES, MONTHS)[:, [0, 2, 1]]
    grid = find_grid(X)
    assert grid.groups == ((0, 2), (1,))
    assert_array_equal(grid.inputs()[grid.cells], X)


def test_given_groups_stay_together():
    grid = find_grid(grid_inputs([0.0, 1.0], [0.0, 1.0], MONTHS), [[0, 2], [1]])
    assert (grid.groups, grid.shape) == (((0, 2), (1,)), (8, 2))


def test_rows_that_are_no_grid_have_one_axis(rng):
    assert find_grid(rng.normal(size=(9, 3))).shape == (9,)
    three_of_four = grid_inputs([0.0, 1.0], [0.0, 1.0])[:3]
    assert find_grid(three_of_four).shape == (3,)


def test_columns_of_which_only_pairs_are_independent_are_no_three_axes():
    X = np.array([[a, b, a != b] for a in (0, 1) for b in (0, 1)], float)
    grid = find_grid(X)
    assert grid.is_full
    assert len(grid.groups) < 3


def test_a_grid_with_gaps_is_completed(rng):
    X = grid_inputs(PLACES, MONTHS)
    Y = rng.normal(size=(len(X), 2))
    kept = np.array([0, 3, 4, 5, 7, 8, 10, 11])
    order = rng.permutation(kept)
    full_X, full_Y = complete_grid(X[order], Y[order])
    assert_array_equal(full_X, X)
    assert_array_equal(full_Y[kept], Y[kept])
    assert np.isnan(np.delete(full_Y, kept, axis=0)).all()


def test_repeated_rows_are_refused():
    X = grid_inputs([0.0, 1.0], MONTHS)
    text = (
        "Rows 2 and 8 of X have the same inputs. A grid has one row per combination of its axes:"
        " average the targets of such rows, or drop one of them."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        find_grid(np.concatenate([X, X[2:3]]))


@pytest.mark.parametrize(
    "call, text",
    [
        (grid_inputs, "got no axis: pass the points of each axis"),
        (
            lambda: grid_inputs([1.0, 2.0], [3.0, 3.0]),
            r"Axis 1 has the point \[3.0\] more",
        ),
        (lambda: grid_inputs([[[1.0]]]), r"Axis 0 has shape \(1, 1, 1\): pass its points as \[n\]"),
        (lambda: grid_inputs([1.0, np.nan]), r"Axis 0\[1, 0\] is nan"),
        (lambda: find_grid([1.0, 2.0]), r"X has shape \(2,\): pass the inputs of all rows"),
        (lambda: find_grid([[np.inf]]), r"X\[0, 0\] is inf.*drop the row"),
        (lambda: complete_grid([[1.0, 2.0]], [1.0]), r"Y has shape \(1,\), and X has 1 rows"),
    ],
)
def test_mistakes_are_explained(call, text):
    with pytest.raises(ValueError, match=text):
        call()
