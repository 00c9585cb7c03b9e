"""The chain's terms, weights, dual vectors and gradients, against dense algebra."""

import gpflow
import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from numpy.testing import assert_allclose, assert_array_equal
from problems import CASES, ENGINES, LEARNINGS, assert_close, random_problem

from gpflow_cool import CoolMTGP
from gpflow_cool.chain import likelihood as chain_module
from gpflow_cool.chain import objective
from gpflow_cool.chain.likelihood import (
    ridge_of_systems,
    solve_chain,
    solve_task_systems,
)
from gpflow_cool.chain.objective import (
    choose_engine,
    conditional_log_likelihoods,
    task_factor,
)
from gpflow_cool.systems.spectrum import Spectrum, exact_spectrum
from gpflow_cool.linalg import eigh


def terms_and_gradients(arrays, g, learning, engine, dtype=tf.float64):
    """The T terms, and the gradient of g^T terms with respect to K, Y, b and sigma2."""
    tensors = [tf.cast(array, dtype) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        terms = conditional_log_likelihoods(*tensors, learning=learning, engine=engine)
        total = tf.reduce_sum(tf.cast(g, dtype) * terms)
    return terms, tape.gradient(total, tensors)


def weighted_gradients(K, Y, b, sigma2, g, learning):
    """Dense gradient of g^T terms: term t is what task t adds to the objective of tasks 0..t."""
    T = Y.shape[1]
    total = [np.zeros(part.shape) for part in (K, Y, b, sigma2)]
    before = [np.zeros(part.shape) for part in (K, Y, b, sigma2)]
    for t in range(T):
        first = slice(t + 1)
        G = ref.analytic_gradients(K, Y[:, first], b[first], sigma2[first], learning)
        now = [np.zeros(part.shape) for part in (K, Y, b, sigma2)]
        for full, part in zip(now, G, strict=True):
            full[tuple(slice(n) for n in part.shape)] = part
        for sum_, new, old in zip(total, now, before, strict=True):
            sum_ += g[t] * (new - old)
        before = now
    return total


def assert_all_close(actual, expected, rtol):
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other, rtol=rtol)


