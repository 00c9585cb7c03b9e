"""Where a fit starts again: lengthscales at which something other than noise is seen."""

import warnings

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose
from properties.cases import make_data, make_model, random_case

from gpflow_cool import CoolMTGP, SparseCoolMTGP
from gpflow_cool.chain.starting import half_median_distance
from gpflow_cool.training import starts

NOTE = "everything looks like noise: no target was found to depend on the inputs. Other inputs,"


def noise_around_a_mean(seed):
    """Few inducing points and one lengthscale per input: short ones do not see the mean."""
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(17, 3)), rng.normal(size=(17, 1)) + 0.6
    return SparseCoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=np.ones(3)), X[:6])


@pytest.mark.slow
def test_a_fit_leaves_a_place_where_everything_looks_like_noise(monkeypatch):
    model, other = noise_around_a_mean(6), noise_around_a_mean(6)
    history = model.fit(verbose=0)
    assert NOTE not in history.message
    with monkeypatch.context() as patch:
        patch.setattr(starts, "other_lengthscales", lambda *_: iter(()))
        assert NOTE in other.fit(verbose=0).message
    assert model.training_loss() < other.training_loss() - 0.9
    assert_allclose(min(history.history["loss"]), model.training_loss(), rtol=1e-9)


def test_where_no_lengthscale_sees_more_the_history_says_so():
    model = noise_around_a_mean(10)
    assert NOTE in model.fit(verbose=0).message
    assert np.all(model.b.numpy() < 1e-6 * model.sigma2.numpy())
    profile, loss = model.profile(), model.training_loss()
    for factor in starts.LADDER:
        model.kernel.lengthscales.assign(np.full(3, factor))
        assert profile.evaluate().loss > loss - 1e-3


@pytest.mark.slow
def test_a_maximum_that_is_out_of_sight_where_b_is_next_to_nothing():
    """With shorter lengthscales the slope at b = 0 is negative, yet larger b gain 1.6 nats."""
    rng = np.random.default_rng(95)
    rng.choice([8, 12, 20]), rng.choice([1, 2, 3]), rng.choice([1, 2])
    X, Y = rng.normal(size=(12, 1)), rng.normal(size=(12, 2)) + rng.choice([0, 0.3])
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential())
    assert NOTE not in model.fit(verbose=0).message
    found = model.training_loss()
    for factor in starts.LADDER:
        model.kernel.lengthscales.assign(factor * half_median_distance(X))
        assert model.profile().evaluate().loss > found - 1e-3


def se_and_linear():
    """Inputs far from zero: the linear term is as large as their square."""
    X = np.array([[101.81396071], [98.88298861], [100.29669476], [100.99677204]])
    Y = np.array([[-0.96729908, -1.42231063, -1.49932075, -1.07940843], [1.33, 2.08, 2.38, 1.76]]).T
    return CoolMTGP((X, Y), gpflow.kernels.SquaredExponential() + gpflow.kernels.Linear())


@pytest.mark.slow
def test_a_small_term_of_a_sum_is_not_overlooked(monkeypatch):
    model, other = se_and_linear(), se_and_linear()
    model.fit(verbose=0)
    monkeypatch.setattr(starts, "UNBALANCED", np.inf)
    other.fit(verbose=0)
    assert model.training_loss() < other.training_loss() - 0.5


def test_terms_of_a_sum_are_balanced_where_one_is_far_larger():
    model = se_and_linear()
    kernel, X = model.kernel, model.data[0].numpy()
    ((which, variance),) = starts.balanced_variances(kernel, X).items()
    assert which == id(kernel.kernels[1].variance)
    assert_allclose(variance * np.mean(X**2), 1.0, rtol=1e-12)
    assert starts.balanced_variances(kernel, X - 100.0) == {}
    assert starts.balanced_variances(kernel.kernels[1], X) == {}
    gpflow.set_trainable(kernel.kernels[1].variance, False)
    assert starts.balanced_variances(kernel, X) == {}


def test_a_periodic_kernel_with_a_long_period_is_its_base(rng):
    X = rng.normal(size=(8, 1)) * 3.0
    model = CoolMTGP((X, X), gpflow.kernels.Periodic(gpflow.kernels.Matern52()))
    tried = list(starts.other_lengthscales(model, starts.starting_points(model)))
    long, periods = tried[8:16], tried[16:]
    for factor, (parameters, values) in zip(starts.LADDER, long, strict=True):
        starts.assign_all(parameters, values)
        base = gpflow.kernels.Matern52(lengthscales=factor * half_median_distance(X))
        assert_allclose(model.kernel(X), base(X), atol=1e-6)
    for factor, (parameters, values) in zip((0.5, 1.0, 2.0, 4.0), periods, strict=True):
        starts.assign_all(parameters, values)
        period = factor * half_median_distance(X)
        base = gpflow.kernels.Matern52(lengthscales=0.5)
        expected = base(np.zeros((1, 1)), np.sin(np.pi * (X - X[0]) / period))
        assert_allclose(model.kernel(X)[0], expected[0])


# Inputs and terms, one at a time ------------------------------------------------------------------


def test_inputs_with_lengthscales_of_their_own_are_tried_alone(rng):
    """As many trials for four inputs as for one lengthscale."""
    X = rng.normal(size=(6, 4))
    model = CoolMTGP((X, X[:, :1]), gpflow.kernels.Matern32(lengthscales=np.ones(4)))
    tried = list(starts.other_lengthscales(model, starts.starting_points(model)))
    assert len(tried) == len(starts.LADDER)
    half = half_median_distance(X)
    together, alone = tried[:4], tried[4:]
    values = [value for _, (value,) in together]
    assert_allclose(values, half * np.outer([0.1, 4.0, 64.0, 1e9], np.ones(4)))
    values = [value for _, (value,) in alone]
    assert_allclose(values, half * np.where(np.eye(4, dtype=bool), 0.5, 1e9))


