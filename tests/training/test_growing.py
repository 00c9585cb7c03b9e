"""Training on samples that grow: curvature, extrapolation, and the same optimum in fewer passes."""

import gpflow
import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import random_problem

from gpflow_cool import SparseCoolMTGP, choose_inducing_points
from gpflow_cool.training import growing, streamed
from gpflow_cool.training.growing import Curvature, extrapolated, sample_sizes
from gpflow_cool.training.optimizers import resolve_optimizer


def test_curvature_of_a_quadratic_is_its_inverse_hessian(rng):
    A = rng.normal(size=(3, 3))
    hessian = A @ A.T + np.eye(3)
    curvature = Curvature(0.3 * np.eye(3))
    directions = np.linalg.eigh(hessian)[1].T  # conjugate: each step adds one exact direction
    for s in directions:
        curvature.add(s, hessian @ s)
    assert_allclose(curvature.H, np.linalg.inv(hessian), rtol=1e-10)
    S = curvature.root()
    assert_allclose(S @ S.T, curvature.H, rtol=1e-10)


def test_curvature_ignores_a_step_along_which_the_loss_is_not_convex(rng):
    curvature = Curvature(np.eye(2))
    curvature.add(np.array([1.0, 0.0]), np.array([-2.0, 0.0]))
    assert_allclose(curvature.H, np.eye(2))


def test_two_samples_point_to_the_next():
    ends, sizes = [np.array([3.0, 0.0]), np.array([2.5, 0.2])], [100, 400]
    assert_allclose(extrapolated(ends, sizes, 800), [2.25, 0.3])
    assert_allclose(extrapolated(ends, sizes, 10**6), [2.0, 0.4])  # no further than once
    assert_allclose(extrapolated(ends[:1], sizes[:1], 800), ends[0])
    assert_allclose(extrapolated([np.zeros(1), np.array([9.0])], sizes, 1600), [10.0])


def test_sizes_grow_by_a_factor_to_at_most_a_quarter():
    assert sample_sizes(64_000, 10**6, 200) == [1000, 4000, 16_000]
    assert sample_sizes(64_000, 10_000, 200) == [625, 2500, 10_000]
    assert sample_sizes(1599, 10**6, 2) == []


@pytest.fixture
def small_samples(monkeypatch):
    """Samples of few rows, so that a small problem has some."""
    monkeypatch.setattr(growing, "SMALLEST_SAMPLE", 20)
    monkeypatch.setattr(growing, "ROWS_PER_POINT", 1.0)


def smooth_model(rng, lengthscales, **options):
    X = rng.normal(size=(400, 2))
    F = np.sin(X @ rng.normal(size=(2, 2)))
    Y = F @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(400, 3))
    kernel = gpflow.kernels.SquaredExponential(lengthscales=lengthscales)
    return SparseCoolMTGP((X, Y), kernel, choose_inducing_points(X, kernel, 15), **options)


@pytest.mark.parametrize("learning", ["hierarchical", "approximate"])
def test_samples_lead_to_the_optimum_of_all_rows(rng, small_samples, monkeypatch, learning):
    model = smooth_model(rng, [1.0, 1.0], learning=learning)
    losses = []
    profile = model.profile
    monkeypatch.setattr(model, "profile", lambda: losses.append(profile()) or losses[-1])
    history = model.fit(verbose=0)
    assert [size for size, _ in losses[0].samples()] == [25, 100]
    grown = min(history.history["loss"])
    assert_allclose(grown, losses[0].evaluate().loss, rtol=1e-12)  # of all rows
    monkeypatch.setattr(growing, "SMALLEST_SAMPLE", 10**6)
    model.kernel.lengthscales.assign([1.0, 1.0])
    alone = min(model.fit(verbose=0).history["loss"])
    assert losses[1].samples() == []
    assert_allclose(grown, alone, atol=1e-3)


def test_a_bad_guess_is_taken_back_to_where_the_last_sample_ended(rng, small_samples, monkeypatch):
    guesses, begun = [], []

    def far_away(ends, sizes, size):
        guesses.append(ends[-1])
        return ends[-1] + 2.0 * (len(sizes) > 1)

    def begin(first, others, vector, *rest):
        growing_begins(first, others, vector, *rest)
        begun.append(vector.numpy())

    growing_begins = growing.begin_at_best
    model = smooth_model(rng, [0.2, 0.2])
    expected = min(model.fit(verbose=0).history["loss"])
    model.kernel.lengthscales.assign([0.2, 0.2])
    monkeypatch.setattr(growing, "extrapolated", far_away)
    monkeypatch.setattr(growing, "begin_at_best", begin)
    loss = min(model.fit(verbose=0).history["loss"])
    assert_allclose(begun, [guesses[-1]], rtol=1e-10)
    assert_allclose(loss, expected, atol=1e-3)


def test_two_passes_give_what_one_graph_gives(rng, monkeypatch):
    for learning in ("hierarchical", "approximate"):
        model = smooth_model(rng, [0.7, 1.4], learning=learning, chunk_rows=90)
        for make in (model.profile, model.streamed_loss):
            at_once = make().evaluate()
            monkeypatch.setattr(streamed, "KEPT_NUMBERS", 0)
            in_passes = make().evaluate()
            monkeypatch.undo()
            assert_allclose(in_passes.loss, at_once.loss, rtol=1e-11)
            assert_allclose(in_passes.terms, at_once.terms, rtol=1e-10)
            for a, b in zip(in_passes.gradients, at_once.gradients, strict=True):
                assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_an_evaluation_is_two_passes_and_a_sample_counts_its_rows(rng, small_samples):
    loss = smooth_model(rng, 1.0).profile()
    loss.evaluate()
    assert loss.num_passed == 2 * 400
    loss.evaluate_on(loss.samples()[0][1])
    assert loss.num_passed == 2 * 425


def test_a_start_is_chosen_on_the_first_sample(rng, small_samples):
    model = smooth_model(rng, 1.0)
    optimizer = resolve_optimizer(model, "profile")
    first = model.profile()
    expected = first.evaluate_on(first.samples()[0][1]).loss
    assert_allclose(optimizer.compare().loss, expected, rtol=1e-10)
    assert optimizer.compare().loss != optimizer.evaluate().loss


def test_many_parameters_are_trained_on_all_rows(rng, small_samples, monkeypatch):
    monkeypatch.setattr(streamed, "MAX_PARAMETERS", 1)
    assert smooth_model(rng, [1.0, 1.0]).profile().samples() == []
    assert smooth_model(rng, 1.0).profile().samples() != []


def test_products_on_a_device_give_what_blas_gives(rng, monkeypatch):
    from gpflow_cool.systems import streaming

    p = random_problem(rng, 9, 2)
    model = SparseCoolMTGP((p.X, p.Y), p.gpflow_kernel(), p.X[:4])
    blas = model.profile().evaluate()
    monkeypatch.setattr(streaming, "has_gpu", lambda: True)
    device = model.profile().evaluate()
    assert_allclose(device.loss, blas.loss, rtol=1e-11)
    assert_allclose(device.gradients[0], blas.gradients[0], rtol=1e-7)
