"""The scikit-learn estimator against the model it wraps, and against scikit-learn's own checks."""

import copy
import io
from contextlib import nullcontext

import gpflow
import joblib
import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import ShuffleSplit, cross_val_score
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
from two_units import SCALE, SHIFT, X_NEW, X, Y

from gpflow_cool.loading import load
from gpflow_cool.models import CoolMTGP, SparseCoolMTGP
from gpflow_cool.table.estimator import CoolMTGPRegressor


@pytest.fixture(scope="module")
def regressor():
    return CoolMTGPRegressor("matern52", ard=True).fit(X, Y)


def standardised_model(orders):
    """The same by hand: a CoolMTGP of standardised columns, refined if there are many orders."""
    Z = np.zeros_like(X)
    Z[:, :2] = (X[:, :2] - X[:, :2].mean(axis=0)) / X[:, :2].std(axis=0)
    model = CoolMTGP(
        (Z, (Y - Y.mean(axis=0)) / Y.std(axis=0)), gpflow.kernels.Matern52(lengthscales=np.ones(3))
    )
    model.fit(verbose=0)
    Z_new = np.zeros_like(X_NEW)
    Z_new[:, :2] = (X_NEW[:, :2] - X[:, :2].mean(axis=0)) / X[:, :2].std(axis=0)
    return model if orders == 1 else model.refine(), Z_new


OF_NUMBERS = {
    "check_fit2d_1feature",
    "check_fit_idempotent",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
}


@pytest.mark.slow
def test_scikit_learns_own_checks():
    """
    Fifty fits, so with the kernel that is fitted the fastest, for what tables do to the estimator;
    with another kernel, what depends on its numbers.
    """
    results = check_estimator(CoolMTGPRegressor("linear", ard=False, orders=1), on_skip=None)
    status = {result["check_name"]: result["status"] for result in results}
    # It leaves one out by itself, which needs an environment variable before SciPy is imported.
    assert status.pop("check_array_api_input") in ("skipped", "passed")
    assert set(status.values()) == {"passed"} and len(status) > 40
    one, checked = CoolMTGPRegressor("se", ard=False, orders=1), set()
    for estimator, check in estimator_checks_generator(one):
        if check.func.__name__ in OF_NUMBERS:
            check(estimator)
            checked.add(check.func.__name__)
    assert checked == OF_NUMBERS


@pytest.mark.slow
@pytest.mark.parametrize("orders", [1, 8])
def test_everything_is_the_models_in_the_users_units(regressor, orders):
    model, Z_new = standardised_model(orders)
    if orders == 1:
        regressor = CoolMTGPRegressor("matern52", ard=True, orders=1).fit(X, Y)
    s, D = Y.std(axis=0), np.diag(Y.std(axis=0))
    for noise, method in [(True, model.predict_y), (False, model.predict_f)]:
        mean, cov = (part.numpy() for part in method(Z_new, full_output_cov=True))
        got = regressor.predict(X_NEW, return_std=True, return_cov=True, include_noise=noise)
        assert_allclose(got[0], mean * s + Y.mean(axis=0), rtol=1e-5)
        assert_allclose(got[1], np.sqrt(np.diagonal(cov, axis1=1, axis2=2)) * s, rtol=1e-5)
        assert_allclose(got[2], D @ cov @ D, rtol=1e-5, atol=1e-6)
    assert_allclose(regressor.task_covariance_, D @ model.task_covariance() @ D, rtol=1e-5)
    assert_allclose(regressor.noise_covariance_, D @ model.noise_covariance() @ D, rtol=1e-5)
    assert_allclose(regressor.task_correlation_, model.task_correlation(), rtol=1e-5)
    assert_allclose(regressor.noise_correlation_, model.noise_correlation(), rtol=1e-5)
    rows = model.leave_one_out()
    assert_allclose(regressor.leave_one_out_.mean, rows.mean * s + Y.mean(axis=0), rtol=1e-5)
    assert_allclose(regressor.leave_one_out_.cov, D @ rows.cov.numpy() @ D, rtol=1e-5)
    for part, array in zip(regressor.training_data(), (X, Y), strict=True):
        assert_allclose(part, array, rtol=1e-12, atol=1e-9)


