"""GPflow's coregionalization layout taken apart: rows of single tasks, and kernels."""

import numpy as np
import pytest
from coregionalized import augmented, sorted_rows
from gpflow.kernels import Coregion, Linear, Matern32, Periodic, SquaredExponential, White
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.coregion import pivot, split_kernel, task_numbers

# Pivoting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("D, column", [(1, 1), (1, 0), (3, 1), (10, 10)])
def test_pivot_in_any_order(rng, D, column):
    X, Y = rng.normal(size=(6, D)), rng.normal(size=(6, 3))
    ordered = pivot(*augmented(X, Y, column), 3, column)
    assert_array_equal(ordered[0], X)
    assert_array_equal(ordered[1], Y)
    for _ in range(3):
        X_aug, Y_aug = augmented(X, Y, column, rng.permutation(18))
        shuffled = pivot(X_aug, Y_aug, 3, column)
        assert_array_equal(sorted_rows(*shuffled), sorted_rows(X, Y))
        first = X_aug[X_aug[:, column] == 0]  # rows come in the order of the first task's
        assert_array_equal(shuffled[0], np.delete(first, column, axis=1))


def test_pivot_of_repeated_inputs(rng):
    """Measured twice for every task: two rows, whose targets are paired in the order given."""
    X = np.array([[0.5], [0.1], [0.5], [-0.0], [0.0]])
    Y = rng.normal(size=(5, 2))
    X_new, Y_new = pivot(*augmented(X, Y), 2, 1)
    assert_array_equal(X_new, X)
    assert_array_equal(Y_new, Y)


def test_tasks_that_do_not_share_their_inputs(rng):
    """X becomes the union; a target that is not measured is NaN."""
    X, Y = np.arange(4.0)[:, None], rng.normal(size=(4, 3))
    X_aug, Y_aug = augmented(X, Y)
    X_new, Y_new = pivot(np.delete(X_aug, 6, axis=0), np.delete(Y_aug, 6, axis=0), 3, 1)
    Y[2, 1] = np.nan  # row 6: task 1 at X = 2
    assert_array_equal(X_new, X)
    assert_array_equal(Y_new, Y)


def test_a_task_measured_once_more_than_the_others(rng):
    X, Y = np.arange(4.0)[:, None], rng.normal(size=(4, 3))
    X_aug, Y_aug = augmented(X, Y)
    again = np.vstack([X_aug, X_aug[5:6]]), np.vstack([Y_aug, [[7.0]]])  # task 1 at X = 1
    X_new, Y_new = pivot(*again, 3, 1)
    assert_array_equal(X_new, np.vstack([X, [[1.0]]]))
    assert_array_equal(Y_new, np.vstack([Y, [[np.nan, 7.0, np.nan]]]))


@pytest.mark.parametrize("bad", [0.5, -1.0, 3.0, np.nan, np.inf])
def test_task_numbers(bad):
    assert_array_equal(task_numbers(np.array([2.0, 0.0, 1.0]), 3), [2, 0, 1])
    with pytest.raises(ValueError, match=f"Row 1 has task {bad}: tasks are numbered 0 to 2"):
        task_numbers(np.array([0.0, bad, 1.0]), 3)


# Kernels ------------------------------------------------------------------------------------------


def product_with_coregion(base, column):
    return base * Coregion(2, 1, active_dims=[column])


BASES = {
    "one column": lambda: SquaredExponential(1.3, 0.7, active_dims=[2]),
    "ARD": lambda: Matern32(0.8, [0.5, 2.0], active_dims=[2, 0]),
    "slice": lambda: SquaredExponential(0.9, active_dims=slice(2, 4)),
    "sum": lambda: SquaredExponential(active_dims=[0]) + Linear(0.4, active_dims=[2, 3]),
    "product": lambda: SquaredExponential(active_dims=[0]) * Matern32(active_dims=[3]),
    "sum of products": lambda: (
        SquaredExponential(active_dims=[0]) * Matern32(active_dims=[3])
        + White(0.1, active_dims=[2])
    ),
    "periodic": lambda: Periodic(SquaredExponential(active_dims=[3]), period=0.9),
}


@pytest.mark.parametrize("name", BASES)
def test_base_kernel_sees_the_same_columns(rng, name):
    """Column 1 holds the task; after it is gone, later columns have moved."""
    base = BASES[name]()
    X = rng.normal(size=(5, 3))
    X_aug = np.insert(X, 1, 0.0, axis=1)
    before = base(X_aug).numpy()
    base_found, num_tasks, task_column = split_kernel(product_with_coregion(base, 1), 4)
    assert (num_tasks, task_column) == (2, 1)
    assert_allclose(base_found(X), before, rtol=1e-12)
    assert_allclose(base(X_aug), before, rtol=0)  # the user's own kernel is left alone


def test_coregion_may_come_first_and_count_from_the_end(rng):
    X = rng.normal(size=(4, 2))
    base = SquaredExponential(active_dims=[0, 1])
    for dims in ([2], [-1], slice(2, 3)):
        parts = split_kernel(Coregion(3, 2, active_dims=dims) * base, 3)
        assert (parts.num_tasks, parts.task_column) == (3, 2)
        assert_allclose(parts.base(X), base(np.insert(X, 2, 0.0, axis=1)), rtol=1e-12)


@pytest.mark.parametrize(
    "kernel, text",
    [
        (SquaredExponential(), "must be one base kernel times one gpflow.kernels.Coregion"),
        (Coregion(2, 1, active_dims=[1]), "must be one base kernel times one"),
        (
            Coregion(2, 1, active_dims=[1]) * Coregion(2, 1, active_dims=[1]),
            "must be one base kernel times one",
        ),
        (
            SquaredExponential(active_dims=[0]) + Coregion(2, 1, active_dims=[1]),
            "must be one base kernel times one",
        ),
        (
            (SquaredExponential(active_dims=[0]) + Coregion(2, 1, active_dims=[1]))
            * Coregion(2, 1, active_dims=[1]),
            "must be one base kernel times one",
        ),
        (
            SquaredExponential(active_dims=[0]) * Coregion(2, 1),
            r"Coregion sees columns \[0, 1\] of X: give it active_dims=\[the task column\]",
        ),
        (
            SquaredExponential() * Coregion(2, 1, active_dims=[1]),
            "SquaredExponential sees the task column, 1, of X, .* active_dims without that column",
        ),
        (
            (SquaredExponential(active_dims=[0]) + Linear(active_dims=[0, 1]))
            * Coregion(2, 1, active_dims=[1]),
            "Linear sees the task column, 1, of X",
        ),
    ],
)
def test_kernels_that_are_refused(kernel, text):
    with pytest.raises(ValueError, match=text):
        split_kernel(kernel, 2)
