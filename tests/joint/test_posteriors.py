"""Every prediction of a model, against dense algebra with C and Sigma of the reference."""

import itertools

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from gpflow.posteriors import PrecomputeCacheType
from numpy.testing import assert_allclose
from problems import (
    CASES,
    LAYOUTS,
    LEARNINGS,
    assert_close,
    assert_moments,
    random_problem,
)

from gpflow_cool import CoolMTGP
from gpflow_cool.joint.posteriors import cache_type


def model_of(p, mean_function=None, **options):
    kernel = p.gpflow_kernel()
    return CoolMTGP((p.X, p.Y), kernel, mean_function, b=p.b, sigma2=p.sigma2, **options)


def joint_arguments(p):
    """What the reference's predictions take: kernels, targets, and C and Sigma recovered."""
    return *p.kernels, p.Y, *ref.recover(*p.chain)


def some_known(Ynew):
    """Every second entry, counted through all of them; NaN elsewhere."""
    return np.where(np.arange(np.size(Ynew)).reshape(np.shape(Ynew)) % 2 == 0, Ynew, np.nan)


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


# Moments and densities


@pytest.mark.parametrize("case", CASES)
def test_moments_in_every_layout(rng, case):
    p = CASES[case](rng)
    posterior, Xnew = model_of(p).posterior(), tf.constant(p.Xnew)
    for predict, dense in [
        (posterior.predict_f, ref.predict_f),
        (posterior.predict_y, ref.predict_y),
    ]:
        expected_mean, expected_cov = dense(*joint_arguments(p))
        for flags in LAYOUTS:
            mean, cov = predict(Xnew, *flags)
            assert_close(mean, expected_mean, rtol=1e-8)
            assert_close(cov, ref.layout(expected_cov, *flags), rtol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_evidence_log_densities_and_leave_one_out(rng, case):
    p = CASES[case](rng)
    model = model_of(p)
    C, Sigma = ref.recover(*p.chain)
    assert_close(model.log_marginal_likelihood(), ref.log_evidence(p.K, p.Y, C, Sigma), rtol=1e-8)
    posterior, data = model.posterior(), (tf.constant(p.Xnew), tf.constant(p.Ynew))
    moments = ref.predict_y(*joint_arguments(p))
    for flags in LAYOUTS:
        expected = ref.log_density(*moments, p.Ynew, *flags)
        assert_close(posterior.predict_log_density(*data, *flags), expected, rtol=1e-8)
    actual, expected = model.leave_one_out(), ref.leave_one_out(p.K, p.Y, C, Sigma)
    for name in expected._fields:
        assert_close(getattr(actual, name), getattr(expected, name), rtol=1e-8)


def test_learning_changes_the_objective_not_the_joint_model(rng):
    """At the same parameters both approaches have the same weights and dual vectors."""
    p = random_problem(rng, 7, 3)
    expected = ref.predict_y(*joint_arguments(p))
    for learning in LEARNINGS:
        actual = model_of(p, learning=learning).predict_y(p.Xnew, True, True)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, rtol=1e-8)


def test_kronecker_order_of_predictions(rng):
    """np.kron(C, K) goes with Y.ravel(order="F"): written out, without a helper."""
    p = random_problem(rng, 6, 3)
    model = model_of(p)
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    K, Ks, Kss = p.kernels
    S = np.kron(C, K) + np.kron(Sigma, np.eye(6))
    expected = np.kron(C, Ks).T @ np.linalg.solve(S, p.Y.ravel(order="F"))
    prior = np.kron(C, Kss)
    mean, cov = model.predict_f_full_cov(p.Xnew)
    assert_close(mean.numpy().ravel(order="F"), expected, rtol=1e-8)
    task_major = tf.transpose(cov, [1, 0, 3, 2]).numpy().reshape(9, 9)
    assert_close(task_major, prior - np.kron(C, Ks).T @ np.linalg.solve(S, np.kron(C, Ks)), 1e-8)
    log_density = -0.5 * (
        p.Y.ravel(order="F") @ np.linalg.solve(S, p.Y.ravel(order="F"))
        + np.linalg.slogdet(2 * np.pi * S)[1]
    )
    assert_close(model.log_marginal_likelihood(), log_density)


# Some tasks known at the test points


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
    C, Sigma = ref.recover(*centred.chain)
    assert_close(model.task_covariance(), C)
    assert_close(model.log_marginal_likelihood(), ref.log_evidence(p.K, centred.Y, C, Sigma))
    actual, expected = model.leave_one_out(), ref.leave_one_out(p.K, centred.Y, C, Sigma)
    assert_close(actual.mean, expected.mean + p.X @ slope + offset, rtol=1e-8)
    assert_close(actual.cov, expected.cov, rtol=1e-8)
    assert_close(actual.log_density, expected.log_density, rtol=1e-8)
    tf.random.set_seed(0)
    draws = model.predict_f_samples(p.Xnew, 3).numpy()
    tf.random.set_seed(0)
    assert_close(draws, reference.predict_f_samples(p.Xnew, 3) + shift, rtol=1e-9)


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


