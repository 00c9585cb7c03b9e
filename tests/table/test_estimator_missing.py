"""The estimator where targets are missing, against the model it wraps."""

import copy

import gpflow
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.metrics import r2_score

from gpflow_cool.loading import load
from gpflow_cool.models import CoolMTGP
from gpflow_cool.table.estimator import CoolMTGPRegressor

NAMES = ["mass", "heat"]
ROWS = [f"row {n}" for n in range(24)]


def make_data():
    """Two targets in units far apart, a third of them missing; all of row 5, none of row 6."""
    rng = np.random.default_rng(7)
    X = np.sort(rng.uniform(0.0, 5.0, size=[24, 1]), axis=0)
    noise = rng.normal(size=[24, 2]) @ np.linalg.cholesky([[0.04, 0.03], [0.03, 0.04]]).T
    Y = [5.0, -300.0] + (np.sin(2.0 * X) * [1.0, -0.8] + noise) * [1.0, 40.0]
    missing = rng.uniform(size=Y.shape) < 0.35
    missing[5:7] = [[True], [False]]
    return X, Y, missing


X, FULL, MISSING = make_data()
Y = np.where(MISSING, np.nan, FULL)
S = np.nanstd(Y, axis=0)


@pytest.fixture(scope="module")
def framed():
    regressor = CoolMTGPRegressor("se", ard=False, random_state=3)
    frames = pd.DataFrame(X, columns=["x"], index=ROWS), pd.DataFrame(Y, columns=NAMES, index=ROWS)
    return regressor.fit(*frames), *frames


@pytest.fixture(scope="module")
def model():
    """The same by hand: a CoolMTGP of standardised columns, refined."""
    data = (X - X.mean(axis=0)) / X.std(axis=0), (Y - np.nanmean(Y, axis=0)) / S
    model = CoolMTGP(data, gpflow.kernels.SquaredExponential())
    model.fit(verbose=0, seed=3)
    return model.refine()


@pytest.mark.slow
def test_everything_is_the_models_in_the_users_units(framed, model):
    regressor, inputs, _ = framed
    D = np.diag(S)
    Z = (X[:4] - X.mean(axis=0)) / X.std(axis=0)
    mean, cov = (part.numpy() for part in model.predict_y(Z, full_output_cov=True))
    got = regressor.predict(inputs[:4], return_cov=True)
    assert_allclose(got[0], mean * S + np.nanmean(Y, axis=0), rtol=1e-5)
    assert_allclose(np.reshape(got[1], [4, 2, 2]), D @ cov @ D, rtol=1e-4)
    assert_allclose(regressor.task_covariance_, D @ model.task_covariance() @ D, rtol=1e-4)
    assert_allclose(regressor.noise_correlation_, model.noise_correlation(), rtol=1e-4)
    assert len(regressor.history_.rounds) > 1
    assert_allclose(regressor.training_data()[1], Y, rtol=1e-12)


def test_imputes_the_training_table(framed, model):
    regressor, _, targets = framed
    completed, std, cov = regressor.impute(targets[NAMES[::-1]])  # found by name
    expected = model.impute()
    for frame in (completed, std):
        assert list(frame.columns) == NAMES and list(frame.index) == ROWS
    assert_array_equal(completed.to_numpy()[~MISSING], Y[~MISSING])
    filled = expected.Y.numpy() * S + np.nanmean(Y, axis=0)
    assert_allclose(completed.to_numpy()[MISSING], filled[MISSING], rtol=1e-5)
    assert_allclose(std, expected.std.numpy() * S, rtol=1e-4)
    assert np.all(std.to_numpy()[~MISSING] == 0.0) and np.all(std.to_numpy()[MISSING] > 0.0)
    D = np.diag(S)
    assert_allclose(cov.loc["row 5"], D @ expected.cov[5].numpy() @ D, rtol=1e-4)


def test_only_the_table_of_the_fit_is_imputed(framed):
    regressor, _, targets = framed
    other = targets.copy()
    other.iloc[6, 1] += 5.0
    with pytest.raises(ValueError, match=r"y\[6, 1\] is .* in the fit: .* use predict_given"):
        regressor.impute(other)
    with pytest.raises(ValueError, match=r"y\[.*\] is .*, but nan in the fit"):
        regressor.impute(pd.DataFrame(FULL, columns=NAMES))
    with pytest.raises(ValueError, match=r"y has shape \(23, 2\)"):
        regressor.impute(targets[1:])


