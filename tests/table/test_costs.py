"""What the number of rows decides, and what a fit will cost."""

import pytest

from gpflow_cool.table.costs import (
    EVALUATIONS,
    MATRICES,
    PROBE_ROWS,
    Cost,
    default_inducing,
    duration,
    fit_cost,
    inducing_sentence,
)


@pytest.mark.parametrize(
    "num_rows, linear, points",
    [(10, False, 0), (5000, False, 0), (5001, False, 300), (5001, True, 0), (10, True, 0)],
)
def test_many_rows_get_inducing_points_unless_the_kernel_is_linear(num_rows, linear, points):
    assert default_inducing(num_rows, linear) == points


def test_inducing_points_are_told():
    assert inducing_sentence(6000, 300) == (
        "6000 rows are more than 5000: they are seen through 300 inducing points, an approximation."
    )


def test_costs_grow_with_cube_and_square(monkeypatch):
    monkeypatch.setattr("gpflow_cool.table.costs.probe_seconds", lambda: 0.01)
    one, two = fit_cost(5000), fit_cost(10000, fits=3)
    assert one.seconds == pytest.approx(0.01 * (5000 / PROBE_ROWS) ** 3 * EVALUATIONS)
    assert two.seconds == pytest.approx(24 * one.seconds)
    assert two.gigabytes == pytest.approx(4 * one.gigabytes)
    assert two.gigabytes == pytest.approx(0.8 * MATRICES)


def test_costs_are_readable():
    assert str(Cost(400.0, 1.26)) == "about 7 minutes and 1.3 GB of memory"
    assert [duration(s) for s in (1.0, 89.0, 5300.0, 5500.0, 1e6)] == [
        "1 seconds",
        "89 seconds",
        "88 minutes",
        "1.5 hours",
        "11.6 days",
    ]
