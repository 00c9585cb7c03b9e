"""Probabilities of exceeding limits, against the normal distribution, draws and formulas."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm

from gpflow_cool.joint.exceedance import POINTS, TOLERANCE, exceedance, semidefinite_cholesky


def random_problem(rng, M, k, rank=None):
    A = rng.normal(size=[M, k, k if rank is None else rank])
    return rng.normal(size=[M, k]), A @ A.transpose(0, 2, 1), rng.normal(size=k)


@pytest.mark.parametrize("which", ["any", "all"])
def test_one_variable_is_normal(rng, which):
    mean, cov, limits = random_problem(rng, 200, 1)
    p, error = exceedance(mean * 5, cov, limits, which)
    assert_allclose(p, norm.sf(limits[0], 5 * mean[:, 0], np.sqrt(cov[:, 0, 0])), rtol=1e-12)
    assert (error == 0).all()


@pytest.mark.parametrize("k", [2, 3, 7])
def test_several_are_within_three_errors_of_draws(rng, k):
    mean, cov, limits = random_problem(rng, 3, k)
    for m in range(3):
        draws = rng.multivariate_normal(mean[m], cov[m], size=300_000) > limits
        for which, hit in [("any", draws.any(axis=1)), ("all", draws.all(axis=1))]:
            p, error = (part[m] for part in exceedance(mean, cov, limits, which))
            standard = np.hypot(np.sqrt(p * (1 - p) / len(hit)) + 1e-6, error)
            assert abs(hit.mean() - p) < 3 * standard


@pytest.mark.parametrize("k", [2, 4])
def test_several_equal_scipys_distribution(rng, k):
    mean, cov, limits = random_problem(rng, 20, k)
    p, error = exceedance(mean, cov, limits, "any")
    exact = [
        1 - multivariate_normal.cdf(limits, m, S, maxpts=200_000, abseps=1e-7)
        for m, S in zip(mean, cov, strict=True)
    ]
    assert (np.abs(p - exact) < 4 * error + 1e-6).all()
    assert (error < 2 * TOLERANCE).all()


def test_independent_variables_multiply(rng):
    mean, limits = rng.normal(size=[5, 4]), rng.normal(size=4)
    cov = np.tile(np.diag([0.5, 1.0, 2.0, 3.0]), [5, 1, 1])
    alone = norm.sf(limits, mean, np.sqrt([0.5, 1.0, 2.0, 3.0]))
    assert_allclose(exceedance(mean, cov, limits, "all").probability, alone.prod(1), rtol=1e-12)
    any_of = exceedance(mean, cov, limits, "any").probability
    assert_allclose(any_of, 1 - (1 - alone).prod(1), rtol=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_two_copies_of_a_variable(sign):
    mean, cov = np.array([[0.3, 0.3 * sign]]), np.array([[[2.0, 2.0 * sign], [2.0 * sign, 2.0]]])
    one = norm.sf(0.1, 0.3, np.sqrt(2))
    other = norm.sf(0.2, 0.3 * sign, np.sqrt(2))
    both = min(one, other) if sign > 0 else max(0.0, one + other - 1)
    p, error = exceedance(mean, cov, np.array([0.1, 0.2]), "all")
    share = 1 / POINTS[-1]  # of one point, that lies on one side of a step or on the other
    assert abs(p[0] - both) < 4 * error[0] + share
    p, error = exceedance(mean, cov, np.array([0.1, 0.2]), "any")
    assert abs(p[0] - (one + other - both)) < 4 * error[0] + share


def test_without_deviation_it_is_known(rng):
    mean = np.array([[1.0, 0.0], [1.0, 3.0]])
    p, error = exceedance(mean, np.zeros([2, 2, 2]), np.array([0.5, 2.0]), "all")
    assert p.tolist() == [0.0, 1.0] and error.tolist() == [0.0, 0.0]
    assert exceedance(mean, np.zeros([2, 2, 2]), np.array([0.5, 2.0]))[0].tolist() == [1.0, 1.0]


def test_far_limits(rng):
    mean, cov, _ = random_problem(rng, 4, 3)
    for limit, p in [(-1e6, 1.0), (1e6, 0.0), (-np.inf, 1.0), (np.inf, 0.0)]:
        for which in ("any", "all"):
            assert_allclose(exceedance(mean, cov, np.full(3, limit), which).probability, p)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_factors_of_singular_matrices(rng, rank):
    _, S, _ = random_problem(rng, 6, 5, rank)
    L = semidefinite_cholesky(S)
    assert_allclose(L @ L.transpose(0, 2, 1), S, atol=1e-10)
    assert_allclose(L, np.tril(L))