def test_a_rational_quadratic_kernel_is_tried_as_a_squared_exponential_one(rng):
    X = rng.normal(size=(8, 1))
    model = CoolMTGP((X, X), gpflow.kernels.RationalQuadratic(alpha=0.1))
    tried = list(starts.other_lengthscales(model, starts.starting_points(model)))
    for factor, (parameters, values) in zip((1.0, 4.0), tried[8:], strict=True):
        starts.assign_all(parameters, values)
        smooth = gpflow.kernels.SquaredExponential(lengthscales=factor * half_median_distance(X))
        assert_allclose(model.kernel(X), smooth(X), atol=1e-5)


def test_inputs_of_a_linear_kernel_are_tried_alone(rng):
    X = rng.normal(size=(6, 3))
    kernel = gpflow.kernels.Linear(variance=[1.0, 2.0, 3.0])
    model = CoolMTGP((X, X[:, :1]), kernel)
    tried = list(starts.other_lengthscales(model, starts.starting_points(model)))
    assert [parameters for parameters, _ in tried] == [[kernel.variance]] * 3
    value = kernel.variance.numpy()
    expected = np.where(np.eye(3, dtype=bool), value, 1e-9 * value)
    assert_allclose([values for _, (values,) in tried], expected)
    gpflow.set_trainable(kernel.variance, False)
    assert list(starts.other_lengthscales(model, starts.starting_points(model))) == []


def test_terms_of_a_sum_are_tried_alone_beside_constants(rng):
    X = rng.normal(size=(6, 1))
    kernel = gpflow.kernels.SquaredExponential() + gpflow.kernels.Matern32()
    model = CoolMTGP((X, X), kernel)
    tried = list(starts.other_lengthscales(model, starts.starting_points(model)))
    alone, half = tried[len(starts.LADDER) :], half_median_distance(X)
    (first, second), (_, variance) = (
        [getattr(term, name) for term in kernel.kernels] for name in ("lengthscales", "variance")
    )
    assert all(parameters == [first, second, variance] for parameters, _ in alone)
    expected = [[1, 1e9, 100], [4, 1e9, 100], [1e9, 1, 0.01], [1e9, 4, 0.01]]
    assert_allclose([values for _, values in alone], np.array(expected) * [half, half, 1.0])
    gpflow.set_trainable(second, False)  # a term that cannot become constant
    assert len(list(starts.other_lengthscales(model, starts.starting_points(model)))) == len(
        starts.LADDER
    )


def test_a_constant_task_beside_others_with_a_sum_of_two_kernels():
    """One term is a constant in the better optimum, which is 2.9 nats lower."""
    case = random_case(41761)
    model = make_model(case, make_data(case))
    model.fit(verbose=0)
    assert float(model.training_loss()) < -3.79


@pytest.mark.slow
def test_six_rows_of_noise_with_four_lengthscales():
    """Another optimum, three nats lower, has one input that matters and not another one."""
    case = random_case(40174)
    data = make_data(case)
    model, other = make_model(case, data), make_model(case, data)
    model.fit(verbose=0)
    other.fit("scipy", verbose=0)
    assert model.training_loss() < other.training_loss() - 1.0


@pytest.mark.filterwarnings("ignore:.*as far from zero")
def test_a_fit_of_targets_far_from_zero_is_no_worse_than_a_constant():
    """17 rows of noise around 10^4: a short period, where fits ended once, is four nats worse."""
    case = random_case(41637)
    data = make_data(case)
    model, constant = make_model(case, data), make_model(case, data)
    constant.kernel.base_kernel.lengthscales.assign(1e9)
    model.fit(verbose=0)
    assert float(model.training_loss()) < constant.profile().evaluate().loss + 0.01


def test_terms_that_cancel_at_the_start_are_found():
    """x x' + 1 is zero between the only inducing point and the other row: all looks like noise."""
    X, Y = np.array([[-1.0], [1.0]]), np.array([[-0.9, 1.2], [0.8, -1.1]])
    model = SparseCoolMTGP((X, Y), gpflow.kernels.Linear() + gpflow.kernels.Constant(), X[:1])
    assert NOTE not in model.fit(verbose=0).message
    assert model.kernel.kernels[1].variance.numpy() < 1e-3
    gpflow.set_trainable(model.kernel.kernels[1].variance, False)
    assert list(starts.unequal_terms(model.kernel)) == []


def test_constants_start_at_the_size_of_the_means(rng):
    """A default fit is as good as one that starts with the right constant, to 0.1 nats."""
    X = rng.normal(size=(30, 2))
    Y = X @ rng.normal(size=(2, 2)) + 0.3 * rng.normal(size=(30, 2)) + 1e8
    linear, losses = gpflow.kernels.Linear, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # targets far from zero
        for constant in (1.0, 1e16, 3e16):
            model = CoolMTGP((X, Y), linear() + gpflow.kernels.Constant(constant))
            if constant == 1.0:
                ((which, value),) = starts.constants_for_means(model).items()
                assert which == id(model.kernel.kernels[1].variance)
                ratio = np.max(np.mean(Y**2, axis=0) / np.var(Y, axis=0))
                assert_allclose(value, ratio * np.mean(np.sum(X**2, axis=1)), rtol=1e-6)
            model.fit(verbose=0)
            losses.append(float(model.training_loss()))
    assert losses[0] < min(losses[1:]) + 0.1
    near = CoolMTGP((X, Y - 1e8), linear() + gpflow.kernels.Constant())
    assert starts.constants_for_means(near) == {}
    alone = CoolMTGP((X, Y - 1e8 + 20.0), linear())
    assert starts.constants_for_means(alone) == {}
