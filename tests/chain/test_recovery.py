"""From the chain back to the joint model, against the paper's recursion and simulation."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose
from problems import CASES, LEARNINGS, Problem, assert_close, random_problem

from gpflow_cool import CoolMTGP
from gpflow_cool.chain import likelihood, recovery
from gpflow_cool.chain.likelihood import solve_chain
from gpflow_cool.systems.spectrum import exact_spectrum
from gpflow_cool.linalg import eigh


def solved(p, K=None):
    """Spectrum and chain of a problem, or of its targets with another kernel matrix."""
    lam, U = eigh(tf.constant(p.K if K is None else K))
    spectrum = exact_spectrum(lam, U, tf.constant(p.Y))
    return spectrum, solve_chain(spectrum, tf.constant(p.b), tf.constant(p.sigma2), "hierarchical")


def model_of(p, **options):
    return CoolMTGP((p.X, p.Y), p.gpflow_kernel(), b=p.b, sigma2=p.sigma2, **options)


def random_chain(rng, T):
    """W, B and sigma2 of a chain with T tasks."""
    A = rng.normal(size=(T, T))
    return np.tril(rng.normal(size=(T, T)), -1), A @ A.T, rng.uniform(0.05, 0.5, size=T)


# The formulas, one by one


@pytest.mark.parametrize("T", [1, 2, 5])
def test_formulas_equal_the_recursion(rng, T):
    W, B, sigma2 = random_chain(rng, T)
    tensors = tf.constant(W), tf.constant(B), tf.constant(sigma2)
    assert_close(recovery.mixing_matrix(tensors[0]), ref.mixing_matrix(W))
    assert_close(recovery.noise_covariance(tensors[0], tensors[2]), ref.noise_covariance(W, sigma2))
    assert_close(recovery.task_covariance(tensors[0], tensors[1]), ref.task_covariance(W, B))


def test_two_tasks_by_hand():
    """y_0 = f_0 + e_0, y_1 = 3 y_0 + f_1 + e_1: the sign and the side of W, without a reference."""
    W, sigma2 = (
        tf.constant([[0.0, 0.0], [3.0, 0.0]], tf.float64),
        tf.constant([2.0, 5.0], tf.float64),
    )
    B = tf.constant([[7.0, 0.5], [0.5, 11.0]], tf.float64)
    assert_allclose(recovery.noise_covariance(W, sigma2), [[2, 6], [6, 18 + 5]])
    assert_allclose(recovery.task_covariance(W, B), [[7, 21.5], [21.5, 63 + 3 + 11]])


def test_covariances_are_symmetric_to_the_last_bit(rng):
    W, B, sigma2 = (tf.constant(part) for part in random_chain(rng, 6))
    for S in (recovery.noise_covariance(W, sigma2), recovery.task_covariance(W, B)):
        assert np.array_equal(S, tf.transpose(S))
    S = tf.constant(rng.normal(size=(3, 3)))
    assert_close(recovery.symmetric(S), (S + tf.transpose(S)) / 2, rtol=1e-15)


def test_weight_correlation_in_batches(rng):
    weights = rng.normal(size=(4, 5, 3))
    floor = np.zeros((4, 3))
    weights[1, :, 2] = 0.0
    weights[2, :, 0] *= 1e-9
    floor[2, 0] = 1e-6
    expected = [
        ref.correlations(w.T @ w, negligible)
        for w, negligible in zip(weights, floor**2, strict=True)
    ]
    assert_close(recovery.weight_correlation(tf.constant(weights), tf.constant(floor)), expected)
    assert_close(expected[1][2], [0, 0, 1], rtol=0)
    assert_close(expected[2][0], [1, 0, 0], rtol=0)


def test_input_covariance_puts_b_on_the_diagonal(rng):
    b, w = rng.uniform(0.5, 2.0, size=4), rng.normal(size=(2, 6, 4))
    rho = np.stack([np.corrcoef(part.T) for part in w])
    expected = np.stack([np.diag(np.sqrt(b)) @ part @ np.diag(np.sqrt(b)) for part in rho])
    B = recovery.input_covariance(tf.constant(b), tf.constant(rho)).numpy()
    assert_close(B, expected)
    assert_close(np.diagonal(B[0]), b)


# All of it, from data


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_model_recovers_what_the_reference_recovers(rng, case, learning):
    p = CASES[case](rng)
    model = model_of(p, learning=learning)
    B, C, Sigma, W = model.multitask_parameters()
    expected_W = ref.weights(*p.chain)
    expected_B = ref.input_covariance(p.K, ref.dual_vectors(*p.chain), p.b)
    expected_C, expected_Sigma = ref.recover(*p.chain)
    assert_close(W, expected_W)
    assert_close(B, expected_B)
    assert_close(C, expected_C)
    assert_close(Sigma, expected_Sigma)
    assert_close(model.task_covariance(), expected_C)
    assert_close(model.noise_covariance(), expected_Sigma)
    for S, R in [
        (expected_C, model.task_correlation()),
        (expected_Sigma, model.noise_correlation()),
    ]:
        deviation = np.sqrt(np.diag(S))
        assert_close(R, S / np.outer(deviation, deviation))


@pytest.mark.parametrize("correlation", ["map", "monte_carlo"])
@pytest.mark.parametrize("case", CASES)
def test_recovered_covariances_are_positive_semidefinite(rng, case, correlation):
    model = model_of(CASES[case](rng))
    parameters = model.multitask_parameters(correlation, num_samples=50, seed=0)
    for S in (parameters.B, parameters.C, parameters.Sigma):
        lam = np.linalg.eigvalsh(S)
        assert lam[0] >= -1e-14 * lam[-1]
        assert np.array_equal(S, tf.transpose(S))
    assert np.linalg.eigvalsh(parameters.Sigma)[0] > 0.0


@pytest.mark.parametrize("N, T", [(7, 3), (3, 6), (1, 2)])
def test_many_tasks_are_recovered_by_smaller_systems(rng, monkeypatch, N, T):
    p = random_problem(rng, N, T)
    spectrum = exact_spectrum(*eigh(tf.constant(p.K)), tf.constant(p.Y))
    b, sigma2 = tf.constant(p.b), tf.constant(p.sigma2)
    few = recovery.recover(spectrum, b, sigma2, "approximate")
    monkeypatch.setattr(likelihood, "MAX_NUMBERS", 0)
    many = recovery.recover(spectrum, b, sigma2, "approximate")
    for one, other in zip(many, few, strict=True):
        assert_close(one, other, rtol=1e-8)


def test_tasks_without_signal_correlate_with_none(rng):
    """No kernel, no input component; and a target that a linear kernel cannot express at all."""
    B = model_of(CASES["zero_kernel"](rng)).multitask_parameters().B
    assert_close(B, np.diag(np.diagonal(B)), rtol=0)
    B = model_of(CASES["zeros"](rng)).multitask_parameters().B.numpy()
    assert_close(B[1, [0, 2, 3]], np.zeros(3), rtol=0)
    assert np.abs(B[0, [2, 3]]).min() > 1e-3


def test_weak_signals_are_signals(rng):
    """Eigenvalues of 1e-10 of the largest are small, not rounding."""
    Q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    K = Q @ np.diag([1e-10, 1e-10, 1.0]) @ Q.T
    Y = 0.3 * Q @ np.array([[1.0, 1.0], [0.5, 1.5], [0.0, 0.0]])
    p = Problem(None, Y, None, None, np.ones(2), np.array([0.5, 0.2]), "given")
    alpha = Q.T @ ref.dual_vectors(K, Y, p.b, p.sigma2)  # along the two small ones, and nothing
    expected = alpha[:2].T @ alpha[:2] / np.outer(*2 * [np.linalg.norm(alpha[:2], axis=0)])
    # Eigenvalues carry an absolute error of 1e-16 or so, a millionth of these.
    spectrum, chain = solved(p, K)
    rho = recovery.map_correlation(spectrum, chain.A, chain.outside)
    assert_allclose(rho, expected, rtol=1e-5)
    assert expected[0, 1] > 0.5


@pytest.mark.parametrize("unit_of_X", [1e-4, 1e4])
@pytest.mark.parametrize("unit_of_Y", [1e-5, 1.0, 1e5])
def test_what_is_a_signal_does_not_depend_on_units(rng, unit_of_Y, unit_of_X):
    """Two tasks without, two with: the same correlations in metres and in millimetres."""
    p = CASES["no_signal"](rng)
    expected = ref.input_covariance(p.K, ref.dual_vectors(*p.chain), np.ones(4))
    W = ref.weights(*p.chain)
    # b K + sigma2 I scales with Y Y^T; the prior of W does not, so that W is kept by hand.
    lam, U = eigh(tf.constant(p.K * unit_of_X**2))
    b, sigma2 = p.b * (unit_of_Y / unit_of_X) ** 2, p.sigma2 * unit_of_Y**2
    spectrum = exact_spectrum(lam, U, tf.constant(p.Y * unit_of_Y))
    d = 1.0 / (np.outer(lam, b) + sigma2)
    A = d * (U.numpy().T @ ref.residuals(p.Y * unit_of_Y, W))
    rho = recovery.map_correlation(spectrum, tf.constant(A), tf.zeros(4, tf.float64))
    assert_close(rho, expected)
    assert_close(expected[:2, :2], np.eye(2), rtol=0)


@pytest.mark.parametrize("sigma2", [1e-2, 1e-4, 1e-6, 1e-8])
def test_map_correlation_of_a_linear_kernel_by_its_features(rng, sigma2):
    """
    The MAP weights of two features, to full precision, whatever the noise.

    In the null space of K, eigenvalues are rounding, and the dual vectors there are residuals
    over sigma2: their product must not be taken for a signal.
    """
    p = random_problem(rng, 60, 3, kernel="linear")
    p = p._replace(sigma2=np.full(3, sigma2))
    spectrum, chain = solved(p)
    E = ref.residuals(p.Y, chain.W.numpy())
    Phi = np.sqrt(0.7) * p.X
    w = [
        np.linalg.solve(Phi.T @ Phi / sigma2 + np.eye(2) / p.b[t], Phi.T @ E[:, t] / sigma2)
        for t in range(3)
    ]
    w = np.stack(w, axis=1)
    assert_close(
        recovery.map_correlation(spectrum, chain.A, chain.outside),
        ref.correlations(w.T @ w, np.zeros(3)),
        rtol=1e-8,
    )


# Monte Carlo


def simulated_correlations(rng, Phi, p, num_samples):
    """[S, T, T], from the reference's posterior of the input weights, independently a task."""
    mean, cov = ref.feature_posterior(Phi, p.Y, p.b, p.sigma2)
    draws = np.stack(
        [rng.multivariate_normal(m, V, size=num_samples) for m, V in zip(mean.T, cov, strict=True)],
        axis=-1,
    )  # [S, R, T]
    unit = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    return np.einsum("srt,sru->stu", unit, unit)


