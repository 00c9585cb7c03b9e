"""Every prediction of a model, against dense algebra: of complete data, and of missing targets."""

import itertools

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from patterns import PATTERNS, random_joint
from problems import (
    CASES,
    LAYOUTS,
    LEARNINGS,
    assert_close,
    assert_moments,
    joint_arguments,
    random_problem,
    rows_left_out,
    some_known,
)

from gpflow_cool import CoolMTGP, KroneckerMTGP
from gpflow_cool.joint import conditioning, missing, sampling

SIZES = [(7, 3), (2, 5), (9, 1)]


def model_of(p, mean_function=None, **options):
    kernel = p.gpflow_kernel()
    return CoolMTGP((p.X, p.Y), kernel, mean_function, b=p.b, sigma2=p.sigma2, **options)


def missing_model(j, mean_function=None):
    data = (j.X, j.with_holes)
    return KroneckerMTGP.ground_truth(
        data, j.gpflow_kernel(), j.C, j.Sigma, mean_function=mean_function
    )


# Complete data


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
        assert_close(posterior.predict_mean(Xnew), expected_mean, rtol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_evidence_log_densities_and_leave_one_out(rng, case):
    p = CASES[case](rng)
    model = model_of(p)
    C, Sigma = ref.recover(*p.chain, 1.0)
    assert_close(model.log_marginal_likelihood(), ref.log_evidence(p.K, p.Y, C, Sigma), rtol=1e-8)
    posterior, data = model.posterior(), (tf.constant(p.Xnew), tf.constant(p.Ynew))
    moments = ref.predict_y(*joint_arguments(p))
    for flags in LAYOUTS:
        expected = ref.log_density(*moments, p.Ynew, *flags)
        assert_close(posterior.predict_log_density(*data, *flags), expected, rtol=1e-8)
    actual, expected = model.leave_one_out(), ref.leave_one_out(p.K, p.Y, C, Sigma)
    assert_close(actual.mean, expected.mean, rtol=1e-8)
    assert_close(actual.cov, expected.cov, rtol=1e-8)
    assert_close(actual.log_density, rows_left_out(p), rtol=1e-8)


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


# Missing targets


def check_all_predictions(posterior, j, rtol):
    Xnew, Ynew = tf.constant(j.Xnew), tf.constant(j.Ynew)
    f_mean, f_cov = j.predict_f(j.Xnew)
    _, y_cov = j.predict_y(j.Xnew)
    predict_f = posterior.fused_predict_f if posterior.cache is None else posterior.predict_f
    for flags in LAYOUTS:
        for predict, cov in [(predict_f, f_cov), (posterior.predict_y, y_cov)]:
            mean, actual = predict(Xnew, *flags)
            assert_close(mean, f_mean, rtol)
            assert_close(actual, ref.layout(cov, *flags), rtol)
        density = posterior.predict_log_density(Xnew, Ynew, *flags)
        assert_close(density, ref.log_density(f_mean, y_cov, j.Ynew, *flags), rtol)
    assert_close(posterior.predict_mean(Xnew), f_mean, rtol)
    known = some_known(j.Ynew)
    for noise in (False, True):
        mean, cov = posterior.predict_given(Xnew, tf.constant(known), noise=noise)
        for m in range(len(j.Xnew)):
            own_f, own_y = f_cov[m, :, m], y_cov[m, :, m]
            o = np.isfinite(known[m])
            asked = own_y if noise else own_f
            gain = np.linalg.solve(own_y[np.ix_(o, o)], asked[o]).T
            expected = f_mean[m] + gain @ (known[m] - f_mean[m])[o]
            assert_close(mean[m], expected, rtol)
            assert_close(cov[m], asked - gain @ asked[o], max(rtol, 1e-8))


@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_predictions_equal_dense(rng, N, T, pattern):
    j = random_joint(rng, N, T, pattern)
    check_all_predictions(missing_model(j).posterior(), j, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["random_pattern", "disjoint"])
def test_predictions_by_conjugate_gradients_equal_dense(rng, pattern, monkeypatch):
    monkeypatch.setattr(missing, "MAX_DENSE", 0)
    j = random_joint(rng, 7, 3, pattern)
    check_all_predictions(missing_model(j).posterior(), j, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["tensor", "variable", "nocache"])
def test_caches_and_graphs_agree(rng, cache):
    j = random_joint(rng, 7, 3, "random_pattern")
    model = missing_model(j)
    check_all_predictions(model.posterior(cache), j, 1e-8)
    predict = tf.function(model.posterior(cache).predict_y).get_concrete_function(
        tf.TensorSpec([None, 2], tf.float64), full_cov=False, full_output_cov=True
    )
    names = {op.type for op in predict.graph.get_operations()}
    assert not names & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
    mean, cov = predict(tf.constant(j.Xnew))
    assert_close(cov, ref.layout(j.predict_y(j.Xnew)[1], False, True), 1e-8)
    assert_close(mean, j.predict_f(j.Xnew)[0], 1e-8)


@pytest.mark.slow
def test_a_cache_stays_until_it_is_updated(rng):
    j = random_joint(rng, 7, 3, "block")
    model = missing_model(j)
    posterior = model.posterior("variable")
    model.noise.assign(2.0 * j.Sigma)
    check_all_predictions(posterior, j, 1e-8)
    posterior.update_cache()
    check_all_predictions(posterior, j._replace(Sigma=2.0 * j.Sigma), 1e-8)


@pytest.mark.slow
def test_points_in_chunks_and_in_batches(rng, monkeypatch):
    j = random_joint(rng, 7, 3, "random_pattern", M=5)
    posterior = missing_model(j).posterior()
    batches = np.stack([j.Xnew, j.Xnew[::-1] + 0.1])
    expected = {f: [posterior.predict_y(tf.constant(X), *f) for X in batches] for f in LAYOUTS}
    monkeypatch.setattr(conditioning, "CHUNK", 2 * 7 * 3**2)  # two points at a time
    for flags in LAYOUTS:
        mean, cov = posterior.predict_y(tf.constant(batches), *flags)
        for b, (m, c) in enumerate(expected[flags]):
            assert_close(mean[b], m, 1e-12)
            assert_close(cov[b], c, 1e-10)


def test_single_precision(rng):
    j = random_joint(rng, 7, 2, "random_pattern")
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        model = KroneckerMTGP.ground_truth((j.X, j.with_holes), j.gpflow_kernel(), j.C, j.Sigma)
        mean, cov = model.predict_y(j.Xnew.astype(np.float32), full_output_cov=True)
        assert mean.dtype == cov.dtype == model.impute().Y.dtype == tf.float32
        evidence = model.log_marginal_likelihood()
    assert_close(mean, j.predict_f(j.Xnew)[0], 1e-4)
    assert_close(cov, ref.layout(j.predict_y(j.Xnew)[1], False, True), 1e-4)
    assert_close(evidence, ref.gaussian_log_density(j.y_o, j.S_oo), 1e-4)


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


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("full_output_cov", [False, True])
def test_draws_in_blocks_of_tasks_are_the_same(rng, full_output_cov, noise, monkeypatch):
    """Two of three tasks at once, then one; those of all tasks at once have the exact moments."""
    p = correlated_problem(rng)
    posterior = model_of(p).posterior()
    options = {"noise": noise, "seed": (1, 2)}
    whole = posterior.predict_samples(p.Xnew[0], 4, True, full_output_cov, **options)
    monkeypatch.setattr(sampling, "MAX_NUMBERS", 2 * 3 * 6)  # three points, six rows
    assert posterior._needs_blocks(posterior.solution(), tf.constant(p.Xnew[0]), True)
    blocks = posterior.predict_samples(p.Xnew[0], 4, True, full_output_cov, **options)
    assert_close(blocks, whole, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("full_cov, full_output_cov", LAYOUTS)
def test_one_sample_and_defaults(rng, full_cov, full_output_cov):
    p = correlated_problem(rng)
    model = model_of(p)
    for sample in (model.predict_f_samples, model.predict_y_samples):
        tf.random.set_seed(2)
        one = sample(p.Xnew[0], None, full_cov, full_output_cov)
        tf.random.set_seed(2)
        assert_close(one, sample(p.Xnew[0], 1, full_cov, full_output_cov)[0], rtol=0)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("flags", LAYOUTS)
def test_samples_have_the_moments_of_the_posterior(rng, flags, noise):
    j = random_joint(rng, 7, 2, "random_pattern")
    model = missing_model(j, gpflow.mean_functions.Constant(np.array([1.0, -1.0])))
    shifted = j._replace(Y=j.Y - [1.0, -1.0])
    mean, cov = (shifted.predict_y if noise else shifted.predict_f)(j.Xnew)
    mean = mean + [1.0, -1.0]
    full_cov, full_output_cov = flags
    keep = np.ones(cov.shape)
    keep = keep * (full_cov or np.eye(3)[:, None, :, None])
    keep = keep * (full_output_cov or np.eye(2)[None, :, None, :])
    tf.random.set_seed(3)
    sample = model.predict_y_samples if noise else model.predict_f_samples
    draws = sample(j.Xnew, 4000, *flags).numpy()
    assert_moments(draws.reshape(4000, -1), mean.ravel(), (cov * keep).reshape(6, 6))
    tf.random.set_seed(3)
    batch = sample(np.stack([j.Xnew, j.Xnew]), 4000, *flags).numpy()
    assert_moments(batch[1].reshape(4000, -1), mean.ravel(), (cov * keep).reshape(6, 6))


def test_copies_of_rows_in_float32_where_noise_is_below_rounding():
    """Six rows three times each: the same as six rows with a third of the noise, in float64."""
    X = np.repeat(np.linspace(0.0, 1.0, 6)[:, None], 3, axis=0).astype(np.float32)
    Xnew = np.array([[0.1], [0.2], [0.55], [3.0]], np.float32)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        kernel = gpflow.kernels.Matern12(lengthscales=np.float32(0.4))
        model = CoolMTGP((X, np.sin(5 * X)), kernel, b=np.ones(1, np.float32))
        tiny = gpflow.utilities.positive()
        model.sigma2 = gpflow.Parameter(np.full(1, 1e-14, np.float32), transform=tiny)
        mean, variance = model.predict_f(Xnew)
    rows, new = X[::3].astype(float), Xnew.astype(float)
    K, Ks = (np.exp(-np.abs(rows - other.T) / 0.4) for other in (rows, new))
    weights = np.linalg.solve(K + 1e-14 / 3 * np.eye(6), Ks)
    assert_allclose(mean[:, 0], weights.T @ np.sin(5 * rows[:, 0]), atol=2e-5)
    assert_allclose(variance[:, 0], 1.0 - np.sum(Ks * weights, axis=0), atol=2e-5)
