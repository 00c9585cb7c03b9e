"""The spectrum, exact and of low rank, and what the chain makes of it, against dense algebra."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from problems import CASES, LEARNINGS, assert_close

from gpflow_cool.chain.likelihood import (
    block_contrasts,
    block_systems,
    chain_gradient,
    contrasts,
    solve_chain,
)
from gpflow_cool.systems.spectrum import Spectrum, exact_spectrum, exact_spectrum_of_arrays
from gpflow_cool.linalg import eigh


@pytest.mark.parametrize("case", CASES)
def test_exact_spectrum_keeps_kernel_and_targets(rng, case):
    p = CASES[case](rng)
    lam, U = eigh(tf.constant(p.K))
    spectrum = exact_spectrum(lam, U, tf.constant(p.Y))
    assert_close(U @ (spectrum.lam[:, None] * tf.transpose(U)), p.K, rtol=1e-12)
    assert_close(U @ spectrum.Yr, p.Y, rtol=1e-12)
    assert_close(spectrum.G0, np.zeros(2 * [p.Y.shape[1]]), rtol=0)
    assert spectrum.num_rows.numpy() == len(p.Y)


def test_exact_spectrum_of_float32_is_float64(rng):
    """Cast before, not after, anything that loses digits: only the rotation is single precision."""
    p = CASES["N7-T3"](rng)
    lam, U = eigh(tf.constant(p.K, tf.float32))
    spectrum = exact_spectrum(lam, U, tf.constant(p.Y, tf.float32))
    assert {part.dtype for part in spectrum[:4]} == {tf.float64}
    assert spectrum.precision == np.finfo(np.float32).eps
    assert_close(tf.cast(U, tf.float64) @ spectrum.Yr, p.Y, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(7, 3), (4, 7, 3)])
def test_spectrum_of_arrays_equals_that_of_tensors(rng, shape, dtype):
    """Of targets, and of four completions."""
    Y = rng.normal(size=shape).astype(dtype)
    lam, U = np.linalg.eigh(ref.squared_exponential(*2 * [rng.normal(size=(7, 2))]).astype(dtype))
    lam = np.maximum(lam, 0.0)
    arrays = exact_spectrum_of_arrays(lam, U, Y)
    tensors = exact_spectrum(*map(tf.constant, (lam, U, Y)))
    for name, part in tensors.numpy()._asdict().items():
        assert part.dtype == np.float64
        assert_close(getattr(arrays, name), part, rtol=10 * np.finfo(dtype).eps)
    assert arrays.rank == tensors.rank == 7.0
    assert arrays.rounding == tensors.rounding.numpy() == np.finfo(dtype).eps * 7 * lam.max()


def test_spectrum_of_some_tasks(rng):
    spectrum = LowRank(rng, 7, 2, 4).spectrum.numpy()
    order = np.array([2, 0, 3, 1])
    for tasks in (order, slice(3)):
        some = spectrum.of_tasks(tasks)
        assert_close(some.Yr, spectrum.Yr[:, tasks], rtol=0)
        assert_close(some.G0, spectrum.G0[np.arange(4)[tasks]][:, np.arange(4)[tasks]], rtol=0)
        assert some[0] is spectrum.lam and some.num_rows == 7.0


# A spectrum of low rank, from F^T F, F^T Y, Y^T Y and N alone: mathematics.md, 4b


class LowRank:
    """K = F F^T with F [N, R], and its spectrum from sums over rows."""

    def __init__(self, rng, N, R, T, kernel_scale=1.0):
        self.F = kernel_scale * rng.normal(size=(N, R))
        self.Y = rng.normal(size=(N, T))
        self.b, self.sigma2 = rng.uniform(0.5, 2.0, size=T), rng.uniform(0.05, 0.5, size=T)
        self.g = rng.normal(size=T)
        lam, E = np.linalg.eigh(self.F.T @ self.F)
        Yr = E.T @ self.F.T @ self.Y / np.sqrt(lam)[:, None]
        G0 = self.Y.T @ self.Y - Yr.T @ Yr
        self.spectrum = Spectrum(*map(tf.constant, (lam, Yr, G0, np.float64(N))))
        self.Q = self.F @ E / np.sqrt(lam)  # [N, R], orthonormal, Yr = Q^T Y
        self.outside = self.Y - self.Q @ Yr

    @property
    def dense(self):
        return self.F @ self.F.T, self.Y, self.b, self.sigma2

    def chain(self, learning):
        return solve_chain(self.spectrum, tf.constant(self.b), tf.constant(self.sigma2), learning)

    def weighted_terms(self, learning, Yr, b, sigma2):
        """g^T terms by dense algebra, the targets changed inside the span only."""
        return self.g @ ref.conditional_log_likelihoods(
            self.F @ self.F.T, self.Q @ Yr + self.outside, b, sigma2, learning
        )


def gradient_of(p, b, sigma2, chain, learning, weights):
    """The gradient of all tasks at once."""
    V, tasks = contrasts(chain.W)
    if learning == "approximate":
        tasks = tf.range(len(p.b))
        V, tasks = block_contrasts(
            chain.W, block_systems(p.spectrum, chain.d, sigma2, tasks), tasks
        )
    return chain_gradient(p.spectrum, V, tasks, chain.d, b, sigma2, weights)


SHAPES = [(7, 1, 1), (7, 2, 3), (12, 3, 4), (4, 1, 5), (6, 6, 3)]


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, R, T", SHAPES)
def test_chain_on_a_low_rank_spectrum_equals_dense(rng, N, R, T, learning):
    p = LowRank(rng, N, R, T)
    chain = p.chain(learning)
    assert_close(chain.terms, ref.conditional_log_likelihoods(*p.dense, learning))
    assert_close(chain.W, ref.weights(*p.dense))
    assert_close(chain.A, p.Q.T @ ref.dual_vectors(*p.dense))


@pytest.mark.parametrize("learning", LEARNINGS)
@pytest.mark.parametrize("N, R, T", SHAPES)
def test_gradient_on_a_low_rank_spectrum_equals_finite_differences(rng, N, R, T, learning):
    p = LowRank(rng, N, R, T)
    b, sigma2 = tf.constant(p.b), tf.constant(p.sigma2)
    chain = p.chain(learning)
    g = gradient_of(p, b, sigma2, chain, learning, tf.constant(p.g))
    at = {"Yr": p.spectrum.Yr.numpy(), "b": p.b, "sigma2": p.sigma2}
    radius = {"Yr": np.sqrt(p.sigma2.min()), "b": p.b.min(), "sigma2": p.sigma2.min()}
    for name, value in at.items():
        expected = np.zeros(value.shape)
        for index in np.ndindex(value.shape):
            unit = np.zeros(value.shape)
            unit[index] = 1.0

            def line(h, name=name, value=value, unit=unit):
                return p.weighted_terms(learning, **{**at, name: value + h * unit})

            expected[index] = ref.derivative(line, radius[name] / 200)
        actual = g.kernel.Yr if name == "Yr" else getattr(g, name)
        assert_close(actual, expected, rtol=1e-8)


@pytest.mark.parametrize("learning", LEARNINGS)
def test_gradient_in_the_eigenbasis_is_the_dense_one_seen_from_the_features(rng, learning):
    """With unit weights: U^T (dJ/dK) U and U^T (dJ/dY), U the R directions of the features."""
    p = LowRank(rng, 12, 3, 4)
    chain = p.chain(learning)
    weights = tf.ones(4, tf.float64)
    g = gradient_of(p, tf.constant(p.b), tf.constant(p.sigma2), chain, learning, weights)
    expected = ref.analytic_gradients(*p.dense, learning)
    F = g.kernel.factors.numpy()
    gK = np.diag(g.kernel.diagonal) + F.T @ np.diag(g.kernel.weights) @ F
    assert_close(gK, p.Q.T @ expected.K @ p.Q)
    assert_close(g.kernel.Yr, p.Q.T @ expected.Y)
    assert_close(g.b, expected.b)
    assert_close(g.sigma2, expected.sigma2)
