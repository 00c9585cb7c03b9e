"""Tables as they come: what their cells become, what is refused, and the same after saving."""

import datetime
import json
import re

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gpflow_cool.loading import load
from gpflow_cool.table.cells import to_days
from gpflow_cool.table.encoding import Encoding, learn_encoding, raw_table
from gpflow_cool.table.estimator import CoolMTGPRegressor


def place(row, name):
    return f"row {row}, column {name!r}"


def encoded(columns, missing="refuse", **options):
    encoding = learn_encoding(columns, missing, place, **options)
    return encoding, encoding.encode(columns, place)


# Cells -------------------------------------------------------------------------------------------


def test_words_become_indicators_and_dates_days():
    table = {
        "size": ["1", " 2.5", "-3e1"],
        "hue": ["red", " blue", "red "],
        "day": ["1970-01-03", "1969-12-31 12:00", "1970-01-01T06:00:00+06:00"],
    }
    encoding, found = encoded(table)
    assert encoding.inputs == ["size", "hue=blue", "hue=red", "day"]
    assert_array_equal(encoding.indicators, [False, True, True, False])
    expected = [[1.0, 0, 1, 2], [2.5, 1, 0, -0.5], [-30.0, 0, 1, 0]]
    assert_array_equal(found.X, expected)
    assert found.kept.all() and found.remarks == ()


def test_gaps_are_filled_and_flagged_once_per_pattern():
    table = {
        "a": ["1", "", "4", "5"],
        "b": [2.0, None, np.nan, 6.0],
        "c": ["7", "?", "8", "9"],
        "hue": ["red", "NA", "blue", "red"],
    }
    encoding, found = encoded(table, "fill")
    names = ["a", "a missing", "b", "b missing", "c", "hue=blue", "hue=red", "hue=(missing)"]
    assert encoding.inputs == names  # c has its gaps where a has them
    expected = [
        [1, 0, 2, 0, 7, 0, 1, 0],
        [4, 1, 4, 1, 8, 0, 0, 1],
        [4, 0, 4, 1, 8, 1, 0, 0],
        [5, 0, 6, 0, 9, 0, 1, 0],
    ]
    assert_array_equal(found.X, expected)
    _, dropped = encoded(table, "drop")
    assert_array_equal(dropped.kept, [True, False, False, True])
    with pytest.raises(ValueError, match=re.escape("row 1, column 'a': the cell is empty (NaN). ")):
        encoded(table)


def test_a_gap_in_new_rows_is_refused_with_what_can_be_done():
    encoding, _ = encoded({"a": ["1", "2"]})
    message = (
        "row 1, column 'a': the cell is empty (NaN). The model was fitted to inputs without gaps"
    )
    with pytest.raises(ValueError, match=re.escape(f"{message}: fill the cell or leave the row")):
        encoding.encode({"a": ["1", ""]}, place)


def test_new_gaps_get_a_word():
    table = {"a": ["1", "", "4"], "b": ["2", "3", "7"], "c": ["7", "?", "8"], "hue": list("ror")}
    encoding, found = encoded(table, "fill")
    assert found.remarks == ()  # c has its gaps where a has them
    new = {"a": ["", "1"], "b": ["1", ""], "c": ["", ""], "hue": ["", "r"]}
    remarks = encoding.encode(new, place).remarks
    assert [remark.split("'")[1] for remark in remarks] == ["b", "c", "hue"]
    assert "1 empty cell is filled with the median of the fit, 3." in remarks[0]
    assert "1 empty cell is filled with the median of the fit, 7.5." in remarks[1]
    assert "has not learned what one means: 1 empty cell is taken as of none" in remarks[2]
    assert encoding.encode({**new, "a": ["", ""]}, place).remarks == remarks[2:]  # a tells
    flagged = learn_encoding({"hue": ["r", "", "r"]}, "fill", place)
    assert flagged.encode({"hue": ["", "r"]}, place).remarks == ()


@pytest.mark.filterwarnings("ignore:Beware")
def test_durations_become_days():
    cells = ["1 days", "0 days 06:00:00", "-1 days +12:00:00.0"]
    objects = np.array([datetime.timedelta(days=1), datetime.timedelta(hours=6), None], object)
    encoding, found = encoded({"text": cells, "array": np.array([1, 6, -12], "m8[h]")})
    assert [coding.kind for coding in encoding.codings] == ["duration", "duration"]
    assert_array_equal(found.X, [[1.0, 1 / 24], [0.25, 0.25], [-0.5, -0.5]])
    assert_array_equal(encoded({"t": objects}, "fill")[1].X, [[1, 0], [0.25, 0], [0.625, 1]])
    with pytest.raises(ValueError, match="'6' is not a duration such as 2 days 03:00"):
        encoding.encode({"text": ["6"], "array": ["1 days"]}, place)
    frame = pd.DataFrame({"t": pd.to_timedelta([0, 12, 36], unit="h"), "x": [1.0, 2.0, 2.5]})
    regressor = CoolMTGPRegressor("se", ard=False).fit(frame, [1.0, 2.0, 4.0])
    assert_allclose(regressor.training_data()[0][:, 0], [0.0, 0.5, 1.5], atol=1e-12)


