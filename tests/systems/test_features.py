"""Features of inducing points, and how the points are chosen."""

import gpflow
import numpy as np
import pandas as pd
import pytest
import reference as ref
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints
from numpy.testing import assert_allclose
from problems import assert_close

from gpflow_cool import choose_inducing_points
from gpflow_cool.systems.features import InducingFeatures, constant_left, greedy_rows

SE = gpflow.kernels.SquaredExponential


def test_features_give_what_inducing_points_see(rng):
    X, Z = rng.normal(size=(8, 2)), rng.normal(size=(3, 2))
    features = InducingFeatures(SE(lengthscales=1.5), InducingPoints(Z))
    F = tf.matmul(features.whitening(), features.cross(X), transpose_a=True)
    Kmm, Kmn = (ref.squared_exponential(Z, A, 1.0, 1.5) for A in (Z, X))
    assert_close(tf.matmul(F, F, transpose_a=True), ref.inducing_kernel(Kmm, Kmn))
    assert_close(features.diagonal(X), np.ones(8))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_points_that_coincide_see_as_much_as_one(rng, dtype):
    points, X = rng.normal(size=(3, 2)).astype(dtype), rng.normal(size=(5, 2)).astype(dtype)
    Z = np.repeat(points, 100, axis=0)
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        features = InducingFeatures(SE(), InducingPoints(Z))
        W, Kmn = features.whitening(), features.cross(X)
    assert W.dtype == tf.float64
    Kmm, Kmn_of_one = (ref.squared_exponential(points, A) for A in (points, X))
    F = W.numpy().T @ Kmn.numpy()
    expected = ref.inducing_kernel(Kmm, Kmn_of_one)
    assert_close(F.T @ F, expected, rtol=1e-12 if dtype == np.float64 else 1e-4)


def conditional_variances(kernel, X, chosen):
    """k(x, x) given the values at the chosen rows, by dense algebra."""
    K = kernel(X).numpy()
    S = K[np.ix_(chosen, chosen)] + 1e-12 * np.eye(len(chosen))
    return np.diag(K) - np.einsum("mn,mn->n", K[chosen], np.linalg.solve(S, K[chosen]))


def test_greedy_takes_the_row_that_the_others_know_least(rng):
    X, kernel = rng.normal(size=(30, 2)), SE(lengthscales=0.8)
    chosen = greedy_rows(kernel, X, 10)
    for m in range(1, 10):
        v = conditional_variances(kernel, X, chosen[:m])
        assert v[chosen[m]] >= v.max() - 1e-8


def test_greedy_stops_when_all_is_known(rng):
    X = np.repeat(rng.normal(size=(4, 2)), 5, axis=0)
    assert len(greedy_rows(SE(), X, 15)) == 4
    assert len(greedy_rows(gpflow.kernels.Linear(), rng.normal(size=(20, 2)), 10)) == 2
    assert len(greedy_rows(gpflow.kernels.Linear(), np.zeros((5, 2)), 3)) == 1


def test_default_number_and_more_points_than_rows(rng):
    X = rng.normal(size=(400, 1))
    assert len(choose_inducing_points(X, SE(lengthscales=1e-3))) == 300
    assert len(choose_inducing_points(X[:20], SE(lengthscales=1e-3))) == 20
    assert len(choose_inducing_points(X[:20], SE(lengthscales=1e-3), 50)) == 20


def test_k_means_finds_clusters(rng):
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    X = np.concatenate([c + 0.1 * rng.normal(size=(50, 2)) for c in centres])
    Z = choose_inducing_points(X, SE(), 3, method="k-means")
    distances = np.linalg.norm(Z[:, None] - centres[None], axis=-1)
    assert distances.min(axis=0).max() < 0.1


@pytest.mark.slow
def test_candidates_are_drawn_where_rows_are_many(rng, monkeypatch):
    monkeypatch.setattr("gpflow_cool.systems.features.MAX_CANDIDATES", 50)
    X = rng.normal(size=(500, 2))
    Z = choose_inducing_points(X, SE(lengthscales=0.1), 20)
    assert all(np.any(np.all(X == z, axis=1)) for z in Z)
    assert_close(Z, choose_inducing_points(X, SE(lengthscales=0.1), 20), rtol=0)
    assert not np.array_equal(Z, choose_inducing_points(X, SE(lengthscales=0.1), 20, seed=1))


