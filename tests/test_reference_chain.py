"""The reference's conditional model against itself, by routes that share no formula with it."""

import numpy as np
import pytest
import reference as ref
from numpy.testing import assert_allclose, assert_array_equal
from reference_problems import KERNELS, SIZES, TOLERANCE, inputs, problem, random_covariance
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

LEARNINGS = ["hierarchical", "approximate"]


# Kernels and Gaussians


def test_kernels_entry_by_entry(rng):
    X, X2, lengthscales = rng.normal(size=(3, 2)), rng.normal(size=(4, 2)), np.array([0.5, 2.0])
    se = ref.squared_exponential(X, X2, 1.7, lengthscales)
    lin = ref.linear(X, X2, 0.3)
    for n, m in np.ndindex(3, 4):
        r2 = ((X[n, 0] - X2[m, 0]) / 0.5) ** 2 + ((X[n, 1] - X2[m, 1]) / 2.0) ** 2
        assert_allclose(se[n, m], 1.7 * np.exp(-r2 / 2), rtol=1e-14)
        assert_allclose(lin[n, m], 0.3 * (X[n, 0] * X2[m, 0] + X[n, 1] * X2[m, 1]), rtol=1e-13)


def test_gaussian_log_density_equals_scipy(rng):
    S, y = random_covariance(rng, 5), rng.normal(size=5)
    assert_allclose(
        ref.gaussian_log_density(y, S), multivariate_normal(cov=S).logpdf(y), rtol=1e-12
    )


def test_gaussian_log_density_refuses_an_indefinite_covariance():
    with pytest.raises(ValueError, match="determinant of the covariance has sign -1"):
        ref.gaussian_log_density(np.ones(2), np.diag([1.0, -1.0]))


# The conditional model


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("N, T", SIZES)
def test_conditional_terms_by_a_second_formula(rng, N, T, kernel):
    """Both terms share y^T K_xy^-1 y; they differ in the determinant only."""
    K, Y, b, sigma2 = problem(rng, N, T, kernel)
    hierarchical, approximate = np.zeros(T), np.zeros(T)
    for t in range(T):
        Kx = b[t] * K + sigma2[t] * np.eye(N)
        Kxy = Kx + sum((np.outer(Y[:, u], Y[:, u]) for u in range(t)), start=np.zeros((N, N)))
        approximate[t] = multivariate_normal(cov=Kxy).logpdf(Y[:, t])
        log_ratio = np.linalg.slogdet(Kxy)[1] - np.linalg.slogdet(Kx)[1]
        hierarchical[t] = approximate[t] + log_ratio / 2
    for learning, terms in zip(LEARNINGS, [hierarchical, approximate], strict=True):
        actual = ref.conditional_log_likelihoods(K, Y, b, sigma2, learning)
        assert_allclose(actual, terms, **TOLERANCE)
        assert_allclose(ref.objective(K, Y, b, sigma2, learning), sum(terms), **TOLERANCE)


def test_approximate_term_integrates_the_weight_out(rng):
    K, Y, b, sigma2 = problem(rng, 5, 2)
    Kx = b[1] * K + sigma2[1] * np.eye(5)
    w_map = ref.weights(K, Y, b, sigma2)[1, 0]

    def integrand(w):
        return multivariate_normal(cov=Kx).pdf(Y[:, 1] - w * Y[:, 0]) * norm.pdf(w)

    # Ten units about the mode: the prior alone leaves less than 1e-20 beyond.
    integral, _ = quad(integrand, w_map - 10, w_map + 10, points=[w_map], epsabs=0, epsrel=1e-11)
    terms = ref.conditional_log_likelihoods(K, Y, b, sigma2, "approximate")
    assert_allclose(terms[1], np.log(integral), rtol=1e-9)


