"""From the chain back to the joint model, against the reference's recursion and simulation."""

import itertools

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from problems import (
    CASES,
    LEARNINGS,
    assert_close,
    more_tasks_than_rows,
    random_problem,
    unit_of_variance,
)

from gpflow_cool.chain import recovery, terms
from gpflow_cool.chain.optimum import LEAST_RATIO, NODES, RATIOS
from gpflow_cool.chain.recovery import (
    Recovered,
    average_over_orders,
    map_correlation,
    monte_carlo_correlation,
    recover,
    residual_map,
    some_orders,
)
from gpflow_cool.chain.terms import Chain
from gpflow_cool.systems.eigen import EigenSystem

PRIORS = {"unit": None, "scaled": 0.7}


def system_of(K, Y):
    return EigenSystem(tf.constant(K), tf.constant(Y))


def recovered(K, Y, b, sigma2, weight_variance=None, correlation="mean", **options):
    lam = None if weight_variance is None else tf.constant(weight_variance, tf.float64)
    chain = Chain(tf.constant(b), tf.constant(sigma2), lam)
    return recover(system_of(K, Y), chain, correlation, **options)


# One task after the other


def test_two_tasks_by_hand():
    """y_0 = f_0 + e_0, y_1 = w y_0 + f_1 + e_1 with w of mean 3 and variance 1/2."""
    W = tf.constant([[0.0, 0.0], [3.0, 0.0]], tf.float64)
    B = tf.constant([[7.0, 0.5], [0.5, 11.0]], tf.float64)
    sigma2 = tf.constant([2.0, 5.0], tf.float64)
    added = tf.constant([[0.0, 3.5], [0.0, 1.0]], tf.float64)
    found = Recovered(W, B, sigma2, added[0], added[1]).matrices()
    assert_allclose(found.C, [[7, 21.5], [21.5, 63 + 3 + 11 + 3.5]])
    assert_allclose(found.Sigma, [[2, 6], [6, 18 + 5 + 1]])
    H = tf.constant([[0.0, 0.0], [0.5, 0.0]], tf.float64)
    assert_allclose(recovery.added_variance(H, tf.constant([7.0, 11.0], tf.float64)), [0, 3.5])


@pytest.mark.parametrize("correlation", ["mean", "map"])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("case", CASES)
def test_all_of_it_equals_the_reference(rng, case, prior, correlation):
    chain = *CASES[case](rng).chain, PRIORS[prior]
    found, expected = recovered(*chain, correlation), ref.recover_all(*chain, correlation)
    matrices = found.matrices()
    assert_close(found.signal_uncertainty, expected.signal_added)
    assert_close(found.noise_uncertainty, expected.noise_added)
    for name in ("B", "C", "Sigma", "W"):
        assert_close(getattr(matrices, name), getattr(expected, name))
    assert_array_equal(found.sigma2, chain[3])


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("N, T", [(6, 4), (3, 6)])
def test_covariances_are_means_over_the_weights(rng, N, T, prior):
    """Of 20,000 draws, with a diagonal B; within five standard errors, entry by entry."""
    K, Y, b, sigma2 = random_problem(rng, N, T).chain
    chain = K, Y, b, sigma2, PRIORS[prior]
    found = recovered(*chain)._replace(B=tf.linalg.diag(tf.constant(b))).matrices()
    mean, V = ref.weights(*chain), ref.weight_covariances(*chain)
    W = np.zeros((20_000, T, T))
    for t in range(1, T):
        W[:, t, :t] = rng.multivariate_normal(mean[t, :t], V[t], size=20_000)
    A = np.linalg.inv(np.eye(T) - W)
    for own, S in ((b, found.C), (sigma2, found.Sigma)):
        draws = (A * own) @ np.swapaxes(A, 1, 2)
        error = draws.std(axis=0) / np.sqrt(20_000)
        assert np.all(np.abs(draws.mean(axis=0) - S) <= 5.0 * error + 1e-12)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("case", CASES)
def test_covariances_are_positive_definite(rng, case, prior):
    p = CASES[case](rng)
    for correlation in recovery.CORRELATIONS:
        found = recovered(*p.chain, PRIORS[prior], correlation, num_samples=20, seed=0).matrices()
        for S in (found.B, found.C, found.Sigma):
            lam = np.linalg.eigvalsh(S)
            assert lam[0] >= -1e-13 * lam[-1]
            assert_array_equal(S, tf.transpose(S))
        assert np.linalg.eigvalsh(found.Sigma)[0] > 0.0


