"""Rows given to a posterior, against dense algebra on all rows, and against the rebuilt model."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from gpflow.posteriors import PrecomputeCacheType
from patterns import random_joint
from problems import LAYOUTS, assert_close, assert_moments, random_covariance

from gpflow_cool import CoolMTGP, KroneckerMTGP, SparseCoolMTGP
from gpflow_cool.joint import missing

OFFSET = 0.7
SIZES = [(12, 3, 1), (12, 3, 3), (6, 2, 50), (1, 3, 2), (7, 1, 3), (3, 5, 4)]
"""N, T, q."""


def k(X1, X2):
    return ref.squared_exponential(X1, X2, 1.3, 1.5)


def exact_model(X, Y, C, Sigma):
    kernel = gpflow.kernels.SquaredExponential(1.3, 1.5)
    mean = gpflow.mean_functions.Constant(OFFSET)
    return KroneckerMTGP.ground_truth((X, Y), kernel, C, Sigma, mean_function=mean)


def random_rows(rng, N, T):
    return rng.normal(size=(N, 2)), rng.normal(size=(N, T))


def dense_moments(X, Y, Xnew, C, Sigma, *, noise):
    """Mean [M, T] and covariance [M, T, M, T] given the observed targets of all rows."""
    S, o = ref.joint_covariance(k(X, X), C, Sigma), np.isfinite(Y).ravel(order="F")
    cross = np.kron(C, k(X, Xnew))[o]
    gain = np.linalg.solve(S[np.ix_(o, o)], cross).T
    M, T = len(Xnew), len(C)
    mean = OFFSET + (gain @ (Y.ravel(order="F")[o] - OFFSET)).reshape(T, M).T
    cov = (np.kron(C, k(Xnew, Xnew)) - gain @ cross).reshape(T, M, T, M).transpose(1, 0, 3, 2)
    return mean, cov + np.einsum("mn,tu->mtnu", np.eye(M), Sigma) * noise


def check_against_dense(posterior, X, Y, C, Sigma, Xnew, rtol):
    for predict, noise in [(posterior.predict_f, False), (posterior.predict_y, True)]:
        mean, cov = dense_moments(X, Y, Xnew, C, Sigma, noise=noise)
        for flags in LAYOUTS:
            actual_mean, actual_cov = predict(tf.constant(Xnew), *flags)
            assert_close(actual_mean, mean, rtol)
            assert_close(actual_cov, ref.layout(cov, *flags), rtol)
        assert_close(posterior.predict_mean(Xnew), mean, rtol)


def with_holes(rng, Y):
    """About a third missing, the first entry for certain."""
    holes = rng.uniform(size=Y.shape) < 0.3
    holes[0, 0] = True
    return np.where(holes, np.nan, Y)


@pytest.mark.slow
@pytest.mark.parametrize("N, T, q", SIZES)
def test_twice_in_a_row_equals_dense(rng, N, T, q):
    (X, Y), (X1, Y1), (X2, Y2) = (random_rows(rng, size, T) for size in (N, q, 2))
    C, Sigma, Xnew = random_covariance(rng, T), random_covariance(rng, T), rng.normal(size=(3, 2))
    posterior = exact_model(X, Y, C, Sigma).posterior()
    first = posterior.condition_on(X1, Y1)
    second = first.condition_on(X2, Y2)
    once = np.vstack([X, X1]), np.vstack([Y, Y1])
    check_against_dense(first, *once, C, Sigma, Xnew, 1e-8)
    twice = np.vstack([*once[:1], X2]), np.vstack([*once[1:], Y2])
    check_against_dense(second, *twice, C, Sigma, Xnew, 1e-8)


def predictions(posterior, Xnew, Ynew):
    known = np.where(np.arange(Ynew.size).reshape(Ynew.shape) % 2, np.nan, Ynew)
    Xnew, Ynew = tf.constant(Xnew), tf.constant(Ynew)
    return [
        *(posterior.predict_log_density(Xnew, Ynew, *flags) for flags in LAYOUTS),
        *posterior.predict_given(Xnew, tf.constant(known), noise=False),
        *posterior.predict_given(Xnew, tf.constant(known), noise=True),
        *posterior.predict_f(tf.stack([Xnew, Xnew + 0.1]), True, True),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("holes", [False, True])
def test_every_prediction_equals_that_of_the_rebuilt_model(rng, holes):
    X, Y = random_rows(rng, 9, 3)
    Y[4:] = with_holes(rng, Y[4:]) if holes else Y[4:]
    C, Sigma = random_covariance(rng, 3), random_covariance(rng, 3)
    given = exact_model(X[:4], Y[:4], C, Sigma).posterior().condition_on(X[4:], Y[4:])
    rebuilt = exact_model(X, Y, C, Sigma).posterior()
    points = random_rows(rng, 3, 3)
    for actual, expected in zip(
        predictions(given, *points), predictions(rebuilt, *points), strict=True
    ):
        assert_close(actual, expected, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("max_dense, rtol", [(2000, 1e-8), (0, 1e-6)])
def test_missing_targets_before_and_after(rng, monkeypatch, max_dense, rtol):
    """In the training data, in the new rows, and in both; complete rows in between."""
    monkeypatch.setattr(missing, "MAX_DENSE", max_dense)
    j = random_joint(rng, 7, 3, "random_pattern")
    (X1, Y1), (X2, Y2), (X3, Y3) = (random_rows(rng, size, 3) for size in (3, 1, 4))
    Y1, Y3 = with_holes(rng, Y1), with_holes(rng, Y3)
    Y3[1] = np.nan  # a row without any target
    for targets in (j.with_holes, j.Y):
        posterior = exact_model(j.X, targets, j.C, j.Sigma).posterior()
        X, Y = j.X, targets
        for more_X, more_Y in [(X1, Y1), (X2, Y2), (X3, Y3)]:
            posterior = posterior.condition_on(more_X, more_Y)
            X, Y = np.vstack([X, more_X]), np.vstack([Y, more_Y])
        check_against_dense(posterior, X, Y, j.C, j.Sigma, j.Xnew, rtol)


def test_rows_seen_through_inducing_points(rng):
    """The posterior given inducing points is a Gaussian process, conditioned on dense rows."""
    (X, Y), (X1, Y1), (Xnew, _) = (random_rows(rng, size, 2) for size in (20, 4, 3))
    kernel = gpflow.kernels.SquaredExponential(1.3, 1.5)
    model = SparseCoolMTGP((X, Y), kernel, X[:5], b=[0.9, 1.4], sigma2=[0.2, 0.3])
    posterior = model.posterior()
    for holes in (Y1, with_holes(rng, Y1)):
        mean, cov = (
            np.asarray(part) for part in posterior.predict_f(np.vstack([Xnew, X1]), True, True)
        )
        S, o = cov.reshape(14, 14).copy(), 6 + np.flatnonzero(np.isfinite(holes))
        noisy = S + np.kron(np.eye(7), model.noise_covariance())
        gain = np.linalg.solve(noisy[np.ix_(o, o)], S[o, :6]).T
        expected = mean[:3].ravel() + gain @ (holes.ravel()[o - 6] - mean.ravel()[o])
        given = posterior.condition_on(X1, holes)
        actual_mean, actual_cov = given.predict_f(Xnew, True, True)
        assert_close(actual_mean, expected.reshape(3, 2), 1e-8)
        assert_close(np.reshape(actual_cov, (6, 6)), S[:6, :6] - gain @ S[o, :6], 1e-8)


@pytest.mark.slow
def test_inducing_points_in_a_graph_that_is_differentiated(rng):
    """By the new inputs, compiled, against differences of what is not."""
    (X, Y), (X1, Y1), (Xnew, _) = (random_rows(rng, size, 2) for size in (12, 2, 3))
    kernel = gpflow.kernels.SquaredExponential(1.3, 1.5)
    model = SparseCoolMTGP((X, Y), kernel, X[:4], b=[0.9, 1.4], sigma2=[0.2, 0.3])
    posterior = model.posterior()

    def total(X1):
        mean, cov = posterior.condition_on(X1, Y1).predict_f(Xnew, False, True)
        return tf.reduce_sum(mean) + tf.reduce_sum(cov)

    gradient = tf.function(lambda X1: tf.gradients(total(X1), X1)[0])(tf.constant(X1))
    for entry in [(0, 0), (1, 1)]:
        step = np.zeros_like(X1)
        step[entry] = 1e-5
        assert_close(gradient[entry], (total(X1 + step) - total(X1 - step)) / 2e-5, 1e-6)


@pytest.mark.parametrize("kernel", [gpflow.kernels.Linear(0.7), gpflow.kernels.Matern32()])
def test_models_of_the_chain(rng, kernel):
    """C and Sigma stay those that were recovered from the first rows."""
    X, Y = random_rows(rng, 15, 3)
    model = CoolMTGP((X[:12], Y[:12]), kernel, b=[0.5, 1.0, 2.0], sigma2=[0.1, 0.2, 0.3])
    C, Sigma = model.task_covariance(), model.noise_covariance()
    rebuilt = KroneckerMTGP.ground_truth((X, Y), kernel, C, Sigma).posterior()
    given = model.posterior().condition_on(X[12:], Y[12:])
    for flags in LAYOUTS:
        for actual, expected in zip(
            given.predict_y(X[:3], *flags), rebuilt.predict_y(X[:3], *flags), strict=True
        ):
            assert_close(actual, expected, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("holes", [False, True])
def test_outcomes_are_conditioned_on_one_by_one(rng, holes):
    """First one outcome, then several, then one again, as all orders of shapes may come."""
    (X, Y), (Xnew, Ynew) = random_rows(rng, 7, 2), random_rows(rng, 3, 2)
    C, Sigma = random_covariance(rng, 2), random_covariance(rng, 2)
    Y1, Y2 = rng.normal(size=(2, 2)), rng.normal(size=(4, 3, 5, 2))
    if holes:
        Y1[1, 0] = Y2[..., 2, 1] = np.nan
    X1, X2 = rng.normal(size=(2, 2)), rng.normal(size=(5, 2))
    start = exact_model(X, Y, C, Sigma).posterior().condition_on(X1, Y1)
    together = start.condition_on(X2, Y2)
    after = together.condition_on(X1 + 0.3, Y1)
    one = start.condition_on(X2, Y2[3, 1])
    for a, e in zip(predictions(together, Xnew, Ynew), predictions(one, Xnew, Ynew), strict=True):
        assert a.shape[:2] == (4, 3)
        assert_close(a[3, 1], e, 1e-9)
    actual, expected = after.predict_f(Xnew), one.condition_on(X1 + 0.3, Y1).predict_f(Xnew)
    assert_close(actual[0][3, 1], expected[0], 1e-9)
    assert_close(actual[1][3, 1], expected[1], 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("holes", [False, True])
def test_draws_have_the_moments_of_the_posterior(rng, holes):
    """20,000 draws of functions and observations, within five standard errors."""
    (X, Y), (X1, Y1), (Xnew, _) = (random_rows(rng, size, 2) for size in (5, 3, 3))
    Y1 = with_holes(rng, Y1) if holes else Y1
    C, Sigma = random_covariance(rng, 2), random_covariance(rng, 2)
    given = exact_model(X, Y, C, Sigma).posterior().condition_on(X1, Y1)
    for full_cov in (False, True):
        mean, cov = dense_moments(
            np.vstack([X, X1]), np.vstack([Y, Y1]), Xnew, C, Sigma, noise=full_cov
        )
        keep = 1.0 if full_cov else np.eye(3)[:, None, :, None]
        draws = given.predict_samples(Xnew, 20_000, full_cov, True, noise=full_cov, seed=(1, 2))
        assert_moments(np.reshape(draws, (-1, 6)), mean.ravel(), (cov * keep).reshape(6, 6))


@pytest.mark.slow
def test_gradients_by_new_inputs(rng):
    (X, Y), (X1, Y1), (Xnew, _) = (random_rows(rng, size, 2) for size in (8, 3, 2))
    C, Sigma = random_covariance(rng, 2), random_covariance(rng, 2)
    for targets, new in [(Y, with_holes(rng, Y1)), (with_holes(rng, Y), Y1)]:
        posterior = exact_model(X, targets, C, Sigma).posterior()

        def total(X1, posterior=posterior, new=new):
            mean, cov = posterior.condition_on(X1, new).predict_f(Xnew, False, True)
            return tf.reduce_sum(mean) + tf.reduce_sum(cov)

        inputs = tf.Variable(X1)
        with tf.GradientTape() as tape:
            value = total(inputs)
        gradient = tape.gradient(value, inputs)
        for entry in [(0, 0), (2, 1)]:
            step = np.zeros_like(X1)
            step[entry] = 1e-5
            difference = (total(X1 + step) - total(X1 - step)) / 2e-5
            assert_close(gradient[entry], difference, 1e-6)


@pytest.mark.slow
def test_graphs_that_are_given_targets(rng):
    """Targets that a graph does not know: complete ones, and any where the data has holes."""
    (X, Y), (X1, Y1), (Xnew, _) = (random_rows(rng, size, 2) for size in (8, 3, 2))
    C, Sigma = random_covariance(rng, 2), random_covariance(rng, 2)
    complete, holes = (exact_model(X, y, C, Sigma).posterior() for y in (Y, with_holes(rng, Y)))

    def mean_given(posterior):
        return tf.function(lambda Y1: posterior.condition_on(X1, Y1).predict_f(Xnew)[0])

    missing_Y1 = with_holes(rng, Y1)
    for posterior, targets in [(complete, Y1), (holes, missing_Y1), (holes, Y1)]:
        expected = posterior.condition_on(X1, targets).predict_f(Xnew)[0]
        assert_close(mean_given(posterior)(tf.constant(targets)), expected, 1e-10)
    with pytest.raises(tf.errors.InvalidArgumentError, match="complete rows only"):
        mean_given(complete)(tf.constant(missing_Y1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "cache, holes", [("tensor", True), ("variable", False), ("variable", True), ("nocache", False)]
)
def test_update_cache_follows_new_parameters(rng, cache, holes):
    """Until then the posterior stays as it was, whatever becomes of the one it came from."""
    (X, Y), (X1, Y1), (Xnew, _) = (random_rows(rng, size, 2) for size in (8, 3, 2))
    Y1 = with_holes(rng, Y1) if holes else Y1
    C, Sigma = random_covariance(rng, 2), random_covariance(rng, 2)
    model = exact_model(X, Y, C, Sigma)
    posterior = model.posterior(cache)
    given = posterior.condition_on(X1, Y1).condition_on(X1 + 1.0, Y1)
    model.noise.assign(2.0 * Sigma)
    posterior.update_cache()
    rows = np.vstack([X, X1, X1 + 1.0]), np.vstack([Y, Y1, Y1])
    for noise in (Sigma, 2.0 * Sigma):
        expected = dense_moments(*rows, Xnew, C, noise, noise=True)
        actual = given.predict_y(Xnew, True, True)
        assert_close(actual[0], expected[0], 1e-8)
        assert_close(actual[1], expected[1], 1e-8)
        given.update_cache()


@pytest.mark.parametrize("holes", [False, True])
def test_a_conditioned_posterior_keeps_its_cache(rng, holes):
    """
    Without one it would mix added rows at old parameters with a solution at new ones; so would a
    graph of one with variables.
    """
    (X, Y), (X1, Y1) = random_rows(rng, 6, 2), random_rows(rng, 2, 2)
    model = exact_model(X, Y, random_covariance(rng, 2), random_covariance(rng, 2))
    given = model.posterior().condition_on(X1, with_holes(rng, Y1) if holes else Y1)
    before = given.predict_f(X1)[0]
    for kind in (PrecomputeCacheType.NOCACHE, PrecomputeCacheType.VARIABLE):
        with pytest.raises(ValueError, match="conditioned on more rows, and what was computed of"):
            given.update_cache(kind)
    assert_close(given.predict_f(X1)[0], before, 0)


def test_single_precision(rng):
    (X, Y), (X1, Y1), (Xnew, _) = (random_rows(rng, size, 2) for size in (8, 3, 2))
    C, Sigma = random_covariance(rng, 2), random_covariance(rng, 2)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        for targets in (Y1, with_holes(rng, Y1)):
            given = exact_model(X, Y, C, Sigma).posterior().condition_on(X1, targets)
            mean, cov = given.predict_f(Xnew, True, True)
            assert mean.dtype == cov.dtype == tf.float32
            rows = np.vstack([X, X1]), np.vstack([Y, targets])
            expected = dense_moments(*rows, Xnew, C, Sigma, noise=False)
            assert_close(mean, expected[0], 1e-3)
            assert_close(cov, expected[1], 1e-3)


@pytest.mark.parametrize(
    "X1, Y1, message",
    [
        (np.zeros((2, 3)), np.zeros((2, 2)), r"Xnew has shape \(2, 3\), but the model was trained"),
        (np.zeros((2, 2)), np.zeros((2, 3)), r"Ynew has shape \(2, 3\), but the model has 2 tasks"),
        (np.zeros((2, 2)), np.zeros((3, 2)), r"pass \[q, 2\] and \[\.\.\., q, 2\]"),
        (np.zeros((4, 2, 2)), np.zeros((4, 2, 2)), r"pass \[q, 2\] and \[\.\.\., q, 2\]"),
        (np.zeros((1, 2)), [[0.0, np.inf]], r"Ynew\[0, 1\] is infinite"),
        (np.full((1, 2), np.nan), np.zeros((1, 2)), r"Xnew\[0, 0\] is nan"),
        (np.zeros((0, 2)), np.zeros((0, 2)), "have no rows: pass at least one"),
        (np.zeros((1, 2)), [[[0.0, 1.0]], [[0.0, np.nan]]], r"Ynew\[\.\.\., 0, 1\] is NaN in some"),
    ],
)
def test_bad_rows_are_refused(rng, X1, Y1, message):
    X, Y = random_rows(rng, 4, 2)
    posterior = exact_model(X, Y, np.eye(2), np.eye(2)).posterior()
    with pytest.raises(ValueError, match=message):
        posterior.condition_on(X1, Y1)


def test_probabilities_are_of_one_outcome(rng):
    X, Y = random_rows(rng, 4, 2)
    posterior = exact_model(X, Y, np.eye(2), np.eye(2)).posterior()
    several = posterior.condition_on(X[:1] + 0.1, np.stack([Y[:1], -Y[:1], Y[1:2]]))
    with pytest.raises(ValueError, match="conditioned on one outcome"):
        several.probability(X, [0.0, 0.0])
    each = several.probability(X, [0.0, 0.0], "each").probability
    for n, outcome in enumerate((Y[:1], -Y[:1], Y[1:2])):
        one = posterior.condition_on(X[:1] + 0.1, outcome)
        assert_close(each[n], one.probability(X, [0.0, 0.0], "each").probability, 1e-10)


@pytest.mark.slow
def test_rows_on_a_grid(rng):
    """The posterior of a grid is given rows off the grid, and functions are drawn from it."""
    axes = np.linspace(0.0, 2.0, 4), np.linspace(0.0, 1.0, 3)
    X = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    Y = rng.normal(size=(12, 2))
    (X1, Y1), (Xnew, _) = random_rows(rng, 3, 2), random_rows(rng, 3, 2)
    kernel = gpflow.kernels.SquaredExponential(1.3, lengthscales=1.5)
    model = CoolMTGP((X, Y), kernel, b=[0.9, 1.4], sigma2=[0.2, 0.3], engine="grid")
    C, Sigma = model.task_covariance(), model.noise_covariance()
    for targets in (Y1, with_holes(rng, Y1)):
        given = model.posterior().condition_on(X1, targets)
        rows = np.vstack([X, X1]), np.vstack([Y, targets])
        rebuilt = KroneckerMTGP.ground_truth(rows, kernel, C, Sigma).posterior()
        for flags in LAYOUTS:
            for actual, expected in zip(
                given.predict_y(Xnew, *flags), rebuilt.predict_y(Xnew, *flags), strict=True
            ):
                assert_close(actual, expected, 1e-8)
        draws = np.reshape(given.sample_functions(4000, seed=1).values(tf.constant(Xnew)), (-1, 6))
        mean, cov = rebuilt.predict_f(Xnew, True, True)
        assert_moments(draws, np.ravel(mean), np.reshape(cov, (6, 6)))