def test_parts_of_an_answer_agree(regressor):
    mean, cov = regressor.predict(X_NEW, return_cov=True)
    assert_array_equal(regressor.predict(X_NEW), mean)
    std = regressor.predict(X_NEW, return_std=True)[1]
    assert_allclose(std**2, np.diagonal(cov, axis1=1, axis2=2), rtol=1e-9)
    expected = [multivariate_normal(m, S).logpdf(y) for m, S, y in zip(mean, cov, Y, strict=False)]
    assert_allclose(regressor.log_density(X_NEW, Y[:4]), expected, rtol=1e-8)
    rows = regressor.leave_one_out_
    expected = [multivariate_normal(*row).logpdf(y) for *row, y in zip(*rows[::2], Y, strict=True)]
    assert_allclose(rows.log_density, expected, rtol=1e-8)
    assert_allclose(rows.std**2, np.diagonal(rows.cov, axis1=1, axis2=2), rtol=1e-9)


@pytest.mark.parametrize("limit, value", [("ROWS_AT_ONCE", 7), ("MAX_NUMBERS", 21)])
def test_blocks_of_rows_change_nothing(regressor, monkeypatch, limit, value):
    whole = regressor.predict(X, return_cov=True)
    monkeypatch.setattr(f"gpflow_cool.table.columns.{limit}", value)
    for part, expected in zip(regressor.predict(X, return_cov=True), whole, strict=True):
        assert_allclose(part, expected, rtol=1e-10, atol=1e-12)


def test_known_targets_are_conditioned_on(regressor):
    mean, S = regressor.predict(X_NEW[:1], return_cov=True)
    known = np.array([[np.nan, mean[0, 1] + 10.0]])
    got_mean, got_std = regressor.predict_given(X_NEW[:1], known, return_std=True)
    gain = S[0, 0, 1] / S[0, 1, 1]
    assert_allclose(got_mean, [[mean[0, 0] + 10.0 * gain, known[0, 1]]], rtol=1e-9)
    assert_allclose(got_std, [[np.sqrt(S[0, 0, 0] - gain * S[0, 0, 1]), 0.0]], rtol=1e-7)
    nothing = np.full([1, 2], np.nan)
    assert_allclose(regressor.predict_given(X_NEW[:1], nothing), mean, rtol=1e-12)


@pytest.mark.slow
def test_draws_have_the_right_moments_and_leave_the_seed_alone(regressor):
    tf.random.set_seed(1)
    before = tf.random.normal([2]).numpy()
    tf.random.set_seed(1)
    draws = regressor.sample_y(X_NEW[:2], 20000, random_state=3)
    assert_array_equal(tf.random.normal([2]).numpy(), before)
    mean, S = regressor.predict(X_NEW[:2], return_cov=True)
    assert draws.shape == (2, 2, 20000)
    for m in range(2):
        deviation = np.sqrt(np.diag(S[m]))
        assert_allclose((draws[m].mean(axis=1) - mean[m]) / deviation, 0.0, atol=0.03)
        assert_allclose(
            np.cov(draws[m]) / np.outer(deviation, deviation),
            S[m] / np.outer(deviation, deviation),
            atol=0.04,
        )
    assert_array_equal(draws, regressor.sample_y(X_NEW[:2], 20000, random_state=3))
    other = regressor.sample_y(X_NEW[:2], 20000, random_state=4, include_noise=False)
    assert np.all(other.std(axis=-1) < draws.std(axis=-1))


def test_a_constant_input_is_not_used(regressor):
    elsewhere = X_NEW + [0.0, 0.0, 50.0]
    for one, other in zip(
        regressor.predict(X_NEW, return_std=True),
        regressor.predict(elsewhere, return_std=True),
        strict=True,
    ):
        assert_array_equal(one, other)
    with pytest.warns(UserWarning, match="Beware: everything looks like noise"):
        only = CoolMTGPRegressor("se", ard=False).fit(X[:, 2:], Y)
    assert_allclose(only.predict(X[:1, 2:]), [Y.mean(axis=0)], rtol=0.2)