MONTE_CARLO = {
    "linear": lambda p: np.sqrt(0.7) * p.X,  # two features, however many rows
    "squared_exponential": lambda p: np.linalg.cholesky(p.K),
}


@pytest.mark.parametrize("kernel", MONTE_CARLO)
def test_monte_carlo_correlation_agrees_with_simulation(rng, kernel):
    """
    Both are means of S independent draws with variance v: their difference has standard error
    sqrt(2 v / S). Five of them, six entries: wrong by chance once in 300,000.
    """
    S = 100_000
    p = random_problem(rng, 5, 4, kernel=kernel)
    p = p._replace(b=np.array([0.3, 2.0, 0.6, 4.0]), sigma2=np.array([0.5, 0.05, 1.5, 3.0]))
    simulated = simulated_correlations(rng, MONTE_CARLO[kernel](p), p, S)
    spectrum, chain = solved(p)
    rho = recovery.monte_carlo_correlation(
        spectrum, chain, tf.constant(p.b), tf.constant(p.sigma2), S, seed=3
    )
    error = np.sqrt(2.0 * simulated.var(axis=0) / S)
    assert error.max() < 0.004
    assert np.all(np.abs(rho - simulated.mean(axis=0)) <= 5.0 * error + 1e-12)
    assert_close(tf.linalg.diag_part(rho), np.ones(4), rtol=0)
    # Not the MAP's correlation, which has no uncertainty to shrink it.
    assert np.abs(rho - recovery.map_correlation(spectrum, chain.A, chain.outside)).max() > 0.1


