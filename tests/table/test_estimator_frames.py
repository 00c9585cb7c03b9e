"""The estimator given data frames and series: alone, in a pipeline, and after it was saved."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from two_units import X_NEW, X, Y

from gpflow_cool.loading import load
from gpflow_cool.table.columns import check_no_target_among_inputs, check_same_rows
from gpflow_cool.table.estimator import CoolMTGPRegressor

NAMES = ["mass", "heat"]


@pytest.fixture(scope="module")
def framed():
    inputs = pd.DataFrame(X, columns=["x", "y", "z"], index=[f"row {n}" for n in range(len(X))])
    targets = pd.DataFrame(Y, columns=NAMES, index=inputs.index)
    return CoolMTGPRegressor("se", ard=False).fit(inputs, targets), inputs, targets


def test_frames_in_frames_out(framed):
    regressor, inputs, targets = framed
    plain = CoolMTGPRegressor("se", ard=False).fit(X, Y)
    mean, std, cov = regressor.predict(inputs[:3], return_std=True, return_cov=True)
    expected = plain.predict(X[:3], return_std=True, return_cov=True)
    for frame, array in [(mean, expected[0]), (std, expected[1])]:
        assert list(frame.columns) == NAMES and list(frame.index) == list(inputs.index[:3])
        assert_allclose(frame, array, rtol=1e-5)
    one = cov.loc["row 1"]
    assert list(one.columns) == list(one.index) == NAMES
    assert_allclose(one, expected[2][1], rtol=1e-5)
    for name in ("task_covariance_", "noise_correlation_"):
        matrix = getattr(regressor, name)
        assert list(matrix.columns) == list(matrix.index) == NAMES
        assert_allclose(matrix, getattr(plain, name), rtol=1e-5)
    density = regressor.log_density(inputs[:3], targets[NAMES[::-1]][:3])  # found by name
    assert list(density.index) == list(inputs.index[:3])
    assert_allclose(density, plain.log_density(X[:3], Y[:3]), rtol=1e-5)
    rows = regressor.leave_one_out_
    assert list(rows.mean.columns) == NAMES and list(rows.mean.index) == list(targets.index)
    assert list(rows.log_density.index) == list(targets.index)
    assert regressor.score(inputs, targets) == pytest.approx(plain.score(X, Y), rel=1e-5)


def test_known_targets_may_be_named_alone(framed):
    regressor, inputs, targets = framed
    whole = targets[:3].assign(mass=np.nan)
    expected = regressor.predict_given(inputs[:3], whole, return_std=True)
    for known in (targets[["heat"]][:3], targets["heat"][:3]):
        got = regressor.predict_given(inputs[:3], known, return_std=True)
        for frame, other in zip(got, expected, strict=True):
            pd.testing.assert_frame_equal(frame, other)
        quantiles = regressor.predict_quantiles(inputs[:3], [0.5], known)
        assert_array_equal(quantiles, regressor.predict_quantiles(inputs[:3], [0.5], whole))
    told = r"y has shape \(3, 1\), .* targets: mass, heat. Add those that are not known as columns"
    with pytest.raises(ValueError, match=told):
        regressor.predict_given(inputs[:3], targets[["heat"]][:3].rename(columns={"heat": "warm"}))
    with pytest.raises(ValueError, match=told):
        regressor.predict_given(inputs[:3], Y[:3, 1:])


@pytest.mark.parametrize("hues", [[0.0, 1.0], ["red", "blue"]])
@pytest.mark.parametrize("missing", ["refuse", "fill"])
def test_frames_of_numbers_and_of_words_are_refused_alike(framed, hues, missing):
    _, inputs, targets = framed
    inputs = inputs.assign(hue=np.resize(hues, len(inputs)))
    regressor = CoolMTGPRegressor("se", ard=False, orders=1, missing_inputs=missing)
    for rows, y, message in [
        (
            inputs[:1],
            targets[:1],
            r"Found array with 1 sample\(s\) .* a minimum of 2 is required by",
        ),
        (inputs, None, "This CoolMTGPRegressor estimator requires y to be passed"),
        (inputs[[]], targets, "X has no columns: pass a frame with at least one input."),
        (inputs, targets[[]], "y has no columns: pass a frame with at least one target."),
    ]:
        with pytest.raises(ValueError, match=message):
            regressor.fit(rows, y)
    regressor.fit(inputs, targets)
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\) .* a minimum of 1 is"):
        regressor.predict(inputs[:0])


def test_gaps_in_new_rows_are_told_with_what_to_do(framed):
    regressor, inputs, _ = framed
    gap = inputs[:3].copy()
    gap.iloc[1, 2] = np.nan
    told = (
        "X, row 1, column 'z' is NaN, the only gap in the inputs: the model was fitted to inputs"
        ' without gaps. .* fit again with missing_inputs="fill".'
    )
    with pytest.raises(ValueError, match=told):
        regressor.predict(gap)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_arrays_in_arrays_out_also_after_frames(framed):
    regressor, inputs, _ = framed
    got = regressor.predict(X[:3], return_std=True, return_cov=True)
    expected = regressor.predict(inputs[:3], return_std=True, return_cov=True)
    for array, frame in zip(got, expected, strict=True):
        assert isinstance(array, np.ndarray)
        assert_array_equal(array, frame.to_numpy().reshape(array.shape))
    assert isinstance(regressor.log_density(X[:3], Y[:3]), np.ndarray)


def test_a_pipeline_does_not_pair_the_wrong_rows(framed):
    """A scaler drops the index: labels of our own would not be those of the rows."""
    _, inputs, targets = framed
    pipeline = make_pipeline(MinMaxScaler(), CoolMTGPRegressor("se", ard=False)).fit(
        inputs[::2], targets[::2]
    )
    error = targets[1::2] - pipeline.predict(inputs[1::2])
    assert error.shape == (12, 2) and not error.isna().any(axis=None)
    assert list(error.index) == list(targets.index[1::2])


@pytest.mark.slow
def test_one_target_may_be_a_vector_or_a_series():
    vector = CoolMTGPRegressor("se", ard=False).fit(X, Y[:, 0])
    column = CoolMTGPRegressor("se", ard=False).fit(X, Y[:, :1])
    series = CoolMTGPRegressor("se", ard=False).fit(X, pd.Series(Y[:, 0], name="mass"))
    mean, std, cov = vector.predict(X_NEW, return_std=True, return_cov=True)
    expected = column.predict(X_NEW, return_std=True, return_cov=True)
    assert mean.shape == std.shape == (4,) and cov.shape == (4, 1, 1)
    assert_allclose(mean, expected[0][:, 0], rtol=1e-5)
    assert_allclose(std, expected[1][:, 0], rtol=1e-5)
    answer = series.predict(pd.DataFrame(X_NEW))
    assert answer.name == "mass"
    assert_allclose(answer, mean, rtol=1e-5)
    assert_array_equal(series.predict(X_NEW), answer)
    assert vector.sample_y(X_NEW, 3).shape == (4, 3)
    assert_allclose(
        vector.log_density(X_NEW, Y[:4, 0]), column.log_density(X_NEW, Y[:4, :1]), rtol=1e-5
    )


@pytest.mark.slow
def test_in_a_pipeline_and_a_grid_search(framed):
    _, inputs, targets = framed
    pipeline = make_pipeline(MinMaxScaler(), CoolMTGPRegressor("se", ard=False))
    grid = {"coolmtgpregressor__kernel": ["se", "linear"]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(inputs, targets)
    assert search.best_params_ == {"coolmtgpregressor__kernel": "se"}
    assert_allclose(
        search.predict(inputs[:2]),
        CoolMTGPRegressor("se", ard=False).fit(X, Y).predict(X[:2]),
        rtol=0.05,
    )


def test_saved_and_loaded(framed, tmp_path):
    regressor, inputs, _ = framed
    regressor.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.get_params() == regressor.get_params()
    for one, other in zip(
        again.predict(inputs[:3], return_std=True, return_cov=True),
        regressor.predict(inputs[:3], return_std=True, return_cov=True),
        strict=True,
    ):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    pd.testing.assert_frame_equal(again.task_covariance_, regressor.task_covariance_)
    assert list(again.feature_names_in_) == ["x", "y", "z"] and again.n_features_in_ == 3
    with pytest.raises(ValueError, match="feature names"):
        again.predict(inputs[["y", "x", "z"]])
    with pytest.raises(ValueError, match="exists already"):
        regressor.save(tmp_path / "model")
    regressor.save(tmp_path / "model", force=True)


def test_rows_in_another_order_are_refused(framed):
    """Same labels, paired by their order: every row would get the targets of another."""
    _, inputs, targets = framed
    shuffled = targets.iloc[::-1]
    message = (
        "X and y have the same labels of rows in another order: row 0 is 'row 0' in X, and"
        f" 'row {len(X) - 1}' in y. Rows are paired by their order: pass y.loc\\[X.index\\]"
    )
    regressor = CoolMTGPRegressor("se", ard=False)
    with pytest.raises(ValueError, match=message):
        regressor.fit(inputs, shuffled)
    with pytest.raises(ValueError, match="another order"):
        regressor.fit(inputs, shuffled["heat"])
    for other in (targets.reset_index(drop=True), shuffled.loc[inputs.index], targets.to_numpy()):
        regressor.fit(inputs, other)
        assert_array_equal(regressor.training_data()[1], Y)


def labelled(index, X=X, Y=Y):
    return pd.DataFrame(X, index=index), pd.DataFrame(Y, columns=NAMES, index=index)


def test_labels_of_all_kinds_are_compared(framed):
    """What is not the same labels in another order is paired as it is."""
    count = len(X)
    days = pd.date_range("2024-01-01", periods=count, tz="UTC")
    two = pd.MultiIndex.from_product([range(count), ["a"]])
    letters = [chr(65 + n) for n in range(count)]
    pairs = [
        (two, pd.RangeIndex(count)),
        (two, pd.MultiIndex.from_product([range(count), ["a"], [1]])),
        (days, days.tz_convert("Europe/Berlin")),
        (pd.CategoricalIndex(letters), pd.CategoricalIndex(letters, [*letters, "unused"])),
        (pd.Index([*range(count - 1), np.nan]), pd.Index([np.nan, *range(count - 1)])),
        (pd.Index([0] * count), pd.Index([0] * count)),
        (pd.Index([0, 0, *range(2, count)]), pd.Index([0, 2, 0, *range(3, count)])),
    ]
    for own, other in pairs:
        check_same_rows(labelled(own)[0], labelled(other)[1])
    for index in (two, days, pd.CategoricalIndex(letters)):
        with pytest.raises(ValueError, match="same labels of rows in another order: row 0 is"):
            check_same_rows(labelled(index)[0], labelled(index[::-1])[1])


def test_a_target_among_the_inputs_is_found_by_its_numbers():
    _, targets = labelled(range(len(X)), Y=np.round(Y * 100.0))
    whole = targets.astype(np.int64)
    twice = pd.concat([whole[["heat"]] + 1, whole[["heat"]]], axis=1)
    words = pd.DataFrame({"heat": ["a"] * len(X)})
    for inputs in (whole, twice):
        with pytest.raises(ValueError, match="'heat' is in X and in y"):
            check_no_target_among_inputs(inputs[["heat"]], targets)
    check_no_target_among_inputs(words, targets)
    check_no_target_among_inputs(targets, pd.concat([targets + 1.0] * 2, axis=1))


def test_a_target_that_is_also_an_input_is_refused(framed):
    _, inputs, targets = framed
    regressor = CoolMTGPRegressor("se", ard=False)
    message = "'heat' is in X and in y, with the same values: nothing is left to predict. Drop what"
    with pytest.raises(ValueError, match=message):
        regressor.fit(inputs.join(targets["heat"]), targets)
    with pytest.raises(ValueError, match=message):
        regressor.fit(inputs.join(targets["heat"]), targets["heat"])
    before = inputs.assign(heat=targets["heat"].shift(1, fill_value=0.0))  # yesterday's heat
    regressor.fit(before, targets)
    assert_array_equal(regressor.training_data()[1], Y)
