"""
The covariance of the observed targets, factorised and by conjugate gradients, against dense NumPy.

Also models of targets of which some are missing: the objective, and what is refused.
"""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from patterns import PATTERNS, Joint, random_joint
from problems import LEARNINGS, assert_close, random_problem

from gpflow_cool import CoolMTGP, IndependentGPs, KroneckerMTGP
from gpflow_cool.chain.recovery import recover
from gpflow_cool.chain.terms import Chain, conditional_log_likelihoods
from gpflow_cool.joint import kronecker, missing
from gpflow_cool.linalg import eigh
from gpflow_cool.systems.eigen import EigenSystem, exact_spectrum

PATHS = {"cholesky": 1e-8, "conjugate_gradients": 1e-6}
SIZES = [(7, 3), (12, 4), (2, 5), (9, 1)]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    if request.param == "conjugate_gradients":
        monkeypatch.setattr(missing, "MAX_DENSE", 0)
    return request.param


def system_of(j):
    lam, U = eigh(tf.constant(j.K))
    return missing.observed_system(U, lam, tf.constant(j.C), tf.constant(j.Sigma), j.mask)


def embedded(j, values):
    full = np.zeros(j.Y.size)
    full[j.o] = values
    return full.reshape(j.Y.shape, order="F")


@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_solve_equals_dense(rng, N, T, pattern, path):
    j = random_joint(rng, N, T, pattern)
    system = system_of(j)
    assert (system.L is None) == (path == "conjugate_gradients")
    V = rng.normal(size=(2, N, T))
    expected = [embedded(j, np.linalg.solve(j.S_oo, v.ravel(order="F")[j.o])) for v in V]
    assert_close(missing.solve(system, tf.constant(V)), expected, rtol=PATHS[path])
    compiled = tf.function(lambda V: missing.solve(system, V), autograph=False)
    assert_close(compiled(tf.constant(V)), expected, rtol=PATHS[path])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_multiply_is_all_of_the_covariance(rng, pattern):
    j = random_joint(rng, 6, 3, pattern)
    V = rng.normal(size=(6, 3))
    expected = (j.S @ V.ravel(order="F")).reshape(6, 3, order="F")
    assert_close(missing.multiply(system_of(j), tf.constant(V[:, None]))[:, 0], expected)


@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_evidence_equals_dense(rng, N, T, pattern, path):
    j = random_joint(rng, N, T, pattern)
    actual = missing.observed_log_evidence(system_of(j), tf.constant(j.with_holes))
    assert_close(actual, ref.gaussian_log_density(j.y_o, j.S_oo), rtol=1e-9)


def test_white_noise_in_the_kernel_helps_conjugate_gradients(rng, monkeypatch):
    """The least eigenvalue of K counts as noise, so that K = I is solved in a step or two."""
    j = random_joint(rng, 30, 4, "random_pattern")
    monkeypatch.setattr(missing, "MAX_DENSE", 0)
    monkeypatch.setattr(missing, "CG_MAX_ITERATIONS", 2)
    Sigma = 1e-6 * j.Sigma
    eye = tf.eye(30, dtype=tf.float64)
    system = missing.observed_system(eye, tf.ones(30, tf.float64), j.C, Sigma, j.mask)
    V = rng.normal(size=(1, 30, 4))
    S = (np.kron(j.C, np.eye(30)) + np.kron(Sigma, np.eye(30)))[np.ix_(j.o, j.o)]
    expected = embedded(j, np.linalg.solve(S, V[0].ravel(order="F")[j.o]))
    assert_close(missing.solve(system, tf.constant(V))[0], expected, rtol=1e-6)


