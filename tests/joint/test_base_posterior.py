"""What every posterior does alike: known tasks, mean functions, batches, caches."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from gpflow.posteriors import PrecomputeCacheType
from numpy.testing import assert_allclose
from patterns import random_joint
from problems import (
    CASES,
    LAYOUTS,
    assert_close,
    joint_arguments,
    random_problem,
    rows_left_out,
    some_known,
)

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.joint.solved_posterior import cache_type, task_matrices


def model_of(p, mean_function=None, **options):
    kernel = p.gpflow_kernel()
    return CoolMTGP((p.X, p.Y), kernel, mean_function, b=p.b, sigma2=p.sigma2, **options)


def all_predictions(posterior, Xnew, Ynew):
    """All that a cached posterior predicts without chance, by name."""
    Xnew, Ynew, known = map(tf.constant, (Xnew, Ynew, some_known(Ynew)))
    result = {}
    for flags in LAYOUTS:
        result[("f", *flags)] = posterior.predict_f(Xnew, *flags)
        result[("y", *flags)] = posterior.predict_y(Xnew, *flags)
        result[("density", *flags)] = (posterior.predict_log_density(Xnew, Ynew, *flags),)
    result["f given"] = posterior.predict_given(Xnew, known, noise=False)
    result["y given"] = posterior.predict_given(Xnew, known, noise=True)
    return {name: tuple(map(np.asarray, value)) for name, value in result.items()}


def model_predictions(model, Xnew, Ynew):
    """The same from a model, which takes arrays and caches nothing."""
    known, result = some_known(Ynew), {}
    for flags in LAYOUTS:
        result[("f", *flags)] = model.predict_f(Xnew, *flags)
        result[("y", *flags)] = model.predict_y(Xnew, *flags)
        result[("density", *flags)] = (model.predict_log_density((Xnew, Ynew), *flags),)
    result["f given"] = model.predict_f_given(Xnew, known, full_output_cov=True)
    result["y given"] = model.predict_y_given(Xnew, known, full_output_cov=True)
    return {name: tuple(map(np.asarray, value)) for name, value in result.items()}


def assert_all_close(actual, expected, rtol):
    assert actual.keys() == expected.keys()
    for name in expected:
        for a, e in zip(actual[name], expected[name], strict=True):
            assert_close(a, e, rtol)


# Some tasks known at the test points


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_predictions_given_some_tasks(rng, case):
    """Nothing known at the first point, everything at the second, every other task at the third."""
    p = CASES[case](rng)
    posterior, Xnew = model_of(p).posterior(), tf.constant(p.Xnew)
    for first in (0, 1):
        Ynew = p.Ynew.copy()
        Ynew[0] = np.nan
        Ynew[2, first::2] = np.nan
        expected = ref.predict_given(*joint_arguments(p), Ynew)
        f_mean, f_cov = posterior.predict_given(Xnew, tf.constant(Ynew), noise=False)
        y_mean, y_cov = posterior.predict_given(Xnew, tf.constant(Ynew), noise=True)
        assert_close(f_mean, expected.f_mean, rtol=1e-8)
        assert_close(f_cov, expected.f_cov, rtol=1e-8)
        assert_close(y_mean, expected.y_mean, rtol=1e-8)
        assert_close(y_cov, expected.y_cov, rtol=1e-8)


def test_known_observations_keep_their_value_exactly(rng):
    p = random_problem(rng, 7, 3)
    Ynew = p.Ynew.copy()
    Ynew[:, 1] = np.nan
    mean, cov = model_of(p).predict_y_given(p.Xnew, Ynew, full_output_cov=True)
    assert_allclose(mean.numpy()[:, [0, 2]], Ynew[:, [0, 2]], rtol=0)
    unknown = np.outer([0, 1, 0], [0, 1, 0]).astype(bool)
    assert (cov.numpy()[:, ~unknown] == 0.0).all()
    assert (cov.numpy()[:, unknown] > 0.01).all()


@pytest.mark.parametrize("name", ["predict_f_given", "predict_y_given"])
def test_given_returns_variances_unless_asked_for_covariances(rng, name):
    p = random_problem(rng, 7, 3)
    predict, Ynew = getattr(model_of(p), name), some_known(p.Ynew)
    mean, cov = predict(p.Xnew, Ynew, full_output_cov=True)
    actual = predict(p.Xnew, Ynew)
    assert_close(actual[0], mean, rtol=1e-14)
    assert_close(actual[1], np.diagonal(cov, axis1=1, axis2=2), rtol=1e-14)


# A mean function, batches


@pytest.mark.slow
def test_a_mean_function_shifts_everything(rng):
    """A linear mean, one for each task: the reference sees residuals and adds it back."""
    p = random_problem(rng, 7, 3)
    slope, offset = rng.normal(size=(2, 3)), rng.normal(size=3)
    model = model_of(p, gpflow.mean_functions.Linear(slope, offset))
    centred = p._replace(Y=p.Y - p.X @ slope - offset, Ynew=p.Ynew - p.Xnew @ slope - offset)
    reference = model_of(centred)
    shift = p.Xnew @ slope + offset
    actual = all_predictions(model.posterior(), p.Xnew, p.Ynew)
    expected = all_predictions(reference.posterior(), p.Xnew, centred.Ynew)
    for name, value in expected.items():
        if name[0] != "density":
            expected[name] = value[0] + shift, value[1]
    assert_all_close(actual, expected, rtol=1e-10)
    f_mean, f_cov = ref.predict_f(*joint_arguments(centred))
    assert_close(actual["f", True, True][0], f_mean + shift, rtol=1e-8)
    assert_close(actual["f", True, True][1], f_cov, rtol=1e-8)
    C, Sigma = ref.recover(*centred.chain, 1.0)
    assert_close(model.task_covariance(), C)
    assert_close(model.log_marginal_likelihood(), ref.log_evidence(p.K, centred.Y, C, Sigma))
    actual, expected = model.leave_one_out(), ref.leave_one_out(p.K, centred.Y, C, Sigma)
    assert_close(actual.mean, expected.mean + p.X @ slope + offset, rtol=1e-8)
    assert_close(actual.cov, expected.cov, rtol=1e-8)
    assert_close(actual.log_density, rows_left_out(centred), rtol=1e-8)
    tf.random.set_seed(0)
    draws = model.predict_f_samples(p.Xnew, 3).numpy()
    tf.random.set_seed(0)
    assert_close(draws, reference.predict_f_samples(p.Xnew, 3) + shift, rtol=1e-9)


@pytest.mark.slow
def test_batches_equal_loops(rng):
    p = random_problem(rng, 7, 3)
    mean_function = gpflow.mean_functions.Linear(rng.normal(size=(2, 3)), rng.normal(size=3))
    posterior = model_of(p, mean_function).posterior()
    Xnew, Ynew = rng.normal(size=(2, 3, 4, 2)), rng.normal(size=(2, 3, 4, 3))
    together = all_predictions(posterior, Xnew, Ynew)
    for i in np.ndindex(2, 3):
        # The pattern of known targets goes on through the batch, of which 12 is a period.
        apart = all_predictions(posterior, Xnew[i], Ynew[i])
        assert_all_close({k: [v[i] for v in vs] for k, vs in together.items()}, apart, rtol=1e-11)


@pytest.mark.parametrize("cache", ["tensor", "nocache"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_posterior_takes_lists_with_and_without_a_cache(rng, cache, missing):
    X, Y = rng.normal(size=(6, 1)), rng.normal(size=(6, 2))
    if missing:
        Y[0, 0] = np.nan
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential())
    posterior, Xnew = model.posterior(cache), np.array([[1.0], [2.0]])
    for method in ("predict_f", "predict_y"):
        expected = getattr(model, method)(Xnew)
        for actual, other in zip(getattr(posterior, method)([[1], [2]]), expected, strict=True):
            assert_close(actual, other, 1e-12)
    density = posterior.predict_log_density([[1], [2]], np.zeros((2, 2)))
    assert_close(density, model.predict_log_density((Xnew, np.zeros((2, 2)))), 1e-12)


@pytest.mark.parametrize("missing", [False, True])
def test_a_solution_knows_the_covariances_it_was_made_with(rng, missing):
    j = random_joint(rng, 6, 3, "block")
    data = (j.X, j.with_holes if missing else j.Y)
    model = KroneckerMTGP.ground_truth(data, j.gpflow_kernel(), j.C, j.Sigma)
    C, Sigma = task_matrices(model.posterior().solution())
    assert_close(C, j.C)
    assert_close(Sigma, j.Sigma)


# The cache


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "variable"])
def test_cached_predictions_are_the_same(rng, kind):
    p = random_problem(rng, 7, 3)
    model = model_of(p, gpflow.mean_functions.Constant(0.5))
    posterior = model.posterior(kind)
    is_variable = [isinstance(part, tf.Variable) for part in posterior.cache]
    assert all(is_variable) if kind == "variable" else not any(is_variable)
    actual = all_predictions(posterior, p.Xnew, p.Ynew)
    assert_all_close(actual, model_predictions(model, p.Xnew, p.Ynew), rtol=1e-12)
    tf.random.set_seed(0)
    draws = posterior.predict_samples(tf.constant(p.Xnew), 3, True, True)
    tf.random.set_seed(0)
    expected = model.predict_f_samples(p.Xnew, 3, full_output_cov=True)
    assert_close(draws, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["tensor", "variable"])
def test_a_cache_stays_until_it_is_updated(rng, kind):
    p = random_problem(rng, 7, 3)
    model = model_of(p)
    posterior = model.posterior(kind)
    Xnew = tf.constant(p.Xnew)
    before = posterior.predict_y(Xnew, True, True)
    q = p._replace(b=3.0 * p.b, sigma2=0.5 * p.sigma2)
    model.b.assign(q.b)
    model.sigma2.assign(q.sigma2)
    after = ref.predict_y(*joint_arguments(q))
    assert np.abs(after[1] - before[1]).min() > 1e-6
    for expected in (before, after):
        actual = posterior.predict_y(Xnew, True, True)
        assert_close(actual[0], expected[0], rtol=1e-8)
        assert_close(actual[1], expected[1], rtol=1e-8)
        posterior.update_cache()


def test_a_variable_cache_follows_rows_that_are_added(rng):
    p = random_problem(rng, 7, 3)
    X = tf.Variable(p.X[:4], shape=[None, 2], trainable=False)
    Y = tf.Variable(p.Y[:4], shape=[None, 3], trainable=False)
    model = CoolMTGP((X, Y), p.gpflow_kernel(), b=p.b, sigma2=p.sigma2)
    posterior = model.posterior("variable")
    for N in (4, 7, 2):
        X.assign(p.X[:N])
        Y.assign(p.Y[:N])
        posterior.update_cache()
        q = p._replace(X=p.X[:N], Y=p.Y[:N])
        mean, cov = posterior.predict_f(tf.constant(p.Xnew), True, True)
        expected_mean, expected_cov = ref.predict_f(*joint_arguments(q))
        assert_close(mean, expected_mean, rtol=1e-8)
        assert_close(cov, expected_cov, rtol=1e-8)


def test_without_a_cache_each_call_solves_anew(rng):
    p = random_problem(rng, 7, 3)
    model = model_of(p)
    for kind in ("nocache", None, PrecomputeCacheType.NOCACHE):
        posterior = model.posterior(kind)
        assert posterior.cache is None
        model.sigma2.assign(model.sigma2.numpy() * 1.5)
        q = p._replace(sigma2=model.sigma2.numpy())
        mean, cov = posterior.predict_y(tf.constant(p.Xnew), True, True)
        expected_mean, expected_cov = ref.predict_y(*joint_arguments(q))
        assert_close(mean, expected_mean, rtol=1e-8)
        assert_close(cov, expected_cov, rtol=1e-8)
        mean, cov = posterior.fused_predict_f(tf.constant(p.Xnew), True, True)
        assert_close(cov, ref.predict_f(*joint_arguments(q))[1], rtol=1e-8)


def test_cache_types():
    assert cache_type("Tensor") is PrecomputeCacheType.TENSOR
    assert cache_type("variable") is PrecomputeCacheType.VARIABLE
    assert cache_type(None) is PrecomputeCacheType.NOCACHE
    assert cache_type(PrecomputeCacheType.VARIABLE) is PrecomputeCacheType.VARIABLE
    with pytest.raises(ValueError, match="precompute_cache='tensors' is not known.*'tensor'"):
        cache_type("tensors")


def test_a_posterior_refuses_what_its_model_refuses(rng):
    p = random_problem(rng, 6, 2)
    posterior = model_of(p).posterior()
    gap, infinite = p.Y[:2].copy(), p.Y[:2].copy()
    gap[1, 0], infinite[0, 1] = np.nan, np.inf
    with pytest.raises(ValueError, match=r"Ynew\[1, 0\] is nan. Every entry must be finite"):
        posterior.predict_log_density(p.X[:2], gap)
    with pytest.raises(ValueError, match=r"Ynew\[0, 1\] is infinite: pass a number where a task"):
        posterior.predict_given(p.X[:2], infinite, noise=True)
    lists = posterior.predict_given(p.X[:2].tolist(), gap.tolist(), noise=True)
    for a, e in zip(lists, posterior.predict_given(p.X[:2], gap, noise=True), strict=True):
        assert_close(a, e, 0)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_no_test_points_give_no_predictions(rng, missing, exact):
    p = random_problem(rng, 6, 2)
    Y = p.Y.copy()
    Y[1, 0] = np.nan if missing else 0.0
    model = (KroneckerMTGP if exact else CoolMTGP)((p.X, Y), p.gpflow_kernel())
    nothing = np.zeros([0, p.X.shape[1]])
    for flags in LAYOUTS:
        mean, cov = model.predict_y(nothing, *flags)
        assert mean.shape == (0, 2) and np.size(cov) == 0
        assert model.predict_f_samples(nothing, 3, *flags).shape == (3, 0, 2)
        assert model.predict_y_samples(nothing, 3, *flags).shape == (3, 0, 2)
