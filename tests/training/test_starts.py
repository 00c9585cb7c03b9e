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
    assert len(tried) == 2 * len(starts.LADDER)
    for factor, (parameters, values) in zip(starts.LADDER, tried[len(tried) // 2 :], strict=True):
        starts.assign_all(parameters, values)
        base = gpflow.kernels.Matern52(lengthscales=factor * half_median_distance(X))
        assert_allclose(model.kernel(X), base(X), atol=1e-6)


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
def test_targets_far_from_zero_may_be_a_constant():
    """17 rows of noise around 10^4: a constant function is four nats better than a short period."""
    case = random_case(41637)
    model = make_model(case, make_data(case))
    model.fit(verbose=0)
    assert model.kernel.base_kernel.lengthscales.numpy() > 1e6
    assert float(model.training_loss()) < -149.2


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