@pytest.mark.parametrize("weight_variance, N, T", [(1e-8, 7, 3), (1e-8, 2, 5), (1e8, 7, 3)])
def test_weights_that_are_all_but_fixed_or_free(rng, N, T, weight_variance):
    p = random_problem(rng, N, T)
    found = recovered(*p.chain, weight_variance).matrices()
    C, Sigma = ref.recover(*p.chain, weight_variance)
    assert_close(found.C, C, rtol=1e-6)
    assert_close(found.Sigma, Sigma, rtol=1e-6)


def test_units_of_targets_do_not_matter_with_the_scaled_prior(rng):
    K, Y, b, sigma2 = random_problem(rng, 7, 4).chain
    units = np.array([1e-9, 1.0, 1e7, 30.0])
    expected = recovered(K, Y, b, sigma2, 0.7).matrices()
    found = recovered(K, Y * units, b * units**2, sigma2 * units**2, 0.7).matrices()
    for one, other in ((found.C, expected.C), (found.Sigma, expected.Sigma)):
        assert_close(one / np.outer(units, units), other)


@pytest.mark.parametrize("prior", PRIORS)
def test_some_tasks_at_a_time_give_what_all_give(rng, monkeypatch, prior):
    p = random_problem(rng, 6, 5)
    whole = recovered(*p.chain, PRIORS[prior])
    monkeypatch.setattr(terms, "MAX_NUMBERS", 50)  # two tasks of five
    for one, other in zip(recovered(*p.chain, PRIORS[prior]), whole, strict=True):
        assert_close(one, other, rtol=1e-12)


def test_completions_count_with_their_mean_products(rng):
    """Four completions of the targets: G is their mean, and correlations are of their mean."""
    K, Y, b, sigma2 = random_problem(rng, 5, 3).chain
    completions = Y + rng.normal(size=(4, 5, 3)) * (rng.uniform(size=(5, 3)) < 0.4)
    beside = np.kron(np.eye(4), K), np.vstack(completions) / 2.0, b, sigma2
    W, V = ref.weights(*beside), ref.weight_covariances(*beside)
    E = ref.residuals(completions.mean(axis=0), W)
    alpha = [np.linalg.solve(ref.input_kernel(K, b, sigma2, t), E[:, t]) for t in range(3)]
    found = recovered(K, completions, b, sigma2)
    assert_close(found.W, W)
    assert_close(found.B, ref.input_covariance(K, np.stack(alpha, axis=1), b))
    assert_close(found.signal_uncertainty, ref.added_variances(W, V, b))


# Correlations of the tasks' own functions


def test_tasks_without_signal_correlate_with_none(rng):
    """No kernel, no function; and a target that a linear kernel cannot express at all."""
    B = recovered(*CASES["zero_kernel"](rng).chain).B
    assert_array_equal(B, np.diag(np.diagonal(B)))
    B = recovered(*CASES["zeros"](rng).chain).B.numpy()
    assert_array_equal(B[1, [0, 2, 3]], np.zeros(3))
    assert np.abs(B[0, [2, 3]]).min() > 1e-3


def test_weak_signals_are_signals(rng):
    """Eigenvalues of 1e-10 of the largest are small, not rounding."""
    Q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    K = Q @ np.diag([1e-10, 1e-10, 1.0]) @ Q.T
    Y = 0.3 * Q @ np.array([[1.0, 1.0], [0.5, 1.5], [0.0, 0.0]])
    b, sigma2 = np.ones(2), np.array([0.5, 0.2])
    alpha = Q.T @ ref.dual_vectors(K, Y, b, sigma2)  # along the two small ones, and nothing
    expected = alpha[:2].T @ alpha[:2] / np.outer(*2 * [np.linalg.norm(alpha[:2], axis=0)])
    # Eigenvalues carry an absolute error of 1e-16 or so, a millionth of these.
    assert_allclose(recovered(K, Y, b, sigma2).B, expected, rtol=1e-5)
    assert expected[0, 1] > 0.5