READERS = {
    "frame": pd.DataFrame,
    "frame in another order": lambda X: pd.DataFrame(X, index=range(len(X), 0, -1)),
    "tensor": tf.constant,
    "variable": lambda X: tf.Variable(X, trainable=False),
    "list": np.ndarray.tolist,
}


@pytest.mark.parametrize("name", READERS)
def test_many_rows_may_come_in_any_form(rng, monkeypatch, name):
    monkeypatch.setattr("gpflow_cool.systems.features.MAX_CANDIDATES", 20)
    X = rng.normal(size=(50, 2))
    expected = choose_inducing_points(X, SE(), 4)
    assert_close(choose_inducing_points(READERS[name](X), SE(), 4), expected, rtol=0)


def test_only_candidates_of_a_file_are_read(rng, monkeypatch, tmp_path):
    monkeypatch.setattr("gpflow_cool.systems.features.MAX_CANDIDATES", 20)
    X = rng.normal(size=(50, 2))
    expected = choose_inducing_points(X, SE(), 4)
    drawn = np.random.default_rng(0).choice(50, 20, replace=False)
    X[np.setdiff1d(np.arange(50), drawn)] = np.nan  # would be refused
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    assert_close(choose_inducing_points(mapped, SE(), 4), expected, rtol=0)


def test_k_means_gives_each_different_row_once(rng):
    rows = rng.normal(size=(3, 2))
    for num_points in (3, 10):
        X = rng.permutation(np.repeat(rows, 5, axis=0))
        Z = choose_inducing_points(X, SE(), num_points, method="k-means")
        assert_close(Z, rows[np.argsort(rows[:, 0])], rtol=0)


@pytest.mark.parametrize("method", ["greedy", "k-means"])
def test_kernel_must_fit_the_columns(rng, method):
    X = rng.normal(size=(5, 2))
    text = r"SquaredExponential has active_dims=\[2\], but X has 2 columns: .* from 0 to 1"
    with pytest.raises(ValueError, match=text):
        choose_inducing_points(X, SE(active_dims=[2]), 3, method=method)
    with pytest.raises(ValueError, match="has 3 lengthscales, but it sees 2 columns of X"):
        choose_inducing_points(X, SE(lengthscales=[1.0, 2.0, 3.0]), 3, method=method)
    for bad in (X[:, 0], 1.0, [[]]):
        with pytest.raises(ValueError, match="X has shape"):
            choose_inducing_points(bad, SE(), 3, method=method)


def test_options_are_checked(rng):
    X = rng.normal(size=(5, 2))
    with pytest.raises(ValueError, match="method='random' is not known"):
        choose_inducing_points(X, SE(), 3, method="random")
    with pytest.raises(ValueError, match="kernel is None, but a gpflow.kernels.Kernel object"):
        choose_inducing_points(X, None)
    with pytest.raises(ValueError, match="num_points=0 must be a whole number of at least 1"):
        choose_inducing_points(X, SE(), 0)
    with pytest.raises(ValueError, match="num_points=-1 must be"):
        choose_inducing_points(X, SE(), -1)
    with pytest.raises(ValueError, match=r"kernel is None, but a gpflow.kernels.Kernel object"):
        choose_inducing_points(X, None, 3)


def test_what_is_left_of_a_constant(rng):
    X = rng.normal(size=(9, 1)) + 2.0
    sine = np.sqrt(1.0 - X.sum() ** 2 / (9 * np.sum(X**2)))  # of the angle between X and ones
    assert_allclose(constant_left(1e-12 * X), sine, rtol=1e-12)
    assert_allclose(constant_left(np.hstack([1e12 * X, X * 0.0])), sine, rtol=1e-12)
    assert constant_left(np.hstack([1e12 * X, X * 0.0 + 1e-12])) < 1e-14
