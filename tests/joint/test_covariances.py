"""Covariances between tasks with parameters of their own, against their definitions in NumPy."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.utilities import multiple_assign, read_values
from numpy.testing import assert_allclose

from gpflow_cool.joint.covariances import (
    SMALLEST_DEVIATION,
    DiagonalCovariance,
    FullCovariance,
    LowRankCovariance,
    ScaledTriangle,
    lift_eigenvalues,
    semidefinite_cholesky,
    smallest_eigenvalue,
)


def random_covariance(rng, T, rank=None):
    A = rng.normal(size=(T, rank or T))
    return A @ A.T


def graded(rng, T, decades=3):
    """Tasks whose deviations differ by a factor of a million, or more."""
    scale = np.logspace(-decades, decades, T)
    return random_covariance(rng, T) * np.outer(scale, scale)


def without_one_task(rng):
    S = random_covariance(rng, 4)
    S[2] = S[:, 2] = 0.0
    return S


MATRICES = {
    "T1": lambda rng: np.array([[0.3]]),
    "T2": lambda rng: random_covariance(rng, 2),
    "T5": lambda rng: random_covariance(rng, 5),
    "identity": lambda rng: np.eye(3),
    "rank1": lambda rng: random_covariance(rng, 4, 1),
    "rank3 of 6": lambda rng: random_covariance(rng, 6, 3),
    "graded": lambda rng: graded(rng, 4),
    "units of all sizes": lambda rng: graded(rng, 4, 10),
    "without one task": without_one_task,
    "copies": lambda rng: random_covariance(rng, 3)[np.ix_([0, 0, 1, 0, 2], [0, 0, 1, 0, 2])],
    "tiny": lambda rng: 1e-12 * random_covariance(rng, 3),
}


@pytest.mark.parametrize("T", [1, 2, 5])
def test_the_transform_of_a_factor_is_that_of_tensorflow_probability(rng, T):
    """So that files of earlier versions and the next ones hold the same numbers."""
    scale, x = tf.constant(rng.uniform(0.1, 9.0, T)), rng.normal(size=T * (T + 1) // 2)
    triangle = tfp.bijectors.FillScaleTriL(diag_bijector=tfp.bijectors.Softplus(), diag_shift=None)
    theirs = tfp.bijectors.Chain([tfp.bijectors.Scale(scale[:, None]), triangle])
    ours = ScaledTriangle(scale)
    assert_allclose(ours.forward(x), theirs.forward(x), rtol=1e-14)
    assert_allclose(ours.inverse(theirs.forward(x) + 0.0), x, rtol=1e-12)
    columns = [theirs.forward(x + e) - theirs.forward(x - e) for e in 1e-6 * np.eye(len(x))]
    jacobian = np.array([column.numpy()[np.tril_indices(T)] for column in columns]) / 2e-6
    log_det = np.linalg.slogdet(jacobian)[1]
    assert_allclose(ours.forward_log_det_jacobian(x, event_ndims=1), log_det, rtol=1e-8, atol=1e-8)
    assert ours.forward_event_shape([len(x)]) == [T, T]
    assert ours.inverse_event_shape([T, T]) == [len(x)]
    assert_allclose(ours.forward_event_shape_tensor([len(x)]), [T, T])
    assert_allclose(ours.inverse_event_shape_tensor([T, T]), [len(x)])


def assert_relative(actual, expected, rtol):
    """Equal to `rtol` of the deviations, entry by entry: no scale hides another."""
    deviation = np.sqrt(np.diag(expected))
    deviation = np.where(deviation > 0, deviation, SMALLEST_DEVIATION * deviation.max())
    atol = np.outer(deviation, deviation) * (rtol + np.diag(np.diag(expected) == 0))
    assert np.all(np.abs(np.asarray(actual) - expected) <= atol)


# Factors and eigenvalues --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRICES)
def test_cholesky_factor_of_any_covariance(rng, name):
    S = MATRICES[name](rng)
    L = semidefinite_cholesky(S)
    assert_relative(L @ L.T, S, 1e-11)
    assert np.all(np.triu(L, 1) == 0.0)
    assert np.all(np.diag(L) > 0.0)


def test_cholesky_factor_where_it_is_unique(rng):
    S = random_covariance(rng, 5)
    assert_allclose(semidefinite_cholesky(S), np.linalg.cholesky(S), rtol=1e-9, atol=1e-12)


def test_rounding_beside_a_task_without_variance_changes_no_other_task():
    S = np.array([[1.0, 1e-17, 0.5], [1e-17, 1e-40, 0.0], [0.5, 0.0, 2.0]])
    L = semidefinite_cholesky(S)
    assert_allclose(L @ L.T, S, rtol=1e-12, atol=2e-17)


@pytest.mark.filterwarnings("error")
def test_cholesky_factor_of_nothing():
    factor = semidefinite_cholesky(np.zeros((2, 2)))
    assert np.all(np.isfinite(factor)) and np.max(factor) < 1e-150


def test_smallest_eigenvalue_is_relative_to_the_metric(rng):
    S, metric = random_covariance(rng, 4), rng.uniform(0.1, 10.0, size=4)
    smallest = smallest_eigenvalue(S, metric)
    expected = np.linalg.eigvals(np.linalg.solve(np.diag(metric), S)).real.min()
    assert_allclose(smallest, expected, rtol=1e-9)
    # S - smallest diag(metric) is just singular.
    assert abs(np.linalg.eigvalsh(S - smallest * np.diag(metric))[0]) < 1e-12


def test_lifted_eigenvalues(rng):
    """Those of diag(metric)^-1/2 S diag(metric)^-1/2, with the same eigenvectors."""
    S, metric = random_covariance(rng, 5, 2), rng.uniform(0.1, 10.0, size=5)
    root = np.diag(np.sqrt(metric))
    white = np.linalg.inv(root) @ S @ np.linalg.inv(root)
    values, vectors = np.linalg.eigh(white)
    expected = root @ vectors @ np.diag(np.maximum(values, 0.7)) @ vectors.T @ root
    assert_allclose(lift_eigenvalues(S, metric, 0.7), expected, rtol=1e-10, atol=1e-12)


def test_what_is_above_stays_as_it_is(rng):
    S = random_covariance(rng, 3)
    assert lift_eigenvalues(S, np.ones(3), 0.99 * np.linalg.eigvalsh(S)[0]) is S


def test_lifting_maximises_the_likelihood_under_the_bound(rng):
    """Any other matrix above diag(metric) has a larger log|V| + trace(V^-1 S)."""
    S, metric = random_covariance(rng, 4, 2), rng.uniform(0.1, 1.0, size=4)

    def loss(V):
        return np.linalg.slogdet(V)[1] + np.trace(np.linalg.solve(V, S))

    best = lift_eigenvalues(S, metric, 1.0)
    lowest = loss(best)
    for scale in np.logspace(-4, 0, 200):
        A = rng.normal(size=(4, 4))
        other = lift_eigenvalues(best + scale * (A + A.T), metric, 1.0)
        assert loss(other) >= lowest - 1e-12
    assert loss(S + np.diag(metric)) > lowest + 1e-3  # the other obvious way to stay above


# Full ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRICES)
def test_full_starts_where_it_is_told(rng, name):
    S = MATRICES[name](rng)
    covariance = FullCovariance(S)
    assert_relative(covariance(), S, 1e-11)
    [parameter] = covariance.trainable_parameters
    T = len(S)
    assert parameter.unconstrained_variable.shape == (T * (T + 1) // 2,)


def test_full_is_assigned_to(rng):
    covariance = FullCovariance(random_covariance(rng, 3), np.array([0.01, 0.02, 0.03]))
    S = random_covariance(rng, 3) + np.eye(3)
    covariance.assign(S)
    assert_allclose(covariance(), S, rtol=1e-12)
    L = covariance.factor.numpy()
    assert_allclose(L @ L.T + np.diag([0.01, 0.02, 0.03]), S, rtol=1e-12)
    assert_allclose(covariance.factor_of(S), L, rtol=1e-10)


def test_full_below_its_floor_becomes_the_closest_above(rng):
    S, floor = random_covariance(rng, 4, 2), rng.uniform(0.1, 1.0, size=4)
    covariance = FullCovariance(S, floor)
    assert_allclose(covariance(), lift_eigenvalues(S, floor, 1.0), rtol=1e-10, atol=1e-12)
    covariance.assign(2.0 * S)
    assert_allclose(covariance(), lift_eigenvalues(2.0 * S, floor, 1.0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("unit", [1e-19, 1.0, 1e19])
def test_full_far_below_its_floor_is_the_floor(unit, rng):
    """What is left above the floor is rounding, and has no correlations."""
    floor = unit * rng.uniform(0.1, 1.0, size=4)
    covariance = FullCovariance(1e-6 * unit * np.eye(4), floor)
    assert_allclose(covariance(), np.diag(floor), rtol=1e-11, atol=1e-11 * unit)
    covariance.assign(np.diag(floor))
    assert_allclose(covariance(), np.diag(floor), rtol=1e-11, atol=1e-11 * unit)


FLOOR = np.array([0.01, 0.2, 3.0])

BOUNDED = {
    "full": lambda S: FullCovariance(S, FLOOR),
    "low rank": lambda S: LowRankCovariance(S, 2, shared=False, floor=FLOOR),
    "low rank, shared": lambda S: LowRankCovariance(S, 2, shared=True, floor=FLOOR),
    "diagonal": lambda S: DiagonalCovariance(S, shared=False, floor=FLOOR),
    "diagonal, shared": lambda S: DiagonalCovariance(S, shared=True, floor=FLOOR),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_nothing_gets_below_the_floor(rng, name):
    """Whatever an optimiser does; and values at the floor can be read and assigned again."""
    covariance = BOUNDED[name](random_covariance(rng, 3))
    floor = np.full(3, 0.01) if "shared" in name else FLOOR
    for value in (-1e3, -1.0, 5.0):
        for variable in covariance.trainable_variables:
            variable.assign(tf.fill(variable.shape, tf.constant(value, variable.dtype)))
        S = covariance().numpy()
        assert np.linalg.eigvalsh(S - np.diag(floor))[0] >= -1e-12 * np.trace(S)
        if value == -1e3 and "low" not in name and "full" not in name:
            assert_allclose(S, np.diag(floor), rtol=1e-12)
            multiple_assign(covariance, read_values(covariance))
            assert_allclose(covariance(), np.diag(floor), rtol=1e-12)


# Low rank -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 4, 5])
def test_low_rank_is_what_it_says(rng, rank):
    for shared in (True, False):
        covariance = LowRankCovariance(random_covariance(rng, 5), rank, shared=shared)
        W, v = covariance.weights.numpy(), covariance.diagonal.numpy()
        assert W.shape == (5, rank) and v.shape == (() if shared else (5,))
        assert_allclose(covariance(), W @ W.T + np.diag(np.broadcast_to(v, 5)), rtol=1e-13)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_low_rank_keeps_the_largest_eigenvalues(rng, rank):
    """Probabilistic PCA: of all W W^T + s^2 I the one most likely to have second moments S."""
    S = random_covariance(rng, 5)
    start = LowRankCovariance(S, rank, shared=True)().numpy()
    values = np.linalg.eigvalsh(S)
    expected = np.concatenate([np.full(5 - rank, values[: 5 - rank].mean()), values[5 - rank :]])
    assert_allclose(np.linalg.eigvalsh(start), expected, rtol=1e-10)

    def loss(V):
        return np.linalg.slogdet(V)[1] + np.trace(np.linalg.solve(V, S))

    for scale in np.logspace(-3, 0, 50):
        W = np.linalg.eigh(start)[1][:, 5 - rank :] + scale * rng.normal(size=(5, rank))
        W = W * np.sqrt(np.maximum(values[5 - rank :] - expected[0], 0.0))
        assert loss(W @ W.T + expected[0] * np.eye(5)) >= loss(start) - 1e-10


def test_full_rank_plus_diagonal_is_the_matrix_itself(rng):
    S = random_covariance(rng, 4) + 0.5 * np.eye(4)
    for shared in (True, False):
        assert_allclose(LowRankCovariance(S, 4, shared=shared)(), S, rtol=1e-10)


def test_low_rank_start_knows_no_scales(rng):
    """Where each task has a variance of its own, other units give the same matrix in them."""
    S, scale = random_covariance(rng, 4), np.logspace(-3, 3, 4)
    start = LowRankCovariance(S, 1, shared=False)().numpy()
    other = LowRankCovariance(S * np.outer(scale, scale), 1, shared=False)().numpy()
    assert_allclose(other, start * np.outer(scale, scale), rtol=1e-8)
    assert_allclose(np.diag(start).sum(), np.trace(S), rtol=0.5)


def test_low_rank_start_of_a_diagonal_can_be_left(rng):
    """Weights that are all zero would have no gradient."""
    covariance = LowRankCovariance(np.eye(3), 2, shared=False)
    G = rng.normal(size=(3, 3))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(covariance() * (G + G.T))
    slope = tape.gradient(value, covariance.weights.unconstrained_variable)
    assert np.abs(slope).min() > 1e-4
    assert_allclose(covariance(), np.eye(3), atol=0.01)


# Diagonal -----------------------------------------------------------------------------------------


def test_diagonal(rng):
    S = random_covariance(rng, 4)
    own, shared = DiagonalCovariance(S, shared=False), DiagonalCovariance(S, shared=True)
    assert_allclose(own(), np.diag(np.diag(S)), rtol=1e-12)
    assert_allclose(shared(), np.mean(np.diag(S)) * np.eye(4), rtol=1e-12)
    assert own.diagonal.shape == (4,) and shared.diagonal.shape == ()


# Single precision ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 4])
def test_float32(rng, rank):
    S = random_covariance(rng, 4, rank).astype(np.float32)
    floor = np.full(4, 1e-3, np.float32)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        covariances = [
            FullCovariance(S),
            FullCovariance(S, floor),
            LowRankCovariance(S, 2, shared=True),
            LowRankCovariance(S, 2, shared=False, floor=floor),
            DiagonalCovariance(S, shared=True, floor=floor),
        ]
        values = [covariance() for covariance in covariances]
    assert {value.dtype for value in values} == {tf.float32}
    assert_allclose(values[0], S, atol=1e-5)
    assert_allclose(values[1], S, atol=2e-3)
    assert np.linalg.eigvalsh(values[1].numpy().astype(float))[0] > 5e-4