# One task is GPflow's own model


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N", [1, 7])
def test_one_task_is_gpr(rng, N, learning):
    """GPR with the likelihood's variance sigma2 and the kernel's b."""
    p = random_problem(rng, N, 1)
    b, sigma2 = p.b[0], p.sigma2[0]
    mean_function = gpflow.mean_functions.Constant(0.3)
    gpr = gpflow.models.GPR(
        (p.X, p.Y),
        gpflow.kernels.SquaredExponential(variance=b, lengthscales=0.9),
        mean_function,
        noise_variance=sigma2,
    )
    kernel = gpflow.kernels.SquaredExponential(lengthscales=0.9)
    model = CoolMTGP((p.X, p.Y), kernel, mean_function, b=[b], sigma2=[sigma2], learning=learning)
    expected = gpr.maximum_log_likelihood_objective()
    assert_close(model.maximum_log_likelihood_objective(), expected)
    assert_close(model.log_marginal_likelihood(), expected)
    for full_cov in (False, True):
        for actual, e in zip(
            model.predict_f(p.Xnew, full_cov), gpr.predict_f(p.Xnew, full_cov), strict=True
        ):
            assert_close(actual, e, rtol=1e-8)
    for actual, e in zip(model.predict_y(p.Xnew), gpr.predict_y(p.Xnew), strict=True):
        assert_close(actual, e, rtol=1e-8)
    data = p.Xnew, p.Ynew
    assert_close(model.predict_log_density(data), gpr.predict_log_density(data), rtol=1e-8)
    assert_close(model.task_covariance(), [[b]])
    assert_close(model.noise_covariance(), [[sigma2]])


# The cache


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


# Samples


def correlated_problem(rng):
    """Neighbouring points and tasks alike: correlations that a test of 20,000 draws can see."""
    p = random_problem(rng, 6, 3, M=3)
    Y = p.Y[:, :1] + 0.4 * p.Y
    Xnew = rng.normal(size=(1, 2)) + 0.5 * rng.normal(size=(2, 3, 2))
    return p._replace(Y=Y, Xnew=Xnew, b=np.ones(3), sigma2=np.array([0.2, 0.1, 0.3]))


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("full_cov, full_output_cov", LAYOUTS)
def test_samples_have_the_exact_moments(rng, full_cov, full_output_cov, noise):
    """Both batch elements at once; what the flags leave out is independent."""
    p = correlated_problem(rng)
    offset = np.array([0.5, -1.0, 2.0])
    model = model_of(p._replace(Y=p.Y + offset), gpflow.mean_functions.Constant(offset))
    sample = model.predict_y_samples if noise else model.predict_f_samples
    predict = ref.predict_y if noise else ref.predict_f
    tf.random.set_seed(11)
    draws = sample(p.Xnew, 20_000, full_cov, full_output_cov).numpy()  # [2, S, M, T]
    M, T = 3, 3
    same_point, same_task = np.eye(M)[:, None, :, None], np.eye(T)[None, :, None, :]
    means, covs = [], []
    for Xnew in p.Xnew:
        mean, cov = predict(*joint_arguments(p._replace(Xnew=Xnew)))
        correlation = cov / np.sqrt(np.einsum("mtmt,nunu->mtnu", cov, cov))
        assert np.median(np.abs(correlation)) > 0.1
        cov = cov * (1.0 if full_cov else same_point) * (1.0 if full_output_cov else same_task)
        means.append((mean + offset).ravel())
        covs.append(cov.reshape(M * T, M * T))
    zero = np.zeros((M * T, M * T))
    together = np.block([[covs[0], zero], [zero, covs[1]]])
    columns = np.concatenate([one.reshape(-1, M * T) for one in draws], axis=1)
    assert_moments(columns, np.concatenate(means), together)


@pytest.mark.parametrize("full_cov, full_output_cov", LAYOUTS)
def test_one_sample_and_defaults(rng, full_cov, full_output_cov):
    p = correlated_problem(rng)
    model = model_of(p)
    for sample in (model.predict_f_samples, model.predict_y_samples):
        tf.random.set_seed(2)
        one = sample(p.Xnew[0], None, full_cov, full_output_cov)
        tf.random.set_seed(2)
        assert_close(one, sample(p.Xnew[0], 1, full_cov, full_output_cov)[0], rtol=0)


def test_defaults_of_samples(rng):
    """f: points correlate, tasks do not, as in GPflow; y: everything correlates."""
    p = correlated_problem(rng)
    model = model_of(p)
    for sample, flags in [
        (model.predict_f_samples, (True, False)),
        (model.predict_y_samples, (True, True)),
    ]:
        tf.random.set_seed(2)
        draws = sample(p.Xnew, 4)
        tf.random.set_seed(2)
        assert_close(draws, sample(p.Xnew, 4, *flags), rtol=0)


@pytest.mark.parametrize("case", ["N1-T1", "N2-T5", "linear", "copies", "zeros", "zero_kernel"])
def test_samples_are_finite(rng, case):
    """Also where a rotated task has no signal at all: more tasks than rows, copies, no kernel."""
    p = CASES[case](rng)
    posterior = model_of(p).posterior()
    Xnew = tf.constant(np.vstack([p.Xnew, p.Xnew[:1], p.X[:1]]))  # one twice, one of training
    mean, variance = posterior.predict_y(Xnew)
    for full_cov, full_output_cov, noise in itertools.product([False, True], repeat=3):
        draws = posterior.predict_samples(Xnew, 5, full_cov, full_output_cov, noise=noise)
        # Ten deviations: never, for some hundred numbers. Jitter is a thousandth of one.
        assert np.all(np.abs(draws - mean) <= 10.0 * np.sqrt(variance))
