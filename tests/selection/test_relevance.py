"""How much of the variance of predicted means an input moves, against slow loops in NumPy."""

import numpy as np
import pytest

from gpflow_cool.selection.relevance import MIN_PAIRS, NUM_ROWS, input_relevance

GROUPS = [[0], [2, 1], [3]]


def slow_relevance(m, X, scale, groups):
    """The definition, one pair of rows at a time, for a function m of one row."""
    moved, level = np.zeros(len(groups)), 0.0
    for x in X:
        for other in X:
            level += np.sum(((m(x) - m(other)) / scale) ** 2)
            for g, columns in enumerate(groups):
                changed = x.copy()
                for d in columns:
                    changed[d] = other[d]
                moved[g] += np.sum(((m(x) - m(changed)) / scale) ** 2)
    return moved / level if level else moved


def two_tasks(x):
    return np.array([np.sin(2.0 * x[0]) + x[1] * x[2], 30.0 * x[1] + 5.0])


def of_rows(m):
    return lambda X: np.array([m(x) for x in X])


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_against_the_definition(rows, groups):
    X = np.random.default_rng(0).normal(size=[rows, 4])
    scale = np.array([0.5, 20.0])
    expected = slow_relevance(two_tasks, X, scale, groups or [[0], [1], [2], [3]])
    found = input_relevance(of_rows(two_tasks), X, scale, groups=groups)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
    assert found[-1] == 0.0  # no task depends on the last input
    if rows == 9:
        assert np.all(found[:-1] > 0.05)


def test_units_of_a_task_do_not_count():
    X, scale = np.random.default_rng(1).normal(size=[9, 4]), np.array([0.5, 20.0])
    expected = input_relevance(of_rows(two_tasks), X, scale)
    units = np.array([1e3, 1e-3])
    found = input_relevance(lambda X: of_rows(two_tasks)(X) * units, X, scale * units)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_sample_of_many_rows_comes_near():
    X = np.random.default_rng(2).normal(size=[3000, 3])
    weights = np.array([[2.0], [1.0], [0.0]])
    found = input_relevance(lambda X: X @ weights, X, np.ones(1))
    # 1365 pairs, whose products of two differences have mean 0: a standard error of about 0.02
    np.testing.assert_allclose(found, [0.8, 0.2, 0.0], atol=0.06)
    again = input_relevance(lambda X: X @ weights, X, np.ones(1))
    assert np.array_equal(found, again)


def test_many_inputs_are_asked_in_blocks_and_no_row_is_asked_in_vain():
    X = np.random.default_rng(3).normal(size=[300, 200])
    asked = []

    def mean(X):
        asked.append(len(X))
        return X[:, 150:151] + X[:, 7:8]

    found = input_relevance(mean, X, np.ones(1))
    assert set(np.flatnonzero(found)) == {7, 150}
    assert max(asked) <= NUM_ROWS and sum(asked) == 200 * MIN_PAIRS + MIN_PAIRS + 1


def test_means_that_do_not_vary():
    X = np.random.default_rng(4).normal(size=[20, 2])
    rounding = np.array([[1e-9]])
    assert input_relevance(lambda X: 5.0 + X[:, :1] * rounding, X, np.ones(1)).tolist() == [0, 0]
    assert input_relevance(lambda X: X, np.zeros([4, 2]), np.ones(2)).tolist() == [0.0, 0.0]
