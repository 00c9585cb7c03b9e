"""Shrunk relevance: the prior, which kernels get lengthscales, and what a fit reaches."""

import copy

import gpflow
import numpy as np
import pytest
import scipy.stats

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.training.losses import loss_of
from gpflow_cool.training.relevance import (
    SPREAD,
    free_lengthscales,
    kernels_with_lengthscales,
    prior_around,
    prior_cost,
    share_lengthscales,
)

kernels = gpflow.kernels


GRID_ERROR = 5e-3
"""Nats by which a loss that is interpolated between ratios may differ from the one at its b and
sigma2."""


@pytest.fixture(scope="module")
def data():
    """Two tasks that depend on the first of three inputs."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=[24, 3])
    noise = 0.1 * rng.normal(size=[24, 2])
    return X, np.stack([np.sin(2 * X[:, 0]), np.cos(2 * X[:, 0])], axis=1) + noise


@pytest.fixture(scope="module")
def shrunk(data):
    model = CoolMTGP(data, kernels.SquaredExponential())
    return model, model.fit(relevance="shrunk", verbose=0)


def test_prior_is_normal_in_the_logarithm_with_its_mode_at_the_common_lengthscale():
    common, ell = 1.7, np.array([0.3, 1.7, 2.5, 40.0])
    prior = prior_around(np.array(common))
    np.testing.assert_allclose(
        prior.prob(ell), scipy.stats.lognorm.pdf(ell, SPREAD, scale=common * np.exp(SPREAD**2))
    )
    relative = prior.log_prob(ell).numpy() - prior.log_prob(common).numpy()
    np.testing.assert_allclose(relative, -0.5 * (np.log(ell / common) / SPREAD) ** 2, atol=1e-12)


def test_cost_of_the_prior_is_the_change_of_its_log_density():
    common = kernels.Matern32(lengthscales=1.5) + kernels.SquaredExponential(0.4, 2.0)
    ell = np.array([0.7, 1.5, 9.0]), np.array([2.0, 4.0])
    own = kernels.Matern32(lengthscales=ell[0]) + kernels.SquaredExponential(0.9, ell[1])
    expected = 0.0
    for values, centre in zip([*ell, np.array(0.9)], [1.5, 2.0, 0.4], strict=True):
        prior = prior_around(np.array(centre))
        expected += np.sum(prior.log_prob(centre).numpy() - prior.log_prob(values).numpy())
    assert prior_cost(own, common) == pytest.approx(expected)
    assert prior_cost(common, common) == 0.0


def test_which_kernels_are_freed_and_how_many_inputs_they_see():
    fixed, own = kernels.Matern32(lengthscales=3.0), kernels.Matern12(lengthscales=4.0)
    gpflow.set_trainable(fixed.lengthscales, False)
    own.lengthscales.prior = prior_around(np.array(4.0))
    some = kernels.Matern52(lengthscales=5.0, active_dims=[0, 2])
    all_of_them = kernels.RationalQuadratic(lengthscales=6.0)
    one = kernels.SquaredExponential(lengthscales=7.0, active_dims=[1])
    gpflow.set_trainable(one.variance, False)
    kernel = fixed * own + some * all_of_them + one + kernels.Linear()
    assert set(kernels_with_lengthscales(kernel)) == {some, all_of_them, one}
    freed = free_lengthscales(kernel, 4)
    variances = [part.variance for part in (fixed, own, some, all_of_them, kernel.kernels[-1])]
    expected = [some.lengthscales, all_of_them.lengthscales, *variances]
    assert {id(p) for p in freed} == {id(p) for p in expected}
    np.testing.assert_allclose([p.prior.mode().numpy() for p in variances], 1.0)
    freed = [some.lengthscales, all_of_them.lengthscales]
    assert [p.numpy().tolist() for p in freed] == [[5.0] * 2, [6.0] * 4]
    np.testing.assert_allclose([p.prior.mode().numpy() for p in freed], [5.0, 6.0])
    assert one.lengthscales.prior is None and one.lengthscales.numpy() == 7.0


def test_shared_lengthscale_is_the_geometric_mean():
    kernel = kernels.Matern32(lengthscales=[1.0, 2.0, 4.0]) + kernels.White()
    share_lengthscales(kernel)
    np.testing.assert_allclose(kernel.kernels[0].lengthscales.numpy(), 2.0)
    assert kernel.kernels[0].lengthscales.shape.rank == 0


def tied(*parts):
    """The sum of kernels, all with the lengthscales of the first."""
    for part in parts[1:]:
        part.lengthscales = parts[0].lengthscales
    return kernels.Sum(parts)


def test_kernels_that_share_lengthscales_go_on_sharing_them():
    kernel = tied(kernels.Matern32(lengthscales=[1.0, 2.0, 4.0]), kernels.SquaredExponential())
    first, second = kernel.kernels
    share_lengthscales(kernel)
    assert first.lengthscales is second.lengthscales
    np.testing.assert_allclose(first.lengthscales.numpy(), 2.0)
    common = copy.deepcopy(kernel)
    freed = free_lengthscales(kernel, 3)
    assert first.lengthscales is second.lengthscales
    np.testing.assert_allclose(first.lengthscales.numpy(), [2.0, 2.0, 2.0])
    expected = [first.lengthscales, first.variance, second.variance]
    assert list(map(id, freed)) == list(map(id, expected))
    for parameter in freed:
        parameter.prior = None
    first.lengthscales.assign([2.0, 6.0, 10.0])
    moves = np.log([1.0, 3.0, 5.0])  # the prior counts them once
    assert prior_cost(kernel, common) == pytest.approx(np.sum(moves**2) / (2 * SPREAD**2))


def test_kernels_of_different_numbers_of_inputs_keep_the_lengthscale_that_they_share():
    one = kernels.SquaredExponential(lengthscales=3.0, active_dims=[1])
    kernel = tied(one, kernels.Matern32())
    assert free_lengthscales(kernel, 3) == []
    assert one.lengthscales is kernel.kernels[1].lengthscales
    assert one.lengthscales.numpy() == pytest.approx(3.0) and one.lengthscales.prior is None


@pytest.mark.slow
def test_a_fit_trains_shared_lengthscales_as_one_parameter(data):
    kernel = tied(kernels.Matern32(), kernels.SquaredExponential())
    model = CoolMTGP(data, kernel)
    model.fit(relevance="shrunk", verbose=0)
    first, second = kernel.kernels
    assert first.lengthscales is second.lengthscales
    assert first.lengthscales.shape == (3,)
    assert np.argmin(first.lengthscales) == 0


@pytest.fixture(scope="module")
def common(data):
    model = CoolMTGP(data, kernels.SquaredExponential())
    return model, model.fit(verbose=0)


def test_the_second_part_trains_the_penalised_objective(common, shrunk):
    """It starts where the first part ends, which costs nothing, and does not end above that."""
    (first, start), (model, history) = common, shrunk
    steps = len(start.epoch)
    assert history.history["loss"][:steps] == start.history["loss"]
    assert history.epoch == list(range(len(history.epoch))) and len(history.epoch) > steps
    assert np.all(np.diff(history.history["seconds"]) >= 0)
    cost = prior_cost(model.kernel, first.kernel)
    penalised = float(model.training_loss()) + cost
    assert penalised < float(first.training_loss()) + GRID_ERROR
    mode = prior_around(first.kernel.lengthscales.numpy()).log_prob(first.kernel.lengthscales)
    last = history.history["loss"][-1] + 3.0 * float(mode)
    np.testing.assert_allclose(last, penalised, atol=GRID_ERROR)
    assert model.kernel.lengthscales.prior is None


def test_the_end_is_an_optimum_of_the_penalised_objective(common, shrunk):
    """No small move of a lengthscale does better, with everything else solved for."""
    (first, _), (model, _) = common, shrunk
    best = model.kernel.lengthscales.numpy()
    moved = CoolMTGP(model.data, kernels.SquaredExponential(lengthscales=best))
    loss = loss_of(moved, profile=True)

    def penalised(ell):
        moved.kernel.lengthscales.assign(ell)
        return loss.evaluate().loss + prior_cost(moved.kernel, first.kernel)

    lowest = penalised(best)
    for d in range(3):
        for factor in (0.9, 1.1):
            assert penalised(best * np.where(np.arange(3) == d, factor, 1.0)) > lowest - GRID_ERROR


def test_variances_of_a_sum_are_pulled_towards_those_of_the_common_fit(data):
    def fitted(**options):
        model = CoolMTGP(data, kernels.Matern32() + kernels.Linear())
        return model, model.fit(verbose=0, **options)

    (common, _), (model, history) = fitted(), fitted(relevance="shrunk")
    pairs = [
        (part, centre)
        for part, centre in zip(model.kernel.parameters, common.kernel.parameters, strict=True)
        if part.trainable
    ]
    assert [part.shape for part, _ in pairs] == [[3], []]  # and the first variance is one
    expected = float(model.training_loss())
    for part, centre in pairs:
        scale = centre.numpy() * np.exp(SPREAD**2)
        expected -= scipy.stats.lognorm.logpdf(part.numpy(), SPREAD, scale=scale).sum()
        assert part.prior is None
    np.testing.assert_allclose(history.history["loss"][-1], expected, atol=GRID_ERROR)


def test_inputs_that_do_not_matter_get_longer_lengthscales(common, shrunk):
    ell = shrunk[0].kernel.lengthscales.numpy()
    assert ell[0] < common[0].kernel.lengthscales < min(ell[1:])


def test_a_kernel_with_lengthscales_of_its_own_starts_from_one(data):
    """From their geometric mean: the fit is that of a kernel that starts there."""
    losses = []
    for start in ([0.5, 2.0, 1.0], 1.0):
        model = CoolMTGP(data, kernels.SquaredExponential(lengthscales=start))
        losses.append(model.fit(relevance="shrunk", verbose=0).history["loss"])
        assert model.kernel.lengthscales.shape == (3,)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_one_input_is_a_plain_fit(data):
    X, Y = data[0][:, :1], data[1]
    plain, shrunk = (CoolMTGP((X, Y), kernels.Matern52()) for _ in range(2))
    plain.fit(verbose=0), shrunk.fit(relevance="shrunk", verbose=0)
    assert plain.kernel.lengthscales.numpy() == shrunk.kernel.lengthscales.numpy()
    assert shrunk.kernel.lengthscales.shape.rank == 0


@pytest.mark.slow
def test_exact_model_has_it_too(data):
    model = KroneckerMTGP.std_mt(data, kernels.SquaredExponential(), rank=1)
    model.fit(relevance="shrunk", verbose=0, steps=30)
    ell = model.kernel.lengthscales.numpy()
    assert ell.shape == (3,) and np.argmin(ell) == 0