def test_weights_maximise_the_hierarchical_term(rng):
    K, Y, b, sigma2 = problem(rng, 7, 4)
    t, Kx = 3, b[3] * K + sigma2[3] * np.eye(7)
    w = ref.weights(K, Y, b, sigma2)[t, :t]

    def term(w):
        return ref.gaussian_log_density(Y[:, t] - Y[:, :t] @ w, Kx) - w @ w / 2

    best = ref.conditional_log_likelihoods(K, Y, b, sigma2, "hierarchical")[t]
    assert_allclose(term(w), best, rtol=1e-13)
    for direction in np.eye(t):
        # The term is quadratic in w, so a central difference is exact but for rounding.
        assert abs(term(w + direction) - term(w - direction)) < 1e-11 * abs(term(w + direction))
        assert term(w + 1e-3 * direction) < best


@pytest.mark.parametrize("N, T", SIZES)
def test_weights_and_features_by_the_joint_posterior(rng, N, T):
    """The paper's precision A_t of (w_x,t, w_y,t) together, in an explicit feature space."""
    _, Y, b, sigma2 = problem(rng, N, T)
    Phi = rng.normal(size=(N, 4))
    K = Phi @ Phi.T
    W, (means, _) = ref.weights(K, Y, b, sigma2), ref.feature_posterior(Phi, Y, b, sigma2)
    assert_array_equal(W, np.tril(W, -1))
    alpha = ref.dual_vectors(K, Y, b, sigma2)
    for t in range(T):
        F = np.hstack([Phi, Y[:, :t]])
        prior = np.diag(np.r_[np.full(4, 1 / b[t]), np.ones(t)])
        both = np.linalg.solve(F.T @ F / sigma2[t] + prior, F.T @ Y[:, t] / sigma2[t])
        assert_allclose(W[t, :t], both[4:], **TOLERANCE)
        # With w_y at its MAP, the mean of w_x alone is the joint mode's, b_t Phi^T alpha_t.
        assert_allclose(means[:, t], both[:4], **TOLERANCE)
        assert_allclose(b[t] * Phi.T @ alpha[:, t], both[:4], **TOLERANCE)


@pytest.mark.parametrize("N, T", SIZES)
def test_dual_vectors_serve_both_approaches(rng, N, T):
    K, Y, b, sigma2 = problem(rng, N, T)
    alpha = ref.dual_vectors(K, Y, b, sigma2)
    for t in range(T):
        Kxy = ref.composed_kernel(K, Y, b, sigma2, t)
        assert_allclose(Kxy @ alpha[:, t], Y[:, t], **TOLERANCE)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("N, T", SIZES)
def test_gradients(rng, N, T, kernel, learning):
    """Along random directions. The step is 1/200 of where K_x,t or K_xy,t becomes singular."""
    K, Y, b, sigma2 = problem(rng, N, T, kernel)
    gradients = ref.analytic_gradients(K, Y, b, sigma2, learning)
    least = np.min(sigma2)
    radii = least / np.max(b), np.sqrt(least), np.min(b), least
    for place, radius in enumerate(radii):
        direction = rng.uniform(-1.0, 1.0, size=gradients[place].shape)
        if place == 0:
            direction = (direction + direction.T) / 2
        direction /= max(1.0, np.linalg.norm(direction))

        def along(h, place=place, direction=direction):
            moved = [K, Y, b, sigma2]
            moved[place] = moved[place] + h * direction
            return ref.objective(*moved, learning)

        expected = np.sum(gradients[place] * direction)
        size = max(1.0, np.abs(gradients[place]).max())
        assert_allclose(ref.derivative(along, radius / 200), expected, rtol=0, atol=1e-9 * size)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradients_along_a_lengthscale(rng, learning):
    """The convention of the symmetric gradient: dJ = sum(G * dK)."""
    X, _ = inputs(rng, 6)
    _, Y, b, sigma2 = problem(rng, 6, 3)

    def along(h):
        return ref.objective(ref.squared_exponential(X, X, 1.0, 0.9 + h), Y, b, sigma2, learning)

    K = ref.squared_exponential(X, X, 1.0, 0.9)
    distance2 = np.sum((X[:, None] - X[None]) ** 2, axis=-1)
    G = ref.analytic_gradients(K, Y, b, sigma2, learning).K
    assert_allclose(np.sum(G * K * distance2 / 0.9**3), ref.derivative(along, 2e-3), rtol=1e-9)