def test_the_same_encoding_after_json():
    table = {"a": ["1", "", "3"], "hue": ["x", "y", "x"], "day": ["2026-01-01"] * 3}
    encoding, found = encoded(table, "fill")
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert again == encoding
    assert_array_equal(again.encode(table, place).X, found.X)


def test_unknown_categories_get_a_word():
    encoding, _ = encoded({"hue": ["red", "blue", "red"]})
    found = encoding.encode({"hue": ["teal", "red", "teal"]}, place)
    assert_array_equal(found.X, [[0, 0], [0, 1], [0, 0]])
    assert found.remarks == (
        "Column 'hue' holds 'teal', which the fit has not seen (it has seen: blue, red): 2 rows are"
        " predicted as of none of these categories.",
    )


@pytest.mark.parametrize(
    "cells, message",
    [
        (["1", "2", "high"], "row 2, column 'a': 'high' is not a number, but 2 other cells of"),
        (["1", "2", "inf"], "row 2, column 'a': the number is infinite."),
        (["1", "2", "3,5"], "'3,5' is not a number, .* Write numbers with a decimal point"),
        (["1.2.2026", "", "11/17/2026"], "row 2, column 'a': '11/17/2026' looks like a date, but"),
        (["2026-02-30"], "'2026-02-30' looks like a date, .* as 2026-03-01 or 01.03.2026, a time"),
        (["17.11.26", "18.11.26"], "row 0, .* '17.11.26' looks like a date, .*--categorical"),
        ([f"n{i}" for i in range(11)], "Column 'a' holds 11 different categories in 11 rows, for"),
        ([f"n{i}" for i in range(11)], "too many to learn from. Leave the column out .--exclude"),
        ([f"0,{i}28" for i in range(11)], "from. Write numbers with a decimal point, or say"),
        ([f"{i}.6%" for i in range(11)], "Write per cent without the sign: 0.6. Or leave the col"),
        ([f"00:{i + 10}" for i in range(11)], "Write times of day as hours, 8.5 for 08:30, or wi"),
        ([f"20{i + 10}-01" for i in range(11)], "Write months with a day: 2010-01-01. Or leave"),
        ([f"20{i + 10}-3" for i in range(11)], "Write months with a day: 2010-03-01. Or leave"),
        (["1", "2", "-"], "'-' is not a number, .* Leave it empty if the value is missing."),
    ],
)
def test_refused(cells, message):
    with pytest.raises(ValueError, match=message):
        encoded({"a": cells})


def test_new_cells_must_be_of_the_kind_of_the_fit():
    encoding, _ = encoded({"a": ["1", "2"], "day": ["2026-01-01", "2026-02-01"]})
    with pytest.raises(ValueError, match="row 1, column 'a': 'x' is not a number. Mend the cell"):
        encoding.encode({"a": ["1", "x"], "day": ["2026-01-01"] * 2}, place)
    with pytest.raises(ValueError, match="column 'day': '7' is not a date such as 2026-03-01"):
        encoding.encode({"a": ["1"], "day": ["7"]}, place)


def test_columns_can_be_declared_categories():
    encoding, found = encoded({"a": [1, 2.0, "1"]}, categorical=["a"])
    assert encoding.inputs == ["a=1", "a=2"]
    assert_array_equal(found.X, [[1, 0], [0, 1], [1, 0]])


def test_days_of_what_pandas_and_python_hold():
    stamp = pd.Timestamp("1970-01-02 06:00")
    for cell in (stamp, stamp.to_pydatetime(), stamp.to_datetime64(), "1970-01-02T06:00Z"):
        assert to_days(cell) == 1.25
    assert to_days(datetime.date(1970, 1, 11)) == 10.0 and to_days(3.0) is None
    assert to_days("03.02.1970") == to_days("3.2.1970") == 33.0 == to_days("1970-02-03")
    assert to_days("02.01.1970 06:00") == 1.25 and to_days("32.1.1970") is None
    encoding, found = encoded({"t": ["2.1.1970", "1970-01-03"], "no": ["1/2", "1/3"]})
    assert encoding.inputs == ["t", "no=1/2", "no=1/3"]
    assert_array_equal(found.X[:, 0], [1.0, 2.0])
    dates = pd.Series(pd.to_datetime(["1970-01-02 06:00", None]))
    for zone in (None, "UTC"):
        frame = pd.DataFrame({"t": dates.dt.tz_localize(zone)})
        _, found = encoded(raw_table(frame).columns, "fill")
        assert_array_equal(found.X, [[1.25, 0], [1.25, 1]])
    months = pd.DataFrame({"t": pd.PeriodIndex(["1970-01", "1970-02"], freq="M")})
    assert not raw_table(months).is_plain
    assert_array_equal(encoded(raw_table(months).columns)[1].X, [[0.0], [31.0]])