@pytest.mark.parametrize("unit_of_X", [1e-4, 1e4])
@pytest.mark.parametrize("unit_of_Y", [1e-5, 1.0, 1e5])
def test_what_is_a_signal_does_not_depend_on_units(rng, unit_of_Y, unit_of_X):
    """Two tasks without, two with: the same correlations in metres and in millimetres."""
    K, Y, b, sigma2 = CASES["no_signal"](rng).chain
    expected = recovered(K, Y, b, sigma2, 0.7).B / np.sqrt(np.outer(b, b))
    b, sigma2 = b * (unit_of_Y / unit_of_X) ** 2, sigma2 * unit_of_Y**2
    found = recovered(K * unit_of_X**2, Y * unit_of_Y, b, sigma2, 0.7).B
    assert_close(found / np.sqrt(np.outer(b, b)), expected)
    assert_close(expected[:2, :2], np.eye(2), rtol=1e-15)


@pytest.mark.parametrize("sigma2", [1e-2, 1e-4, 1e-8])
def test_correlations_of_a_linear_kernel_by_its_features(rng, sigma2):
    """
    The weights of two features, to full precision, whatever the noise.

    In the null space of K, eigenvalues are rounding, and the dual vectors there are residuals
    over sigma2: their product must not be taken for a signal.
    """
    K, Y, b, _ = random_problem(rng, 60, 3, kernel="linear").chain
    s = np.full(3, sigma2)
    _, basis = np.linalg.eigh(K)
    Phi = basis[:, -2:] * np.sqrt(np.linalg.eigvalsh(K)[-2:])
    found = recovered(K, Y, b, s)
    E = ref.residuals(Y, found.W.numpy())
    w = [
        np.linalg.solve(Phi.T @ Phi / sigma2 + np.eye(2) / b[t], Phi.T @ E[:, t]) for t in (0, 1, 2)
    ]
    w = np.stack(w, axis=1)
    rho = ref.correlations(w.T @ w, np.zeros(3))
    assert_close(found.B, np.sqrt(np.outer(b, b)) * rho, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["linear", "squared_exponential"])
def test_monte_carlo_correlation_agrees_with_simulation(rng, kernel):
    """
    Both are means of S independent draws with variance v: their difference has standard error
    sqrt(2 v / S). Five of them, six entries: wrong by chance once in 300,000.
    """
    S, p = 50_000, random_problem(rng, 5, 4, kernel=kernel)
    p = p._replace(b=np.array([0.3, 2.0, 0.6, 4.0]), sigma2=np.array([0.5, 0.05, 1.5, 3.0]))
    Phi = np.sqrt(0.7) * p.X if kernel == "linear" else np.linalg.cholesky(p.K)
    mean, cov = ref.feature_posterior(Phi, p.Y, p.b, p.sigma2)
    parts = zip(mean.T, cov, strict=True)
    draws = np.stack([rng.multivariate_normal(m, V, size=S) for m, V in parts], axis=-1)
    unit = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    simulated = np.einsum("srt,sru->stu", unit, unit)
    spectrum, W = system_of(p.K, p.Y).spectrum, tf.constant(ref.weights(*p.chain))
    own = tf.constant(p.b), tf.constant(p.sigma2)
    rho = monte_carlo_correlation(spectrum, W, *own, S, seed=3)
    error = np.sqrt(2.0 * simulated.var(axis=0) / S)
    assert np.all(np.abs(rho - simulated.mean(axis=0)) <= 5.0 * error + 1e-12)
    # Not the correlation of the mean weights, which has no uncertainty to shrink it.
    at_mean = map_correlation(spectrum, residual_map(W), own[0] / own[1])
    assert np.abs(rho - at_mean).max() > 0.1


def test_monte_carlo_follows_the_seed_and_nothing_else(rng):
    p = random_problem(rng, 7, 3)

    def B(seed):
        found = recovered(*p.chain, 0.7, "monte_carlo", num_samples=20, seed=seed)
        return found.B.numpy()

    first = B(1)
    tf.random.set_seed(99)
    assert_array_equal(B(1), first)
    assert np.abs(B(2) - first)[np.triu_indices(3, 1)].min() > 1e-4
    assert np.abs(B(None) - B(None))[np.triu_indices(3, 1)].min() > 1e-8


# Averages over orders of the tasks ----------------------------------------------------------------


def averaged(K, Y, orders, learning="approximate", weight_variance=0.7, floor=1e-4):
    arguments = tf.constant(weight_variance, tf.float64), floor * ref.mean_squares(Y), learning
    return average_over_orders(system_of(K, Y), np.asarray(orders), *arguments)