def test_a_constant_target_is_warned_of():
    still = np.column_stack([Y[:, 0], np.full(len(Y), 7.0)])
    with pytest.warns(UserWarning, match="Targets that never vary: task_1. They are predicted"):
        regressor = CoolMTGPRegressor("se", ard=False).fit(X, still)
    mean, std = regressor.predict(X_NEW, return_std=True)
    assert_allclose(mean[:, 1], 7.0, atol=1e-6)
    assert np.all(np.isfinite(mean)) and np.all(std[:, 1] < 0.1)


@pytest.mark.slow
def test_without_standardising_the_data_are_the_models():
    Z = (Y - SHIFT) / SCALE
    regressor = CoolMTGPRegressor(
        "se", ard=False, standardize=False, learning="approximate", orders=1
    )
    regressor.fit(X[:, :1], Z)
    model = CoolMTGP((X[:, :1], Z), gpflow.kernels.SquaredExponential(), learning="approximate")
    model.fit(verbose=0)
    assert_allclose(regressor.predict(X[:3, :1]), model.predict_y(X[:3, :1])[0], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Beware")
def test_a_kernel_object_is_copied_and_cloned():
    kernel = gpflow.kernels.Matern12(active_dims=[0]) + gpflow.kernels.White(0.1)
    regressor = clone(CoolMTGPRegressor(kernel, ard=False)).fit(X, Y)
    assert kernel.kernels[0].lengthscales.numpy() == 1.0
    assert regressor.kernel.kernels[0].lengthscales.numpy() == 1.0
    assert regressor.model_.kernel.kernels[0].lengthscales.numpy() != 1.0


@pytest.mark.slow
def test_restarts_are_repeatable():
    settings = {"kernel": "se", "ard": False, "restarts": 1, "random_state": 4, "orders": 1}
    first = CoolMTGPRegressor(**settings).fit(X[:, :2], Y)
    second = CoolMTGPRegressor(**settings).fit(X[:, :2], Y)
    assert_allclose(first.predict(X_NEW[:, :2]), second.predict(X_NEW[:, :2]), rtol=1e-5)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kernel": "rbf"}, "kernel='rbf' is not known. Choose 'auto' or one of 'se', 'matern52'"),
        ({"kernel": gpflow.kernels.Matern12(), "ard": True}, "ard=True is for a kernel given by"),
        ({"ard": "some"}, "ard='some' is not known: pass 'shrunk'"),
        ({"ard": True}, "ard=True does not go with kernel='auto'"),
        ({"standardize": None}, "standardize=None is not known: pass True, or False to leave"),
        ({"learning": "deep"}, "learning='deep' is not known"),
        ({"restarts": -1}, "restarts=-1 must be a whole number"),
        ({"orders": 0}, "orders=0 must be a whole number of at least 1"),
        ({"orders": -1}, "orders=-1 must be a whole number of at least 1"),
        ({"orders": 2.5}, "orders=2.5 must be a whole number of at least 1"),
        ({"orders": "x"}, "orders='x' must be a whole number of at least 1"),
    ],
)
def test_wrong_settings_are_refused_in_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        CoolMTGPRegressor(**settings).fit(X, Y)


def test_wrong_targets_are_refused(regressor):
    with pytest.raises(ValueError, match=r"y has shape \(4, 1\), but X has 4 rows and the model"):
        regressor.log_density(X_NEW, Y[:4, :1])
    with pytest.raises(ValueError, match=r"y has shape \(3, 2\), but X has 4 rows"):
        regressor.predict_given(X_NEW, Y[:3])


def test_nothing_is_answered_before_fit(tmp_path):
    regressor = CoolMTGPRegressor("se", ard=False)
    for ask in (
        lambda: regressor.predict(X),
        lambda: regressor.leave_one_out_,
        lambda: regressor.sample_y(X),
        lambda: regressor.log_density(X, Y),
        lambda: regressor.predict_given(X, Y),
        lambda: regressor.training_data(),
        lambda: regressor.impute(Y),
        lambda: regressor.save(tmp_path / "model"),
    ):
        with pytest.raises(NotFittedError):
            ask()
    assert not list(tmp_path.iterdir())


# In other processes and in files -----------------------------------------------------------------