def test_derivative_is_exact_for_degree_six(rng):
    c = rng.normal(size=7)
    slope = ref.derivative(lambda h: sum(c[k] * h**k for k in range(7)), 0.1)
    assert_allclose(slope, c[1], rtol=1e-12)


def test_learning_is_checked(rng):
    with pytest.raises(ValueError, match="learning is 'exact'"):
        ref.objective(*problem(rng, 3, 2), "exact")


# The joint model recovered


@pytest.mark.parametrize("T", [1, 2, 5])
def test_recovered_covariances_by_inversion(rng, T):
    W, sigma2 = np.tril(rng.normal(size=(T, T)), -1), rng.uniform(0.1, 1, size=T)
    B = random_covariance(rng, T)
    A = np.linalg.inv(np.eye(T) - W)
    assert_allclose(ref.mixing_matrix(W), A, **TOLERANCE)
    assert_allclose(ref.noise_covariance(W, sigma2), A @ np.diag(sigma2) @ A.T, **TOLERANCE)
    assert_allclose(ref.task_covariance(W, B), A @ B @ A.T, **TOLERANCE)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("N, T", SIZES)
def test_joint_evidence_is_the_chain_for_uncorrelated_inputs(rng, N, T, kernel):
    """B = diag(b) makes the chain rule exact: log p(Y) = sum_t log N(y_t - Y_<t w_t | 0, K_x,t)."""
    K, Y, b, sigma2 = problem(rng, N, T, kernel)
    W = np.tril(rng.normal(size=(T, T)), -1)
    C, Sigma = ref.task_covariance(W, np.diag(b)), ref.noise_covariance(W, sigma2)
    chain = 0.0
    for t in range(T):
        Kx = b[t] * K + sigma2[t] * np.eye(N)
        chain += multivariate_normal(mean=Y @ W[t], cov=Kx).logpdf(Y[:, t])
    assert_allclose(ref.log_evidence(K, Y, C, Sigma), chain, **TOLERANCE)


def test_recovered_covariances_are_those_of_the_generating_chain(rng):
    """Draw y_t = f_x,t + Y_<t w_t + e_t at one point; moments of 400,000 draws, five sigma."""
    T, S = 3, 400_000
    W = np.tril(rng.normal(size=(T, T)), -1)
    B, sigma2 = random_covariance(rng, T), np.array([0.3, 0.1, 0.5])
    f_x = rng.multivariate_normal(np.zeros(T), B, size=S)
    y = np.zeros((S, T))
    for t in range(T):
        y[:, t] = f_x[:, t] + y[:, :t] @ W[t, :t] + rng.normal(size=S) * np.sqrt(sigma2[t])
    expected = ref.task_covariance(W, B) + ref.noise_covariance(W, sigma2)  # k(x, x) = 1
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.max(np.abs(y.T @ y / S - expected) / scale) < 5 * np.sqrt(2 / S)


@pytest.mark.parametrize("N, T", SIZES)
def test_input_covariance_from_explicit_weights(rng, N, T):
    """Cosines of w_x,t = Phi^T alpha_t as vectors."""
    _, Y, b, sigma2 = problem(rng, N, T)
    Phi = rng.normal(size=(N, 4))
    K = Phi @ Phi.T
    alpha = ref.dual_vectors(K, Y, b, sigma2)
    W_x = Phi.T @ alpha
    unit = W_x / np.linalg.norm(W_x, axis=0)
    expected = np.diag(np.sqrt(b)) @ unit.T @ unit @ np.diag(np.sqrt(b))
    B = ref.input_covariance(K, alpha, b)
    assert_allclose(B, expected, **TOLERANCE)
    assert_allclose(np.diag(B), b, rtol=1e-15)


