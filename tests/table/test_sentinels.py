"""Numbers that may stand for a missing value."""

import re

import numpy as np
import pytest
from commands import run, write

from gpflow_cool.table.estimator import CoolMTGPRegressor
from gpflow_cool.table.sentinels import sentinel_lines, sentinels

CENT = np.linspace(0.0, 100.0, 21)


@pytest.mark.parametrize("code", [-999.0, 999.0, -9999.0, 9999.0, 99999.0])
def test_codes_are_found(code):
    values = np.append(CENT / 2, [code, np.nan, code, code])
    assert sentinels(values) == {code: 3}
    assert sentinels(values[:-1]) == {}  # twice is too few


def test_two_codes_in_one_column():
    values = np.append(CENT, [-999.0] * 3 + [-9999.0] * 4)
    assert sentinels(values) == {-999.0: 3, -9999.0: 4}


def test_ordinary_columns_are_left_alone(rng):
    for values in [
        np.full(9, -999.0),
        np.repeat([0.0, 999.0], 5),  # two levels: nothing else to compare with
        np.append(10 * CENT, [999.0] * 5),
        np.append(rng.integers(0, 1000, 500), [999.0] * 3),
        np.append(CENT, [-998.0] * 5),
        np.full(4, np.nan),
        rng.standard_cauchy(1000),
    ]:
        assert sentinels(values) == {}


def test_the_line():
    values = np.append(CENT, [-999.0] * 6)
    assert sentinel_lines(np.stack([values, values * 0], axis=1), ["a", "b"]) == [
        "-999 occurs 6 times in 'a', far from all other values: if it stands for a missing value,"
        " leave the cell empty."
    ]


def table_with_codes():
    x = np.arange(24.0)
    X, Y = np.stack([x, np.cos(x)], axis=1), np.sin(x / 4.0)[:, None]
    X[:4, 1], Y[10:13] = -999.0, 9999.0
    return X, Y


def test_the_estimator_warns():
    X, Y = table_with_codes()
    with pytest.warns(UserWarning) as caught:
        CoolMTGPRegressor("se", ard=False, orders=1).fit(X, Y)
    said = [str(warning.message) for warning in caught if warning.filename == __file__]
    assert any(line.startswith("-999 occurs 4 times in 'x1', far from") for line in said)
    assert any(line.startswith("9999 occurs 3 times in 'task_0', far from") for line in said)


def test_the_command_remarks_once(tmp_path):
    X, Y = table_with_codes()
    rows = [",".join(map(str, row)) for row in np.hstack([X, Y])]
    data = write(tmp_path / "data.csv", "\n".join(["a,b,y", *rows]))
    result = run("fit", data, "--targets", "y", "--out", tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("-999 occurs 4 times in 'b', far from all other values") == 1
    assert result.stderr.count("9999 occurs 3 times in 'y', far from all") == 1
    assert "UserWarning" not in result.stderr


@pytest.mark.parametrize(
    "scale, text",
    [
        (1e160, "has values of the size of 2e+160, whose squares are too large for float64"),
        (1e306, "has values of the size of 2e+306, whose squares are too large for float64"),
        (1e-160, "varies by 3e-160 only, whose square is too small for float64"),
        (1e-320, "varies by 3e-320 only, whose square is too small for float64"),
    ],
)
def test_columns_that_cannot_be_squared_are_refused_by_name(scale, text):
    values = np.linspace(-1.0, 2.0, 8)
    odd, plain = np.column_stack([values, scale * values]), np.column_stack([values, values**2])
    with pytest.raises(ValueError, match=re.escape(f"Input 'x1' {text}")):
        CoolMTGPRegressor("se").fit(odd, plain)
    odd[3, 1] = np.nan
    with pytest.raises(ValueError, match=re.escape(f"Target 'task_1' {text}")):
        CoolMTGPRegressor("se").fit(plain, odd)


@pytest.mark.filterwarnings("ignore:Beware")
def test_large_and_small_columns_are_fitted(rng):
    X = np.linspace(0.0, 3.0, 12)[:, None]
    Y = np.hstack([np.sin(2.0 * X), np.cos(2.0 * X)]) + 0.1 * rng.normal(size=(12, 2))
    plain = CoolMTGPRegressor("se", orders=1).fit(X, Y).predict(X)
    for unit in (2.0**400, 2.0**-400):
        scaled = CoolMTGPRegressor("se", orders=1).fit(X * unit, Y * unit).predict(X * unit)
        np.testing.assert_allclose(scaled / unit, plain, rtol=1e-9)