def test_residuals_are_checked(rng, monkeypatch):
    j = random_joint(rng, 12, 3, "random_pattern")
    monkeypatch.setattr(missing, "MAX_DENSE", 0)
    monkeypatch.setattr(missing, "CG_MAX_ITERATIONS", 1)
    monkeypatch.setattr(missing, "MAX_REFINEMENTS", 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradients did not converge: the noi"):
        missing.solve(system_of(j), tf.constant(j.Y[None]))


def test_missing_targets_are_ignored(rng, path):
    """Whatever the right-hand side has there, even NaN."""
    j = random_joint(rng, 6, 3, "random_pattern")
    expected = embedded(j, np.linalg.solve(j.S_oo, j.y_o))
    for fill in (np.nan, 7.0):
        Y = tf.constant(np.where(j.mask, j.Y, fill))
        assert_close(missing.solve_observed(system_of(j), Y).weights, expected, rtol=PATHS[path])


def test_a_right_hand_side_of_zero_gives_zero(rng, path):
    j = random_joint(rng, 6, 3, "block")
    zero = np.zeros((1, 6, 3))
    assert np.array_equal(missing.solve(system_of(j), tf.constant(zero)), zero)


# The objective over completions ---------------------------------------------------------------


class Copies:
    """S completions of the targets, and the expected objective by brute force."""

    def __init__(self, rng, S, N, T):
        p = random_problem(rng, N, T)
        self.K, self.b, self.sigma2 = p.K, p.b, p.sigma2
        self.Y = p.Y + 0.3 * rng.normal(size=(S, N, T))
        self.g = rng.normal(size=T)

    def terms(self, Y, b, sigma2, learning="hierarchical"):
        """
        max_w of the mean over completions of log N(y_t - Y_<t w | 0, K_x,t), - |w|^2 / 2.

        approximate: as if the mean of the completions' Gram matrices were that of one data set, so
        that the weights cost 1/2 log|I + G|.
        """
        result = []
        for t in range(Y.shape[2]):
            S = b[t] * self.K + sigma2[t] * np.eye(len(self.K))
            G = np.mean([y.T @ np.linalg.solve(S, y) for y in Y], axis=0)
            w = np.linalg.solve(np.eye(t) + G[:t, :t], G[:t, t])
            residuals = [y[:, t] - y[:, :t] @ w for y in Y]
            term = np.mean([ref.gaussian_log_density(r, S) for r in residuals]) - 0.5 * w @ w
            if learning == "approximate":
                term -= 0.5 * np.linalg.slogdet(np.eye(t) + G[:t, :t])[1]
            result.append(term)
        return np.array(result)


COPIES = [(2, 6, 3), (4, 3, 5), (2, 5, 1), (1, 6, 3)]


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("S, N, T", COPIES)
def test_expected_objective_equals_brute_force(rng, S, N, T, learning):
    p = Copies(rng, S, N, T)
    K, Y, b, sigma2 = map(tf.constant, (p.K, p.Y, p.b, p.sigma2))
    with tf.GradientTape() as tape:
        tape.watch([K, Y, b, sigma2])
        terms = conditional_log_likelihoods(EigenSystem(K, Y), Chain(b, sigma2, None), learning)
        loss = tf.reduce_sum(p.g * terms)
    assert_close(terms, p.terms(p.Y, p.b, p.sigma2, learning))
    gK, gY, gb, gs = tape.gradient(loss, [K, Y, b, sigma2])
    for value, gradient, place in [(p.Y, gY, 0), (p.b, gb, 1), (p.sigma2, gs, 2)]:
        direction = rng.normal(size=value.shape)

        def line(h, place=place, direction=direction):
            at = [p.Y, p.b, p.sigma2]
            at[place] = at[place] + h * direction
            return p.g @ p.terms(*at, learning)

        assert_close(np.sum(gradient * direction), ref.derivative(line, 1e-4), 1e-6)
    E = rng.normal(size=(N, N))
    E, K0 = E + E.T, p.K

    def along_K(h):
        p.K = K0 + h * E
        return p.g @ p.terms(p.Y, p.b, p.sigma2, learning)

    assert_close(np.sum(gK * E), ref.derivative(along_K, 1e-5), 1e-5)


@pytest.mark.parametrize("S, N, T", COPIES)
def test_exact_evidence_and_em_step_are_means_over_completions(rng, S, N, T):
    p = Copies(rng, S, N, T)
    j = random_joint(rng, N, T, "block")
    at = tuple(map(tf.constant, (j.C, j.Sigma)))

    def value_and_gradients(Y):
        K, Y = tf.constant(p.K), tf.constant(Y)
        with tf.GradientTape() as tape:
            tape.watch([K, Y, *at])
            value = kronecker.kronecker_log_likelihood(EigenSystem(K, Y), *at)
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
    kernel = gpflow.kernels.SquaredExponential(Joint.VARIANCE, Joint.LENGTHSCALE)
    options = {"weight_prior": "unit", "b": p.b, "sigma2": p.sigma2}
    model = CoolMTGP((X, np.where(mask, p.Y[0], np.nan)), kernel, **options)
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
    assert np.array_equal(exact.observed, model.observed)


# What is refused ------------------------------------------------------------------------------


def test_what_is_refused(rng):
    j = random_joint(rng, 6, 3, "random_pattern")
    X, Y = j.X, j.with_holes
    never = Y.copy()
    never[:, 1] = np.nan
    for make in (CoolMTGP, KroneckerMTGP, IndependentGPs):
        with pytest.raises(ValueError, match=r"Y\[:, 1\] is NaN in every row.*Leave it out"):
            make((X, never), j.gpflow_kernel())
    with pytest.raises(ValueError, match=r"Y\[:, 2\] is NaN in every row"):
        CoolMTGP((X[:1], np.array([[1.0, 2.0, np.nan]])), j.gpflow_kernel())
    infinite = Y.copy()
    infinite[4, 2] = np.inf
    with pytest.raises(ValueError, match=r"^Y\[4, 2\] is inf. Every entry must be finite"):
        CoolMTGP((X, infinite), j.gpflow_kernel())
    X_bad = X.copy()
    X_bad[2, 0] = np.nan
    with pytest.raises(ValueError, match=r"^X\[2, 0\] is nan"):
        CoolMTGP((X_bad, Y), j.gpflow_kernel())
    with pytest.raises(ValueError, match="Y is a tf.Variable with NaN.*pass an array"):
        CoolMTGP((X, tf.Variable(Y, trainable=False)), j.gpflow_kernel())


def test_independent_processes_see_their_own_rows(rng):
    j = random_joint(rng, 9, 2, "random_pattern")
    model = IndependentGPs((j.X, j.with_holes), j.gpflow_kernel())
    for t in range(2):
        rows = j.mask[:, t]
        alone = CoolMTGP((j.X[rows], j.Y[rows, t : t + 1]), j.gpflow_kernel())
        assert np.array_equal(model.predict_y(j.Xnew)[0][:, t], alone.predict_y(j.Xnew)[0][:, 0])


def test_a_covariance_without_a_factor_is_reported(rng):
    X = np.tile(rng.normal(size=(4, 1)), (2, 1))
    Y = rng.normal(size=(8, 2))
    Y[0, 0] = np.nan
    model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(), sigma2=np.full(2, 1e-17))
    with pytest.raises(tf.errors.InvalidArgumentError, match="observed targets has no Cholesky"):
        model.predict_f(X)