def test_a_task_without_signal_is_uncorrelated(rng):
    X = rng.normal(size=(7, 2))
    K, b = ref.linear(X, X), np.array([0.5, 1.0, 2.0])
    alpha = rng.normal(size=(7, 3))
    alpha[:, 1] -= X @ np.linalg.lstsq(X, alpha[:, 1], rcond=None)[0]  # K alpha_1 is rounding
    B = ref.input_covariance(K, alpha, b)
    assert_array_equal(B[1], [0, 1, 0])
    assert_array_equal(B[:, 1], [0, 1, 0])
    assert abs(B[0, 2]) > 1e-3
    assert_array_equal(ref.input_covariance(np.zeros((7, 7)), alpha, b), np.diag(b))
    assert_array_equal(ref.input_covariance(K, np.zeros((7, 3)), b), np.diag(b))


def test_recover_composes_the_pieces(rng):
    K, Y, b, sigma2 = problem(rng, 7, 3)
    C, Sigma = ref.recover(K, Y, b, sigma2)
    A = np.linalg.inv(np.eye(3) - ref.weights(K, Y, b, sigma2))
    alpha = np.stack(
        [np.linalg.solve(ref.composed_kernel(K, Y, b, sigma2, t), Y[:, t]) for t in range(3)], 1
    )
    gram = alpha.T @ K @ alpha
    B = np.sqrt(np.outer(b, b) / np.outer(np.diag(gram), np.diag(gram))) * gram
    assert_allclose(C, A @ B @ A.T, **TOLERANCE)
    assert_allclose(Sigma, A @ np.diag(sigma2) @ A.T, **TOLERANCE)


# The scaled prior of the weights


LAM = 0.7


def in_units_of_the_paper(Y, sigma2, t):
    """The earlier targets times the roots of their weights' prior variances: p = 1 for these."""
    v = np.mean(Y**2, axis=0)
    return np.column_stack([Y[:, :t] * np.sqrt(LAM * sigma2[t] / v[:t]), Y[:, t]])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("N, T", SIZES)
def test_scaled_prior_is_the_unit_prior_of_scaled_targets(rng, N, T, kernel):
    K, Y, b, sigma2 = problem(rng, N, T, kernel)
    chain = K, Y, b, sigma2, LAM
    W, V = ref.weights(*chain), ref.weight_covariances(*chain)
    for t in range(T):
        scaled = in_units_of_the_paper(Y, sigma2, t)
        unit = K, scaled, np.append(b[:t], b[t]), np.append(sigma2[:t], sigma2[t])
        for learning in LEARNINGS:
            expected = ref.conditional_log_likelihoods(*unit, learning)[t]
            actual = ref.conditional_log_likelihoods(K, Y, b, sigma2, learning, LAM)[t]
            assert_allclose(actual, expected, **TOLERANCE)
        root = np.sqrt(LAM * sigma2[t] / np.mean(Y[:, :t] ** 2, axis=0))
        assert_allclose(W[t, :t], root * ref.weights(*unit)[t, :t], **TOLERANCE)
        expected = np.outer(root, root) * ref.weight_covariances(*unit)[t]
        assert_allclose(V[t], expected, **TOLERANCE)


def test_weights_by_the_ratio_of_densities(rng):
    """p(w | y) p(y) = p(y | w) p(w), at random weights."""
    K, Y, b, sigma2 = problem(rng, 6, 3)
    w, V = ref.weights(K, Y, b, sigma2, LAM)[2, :2], ref.weight_covariances(K, Y, b, sigma2, LAM)[2]
    evidence = ref.conditional_log_likelihoods(K, Y, b, sigma2, "approximate", LAM)[2]
    prior = np.diag(LAM * sigma2[2] / np.mean(Y[:, :2] ** 2, axis=0))
    Kx = b[2] * K + sigma2[2] * np.eye(6)
    for point in w + 0.3 * rng.normal(size=(3, 2)):
        likelihood = multivariate_normal(mean=Y[:, :2] @ point, cov=Kx).logpdf(Y[:, 2])
        both = likelihood + multivariate_normal(cov=prior).logpdf(point)
        assert_allclose(multivariate_normal(w, V).logpdf(point) + evidence, both, **TOLERANCE)