def test_rows_left_out(framed, model):
    rows = framed[0].leave_one_out_
    expected = model.leave_one_out()
    assert_array_equal(np.isnan(rows.mean), MISSING)
    assert_allclose(rows.mean, expected.mean * S + np.nanmean(Y, axis=0), rtol=1e-5)
    scales = np.where(MISSING, 0.0, np.log(S)).sum(axis=1)
    assert_allclose(rows.log_density, expected.log_density - scales, rtol=1e-4, atol=1e-5)
    assert rows.log_density.iloc[5] == 0.0


def test_densities_and_scores_are_of_what_is_known(framed):
    regressor, inputs, targets = framed
    mean, cov = regressor.predict(inputs, return_cov=True)
    density = regressor.log_density(inputs, targets)
    assert list(density.index) == ROWS
    for n, name in enumerate(ROWS):
        o = ~MISSING[n]
        S_oo = cov.loc[name].to_numpy()[np.ix_(o, o)]
        expected = multivariate_normal(mean.loc[name][o], S_oo).logpdf(Y[n, o]) if o.any() else 0.0
        assert_allclose(density.loc[name], expected, rtol=1e-8, atol=1e-10)
    each = [r2_score(Y[~m, t], mean.to_numpy()[~m, t]) for t, m in enumerate(MISSING.T)]
    assert regressor.score(inputs, targets) == pytest.approx(np.mean(each))
    whole = pd.DataFrame(FULL, columns=NAMES)
    assert regressor.score(inputs, whole) == pytest.approx(r2_score(FULL, mean))


def test_saved_and_copied(framed, tmp_path):
    regressor, inputs, targets = framed
    regressor.save(tmp_path / "model")
    for again in (load(tmp_path / "model"), copy.deepcopy(regressor)):
        pd.testing.assert_frame_equal(again.predict(inputs), regressor.predict(inputs))
        pd.testing.assert_frame_equal(again.impute(targets).std, regressor.impute(targets).std)


@pytest.mark.slow
def test_two_fits_are_the_same_and_one_target():
    y = np.where(MISSING[:, 0], np.nan, FULL[:, 0])
    first, second = (CoolMTGPRegressor("se", ard=False).fit(X, y) for _ in range(2))
    completed, std, cov = first.impute(y)
    assert_allclose(completed, second.impute(y).completed, rtol=1e-6)
    assert_array_equal(completed[~MISSING[:, 0]], FULL[~MISSING[:, 0], 0])
    assert std.shape == (24,) and cov.shape == (24, 1, 1)
    assert_allclose(std**2, cov[:, 0, 0])


@pytest.mark.parametrize("inducing", [0, 6])
def test_nothing_missing_is_nothing_to_fill(inducing):
    regressor = CoolMTGPRegressor("se", ard=False, inducing=inducing).fit(X, FULL)
    completed, std, cov = regressor.impute(FULL)
    assert_array_equal(completed, FULL)
    assert_array_equal(std, np.zeros([24, 2]))
    assert_array_equal(cov, np.zeros([24, 2, 2]))
    with pytest.raises(ValueError, match=r"y\[3, 1\] is nan, but .* in the fit"):
        regressor.impute(np.where(np.arange(48).reshape(24, 2) == 7, np.nan, FULL))


def test_what_is_masked_is_missing():
    masked = np.ma.masked_array(np.where(MISSING, 1000.0, FULL), MISSING)
    one, other = (CoolMTGPRegressor("se", orders=1).fit(X, each) for each in (masked, Y))
    assert_array_equal(one.predict(X[:3]), other.predict(X[:3]))
    assert_array_equal(one.predict_given(X[:9], masked[:9]), other.predict_given(X[:9], Y[:9]))
    inputs = np.ma.masked_array(X, np.arange(len(X))[:, None] == 2)
    with pytest.raises(ValueError, match="row 2.*is NaN, the only gap in the inputs"):
        one.fit(inputs, Y)
    with pytest.raises(ValueError, match="row 2.*is NaN, the only gap in the inputs"):
        one.predict(inputs)


def test_what_is_refused():
    never = np.column_stack([Y[:, 0], np.full(24, np.nan)])
    with pytest.raises(ValueError, match="'heat' is NaN in every row.*Leave it out"):
        CoolMTGPRegressor("se", ard=False).fit(X, pd.DataFrame(never, columns=NAMES))
    infinite = Y.copy()
    infinite[3, 1] = np.inf
    with pytest.raises(ValueError, match="y contains infinity"):
        CoolMTGPRegressor("se", ard=False).fit(X, infinite)
    hole = X.copy()
    hole[3] = np.nan
    with pytest.raises(ValueError, match="X, row .*is NaN.*missing_inputs="):
        CoolMTGPRegressor("se", ard=False).fit(hole, Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        CoolMTGPRegressor("se", ard=False).fit(X, Y[:-1])