def by_reference(K, Y, order, learning, weight_variance=0.7, floor=1e-4):
    """
    C and Sigma of one order, with the best b and sigma2, and with the weights at the ratio of the
    grid that is next to the best one.
    """
    permuted, unit = Y[:, order], unit_of_variance(K)
    bounds = np.log(LEAST_RATIO / unit), np.log(RATIOS[-1] / unit)
    b, sigma2, node = (np.zeros(len(order)) for _ in range(3))
    for t, least in enumerate(floor * ref.mean_squares(permuted)):
        best = ref.best_term(K, permuted, t, weight_variance, least, learning, bounds)
        sigma2[t], b[t] = best.sigma2, np.exp(best.log_ratio) * best.sigma2
        place = np.log(np.exp(best.log_ratio) * unit + np.exp(NODES[0]))
        nearest = RATIOS[np.argmin(np.abs(NODES - place))]
        node[t] = np.log(max(nearest, LEAST_RATIO) / unit)
    chain = K, permuted, np.exp(node) * sigma2, sigma2, weight_variance
    W, V = ref.weights(*chain), ref.weight_covariances(*chain)
    added = [ref.added_variances(W, V, own) for own in (b, sigma2)]
    B = ref.input_covariance(K, ref.dual_vectors(*chain), b)
    C = ref.task_covariance(W, B + np.diag(added[0]))
    back = np.argsort(order)
    return [S[np.ix_(back, back)] for S in (C, ref.noise_covariance(W, sigma2 + added[1]))]


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize(
    "N, T, orders",
    [
        (12, 3, [[0, 1, 2]]),
        (12, 3, [[0, 1, 2], [2, 0, 1], [1, 0, 2]]),
        (4, 6, [[5, 4, 3, 2, 1, 0]]),
        (7, 1, [[0]]),
    ],
)
def test_orders_equal_the_reference(rng, N, T, orders, learning):
    p = random_problem(rng, N, T)
    Y = p.Y * 10.0 ** np.arange(T)
    expected = [by_reference(p.K, Y, np.array(order), learning) for order in orders]
    units = np.outer(*2 * [10.0 ** np.arange(T)])
    for k, S in enumerate(averaged(p.K, Y, orders, learning)):
        mean = np.mean([one[k] for one in expected], axis=0)
        # A term that is wrong by 1e-4 has its maximum at a ratio that is wrong by some 1e-2.
        assert_close(S / units, mean / units, rtol=0.02)


def test_all_orders_together_know_no_order(rng):
    """The tasks permuted, and in other units: C and Sigma follow."""
    p, orders = random_problem(rng, 9, 3), list(itertools.permutations(range(3)))
    units, order = np.array([1e-6, 1.0, 1e4]), [2, 0, 1]
    expected = averaged(p.K, p.Y, orders)
    for S, other in zip(averaged(p.K, (p.Y * units)[:, order], orders), expected, strict=True):
        scaled = (S / np.outer(units[order], units[order])).numpy()
        assert_close(scaled, other.numpy()[np.ix_(order, order)])


def test_orders_in_blocks_give_what_all_give(rng, monkeypatch):
    p, orders = random_problem(rng, 6, 4), some_orders(4, 7, seed=0)
    whole = averaged(p.K, p.Y, orders)
    monkeypatch.setattr(recovery, "MAX_NUMBERS", 2 * len(RATIOS) * 16)
    for one, other in zip(averaged(p.K, p.Y, orders), whole, strict=True):
        assert_close(one, other, rtol=1e-12)


@pytest.mark.parametrize("weight_variance", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("case", ["N2-T5", "N1-T1", "copies", "zeros", "zero_kernel", "linear"])
def test_averages_are_positive_definite(rng, case, weight_variance):
    p = more_tasks_than_rows(rng) if case == "N2-T5" else CASES[case](rng)
    orders = some_orders(p.Y.shape[1], 4, seed=0)
    C, Sigma = averaged(p.K, p.Y, orders, weight_variance=weight_variance)
    for S in (C, Sigma):
        assert_array_equal(S, tf.transpose(S))
        deviation = np.sqrt(np.diag(S))
        assert np.linalg.eigvalsh(S / np.outer(deviation, deviation))[0] >= -1e-12


def test_orders_are_different_and_begin_with_that_of_the_columns():
    assert_array_equal(some_orders(1, 8, None), [[0]])
    assert sorted(map(tuple, some_orders(3, 8, 0))) == list(itertools.permutations(range(3)))
    orders = some_orders(30, 8, seed=1)
    assert_array_equal(orders[0], range(30))
    assert len(set(map(tuple, orders))) == 8
    assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(30), [8, 1]))
    assert_array_equal(orders, some_orders(30, 8, seed=1))