@pytest.mark.slow
def test_cross_validation_in_another_process_is_the_same_as_in_this_one():
    """One fold, so that one process imports TensorFlow."""
    regressor = CoolMTGPRegressor(gpflow.kernels.Matern32(), orders=1)
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-2.0, 2.0, size=[60, 1])
    half = ShuffleSplit(1, test_size=0.5, random_state=0)
    targets = np.hstack([np.sin(inputs), inputs]) + 0.1 * rng.normal(size=[len(inputs), 2])
    data = {"X": inputs, "y": targets, "cv": half, "error_score": "raise"}
    assert_allclose(
        cross_val_score(regressor, **data, n_jobs=2), cross_val_score(regressor, **data), rtol=1e-4
    )


def test_joblib_and_deepcopy_keep_predictions(regressor):
    buffer = io.BytesIO()
    joblib.dump(regressor, buffer)
    buffer.seek(0)
    for again in (joblib.load(buffer), copy.deepcopy(regressor)):
        for one, other in zip(
            again.predict(X_NEW, return_cov=True),
            regressor.predict(X_NEW, return_cov=True),
            strict=True,
        ):
            assert_array_equal(one, other)
    assert len(buffer.getvalue()) < 50_000  # no N x N matrix


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Beware")
def test_a_kernel_object_is_saved(tmp_path):
    class Mine(gpflow.kernels.Matern12):
        pass

    for number, kernel in enumerate([gpflow.kernels.Matern12(), Mine()]):
        regressor = CoolMTGPRegressor(kernel, ard=False, random_state=np.int64(3)).fit(X, Y)
        own = pytest.warns(UserWarning, match="the class Mine of the kernel is not GPflow's")
        with own if number else nullcontext():
            regressor.save(tmp_path / str(number))
        given = {"kernel": Mine()} if number else {}
        again = load(tmp_path / str(number), **given)
        assert again.random_state == 3
        assert_array_equal(again.predict(X_NEW), regressor.predict(X_NEW))
    with pytest.raises(ValueError, match="a kernel of class Mine, which is not GPflow's"):
        load(tmp_path / "1")


# Many rows -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_inducing_points_at_all_rows_predict_like_the_exact_model(tmp_path):
    exact = CoolMTGPRegressor("se", ard=False, orders=1).fit(X, Y)
    sparse = CoolMTGPRegressor("se", ard=False, inducing=len(X)).fit(X, Y)
    assert isinstance(sparse.model_, SparseCoolMTGP) and sparse.model_.num_inducing == len(X)
    answers = zip(
        exact.predict(X_NEW, return_std=True), sparse.predict(X_NEW, return_std=True), strict=True
    )
    for one, other in answers:
        assert_allclose((one - other) / SCALE, 0.0, atol=0.02)  # a tenth of the noise
    joint, through_points = exact.model_.to_exact().leave_one_out(), sparse.model_.leave_one_out()
    assert_allclose(joint.log_density, through_points.log_density, atol=0.05)
    for one, other in zip(sparse.training_data(), (X, Y), strict=True):
        assert_allclose(one, other, rtol=1e-12)
    sparse.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.inducing == len(X)
    assert_array_equal(again.predict(X_NEW), sparse.predict(X_NEW))


@pytest.mark.slow
def test_many_rows_are_seen_through_inducing_points_and_a_warning_says_so(monkeypatch):
    monkeypatch.setattr("gpflow_cool.table.costs.MAX_ROWS", 20)
    monkeypatch.setattr("gpflow_cool.table.costs.DEFAULT_POINTS", 6)
    with pytest.warns(UserWarning, match="24 rows are more than 20: they are seen through 6 induc"):
        regressor = CoolMTGPRegressor("se", ard=False).fit(X, Y)
    assert regressor.model_.num_inducing == 6
    assert isinstance(
        CoolMTGPRegressor("se", ard=False, inducing=0, orders=1).fit(X, Y).model_, CoolMTGP
    )
    assert isinstance(CoolMTGPRegressor("linear", orders=1).fit(X, Y).model_, CoolMTGP)
    with pytest.raises(ValueError, match="inducing=-1 must be a whole number"):
        CoolMTGPRegressor("se", ard=False, inducing=-1).fit(X, Y)
