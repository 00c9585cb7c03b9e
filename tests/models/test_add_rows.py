"""Rows that join a model for good: what it predicts and how it trains afterwards."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from problems import assert_close, random_covariance

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP


def kernel():
    return gpflow.kernels.Matern52(lengthscales=1.2)


def rows(rng, N=12, T=2):
    return rng.normal(size=(N, 2)), rng.normal(size=(N, T))


@pytest.mark.parametrize("before, after", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_equals_the_model_built_with_all_rows(rng, before, after):
    """The exact model, with and without missing targets in either part."""
    X, Y = rows(rng)
    Y[1, 0] = np.nan if before else Y[1, 0]
    Y[8:, 1] = np.nan if after else Y[8:, 1]
    matrices = random_covariance(rng, 2), random_covariance(rng, 2)
    model = KroneckerMTGP.ground_truth((X[:8], Y[:8]), kernel(), *matrices)
    model.add_rows(X[8:], Y[8:])
    expected = KroneckerMTGP.ground_truth((X, Y), kernel(), *matrices)
    assert model.num_rows == 12
    assert_close(model.log_marginal_likelihood(), expected.log_marginal_likelihood())
    for actual, wanted in zip(model.predict_y(X + 0.1), expected.predict_y(X + 0.1), strict=True):
        assert_close(actual, wanted)
    assert_close(model.impute().Y, expected.impute().Y)


def test_the_chain_recovers_from_all_rows(rng):
    X, Y = rows(rng)
    options = {"b": [0.5, 1.0], "sigma2": [0.1, 0.2]}
    model = CoolMTGP((X[:8], Y[:8]), kernel(), **options)
    model.add_rows(X[8:], Y[8:])
    expected = CoolMTGP((X, Y), kernel(), **options)
    assert_close(model.noise_covariance(), expected.noise_covariance())
    assert_close(model.training_loss(), expected.training_loss())


@pytest.mark.slow
def test_training_goes_on_from_the_present_parameters(rng):
    X = np.linspace(0.0, 3.0, 24)[:, None]
    Y = np.hstack([np.sin(2 * X), np.cos(2 * X)]) + 0.1 * rng.normal(size=(24, 2))
    model = CoolMTGP((X[:20], Y[:20]), gpflow.kernels.SquaredExponential())
    model.fit(verbose=0)
    model.add_rows(X[20:], Y[20:])
    loss = float(model.training_loss())
    again = model.fit(verbose=0)
    assert again.history["loss"][0] <= loss + 1e-9
    assert float(model.training_loss()) <= loss
    model.add_rows(X[:2] + 0.05, np.array([[np.nan, 1.0], [0.1, np.nan]]))
    assert_close(model.completions[:, :24], Y[None])  # observed targets are what they are
    model.fit(verbose=0, rounds=2)
    assert np.isfinite(model.predict_f(X)[0]).all()


def test_variables_grow(rng):
    X, Y = rows(rng)
    data = [
        tf.Variable(part[:8], shape=[None, 2], trainable=False, dtype=tf.float64) for part in (X, Y)
    ]
    model = CoolMTGP(tuple(data), kernel(), b=1.0, sigma2=0.1)
    model.add_rows(X[8:], Y[8:])
    assert_close(data[1], Y)
    expected = CoolMTGP((X, Y), kernel(), b=1.0, sigma2=0.1)
    assert_close(model.predict_f(X)[0], expected.predict_f(X)[0])
    before = float(model.training_loss())
    assert model.fit(verbose=0).converged and float(model.training_loss()) < before
    with pytest.raises(ValueError, match="Y is a tf.Variable, which must not have NaN"):
        model.add_rows(X[:1], [[np.nan, 1.0]])
    assert model.num_rows == 12


def test_bad_rows_are_refused_and_leave_the_model_alone(rng):
    X, Y = rows(rng)
    fixed = tuple(tf.Variable(part, trainable=False) for part in (X, Y))
    with pytest.raises(ValueError, match=r"X is a tf.Variable of 12 rows, which cannot take more"):
        CoolMTGP(fixed, kernel()).add_rows(X, Y)
    model = CoolMTGP((X, Y), kernel())
    for more, message in [
        ((X[:, :1], Y), r"Xnew has shape \(12, 1\)"),
        ((X, Y[:3]), r"row m of Ynew with the targets"),
        ((X, np.stack([Y, Y])), r"Ynew has shape \(2, 12, 2\): pass \[q, 2\]"),
        ((X, np.full_like(Y, np.inf)), "infinite"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.add_rows(*more)
    assert model.num_rows == 12


@pytest.mark.parametrize("stream", [None, "rows", "chunks"])
def test_inducing_points_see_all_rows(rng, stream):
    """Arrays, a stream of rows, and a stream of chunks; new rows fill several chunks."""
    X, Y = rows(rng, 15)
    options = {"b": [0.5, 1.0], "sigma2": [0.1, 0.2], "chunk_rows": 4}
    data = X[:6], Y[:6].astype(np.float32) if stream else Y[:6]
    if stream:
        data = tf.data.Dataset.from_tensor_slices(data)
        data = data.batch(5) if stream == "chunks" else data
        Y = Y.astype(np.float32).astype(np.float64)
    model = SparseCoolMTGP(data, kernel(), X[:5], **options)
    model.add_rows(X[6:], Y[6:])
    expected = SparseCoolMTGP((X, Y), kernel(), X[:5], **options)
    assert model.num_rows == 15
    assert_close(model.scales, expected.scales)
    assert_close(model.training_loss(), expected.training_loss())
    for actual, wanted in zip(model.predict_y(X + 0.1), expected.predict_y(X + 0.1), strict=True):
        assert_close(actual, wanted)
    assert_close(np.sort(model.data[0], axis=0), np.sort(X, axis=0))


def test_bad_rows_leave_the_sparse_model_alone(rng, tmp_path):
    X, Y = rows(rng)
    model = SparseCoolMTGP((X, Y), kernel(), X[:5])
    loss = model.training_loss()
    for more, message in [
        ((X, np.full_like(Y, np.nan)), r"Y\[12, 0\] is nan"),
        ((X, np.stack([Y, Y])), r"Ynew has shape \(2, 12, 2\): pass \[q, 2\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.add_rows(*more)
    assert model.num_rows == 12
    assert_close(model.training_loss(), loss)
    mapped = np.memmap(tmp_path / "X", np.float64, "w+", shape=X.shape)
    mapped[:] = X
    with pytest.raises(ValueError, match="append the rows to the file"):
        SparseCoolMTGP((mapped, Y), kernel(), X[:5]).add_rows(X, Y)
