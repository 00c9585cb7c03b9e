"""Every row predicted from all the others, against conditioning a dense Gaussian anew."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from problems import CASES, assert_close, random_problem

from gpflow_cool.joint.kronecker import solve_joint, task_basis
from gpflow_cool.joint.leave_one_out import leave_one_out
from gpflow_cool.linalg import eigh


def solved(rng, p):
    """Random C and Sigma, and the solution of the problem with them."""
    T = len(p.b)
    A, W = rng.normal(size=(T, T)), np.tril(rng.normal(size=(T, T)), -1)
    C, Sigma = ref.task_covariance(W, A @ A.T), ref.noise_covariance(W, p.sigma2)
    lam, U = eigh(tf.constant(p.K))
    basis = task_basis(tf.constant(C), tf.constant(Sigma))
    return C, Sigma, solve_joint(U, lam, tf.matmul(U, p.Y, transpose_a=True), basis)


@pytest.mark.parametrize("case", CASES)
def test_leave_one_out_equals_conditioning_anew(rng, case):
    p = CASES[case](rng)
    C, Sigma, solution = solved(rng, p)
    actual = leave_one_out(solution, tf.constant(p.Y))
    expected = ref.leave_one_out(p.K, p.Y, C, Sigma)
    for name in expected._fields:
        assert_close(getattr(actual, name), getattr(expected, name), rtol=1e-8)


def test_leave_one_out_adds_what_was_subtracted(rng):
    """The solution knows centred targets only; the mean is of the targets given."""
    p = random_problem(rng, 6, 3)
    _, _, solution = solved(rng, p)
    offset = rng.normal(size=(6, 3))
    centred = leave_one_out(solution, tf.constant(p.Y))
    shifted = leave_one_out(solution, tf.constant(p.Y + offset))
    assert_close(shifted.mean, centred.mean + offset)
    assert_close(shifted.log_density, centred.log_density)
