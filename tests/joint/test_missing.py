"""Models of targets of which some are missing: predictions, imputation, objective."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from patterns import PATTERNS, Joint, random_joint
from problems import LAYOUTS, assert_close, assert_moments, random_problem

from gpflow_cool import CoolMTGP, IndependentGPs, KroneckerMTGP
from gpflow_cool.chain import likelihood, recovery
from gpflow_cool.chain.spectrum import exact_spectrum, exact_spectrum_of_arrays
from gpflow_cool.chain.terms import task_problems, task_terms
from gpflow_cool.joint import kronecker, observed
from gpflow_cool.linalg import eigh

SIZES = [(7, 3), (2, 5), (9, 1)]


@pytest.fixture
def cg(monkeypatch):
    monkeypatch.setattr(observed, "MAX_DENSE", 0)


def kernel():
    return gpflow.kernels.SquaredExponential(Joint.VARIANCE, Joint.LENGTHSCALE)


def model_of(j, mean_function=None):
    data = (j.X, j.with_holes)
    return KroneckerMTGP.ground_truth(data, kernel(), j.C, j.Sigma, mean_function=mean_function)


def some_known(Y):
    return np.where(np.arange(np.size(Y)).reshape(np.shape(Y)) % 2 == 0, Y, np.nan)


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
    check_all_predictions(model_of(j).posterior(), j, 1e-8)


@pytest.mark.parametrize("pattern", ["random_pattern", "disjoint"])
def test_predictions_by_conjugate_gradients_equal_dense(rng, pattern, cg):
    j = random_joint(rng, 7, 3, pattern)
    check_all_predictions(model_of(j).posterior(), j, 1e-6)


@pytest.mark.parametrize("cache", ["tensor", "variable", "nocache"])
def test_caches_and_graphs_agree(rng, cache):
    j = random_joint(rng, 7, 3, "random_pattern")
    model = model_of(j)
    check_all_predictions(model.posterior(cache), j, 1e-8)
    predict = tf.function(model.posterior(cache).predict_y).get_concrete_function(
        tf.TensorSpec([None, 2], tf.float64), full_cov=False, full_output_cov=True
    )
    names = {op.type for op in predict.graph.get_operations()}
    assert not names & {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
    mean, cov = predict(tf.constant(j.Xnew))
    assert_close(cov, ref.layout(j.predict_y(j.Xnew)[1], False, True), 1e-8)
    assert_close(mean, j.predict_f(j.Xnew)[0], 1e-8)


def test_a_cache_stays_until_it_is_updated(rng):
    j = random_joint(rng, 7, 3, "block")
    model = model_of(j)
    posterior = model.posterior("variable")
    model.noise.assign(2.0 * j.Sigma)
    check_all_predictions(posterior, j, 1e-8)
    posterior.update_cache()
    check_all_predictions(posterior, j._replace(Sigma=2.0 * j.Sigma), 1e-8)


def test_points_in_chunks_and_in_batches(rng, monkeypatch):
    j = random_joint(rng, 7, 3, "random_pattern", M=5)
    posterior = model_of(j).posterior()
    batches = np.stack([j.Xnew, j.Xnew[::-1] + 0.1])
    expected = {f: [posterior.predict_y(tf.constant(X), *f) for X in batches] for f in LAYOUTS}
    monkeypatch.setattr("gpflow_cool.joint.missing.CHUNK", 2 * 7 * 3**2)  # two points at a time
    for flags in LAYOUTS:
        mean, cov = posterior.predict_y(tf.constant(batches), *flags)
        for b, (m, c) in enumerate(expected[flags]):
            assert_close(mean[b], m, 1e-12)
            assert_close(cov[b], c, 1e-10)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("flags", LAYOUTS)
def test_samples_have_the_moments_of_the_posterior(rng, flags, noise):
    j = random_joint(rng, 7, 2, "random_pattern")
    model = model_of(j, gpflow.mean_functions.Constant(np.array([1.0, -1.0])))
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


@pytest.mark.parametrize("path", [2000, 0])
@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_imputation_evidence_and_leave_one_out_equal_dense(rng, N, T, pattern, path, monkeypatch):
    monkeypatch.setattr(observed, "MAX_DENSE", path)
    rtol = 1e-8 if path else 1e-6
    j = random_joint(rng, N, T, pattern)
    model = model_of(j)
    evidence = ref.gaussian_log_density(j.y_o, j.S_oo)
    assert_close(model.log_marginal_likelihood(), evidence, rtol)

    mean, cov = j.condition(j.S, j.S)
    cov = cov.reshape(T, N, T, N)
    missing = ~j.mask
    completed = model.impute()
    assert_close(completed.Y, np.where(j.mask, j.Y, mean.reshape(T, N).T), rtol)
    for n in range(N):
        own = np.where(np.outer(missing[n], missing[n]), cov[:, n, :, n], 0.0)
        assert_close(completed.cov[n], own, rtol)
        assert_close(completed.std[n], np.sqrt(own.diagonal()), rtol)

    left = model.leave_one_out()
    for n in range(N):
        others = j.mask & (np.arange(N) != n)[:, None]
        rest = j._replace(mask=others)
        mean, cov = rest.predict_y(j.X[n : n + 1])
        o = j.mask[n]
        assert_close(left.mean[n].numpy()[o], mean[0, o], rtol)
        assert np.isnan(left.mean[n].numpy()[~o]).all()
        own = cov[0, :, 0][np.ix_(o, o)]
        assert_close(left.cov[n].numpy()[np.ix_(o, o)], own, rtol)
        assert np.isnan(left.cov[n].numpy()[~o]).all()
        density = ref.gaussian_log_density((j.Y[n] - mean[0])[o], own) if o.any() else 0.0
        assert_close(left.log_density[n], density, rtol)


def test_imputation_of_complete_targets_is_them(rng):
    p = random_problem(rng, 6, 2)
    completed = CoolMTGP((p.X, p.Y), kernel()).impute()
    assert np.array_equal(completed.Y, p.Y) and not np.any(completed.cov)


def test_mean_function_is_added_to_what_is_imputed(rng):
    j = random_joint(rng, 7, 2, "random_pattern")
    mean = np.array([3.0, -2.0])
    plain = model_of(j)
    shifted = model_of(j._replace(Y=j.Y + mean), gpflow.mean_functions.Constant(mean))
    assert_close(shifted.impute().Y, plain.impute().Y + mean, 1e-10)
    assert_close(shifted.leave_one_out().log_density, plain.leave_one_out().log_density, 1e-9)
    assert_close(shifted.predict_f(j.Xnew)[0], plain.predict_f(j.Xnew)[0] + mean, 1e-10)


def test_single_precision(rng):
    j = random_joint(rng, 7, 2, "random_pattern")
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        model = KroneckerMTGP.ground_truth((j.X, j.with_holes), kernel(), j.C, j.Sigma)
        mean, cov = model.predict_y(j.Xnew.astype(np.float32), full_output_cov=True)
        assert mean.dtype == cov.dtype == model.impute().Y.dtype == tf.float32
        evidence = model.log_marginal_likelihood()
    assert_close(mean, j.predict_f(j.Xnew)[0], 1e-4)
    assert_close(cov, ref.layout(j.predict_y(j.Xnew)[1], False, True), 1e-4)
    assert_close(evidence, ref.gaussian_log_density(j.y_o, j.S_oo), 1e-4)


# The objective over completions ---------------------------------------------------------------


class Copies:
    """S completions of the targets, and the expected objective by brute force."""

    def __init__(self, rng, S, N, T):
        p = random_problem(rng, N, T)
        self.K, self.b, self.sigma2 = p.K, p.b, p.sigma2
        self.Y = p.Y + 0.3 * rng.normal(size=(S, N, T))
        self.g = rng.normal(size=T)

    def terms(self, Y, b, sigma2):
        """max_w of the mean over completions of log N(y_t - Y_<t w | 0, K_x,t), - |w|^2 / 2."""
        result = []
        for t in range(Y.shape[2]):
            S = b[t] * self.K + sigma2[t] * np.eye(len(self.K))
            G = np.mean([y.T @ np.linalg.solve(S, y) for y in Y], axis=0)
            w = np.linalg.solve(np.eye(t) + G[:t, :t], G[:t, t])
            residuals = [y[:, t] - y[:, :t] @ w for y in Y]
            mean = np.mean([ref.gaussian_log_density(r, S) for r in residuals])
            result.append(mean - 0.5 * w @ w)
        return np.array(result)


COPIES = [(2, 6, 3), (4, 3, 5), (2, 5, 1), (1, 6, 3)]


@pytest.mark.parametrize("S, N, T", COPIES)
def test_expected_objective_equals_brute_force(rng, S, N, T):
    p = Copies(rng, S, N, T)
    K, Y, b, sigma2 = map(tf.constant, (p.K, p.Y, p.b, p.sigma2))
    with tf.GradientTape() as tape:
        tape.watch([K, Y, b, sigma2])
        terms = likelihood.conditional_log_likelihoods(
            K, Y, b, sigma2, learning="hierarchical", engine="spectral"
        )
        loss = tf.reduce_sum(p.g * terms)
    assert_close(terms, p.terms(p.Y, p.b, p.sigma2))
    gK, gY, gb, gs = tape.gradient(loss, [K, Y, b, sigma2])
    for value, gradient, place in [(p.Y, gY, 0), (p.b, gb, 1), (p.sigma2, gs, 2)]:
        direction = rng.normal(size=value.shape)

        def line(h, place=place, direction=direction):
            at = [p.Y, p.b, p.sigma2]
            at[place] = at[place] + h * direction
            return p.g @ p.terms(*at)

        assert_close(np.sum(gradient * direction), ref.derivative(line, 1e-4), 1e-6)
    E = rng.normal(size=(N, N))
    E, K0 = E + E.T, p.K

    def along_K(h):
        p.K = K0 + h * E
        return p.g @ p.terms(p.Y, p.b, p.sigma2)

    assert_close(np.sum(gK * E), ref.derivative(along_K, 1e-5), 1e-5)


@pytest.mark.parametrize("S, N, T", COPIES)
def test_inner_problem_sees_the_same_terms(rng, S, N, T):
    p = Copies(rng, S, N, T)
    lam, U = eigh(tf.constant(p.K))
    spectrum = exact_spectrum(lam, U, tf.constant(p.Y))
    other = exact_spectrum_of_arrays(lam.numpy(), U.numpy(), p.Y)
    for name, part in spectrum.numpy()._asdict().items():
        assert_close(part, getattr(other, name))
    problems = task_problems(other, "hierarchical")
    tasks, at = np.arange(T), np.stack([p.b, p.sigma2], axis=1)
    terms = task_terms(problems, tasks, at)
    assert_close(terms.value, p.terms(p.Y, p.b, p.sigma2))
    for i in range(2):
        unit = np.eye(2)[i]

        def at_h(h, unit=unit):
            return task_terms(problems, tasks, at + h * unit)

        assert_close(terms.gradient[:, i], ref.derivative(lambda h: at_h(h).value, 1e-4), 1e-6)
        slope = ref.derivative(lambda h: at_h(h).gradient, 1e-4)
        assert_close(terms.hessian[:, i], slope, 1e-5)


@pytest.mark.parametrize("S, N, T", COPIES)
def test_exact_evidence_and_em_step_are_means_over_completions(rng, S, N, T):
    p = Copies(rng, S, N, T)
    j = random_joint(rng, N, T, "block")
    at = tuple(map(tf.constant, (j.C, j.Sigma)))

    def value_and_gradients(Y):
        K, Y = tf.constant(p.K), tf.constant(Y)
        with tf.GradientTape() as tape:
            tape.watch([K, Y, *at])
            value = kronecker.kronecker_log_likelihood(K, Y, *at)
        return value, tape.gradient(value, [K, Y, *at])

    value, (gK, gY, gC, gSigma) = value_and_gradients(p.Y)
    singles = [value_and_gradients(y) for y in p.Y]
    assert_close(value, np.mean([v for v, _ in singles]))
    for n, total in [(0, gK), (2, gC), (3, gSigma)]:
        assert_close(total, np.mean([g[n] for _, g in singles], axis=0))
    assert_close(gY, np.stack([g[1] for _, g in singles]) / S)
    lam, U = np.linalg.eigh(p.K)
    lam = np.maximum(lam, 0.0)
    actual = kronecker.em_step(exact_spectrum(*map(tf.constant, (lam, U, p.Y))), *at)
    each = [ref.em_step(lam, U.T @ y, j.C, j.Sigma) for y in p.Y]
    for n in range(2):
        assert_close(actual[n], np.mean([e[n] for e in each], axis=0))


def test_recovery_takes_weights_from_all_and_duals_from_the_mean_completion(rng):
    p = Copies(rng, 4, 6, 3)
    mask = PATTERNS["random_pattern"](rng, 6, 3)
    X = rng.normal(size=(6, 2))
    model = CoolMTGP((X, np.where(mask, p.Y[0], np.nan)), kernel(), b=p.b, sigma2=p.sigma2)
    model.completions.assign(p.Y)
    K = ref.squared_exponential(X, X, Joint.VARIANCE, Joint.LENGTHSCALE)
    W, alpha = np.zeros((3, 3)), np.zeros((6, 3))
    for t in range(3):
        S = ref.input_kernel(K, p.b, p.sigma2, t)
        G = np.mean([y.T @ np.linalg.solve(S, y) for y in p.Y], axis=0)
        W[t, :t] = np.linalg.solve(np.eye(t) + G[:t, :t], G[:t, t])
        alpha[:, t] = np.linalg.solve(S, p.Y.mean(axis=0) @ (np.eye(3) - W)[t])
    actual = model.multitask_parameters()
    assert_close(actual.W, W)
    assert_close(actual.Sigma, ref.noise_covariance(W, p.sigma2))
    assert_close(actual.C, ref.task_covariance(W, ref.input_covariance(K, alpha, p.b)))
    exact = model.to_exact()
    assert_close(exact.predict_y(X)[1], model.predict_y(X)[1], 1e-6)
    assert_close(exact.log_marginal_likelihood(), model.log_marginal_likelihood(), 1e-7)
    average = model.average_over_orders(1, seed=0)
    assert average.observed is model.observed or np.array_equal(average.observed, model.observed)


# What is refused ------------------------------------------------------------------------------


def test_what_is_refused(rng):
    j = random_joint(rng, 6, 3, "random_pattern")
    X, Y = j.X, j.with_holes
    with pytest.raises(ValueError, match=r'NaN.*approximate.*learning="hierarchical"'):
        CoolMTGP((X, Y), kernel(), learning="approximate")
    never = Y.copy()
    never[:, 1] = np.nan
    for make in (CoolMTGP, KroneckerMTGP, IndependentGPs):
        with pytest.raises(ValueError, match=r"Y\[:, 1\] is NaN in every row.*Drop the column"):
            make((X, never), kernel())
    with pytest.raises(ValueError, match=r"Y\[:, 2\] is NaN in every row"):
        CoolMTGP((X[:1], np.array([[1.0, 2.0, np.nan]])), kernel())
    infinite = Y.copy()
    infinite[4, 2] = np.inf
    with pytest.raises(ValueError, match=r"^Y\[4, 2\] is inf. Every entry must be finite"):
        CoolMTGP((X, infinite), kernel())
    X_bad = X.copy()
    X_bad[2, 0] = np.nan
    with pytest.raises(ValueError, match=r"^X\[2, 0\] is nan"):
        CoolMTGP((X_bad, Y), kernel())
    with pytest.raises(ValueError, match="Y is a tf.Variable with NaN.*pass an array"):
        CoolMTGP((X, tf.Variable(Y, trainable=False)), kernel())


def test_independent_processes_see_their_own_rows(rng):
    j = random_joint(rng, 9, 2, "random_pattern")
    model = IndependentGPs((j.X, j.with_holes), kernel())
    for t in range(2):
        rows = j.mask[:, t]
        alone = CoolMTGP((j.X[rows], j.Y[rows, t : t + 1]), kernel())
        assert np.array_equal(model.predict_y(j.Xnew)[0][:, t], alone.predict_y(j.Xnew)[0][:, 0])


def test_a_covariance_without_a_factor_is_reported(rng):
    X = np.tile(rng.normal(size=(4, 1)), (2, 1))
    Y = rng.normal(size=(8, 2))
    Y[0, 0] = np.nan
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), sigma2=np.full(2, 1e-17))
    with pytest.raises(tf.errors.InvalidArgumentError, match="observed targets has no Cholesky"):
        model.predict_f(X)


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


@pytest.mark.parametrize("correlation", ["map", "monte_carlo"])
def test_recovery_from_equal_completions_is_that_from_one(rng, correlation):
    """Whatever their number: sums over completions are means."""
    p = random_problem(rng, 7, 3)
    lam, U = eigh(tf.constant(p.K))
    b, sigma2 = tf.constant(p.b), tf.constant(p.sigma2)
    found = []
    for Y in (p.Y, np.stack([p.Y] * 3)):
        spectrum = exact_spectrum(lam, U, tf.constant(Y))
        solved = likelihood.solve_chain(spectrum, b, sigma2, "hierarchical")
        if correlation == "map":
            found.append(recovery.map_correlation(spectrum, solved))
        else:
            found.append(recovery.monte_carlo_correlation(spectrum, solved, b, sigma2, 50, 3))
    assert_close(found[1], found[0], 1e-10)