def test_monte_carlo_correlation_without_uncertainty_is_the_map(rng):
    """Little noise on a linear kernel: the posterior of two features from 12 rows is a point."""
    p = random_problem(rng, 12, 3, kernel="linear")._replace(sigma2=np.full(3, 1e-8))
    mean, cov = ref.feature_posterior(np.sqrt(0.7) * p.X, p.Y, p.b, p.sigma2)
    spread = np.sqrt(np.trace(cov, axis1=1, axis2=2)) / np.linalg.norm(mean, axis=0)
    assert spread.max() < 1e-3
    spectrum, chain = solved(p)
    rho = recovery.monte_carlo_correlation(
        spectrum, chain, tf.constant(p.b), tf.constant(p.sigma2), 10, seed=0
    )
    # A draw differs from the mean by `spread`, five times that at most among 60 numbers.
    expected = ref.correlations(mean.T @ mean, np.zeros(3))
    assert_allclose(rho, expected, rtol=0, atol=10 * spread.max())


@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
def test_monte_carlo_rank_does_not_depend_on_units(rng, unit):
    """A linear kernel has two features however large they are: the same draws, the same result."""
    p = random_problem(rng, 12, 3, kernel="linear")
    scaled = p._replace(X=p.X * unit, b=p.b / unit**2)
    rho = [
        recovery.monte_carlo_correlation(
            *solved(q), tf.constant(q.b), tf.constant(q.sigma2), 20, seed=0
        )
        for q in (p, scaled)
    ]
    assert_close(rho[1], rho[0])