# The estimator -----------------------------------------------------------------------------------


def make_frame(num_rows=24):
    """A number with gaps, a category that shifts the targets, a date with a trend."""
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 6, num_rows)
    hue = rng.choice(["red", "blue", "green"], num_rows)
    day = pd.date_range("2026-01-01", periods=num_rows, freq="D")
    shift = pd.Series(hue).map({"red": 0.0, "blue": 3.0, "green": -3.0}).to_numpy()
    F = np.stack([np.sin(x) + shift, np.cos(x) - shift + np.arange(num_rows) / 20], axis=1)
    Y = pd.DataFrame(F + 0.1 * rng.normal(size=F.shape), columns=["a", "b"])
    x[[3, 8]] = np.nan
    return pd.DataFrame({"x": x, "hue": hue, "day": day}), Y


FRAME, TARGETS = make_frame()
NAMES = ["x", "x missing", "hue=blue", "hue=green", "hue=red", "day"]


@pytest.fixture(scope="module")
def fitted():
    return CoolMTGPRegressor("se", ard=False, missing_inputs="fill").fit(FRAME, TARGETS)


def test_the_estimator_is_that_of_the_encoded_columns(fitted):
    by_hand = pd.DataFrame(
        {
            "x": FRAME["x"].fillna(FRAME["x"].median()),
            "x missing": FRAME["x"].isna().astype(float),
            **{f"hue={c}": (FRAME["hue"] == c).astype(float) for c in ["blue", "green", "red"]},
            "day": np.arange(len(FRAME))
            + (np.datetime64("2026-01-01") - np.datetime64(0, "D")) / np.timedelta64(1, "D"),
        }
    )
    assert fitted.encoded_names_ == NAMES == list(by_hand)
    assert list(fitted.feature_names_in_) == ["x", "hue", "day"] and fitted.n_features_in_ == 3
    X, Y = fitted.training_data()
    assert_allclose(X, by_hand)
    assert_allclose(Y, TARGETS)
    assert_allclose(
        fitted._inputs.scale, [*by_hand[["x"]].std(ddof=0), 1, 1, 1, 1, by_hand["day"].std(ddof=0)]
    )
    assert_allclose(fitted.predict(FRAME), fitted.predict(by_hand.to_numpy()))
    error = np.sqrt(np.mean((fitted.leave_one_out_.mean - TARGETS) ** 2))
    assert error.max() < 0.6  # without the category it would be above 2


def test_saved_and_loaded_it_predicts_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    same = load(tmp_path / "model")
    new = FRAME[:4].assign(hue=["red", "green", "blue", "red"], x=[1.0, np.nan, 2.0, 3.0])
    assert_allclose(same.predict(new), fitted.predict(new), rtol=1e-12)
    assert same.missing_inputs == "fill" and same.n_features_in_ == 3
    assert same.encoded_names_ == NAMES
    with pytest.warns(UserWarning, match="Column 'hue' holds 'teal', which the fit has not seen"):
        same.predict(new.assign(hue="teal"))


@pytest.mark.filterwarnings("ignore:Beware")
def test_rows_with_gaps_are_left_out():
    complete = FRAME["x"].notna()
    fitted = CoolMTGPRegressor("se", ard=False, missing_inputs="drop").fit(FRAME, TARGETS)
    expected = CoolMTGPRegressor("se", ard=False).fit(FRAME[complete], TARGETS[complete])
    assert_allclose(fitted.predict(FRAME[:3]), expected.predict(FRAME[:3]), rtol=1e-5)
    assert list(fitted.leave_one_out_.mean.index) == list(TARGETS.index[complete])
    with pytest.raises(ValueError, match="Row 3 of X has a gap, and the model was fitted without"):
        fitted.predict(FRAME)


def test_gaps_are_refused_by_default():
    with pytest.raises(
        ValueError, match=r'X, row 3, column \'x\': .* missing_inputs="fill".* fills'
    ):
        CoolMTGPRegressor("se", ard=False).fit(FRAME, TARGETS)
    with pytest.raises(ValueError, match="missing_inputs='mean' is not known"):
        CoolMTGPRegressor("se", ard=False, missing_inputs="mean").fit(FRAME, TARGETS)
    with pytest.raises(ValueError, match=r"too few rows without a gap \(1\). A model needs"):
        CoolMTGPRegressor("se", ard=False, missing_inputs="drop").fit(
            FRAME.assign(x=[1.0] + [np.nan] * (len(FRAME) - 1)), TARGETS
        )


def test_weights_are_refused_and_other_words_unknown():
    with pytest.raises(ValueError, match="sample_weight is not supported: one noise covariance"):
        CoolMTGPRegressor("se", ard=False).fit(FRAME, TARGETS, sample_weight=np.ones(len(FRAME)))
    with pytest.raises(TypeError, match=re.escape("fit() does not take 'weights'.")):
        CoolMTGPRegressor("se", ard=False).fit(FRAME, TARGETS, weights=1)
