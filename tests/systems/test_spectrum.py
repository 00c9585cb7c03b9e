"""Gram matrices, log determinants and their gradient from eigenvalues and rotated targets."""

import numpy as np
import pytest
import reference as ref
import tensorflow as tf
from problems import assert_close

from gpflow_cool.systems import spectrum as module
from gpflow_cool.systems.spectrum import Spectrum

SHAPES = [(1, 1, 1, 1), (3, 3, 2, 1), (5, 2, 3, 1), (4, 6, 3, 2), (2, 9, 1, 3)]
"""R eigenvalues, J ratios, T tasks, S completions."""


def random_spectrum(rng, R, T, S):
    A = rng.normal(size=(T, T))
    lam = rng.uniform(0.0, 3.0, size=R) * (np.arange(R) > 0)  # one of them is zero
    return Spectrum(
        lam=tf.constant(lam),
        Yr=tf.constant(rng.normal(size=(S * R, T))),
        G0=tf.constant(A @ A.T),
        num_rows=tf.constant(R + 4.0, tf.float64),
        slack=tf.constant(0.7, tf.float64),
    )


def dense(lam, Yr, G0, slack, r):
    """G(r) and log|r K + I| one ratio after the other."""
    copies = len(Yr) // len(lam)
    d = [np.tile(1.0 / (ratio * lam + 1.0), copies) for ratio in r]
    gram = np.stack([Yr.T @ np.diag(part) @ Yr + G0 for part in d])
    return gram, np.array([np.sum(np.log(ratio * lam + 1.0)) + ratio * slack for ratio in r])


@pytest.mark.parametrize("R, J, T, S", SHAPES)
def test_gram_and_log_det(rng, R, J, T, S):
    found = random_spectrum(rng, R, T, S)
    r = np.append(rng.uniform(0.0, 9.0, size=J - 1), 0.0)
    gram, log_det = dense(found.lam.numpy(), found.Yr.numpy(), found.G0.numpy(), 0.7, r)
    assert_close(found.gram(tf.constant(r)), gram, rtol=1e-13)
    assert_close(found.log_det(tf.constant(r)), log_det, rtol=1e-13)
    lam, N = found.lam.numpy(), R + 4.0
    rest = (lam.sum() - lam.max() + 0.7) / N
    assert_close(found.typical_variance**2, (lam.sum() + 0.7) / N * rest, rtol=1e-13)


def test_blocks_of_ratios_give_what_all_ratios_give(rng, monkeypatch):
    found, r = random_spectrum(rng, 4, 3, 2), tf.constant(rng.uniform(size=7))
    whole = found.gram(r), found.log_det(r)
    monkeypatch.setattr(module, "MAX_NUMBERS", 50)  # two ratios at a time
    assert_close(found.gram(r), whole[0], rtol=1e-14)
    assert_close(found.log_det(r), whole[1], rtol=1e-14)


@pytest.mark.parametrize("R, J, T, S", SHAPES)
def test_gradient_by_differences(rng, R, J, T, S):
    """With respect to rotated targets, ratios and, on the diagonal of that of K, eigenvalues."""
    spectrum = random_spectrum(rng, R, T, S)
    A, a = rng.normal(size=(J, T, T)), rng.normal(size=J)
    if J > 2:
        A[1], a[1] = 0.0, 0.0  # a ratio that nothing depends on
    values = {
        "lam": spectrum.lam.numpy() + 0.1,
        "Yr": spectrum.Yr.numpy(),
        "r": rng.uniform(0.5, 2.0, size=J),
    }

    def total(lam, Yr, r):
        gram, log_det = dense(lam, Yr, spectrum.G0.numpy(), 0.7, r)
        return np.sum(A * gram) + a @ log_det

    spectrum = spectrum._replace(lam=tf.constant(values["lam"]))
    found = spectrum.gradient(*map(tf.constant, (values["r"], A, a)))
    products = tf.reduce_sum(found.left * found.right, axis=[0, 2])
    by_lam = found.diagonal + tf.reduce_sum(tf.reshape(products, [S, R]), axis=0)
    # The slack belongs to no eigenvalue.
    for name, gradient in {"lam": by_lam, "Yr": found.Yr, "r": found.r}.items():
        direction = rng.uniform(-1.0, 1.0, size=values[name].shape)

        def along(h, name=name, direction=direction):
            return total(**values | {name: values[name] + h * direction})

        assert_close(np.sum(gradient * direction), ref.derivative(along, 1e-3), rtol=1e-8)


def test_a_zero_kernel_has_a_unit_variance(rng):
    found = random_spectrum(rng, 3, 2, 1)._replace(lam=tf.zeros(3, tf.float64), slack=0.0)
    assert found.typical_variance.numpy() == 1.0
    assert found.rounding.numpy() == 0.0
    Yr = found.Yr.numpy()
    gram = found.gram(tf.constant([0.0, 1e9], tf.float64))
    assert_close(gram, [Yr.T @ Yr + found.G0.numpy()] * 2, rtol=1e-14)
