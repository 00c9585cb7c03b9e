"""Scores against loops over SciPy's densities."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm

from gpflow_cool.metrics import (
    arrmse,
    coverage,
    joint_nlpd,
    mean_rmse,
    nlpd,
    nominal_coverage,
    rmse,
    rrmse,
)

SIZES = pytest.mark.parametrize("M, T", [(1, 1), (1, 4), (9, 1), (9, 4)])


def draw(rng, M, T):
    """Targets, means and positive definite covariances [M, T, T] of no special structure."""
    A = rng.standard_normal([M, T, T + 1])
    cov = A @ A.transpose(0, 2, 1) + 0.1 * np.eye(T)
    return rng.standard_normal([M, T]), rng.standard_normal([M, T]), cov


@SIZES
def test_point_errors_equal_loops(rng, M, T):
    Y, mean, _ = draw(rng, M, T)
    Y_train = rng.standard_normal([6, T]) + 3.0
    errors, relative = [], []
    for t in range(T):
        ours = sum((Y[m, t] - mean[m, t]) ** 2 for m in range(M)) / M
        constant = sum((Y[m, t] - sum(Y_train[:, t]) / 6) ** 2 for m in range(M)) / M
        errors.append(ours**0.5)
        relative.append((ours / constant) ** 0.5)
    assert_allclose(rmse(Y, mean), errors, rtol=1e-12)
    assert_allclose(mean_rmse(Y, mean), sum(errors) / T, rtol=1e-12)
    assert_allclose(rrmse(Y, mean, Y_train), relative, rtol=1e-12)
    assert_allclose(arrmse(Y, mean, Y_train), sum(relative) / T, rtol=1e-12)


def test_predicting_the_training_mean_scores_one(rng):
    Y, Y_train = rng.standard_normal([5, 3]), rng.standard_normal([8, 3])
    constant = np.tile(Y_train.mean(axis=0), [5, 1])
    assert_allclose(arrmse(Y, constant, Y_train), 1.0, rtol=1e-12)


@SIZES
def test_densities_equal_scipy(rng, M, T):
    Y, mean, cov = draw(rng, M, T)
    joint = [multivariate_normal(mean[m], cov[m]).logpdf(Y[m]) for m in range(M)]
    assert_allclose(joint_nlpd(Y, mean, cov), -np.mean(joint), rtol=1e-10)
    var = np.stack([np.diag(S) for S in cov])
    marginal = [
        [norm(mean[m, t], np.sqrt(var[m, t])).logpdf(Y[m, t]) for t in range(T)] for m in range(M)
    ]
    assert_allclose(nlpd(Y, mean, var), -np.mean(marginal, axis=0), rtol=1e-10)


def test_joint_density_of_independent_tasks_is_the_sum_of_marginals(rng):
    Y, mean, cov = draw(rng, 7, 3)
    var = np.diagonal(cov, axis1=1, axis2=2)
    diagonal = np.stack([np.diag(v) for v in var])
    assert_allclose(joint_nlpd(Y, mean, diagonal), np.sum(nlpd(Y, mean, var)), rtol=1e-12)


@SIZES
@pytest.mark.parametrize("num_sigma", [0.5, 1.0, 2.0])
def test_coverage_equals_counting(rng, M, T, num_sigma):
    Y, mean, cov = draw(rng, M, T)
    var = np.diagonal(cov, axis1=1, axis2=2)
    expected = [
        sum(abs(Y[m, t] - mean[m, t]) <= num_sigma * var[m, t] ** 0.5 for m in range(M)) / M
        for t in range(T)
    ]
    assert_allclose(coverage(Y, mean, var, num_sigma), expected, rtol=1e-15)


def test_coverage_counts_the_border_as_inside():
    Y = [[-2.0], [2.0], [2.1], [0.0]]
    assert_allclose(coverage(Y, np.zeros([4, 1]), np.ones([4, 1]), 2.0), [0.75])


@pytest.mark.parametrize("num_sigma", [0.0, 1.0, 2.0, 3.0])
def test_nominal_coverage_equals_scipy(num_sigma):
    expected = norm.cdf(num_sigma) - norm.cdf(-num_sigma)
    assert_allclose(nominal_coverage(num_sigma), expected, rtol=1e-12)


def test_tensors_and_float32_are_cast_to_double_precision(rng):
    Y, mean, cov = (tf.constant(a, tf.float32) for a in draw(rng, 5, 2))
    expected = joint_nlpd(*(a.numpy().astype(np.float64) for a in (Y, mean, cov)))
    assert_allclose(joint_nlpd(Y, mean, cov), expected, rtol=1e-14)


def test_missing_targets_make_their_score_missing(rng):
    Y, mean, cov = draw(rng, 5, 2)
    Y[3, 1] = np.nan
    var = np.diagonal(cov, axis1=1, axis2=2)
    for score in (rmse(Y, mean), coverage(Y, mean, var), nlpd(Y, mean, var)):
        assert np.isfinite(score[0]) and np.isnan(score[1])
    assert np.isnan(joint_nlpd(Y, mean, cov))


def test_bad_arguments_are_named(rng):
    Y, mean, cov = draw(rng, 5, 2)
    var = np.ones([5, 2])
    for bad in (0.0, -1.0, np.nan):
        var[4, 1] = bad
        for score in (nlpd, coverage):
            with pytest.raises(ValueError, match=rf"var\[4, 1\] is {bad}: .* must be positive"):
                score(Y, mean, var)
    cov[2] = -np.eye(2)
    with pytest.raises(ValueError, match=r"cov\[2\] is not positive definite.*predict_y"):
        joint_nlpd(Y, mean, cov)
    with pytest.raises(ValueError, match=r"Y has shape \(0, 2\): a score needs at least one row"):
        rmse(np.zeros([0, 2]), np.zeros([0, 2]))
    Y[:, 1] = 4.0
    with pytest.raises(ValueError, match="Task 1: every held-out target equals the training mean"):
        arrmse(Y, mean, np.full([3, 2], 4.0))
