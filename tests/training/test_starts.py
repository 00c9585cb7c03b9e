"""Where a fit starts: which lengthscales are tried, and how the best of them is found."""

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp
from fits import make, values
from gpflow import kernels
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist

from gpflow_cool import CoolMTGP, Laplacian, SparseCoolMTGP
from gpflow_cool.training import starts
from gpflow_cool.training.losses import loss_of


def half_median(X, metric="euclidean"):
    return 0.5 * np.median(pdist(X, metric))


def tried(model, restarts=0, seed=0):
    """Values of every trainable parameter at each start."""
    found = starts.starting_values(model, restarts, np.random.default_rng(seed))
    return [dict(zip(map(id, model.trainable_parameters), each, strict=True)) for each in found]


def test_each_lengthscale_starts_at_the_distances_of_the_inputs_that_its_kernel_sees(data):
    X = data[0]
    parts = [
        kernels.SquaredExponential(lengthscales=0.3, active_dims=[1]),
        Laplacian(lengthscales=0.4),
        kernels.Matern32(lengthscales=[0.5, 0.6]),
        kernels.Linear(),
    ]
    one, city, each = (part.lengthscales for part in parts[:3])
    model = CoolMTGP(data, kernels.Sum(parts))
    present, near, long = tried(model)[:3]
    scales = half_median(X[:, 1:]), half_median(X, "cityblock"), half_median(X)
    for parameter, scale in zip((one, city, each), scales, strict=True):
        assert_allclose(present[id(parameter)], parameter, rtol=1e-12)
        assert_allclose(near[id(parameter)], np.full(parameter.shape, scale), rtol=1e-12)
    assert_allclose(long[id(one)], 4.0 * scales[0], rtol=1e-12)
    assert_allclose(long[id(city)], 4.0 * scales[1], rtol=1e-12)
    assert_array_equal(long[id(each)], near[id(each)])  # a long one has no gradient to come back by
    for other in model.trainable_parameters:
        if all(other is not p for p in (one, city, each)):
            assert_array_equal([s[id(other)] for s in (near, long)], [present[id(other)]] * 2)


def far_away(data):
    """A linear term of years is far larger than the terms beside it."""
    kernel = kernels.SquaredExponential(2.0) + kernels.Linear() + kernels.Constant(0.1)
    kernel += kernels.SquaredExponential() * kernels.Linear()
    return CoolMTGP((data[0] + 2000.0, data[1]), kernel)


def test_terms_of_a_sum_start_with_the_same_mean_variance(data):
    model = far_away(data)
    starts.assign_all(list(model.trainable_parameters), list(tried(model)[-1].values()))
    sizes = [np.mean(term.K_diag(model.data[0])) for term in model.kernel.kernels]
    assert_allclose(sizes, sizes[0], rtol=1e-9)


def test_variances_that_are_fixed_or_have_a_prior_stay_where_terms_are_balanced(data):
    model = far_away(data)
    _, linear, constant, product = model.kernel.kernels
    gpflow.set_trainable(linear.variance, False)
    constant.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    balanced = tried(model)[-1]
    assert_allclose(balanced[id(constant.variance)], 0.1, rtol=1e-12)
    assert id(linear.variance) not in balanced
    factors = [balanced[id(p)] for p in model.trainable_parameters if p in product.parameters]
    assert np.prod(factors) < 1e-3


def test_a_term_that_vanishes_at_all_rows_cannot_be_balanced(data):
    kernel = kernels.SquaredExponential() + kernels.Linear()
    model = CoolMTGP((np.zeros((40, 1)), data[1]), kernel)
    for each in tried(model):
        assert_allclose(each[id(kernel.kernels[1].variance)], 1.0, rtol=1e-12)


def test_without_a_trainable_lengthscale_the_present_parameters_are_the_only_start(data):
    for kernel in (kernels.Linear(), kernels.SquaredExponential()):
        model = CoolMTGP(data, kernel)
        gpflow.set_trainable(model.kernel, False)
        assert len(tried(model)) == 1


def test_bounds_of_a_lengthscale_are_kept(data):
    low, high = np.float64(0.1), np.float64(0.5)
    model = make(data)
    transform = tfp.bijectors.Sigmoid(low, high)
    model.kernel.lengthscales = gpflow.Parameter(0.3, transform=transform)
    assert half_median(data[0]) > 0.5
    for each in tried(model):
        assert_allclose(each[id(model.kernel.lengthscales)], 0.3, rtol=1e-12)


def test_random_starts_depend_on_the_seed_alone_and_leave_the_model_alone(data):
    model = make(data)
    before = values(model)
    first, again, other = (tried(model, 3, seed) for seed in (1, 1, 2))
    assert len(first) == 6
    for name in first[0]:
        assert_array_equal([s[name] for s in first], [s[name] for s in again])
        assert all(np.all(a[name] != b[name]) for a, b in zip(first[3:], other[3:], strict=True))
        assert len({np.max(s[name]) for s in first[3:]}) == 3
    for one, same in zip(values(model), before, strict=True):
        assert_allclose(one, same, rtol=1e-12)


@pytest.mark.parametrize("losses", [[3.0, 1.0, 2.0], [np.nan, 5.0, None], [None, np.inf, 0.0]])
def test_the_start_with_the_lowest_loss_is_chosen(data, losses):
    """None stands for a factorisation that fails."""
    model, left = make(data), list(losses)

    def loss():
        value = left.pop(0)
        if value is None:
            raise np.linalg.LinAlgError("K is not positive definite")
        return value

    given = starts.starting_values(model, 0, np.random.default_rng(0))
    starts.choose_start(model, loss, given)
    assert left == []
    best = np.nanargmin([np.inf if value is None else value for value in losses])
    for parameter, value in zip(model.trainable_parameters, given[best], strict=True):
        assert_allclose(parameter, value, rtol=1e-12)


def test_without_any_loss_the_present_parameters_stay(data):
    model = make(data)
    before = values(model)
    given = starts.starting_values(model, 1, np.random.default_rng(0))
    starts.choose_start(model, lambda: np.nan, given)
    for one, same in zip(values(model), before, strict=True):
        assert_allclose(one, same, rtol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_b_and_sigma2_stay_solved_for_at_the_best_start(data, sparse):
    kernel = kernels.SquaredExponential(lengthscales=0.01)
    model = SparseCoolMTGP(data, kernel, data[0][:8]) if sparse else CoolMTGP(data, kernel)
    starts.start_at_best(model)
    plain, profiled = (loss_of(model, profile=profile) for profile in (False, True))
    assert kernel.lengthscales > 0.5
    assert_allclose(plain.evaluate().loss, profiled.evaluate().loss, atol=5e-3)


def test_what_bounds_admit():
    """Also a number beyond single precision, for inputs at 1e12 and targets at 1e9."""
    parameter = gpflow.Parameter(1.0, transform=gpflow.utilities.positive())
    assert starts.is_admissible(parameter, 1e42)
    assert not starts.is_admissible(parameter, -1.0)
    assert starts.is_admissible(gpflow.Parameter(1.0), -1.0)