def test_units_of_targets_do_not_matter_with_the_scaled_prior(rng):
    K, Y, b, sigma2 = problem(rng, 6, 3)
    units = np.array([1e-3, 1.0, 50.0])
    C, Sigma = ref.recover(K, Y, b, sigma2, LAM)
    scaled = ref.recover(K, Y * units, b * units**2, sigma2 * units**2, LAM)
    assert_allclose(scaled[0], C * np.outer(units, units), rtol=1e-9)
    assert_allclose(scaled[1], Sigma * np.outer(units, units), rtol=1e-9)


def test_covariances_are_means_over_draws_of_the_weights(rng):
    """E[Sigma] of A diag(s) A^T over 20,000 draws of the weights, within five standard errors."""
    K, Y, b, sigma2 = problem(rng, 5, 4)
    chain = K, Y, b, sigma2, LAM
    found, V = ref.recover_all(*chain), ref.weight_covariances(*chain)
    W = np.zeros((20_000, 4, 4))
    for t in range(1, 4):
        W[:, t, :t] = rng.multivariate_normal(found.W[t, :t], V[t], size=20_000)
    A = np.linalg.inv(np.eye(4) - W)
    draws = np.einsum("sti,i,sui->stu", A, sigma2, A)
    error = draws.std(axis=0) / np.sqrt(20_000)
    assert np.all(np.abs(draws.mean(axis=0) - found.Sigma) <= 5.0 * error + 1e-12)
    assert np.abs(found.Sigma - ref.noise_covariance(found.W, sigma2)).max() > 20.0 * error.max()


@pytest.mark.parametrize("learning", LEARNINGS)
def test_best_term_is_no_less_than_any_other(rng, learning):
    K, Y, b, sigma2 = problem(rng, 12, 3)
    best = [ref.best_term(K, Y, t, LAM, 1e-3, learning, (-8.0, 12.0)) for t in range(3)]
    found = np.array([one.sigma2 for one in best])
    ratios = np.exp([one.log_ratio for one in best])
    terms = ref.conditional_log_likelihoods(K, Y, ratios * found, found, learning, LAM)
    assert_allclose([one.term for one in best], terms, **TOLERANCE)
    for _ in range(200):
        s = np.maximum(found * np.exp(rng.normal(size=3)), 1e-3)
        r = np.clip(ratios * np.exp(2.0 * rng.normal(size=3)), np.exp(-8.0), np.exp(12.0))
        assert np.all(ref.conditional_log_likelihoods(K, Y, r * s, s, learning, LAM) < terms + 1e-9)


def test_left_out_rows_by_conditioning(rng):
    """Each task's rows given the others by the rules for Gaussians, the earlier tasks known."""
    K, Y, b, sigma2 = problem(rng, 7, 3)
    group, kept = np.array([1, 4]), np.array([0, 2, 3, 5, 6])
    expected = 0.0
    for t in range(3):
        S = ref.composed_kernel(K, Y, b, sigma2, t, LAM)
        gain = S[np.ix_(group, kept)] @ np.linalg.inv(S[np.ix_(kept, kept)])
        cov = S[np.ix_(group, group)] - gain @ S[np.ix_(kept, group)]
        expected += multivariate_normal(gain @ Y[kept, t], cov).logpdf(Y[group, t])
    actual = ref.leave_out_log_densities(K, Y, b, sigma2, [group, np.arange(7)], LAM)
    assert_allclose(actual[0], expected, **TOLERANCE)
    assert_allclose(actual[1], ref.objective(K, Y, b, sigma2, "approximate", LAM), **TOLERANCE)