@pytest.mark.parametrize("correlation", ["mean", "map", "monte_carlo"])
def test_recovery_from_equal_completions_is_that_from_one(rng, correlation):
    """Whatever their number: sums over completions are means."""
    p = random_problem(rng, 7, 3)
    chain = Chain(*map(tf.constant, (p.b, p.sigma2, np.float64(0.6))))
    one, three = (
        recover(EigenSystem(tf.constant(p.K), Y), chain, correlation, 50, 3).matrices()
        for Y in (p.Y, np.stack([p.Y] * 3))
    )
    for a, e in zip(three, one, strict=True):
        assert_close(a, e, 1e-10)


@pytest.mark.parametrize("path", [2000, 0])
@pytest.mark.parametrize("N, T", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_evidence_of_a_model_equals_dense(rng, N, T, pattern, path, monkeypatch):
    monkeypatch.setattr(missing, "MAX_DENSE", path)
    rtol = 1e-8 if path else 1e-6
    j = random_joint(rng, N, T, pattern)
    model = KroneckerMTGP.ground_truth((j.X, j.with_holes), j.gpflow_kernel(), j.C, j.Sigma)
    evidence = ref.gaussian_log_density(j.y_o, j.S_oo)
    assert_close(model.log_marginal_likelihood(), evidence, rtol)