def test_monte_carlo_parameters_use_the_sampled_correlation(rng):
    p = random_problem(rng, 7, 3)
    model = model_of(p)
    spectrum, chain = solved(p)
    rho = recovery.monte_carlo_correlation(
        spectrum, chain, tf.constant(p.b), tf.constant(p.sigma2), 40, seed=5
    )
    B, C, Sigma, W = model.multitask_parameters("monte_carlo", num_samples=40, seed=5)
    expected = np.sqrt(np.outer(p.b, p.b)) * rho
    assert_close(B, expected)
    assert_close(C, ref.task_covariance(ref.weights(*p.chain), expected))
    assert_close(Sigma, ref.recover(*p.chain)[1])
    assert_close(W, ref.weights(*p.chain))


def test_monte_carlo_follows_the_seed_and_nothing_else(rng):
    model = model_of(random_problem(rng, 7, 3))

    def B(seed):
        return model.multitask_parameters("monte_carlo", num_samples=20, seed=seed).B.numpy()

    first = B(1)
    tf.random.set_seed(99)
    assert_allclose(B(1), first, rtol=0)
    assert np.abs(B(2) - first)[np.triu_indices(3, 1)].min() > 1e-4
    assert np.abs(B(None) - B(None))[np.triu_indices(3, 1)].min() > 1e-8
