"""Few rows that stand for many: the terms of the chain do not notice."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gpflow_cool.chain import compression
from gpflow_cool.chain.compression import compressed, dual_vectors, nodes_and_weights
from gpflow_cool.chain.newton import solve
from gpflow_cool.chain.search import Box
from gpflow_cool.systems.spectrum import Spectrum
from gpflow_cool.chain.terms import task_problems, task_terms

T = 3


@pytest.fixture(name="few")
def _few(monkeypatch):
    """Compression sets in at 2000 rows, and takes few of them at a time."""
    monkeypatch.setattr(compression, "MIN_ROWS", 2000)
    monkeypatch.setattr(compression, "BLOCK", 200)


def problems(rng, copies=1, learning="hierarchical", collinear=0.3):
    """Eigenvalues over 25 decades, some of them zero; the last task nearly follows the first."""
    lam = np.exp(rng.uniform(-50.0, 5.0, size=4000))
    lam[:500] = 0.0
    Y = rng.normal(size=(copies * len(lam), T)) * np.tile(np.sqrt(lam + 0.1), copies)[:, None]
    Y[:, 2] = Y[:, 0] + collinear * Y[:, 2]
    spectrum = Spectrum(lam, Y / np.sqrt(copies), np.zeros([T, T]), float(len(lam)))
    return task_problems(spectrum, learning)


@pytest.mark.parametrize("degree", [1, 3, 6])
def test_sums_of_polynomials_are_kept(rng, monkeypatch, degree):
    monkeypatch.setattr(compression, "BLOCK", 100)
    x, Y = rng.uniform(-1.0, 1.0, size=700), rng.normal(size=(700, 2))
    nodes, weights = nodes_and_weights(x, Y, degree)
    assert len(nodes) <= 2 * degree
    for power in range(2 * degree):
        expected = (x**power * Y.T) @ Y
        assert_allclose((nodes**power * weights.T) @ weights, expected, rtol=1e-10, atol=1e-10)
    beyond = 2 * degree
    assert not np.allclose((nodes**beyond * weights.T) @ weights, (x**beyond * Y.T) @ Y, atol=1e-6)


@pytest.mark.parametrize("learning", ["hierarchical", "approximate"])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("collinear", [0.3, 1e-5])
def test_terms_and_their_derivatives_are_kept(few, rng, learning, copies, collinear):
    full = problems(rng, copies, learning, collinear)
    small = compressed(full)
    assert len(small.Y) < len(full.Y) / 3
    points = [(1.0, 0.1), (1e-4, 1.0), (30.0, 1e-6)]
    for point in points:
        at = np.tile(point, (T, 1))
        exact, found = (task_terms(some, np.arange(T), at) for some in (full, small))
        assert_allclose(found.values, exact.values, rtol=1e-11)
        for t in range(T):
            scale = np.abs(exact.gradients[t] * point).max()
            ours, theirs = found.gradients[t] * point, exact.gradients[t] * point
            assert_allclose(ours, theirs, atol=1e-10 * scale)
            scaled = np.outer(point, point)
            atol = 1e-9 * np.abs(exact.hessians[t] * scaled).max()
            assert_allclose(found.hessians[t] * scaled, exact.hessians[t] * scaled, atol=atol)
        assert_allclose(found.W, exact.W, rtol=1e-8, atol=1e-10)


def test_quadratic_forms_have_the_error_that_is_stated(few, rng):
    """That, and a unit of rounding of the targets: tasks that are nearly equal cancel."""
    full = problems(rng, collinear=1e-5)
    small = compressed(full)
    for v in np.eye(T) - np.eye(T)[[2, 0, 1]]:
        for ratio in 10.0 ** np.arange(-8.0, 5.0):
            exact = np.sum((full.Y @ v) ** 2 / (full.lam + ratio))
            found = np.sum((small.Y @ v) ** 2 / (small.lam + ratio))
            before = np.sum((np.abs(full.Y) @ np.abs(v)) ** 2 / (full.lam + ratio))
            rounding = np.finfo(float).eps * np.sqrt(before / exact)
            assert_allclose(found, exact, rtol=4e-13 + rounding)
    assert_allclose(np.sum(small.counts), np.sum(full.counts), rtol=1e-13)


def test_the_inner_problem_has_the_same_solution(few, rng):
    full = problems(rng)
    box = Box(np.full([T, 2], -20.0), np.full([T, 2], 20.0))
    exact, found = solve(full, box), solve(compressed(full), box)
    assert_allclose(found.values, exact.values, rtol=1e-11)
    assert_allclose(np.log(found.parameters), np.log(exact.parameters), atol=1e-6)
    A = dual_vectors(full, exact.parameters, exact.W)
    for t, (b, sigma2) in enumerate(exact.parameters):  # K_xy alpha = y
        earlier = full.Y[:, :t]
        back = (b * full.lam + sigma2) * A[:, t] + earlier @ (earlier.T @ A[:, t])
        assert_allclose(back, full.Y[:, t], atol=1e-6)


def test_few_rows_stay_as_they_are(rng):
    full = problems(rng)
    assert compressed(full) is full