# Values


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_terms_and_gradients_equal_dense(rng, case, learning, engine):
    p = CASES[case](rng)
    g = rng.normal(size=len(p.b))
    terms, gradients = terms_and_gradients(p.chain, g, learning, engine)
    assert_close(terms, ref.conditional_log_likelihoods(*p.chain, learning))
    expected = weighted_gradients(*p.chain, g, learning)
    assert_all_close(gradients, expected, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_weights_and_dual_vectors_equal_dense(rng, case, learning):
    p = CASES[case](rng)
    lam, U = eigh(tf.constant(p.K))
    spectrum = exact_spectrum(lam, U, tf.constant(p.Y))
    chain = solve_chain(spectrum, tf.constant(p.b), tf.constant(p.sigma2), learning)
    assert_close(chain.W, ref.weights(*p.chain))
    assert_close(U @ chain.A, ref.dual_vectors(*p.chain))
    assert_close(chain.d, 1.0 / (np.outer(lam, p.b) + p.sigma2), rtol=1e-14)


def test_task_systems_factorise_what_comes_before(rng):
    T = 4
    A = rng.normal(size=(T, T, T))
    G = A @ np.swapaxes(A, 1, 2)
    systems = solve_task_systems(tf.constant(G[1:]), tf.range(1, T))
    for t, W, L, log_det in zip(range(1, T), *systems, systems.log_det, strict=True):
        M = np.eye(T)
        M[:t, :t] += G[t, :t, :t]
        assert_close(L @ tf.transpose(L), M)
        assert_close(log_det, np.linalg.slogdet(M)[1])
        w = np.linalg.inv(M[:t, :t]) @ G[t, :t, t]
        assert_close(W, np.concatenate([w, np.zeros(T - t)]))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("N", [1, 7])
def test_one_task_has_nothing_to_be_conditioned_on(rng, N, engine):
    p = random_problem(rng, N, 1)
    both = [terms_and_gradients(p.chain, [1.0], learning, engine) for learning in LEARNINGS]
    assert_close(both[0][0], both[1][0], rtol=1e-14)
    assert_all_close(both[0][1], both[1][1], rtol=1e-13)


# Gradients


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, T", [(1, 1), (7, 1), (7, 3), (2, 5)])
def test_gradients_equal_finite_differences(rng, N, T, learning, engine):
    p = random_problem(rng, N, T)
    _, gradients = terms_and_gradients(p.chain, np.ones(T), learning, engine)
    expected = ref.finite_difference_gradients(*p.chain, learning)
    assert_all_close(gradients, expected, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_weighted_gradient_along_random_directions(rng, case, learning):
    """d/dh g^T terms(K + h dK, Y + h dY, b + h db, sigma2 + h ds) by finite differences."""
    p = CASES[case](rng)
    g = rng.normal(size=len(p.b))
    _, gradients = terms_and_gradients(p.chain, g, learning, "spectral")
    directions = [rng.normal(size=part.shape) for part in p.chain]
    directions[0] = directions[0] + directions[0].T
    expected = ref.derivative(
        lambda h: (
            g
            @ ref.conditional_log_likelihoods(
                *(part + h * d for part, d in zip(p.chain, directions, strict=True)), learning
            )
        ),
        step=5e-5,
    )
    actual = sum(np.sum(G * d) for G, d in zip(gradients, directions, strict=True))
    # Rounding of six evaluations over the step: 1e-14 |J| / 5e-5, of gradients of order |J|.
    assert_close(actual, expected, rtol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradient_of_a_linear_kernel_by_its_variances(rng, learning, engine):
    """D < N: K has a null space of dimension 10, where eigenvalues coincide."""
    p = random_problem(rng, 12, 3, kernel="linear")
    slopes = np.array([0.7, 1.1])
    kernel = gpflow.kernels.Linear(variance=slopes)
    model = CoolMTGP((p.X, p.Y), kernel, b=p.b, sigma2=p.sigma2, learning=learning, engine=engine)
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    slope_of_unconstrained = tape.gradient(loss, kernel.variance.unconstrained_variable)
    softplus = -np.expm1(-slopes)  # d slope / d unconstrained
    for d in range(2):
        expected = ref.derivative(
            lambda h, d=d: (
                -ref.objective(
                    ref.linear(p.X, p.X, slopes + h * np.eye(2)[d]), p.Y, p.b, p.sigma2, learning
                )
            ),
            step=5e-3,
        )
        assert_close(slope_of_unconstrained[d], expected * softplus[d], rtol=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradients_reach_lengthscale_and_mean_function(rng, learning, engine):
    p = random_problem(rng, 7, 3)
    offset = rng.normal(size=3)
    kernel, mean_function = p.gpflow_kernel(), gpflow.mean_functions.Constant(offset)
    model = CoolMTGP(
        (p.X, p.Y),
        kernel,
        mean_function,
        b=p.b,
        sigma2=p.sigma2,
        learning=learning,
        engine=engine,
    )

    def objective(lengthscale, offset):
        K = ref.squared_exponential(p.X, p.X, 1.3, lengthscale)
        return ref.objective(K, p.Y - offset, p.b, p.sigma2, learning)

    with tf.GradientTape() as tape:
        value = model.maximum_log_likelihood_objective()
    parameters = [
        kernel.lengthscales.unconstrained_variable,
        mean_function.c.unconstrained_variable,
    ]
    by_lengthscale, by_offset = tape.gradient(value, parameters)
    assert_close(value, objective(1.5, offset))
    expected = ref.derivative(lambda h: objective(1.5 + h, offset), step=5e-3)
    assert_close(by_lengthscale, expected * -np.expm1(-1.5), rtol=1e-8)
    for t in range(3):
        expected = ref.derivative(lambda h, t=t: objective(1.5, offset + h * np.eye(3)[t]), 1e-3)
        assert_close(by_offset[t], expected, rtol=1e-8)


# Engines, graphs, single precision


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", CASES)
def test_engines_agree(rng, case, learning):
    p = CASES[case](rng)
    g = rng.normal(size=len(p.b))
    spectral = terms_and_gradients(p.chain, g, learning, "spectral")
    cholesky = terms_and_gradients(p.chain, g, learning, "cholesky")
    assert_close(spectral[0], cholesky[0], rtol=1e-11)
    assert_all_close(spectral[1], cholesky[1], rtol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learning", LEARNINGS)
def test_graph_equals_eager_for_any_number_of_rows(rng, learning, engine):
    T = 3
    shapes = [[None, None], [None, T], [T], [T], [T]]

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float64) for shape in shapes])
    def compiled(K, Y, b, sigma2, g):
        return terms_and_gradients((K, Y, b, sigma2), g, learning, engine)

    for N in (1, 7):
        p = random_problem(rng, N, T)
        g = rng.normal(size=T)
        eager = terms_and_gradients(p.chain, g, learning, engine)
        graph = compiled(*map(tf.constant, (*p.chain, g)))
        assert_close(graph[0], eager[0], rtol=1e-12)
        for one, other in zip(graph[1], eager[1], strict=True):
            assert_close(one, other, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("case", ["N1-T1", "N12-T4", "linear", "copies", "zeros"])
def test_float32(rng, case, learning, engine):
    """Condition numbers of K_x are below 1e3 here: four digits of seven are left, at worst."""
    p = CASES[case](rng)
    g = rng.normal(size=len(p.b))
    terms, gradients = terms_and_gradients(p.chain, g, learning, engine, tf.float32)
    assert terms.dtype == tf.float32
    assert_close(terms, ref.conditional_log_likelihoods(*p.chain, learning), rtol=1e-5)
    expected = weighted_gradients(*p.chain, g, learning)
    for actual, e in zip(gradients, expected, strict=True):
        assert actual.dtype == tf.float32
        assert_close(actual, e, rtol=2e-4)


@pytest.mark.parametrize(
    "gpu, num_tasks, engine",
    [
        (False, 1, "cholesky"),
        (False, 2, "cholesky"),
        (False, 3, "spectral"),
        (False, 16, "spectral"),
        (True, 1, "cholesky"),
        (True, 16, "cholesky"),
    ],
)
def test_choose_engine(monkeypatch, gpu, num_tasks, engine):
    monkeypatch.setattr(objective, "has_gpu", lambda: gpu)
    assert choose_engine(num_tasks) == engine


def test_small_rounding_adds_no_ridge():
    assert_array_equal(
        ridge_of_systems(np.array([1.0, 1e11, 1e13]), 1), [0.0, 0.0, 1e14 * np.finfo(float).eps]
    )


@pytest.mark.parametrize("factor", [task_factor, tf.function(task_factor, autograph=False)])
@pytest.mark.parametrize("N", [1, 6, 40])
def test_noise_that_rounding_swallows_leaves_a_cholesky_factor(N, factor):
    """Copies of one row, and a signal 1e17 times the noise: some rounding must be added."""
    K, unit = np.ones((N, N)), np.finfo(float).eps
    b, sigma2 = 3e15, 0.03
    L = factor(*(tf.constant(part, tf.float64) for part in (K, b, sigma2))).numpy()
    assert np.isfinite(L).all()
    assert_allclose(L @ L.T, b * K, rtol=0, atol=3 * N * unit * b)
    b = 1e-14 * b  # here the noise is not lost, and nothing is added
    L = factor(*(tf.constant(part, tf.float64) for part in (K, b, sigma2))).numpy()
    assert_allclose(L, np.linalg.cholesky(b * K + sigma2 * np.eye(N)), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("engine", ["spectral", "cholesky"])
@pytest.mark.parametrize("learning", LEARNINGS)
def test_copies_of_a_task_far_from_zero(rng, learning, engine):
    X = np.linspace(0, 6, 40)[:, None]
    y = 1e6 + np.sin(X) + 0.1 * rng.normal(size=X.shape)
    kernel = gpflow.kernels.SquaredExponential()
    with pytest.warns(UserWarning, match="as far from zero as from their mean"):
        model = CoolMTGP((X, np.hstack([y, y, y])), kernel, learning=learning, engine=engine)
    model.fit(verbose=0)
    C, Sigma = model.task_covariance().numpy(), model.noise_covariance().numpy()
    for S in (C, Sigma):
        assert np.isfinite(S).all()
        assert np.linalg.eigvalsh(S)[0] >= -1e-9 * np.max(S)
    assert np.isfinite(float(model.training_loss()))
    mean, _ = model.predict_f(X)
    assert_allclose(mean, np.hstack([y, y, y]), atol=1.0)


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, T, size", [(1, 1, 1), (7, 3, 1), (2, 5, 2), (7, 4, 3)])
def test_systems_in_blocks_equal_dense(rng, monkeypatch, N, T, size, learning):
    """Terms and gradients of many tasks, whose systems are solved one block after the other."""
    p, g = random_problem(rng, N, T), rng.normal(size=T)
    monkeypatch.setattr(chain_module, "block_size", lambda spectrum: size)
    arguments = [tf.constant(part) for part in (*p.chain, g)]
    compiled = tf.function(
        lambda *parts: terms_and_gradients(parts[:4], parts[4], learning, "spectral"),
        autograph=False,
    )
    terms, gradients = compiled(*arguments)
    assert_close(terms, ref.conditional_log_likelihoods(*p.chain, learning))
    assert_all_close(gradients, weighted_gradients(*p.chain, g, learning), rtol=1e-8)


@pytest.mark.parametrize(
    "N, T, size", [(200, 161, 161), (200, 162, 20), (10, 1000, 4), (50_000, 30, 3), (None, 5, 5)]
)
def test_size_of_blocks(N, T, size):
    """Of 161 tasks one array has 2^22 numbers; of 30 tasks and 50,000 rows 2^25."""
    Yr = tf.TensorSpec([N, T], tf.float64)
    assert chain_module.block_size(Spectrum(None, Yr, None, None)) == size
