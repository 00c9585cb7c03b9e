"""The laws find what they are there to find."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from gpflow_cool import CoolMTGPRegressor
from gpflow_cool.training.run import TrainingFailed
from properties import examination, laws, laws_of_fits
from properties.cases import KERNELS, Case, fit, make_data, make_model, simpler_cases, tidy
from properties.fitted import rounding_by_tasks, signal_to_noise

CASE = Case(N=6, D=2, T=3)


@pytest.fixture(scope="module")
def model():
    data = make_data(CASE)
    return fit(CASE, make_model(CASE, data), data)


@pytest.fixture
def fitted(model):
    """A model that keeps every law, with nothing cached."""
    return laws.Fitted(CASE, model)


def texts(law, fitted):
    return " ".join(law(fitted))


def test_an_ordinary_fit_keeps_every_law(fitted):
    assert [texts(law, fitted) for law in laws.JOINT_LAWS] == [""] * len(laws.JOINT_LAWS)


def test_covariances_that_are_none(fitted):
    fitted.C = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.1, 0.0, 1.0]])
    assert "C is not symmetric" in texts(laws.task_covariances, fitted)
    fitted.C = np.array([[1.0, 1.1, 0.0], [1.1, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert "C has an eigenvalue of -0.1" in texts(laws.task_covariances, fitted)
    fitted.C = np.diag([1.0, np.nan, 1.0])
    assert "C has 1 of 9 entries not finite" in texts(laws.task_covariances, fitted)


def test_small_columns_count_as_much_as_large_ones(fitted):
    fitted.C = np.array([[1.0, 1.1e-9, 0.0], [1.1e-9, 1e-18, 0.0], [0.0, 0.0, 1.0]])
    assert "C has an eigenvalue of -0.1" in texts(laws.task_covariances, fitted)


@pytest.mark.parametrize(
    "f, y, text",
    [
        (-1e-9, 0.0, "a variance is -1e-09"),
        (0.0, -0.1, "smaller with noise"),
        (1e3, 1e3, "before the data"),
        (np.nan, 0.0, "variance has 1 of 12 entries not finite"),
    ],
)
def test_variances_that_are_none(fitted, f, y, text):
    mean, variance = fitted.f
    _, noisy = fitted.y
    variance[0, 0] = f
    noisy[0, 0] += y
    assert text in texts(laws.variances, fitted)


def test_layouts_that_disagree(fitted, monkeypatch):
    predict = fitted.posterior.predict_f

    def wrong(Xnew, full_cov, full_output_cov):
        mean, S = predict(Xnew, full_cov, full_output_cov)
        return mean, S * (1.0 + 1e-6) if full_cov and not full_output_cov else S

    monkeypatch.setattr(fitted.posterior, "predict_f", wrong)
    assert "f over inputs differs" in texts(laws.layouts, fitted)


def test_samples_that_are_not_finite(fitted, monkeypatch):
    drawn = tf.constant([np.nan, 1.0])
    monkeypatch.setattr(fitted.posterior, "predict_samples", lambda *_, noise: drawn)
    assert "has 1 of 2 entries not finite" in texts(laws.samples, fitted)


def test_evidence_that_no_density_allows(fitted, monkeypatch):
    highest = laws.highest_evidence(fitted)
    expected = -0.5 * 6 * np.linalg.slogdet(2 * np.pi * fitted.Sigma)[1]
    np.testing.assert_allclose(highest, expected, rtol=1e-12)
    monkeypatch.setattr(type(fitted.model), "log_marginal_likelihood", lambda _: highest + 1.0)
    assert "the noise alone allows for" in texts(laws.densities, fitted)
    assert "evidence and dense evidence differs" in texts(laws.dense_algebra, fitted)


def test_a_mean_that_is_not_that_of_dense_algebra(fitted):
    fitted.f[0][1, 1] += 1e-6
    assert "mean and dense mean differs" in texts(laws.dense_algebra, fitted)
    assert "mean and cached mean differs" in texts(laws.cached_posterior, fitted)


def test_predictions_that_follow_the_order_of_rows(fitted, monkeypatch):
    twin = laws.twin

    def forgetful(fitted, X, Y):
        return twin(fitted, X, Y) if X is fitted.X else make_model(CASE, (X, Y))

    monkeypatch.setattr(laws, "twin", forgetful)
    assert "mean with another order of rows differs" in texts(laws.order_of_rows, fitted)


def test_a_shift_that_shows(fitted, monkeypatch):
    fitted.X = fitted.X + 100.0
    monkeypatch.setattr(laws, "twin", lambda fitted, X, Y: fitted.model)
    assert "mean with inputs centred differs" in texts(laws.shift_of_inputs, fitted)


def test_squares_of_targets_far_from_zero_are_rounded():
    Y = np.array([[1.0, 0.0, 1e4], [1.0, 2.0, 1e4 + 2.0]])  # deviations 0, 1 and 1
    expected = 2 * len(Y) * laws.EPS * (1.0 + (1e4 + 1.0) ** 2)
    np.testing.assert_allclose(laws.rounding_of_squares(Y), expected, rtol=1e-12)


def test_what_the_rounding_of_tasks_and_systems_may_change(fitted):
    """Of C and Sigma in other units, the ratio of signal to noise is the same."""
    fitted.C, fitted.Sigma = np.diag([1e7, 1.0, 0.0]), np.eye(3)
    assert np.isclose(signal_to_noise(fitted), 1e7, rtol=1e-12)
    X = fitted.X
    largest = np.linalg.eigvalsh(np.asarray(fitted.model.kernel(X)))[-1]
    allowed = laws.rounding_of_systems(fitted)
    np.testing.assert_allclose(allowed, 100 * laws.EPS * (1.0 + 1e7 * largest), rtol=1e-6)
    expected = laws.EPS * 1e7 * np.linalg.norm(fitted.Y) * np.outer([0.5, 2.0], np.ones(3))
    np.testing.assert_allclose(rounding_by_tasks(fitted, np.array([0.5, 2.0])), expected)
    units = np.array([1e3, 1.0, 1e-3])
    fitted.C, fitted.Sigma = (S * units * units[:, None] for S in (fitted.C, fitted.Sigma))
    fitted.Y = fitted.Y * units
    assert np.isclose(signal_to_noise(fitted), 1e7, rtol=1e-12)
    actual = rounding_by_tasks(fitted, np.array([0.5, 2.0]))
    np.testing.assert_allclose(actual, expected * units)
    fitted.Sigma = np.ones((3, 3))
    assert signal_to_noise(fitted) > 1e14


def test_a_loaded_model_that_differs(model, monkeypatch):
    monkeypatch.setattr(
        laws_of_fits.gpflow_cool, "load", lambda _: make_model(CASE, make_data(CASE))
    )
    assert "the mean of the loaded model differs" in " ".join(laws_of_fits.saving(CASE, model))


def test_a_loss_that_rises(monkeypatch):
    data = make_data(CASE)
    model = fit(CASE, make_model(CASE, data), data)
    assert list(laws_of_fits.loss_does_not_rise(CASE, model)) == []
    model.sigma2.assign(100.0 * model.sigma2)
    model.kernel.lengthscales.assign(1e-3)
    assert "before the fit" in " ".join(laws_of_fits.loss_does_not_rise(CASE, model))


def test_signal_and_noise_that_are_not_the_best():
    data = make_data(CASE)
    model = fit(CASE, make_model(CASE, data), data)
    before = model.b.numpy(), model.sigma2.numpy()
    assert list(laws_of_fits.signal_and_noise_are_best(CASE, model)) == []
    np.testing.assert_allclose((model.b.numpy(), model.sigma2.numpy()), before, rtol=1e-5)
    model.sigma2.assign(model.sigma2 * [1.0, 2.0, 1.0])
    assert "term 1 is" in " ".join(laws_of_fits.signal_and_noise_are_best(CASE, model))


def test_an_indefinite_kernel_must_be_told_of():
    X = np.zeros((2, 1))
    thing = SimpleNamespace(data=(X, X), kernel=lambda X, X2: np.array([[1.0, 1.1], [1.1, 1.0]]))
    assert "from -0.1 to 2.1" in " ".join(laws_of_fits.warns_of_indefinite_kernels(CASE, thing, []))
    said = ["The kernel matrix has negative eigenvalues."]
    assert list(laws_of_fits.warns_of_indefinite_kernels(CASE, thing, said)) == []


@pytest.mark.parametrize(
    "error, law",
    [
        (ValueError("X has 2 rows: pass three."), None),
        (TrainingFailed("Training failed in every one of 1 attempts. Try restarts=5."), None),
        (ValueError("operands could not be broadcast"), "fit: ValueError"),
        (RuntimeError("Try again."), "fit: RuntimeError"),
        (np.linalg.LinAlgError("Try again."), "fit: LinAlgError"),
        (KeyError("pass three"), "fit: KeyError"),
    ],
)
def test_refusals_need_advice(error, law):
    found = examination.refused(error)
    assert [violation.law for violation in found.violations] == ([] if law is None else [law])
    assert found.refusal == (str(error) if law is None else "")


def test_a_law_that_raises_is_broken(fitted):
    def law(fitted):
        raise ZeroDivisionError("oops")
        yield

    (violation,) = examination.broken(law, fitted)
    assert violation == examination.Violation("law: ZeroDivisionError", "ZeroDivisionError: oops")


# Cases --------------------------------------------------------------------------------------------


def test_a_case_prints_what_makes_it_again():
    case = Case(model="sparse", seed=7, N=12, target_offset=1e9)
    assert repr(case) == "Case(model='sparse', seed=7, N=12, target_offset=1000000000.0)"
    assert eval(repr(case)) == case


def test_simpler_cases_start_with_the_simplest():
    case = Case(model="kronecker", kernel="matern32")
    assert [c.kernel for c in simpler_cases(case, "kernel")] == ["se", "matern12"]
    assert simpler_cases(Case(), "kernel") == []


def test_options_that_a_model_does_not_have_are_left_out():
    case = Case(model="kronecker", weight_prior="unit", learning="hierarchical", missing=0.2)
    assert tidy(case) == Case(model="kronecker", missing=0.2)
    assert tidy(Case(model="sparse", missing=0.2)) == Case(model="sparse")


@pytest.mark.parametrize("kernel", KERNELS)
def test_stationary_kernels_are_known(kernel, rng):
    X = rng.normal(size=(4, 2))
    made = KERNELS[kernel](2)
    same = np.allclose(made(X), made(X + 3.0), rtol=1e-12, atol=1e-12)
    assert same == laws.is_stationary(kernel)


@pytest.mark.parametrize(
    "case, holds",
    [
        (Case(inputs="repeated_rows", N=6), lambda X, Y: len(np.unique(X)) <= 3),
        (Case(inputs="equal_rows"), lambda X, Y: len(np.unique(X)) == 1),
        (Case(inputs="constant_column", D=2), lambda X, Y: np.ptp(X[:, 0]) == 0 < np.ptp(X[:, 1])),
        (Case(inputs="copied_column", D=3), lambda X, Y: (X[:, 0] == X[:, 2]).all()),
        (Case(input_offset=1e9), lambda X, Y: np.abs(X - 1e9).max() < 10),
        (Case(input_scale=1e-12), lambda X, Y: 0 < np.ptp(X) < 1e-11),
        (Case(target_scale=1e12), lambda X, Y: 1e10 < np.ptp(Y) < 1e14),
        (Case(target_scale=0.0), lambda X, Y: np.ptp(np.log10(np.std(Y, axis=0))) > 1),
        (Case(targets="copies"), lambda X, Y: (Y[:, 0] == Y[:, 1]).all()),
        (Case(targets="combination", T=4, N=9), lambda X, Y: np.linalg.matrix_rank(Y) == 3),
        (Case(targets="zero_column"), lambda X, Y: (Y[:, 0] == 0).all() and (Y[:, 1] != 0).all()),
        (Case(targets="constant"), lambda X, Y: (np.ptp(Y, axis=0) == 0).all()),
        (
            Case(missing=0.6, N=9, T=3),
            lambda X, Y: np.isnan(Y).any() and not np.isnan(Y).all(0).any(),
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, Case) else "holds",
)
def test_data_is_what_the_case_says(case, holds):
    assert holds(*make_data(case))


class Summed(CoolMTGPRegressor):
    """Predicts sums of targets, which do not follow y + c."""

    model_ = SimpleNamespace(kernel=SimpleNamespace(parameters=[tf.Variable([1.0])]))
    history_ = SimpleNamespace(history={"loss": [0.0]})

    def fit(self, X, Y):
        self.Y = Y
        return self

    def predict(self, X, return_std=False):
        mean = np.tile(self.Y.sum(axis=0), [len(X), 1])
        return (mean, np.tile(self.Y.std(axis=0), [len(X), 1])) if return_std else mean


class Chaotic(Summed):
    """Predicts as much as the last bits of the targets say."""

    def fit(self, X, Y):
        mantissas = np.frexp(Y)[0] * 2.0**53
        return super().fit(X, Y * (1.0 + np.abs(mantissas).astype(int).sum() % 7))


def test_an_estimator_that_does_not_follow_units(monkeypatch):
    for cls, found in [(Summed, "mean for -4 y + c differs"), (Chaotic, "")]:
        monkeypatch.setattr(laws_of_fits, "make_model", lambda case, data, cls=cls: cls())
        told = list(laws_of_fits.units_of_targets(CASE, cls().fit(*make_data(CASE))))
        assert [text[: len(found)] for text in told] == ([found] if found else [])
