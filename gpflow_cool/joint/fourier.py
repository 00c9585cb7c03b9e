r"""
Features of a kernel, for draws of whole functions: :math:`\mathrm{E}[\phi(x)^\top \phi(x')] = k`.

A stationary kernel is the mean of :math:`\cos(\omega^\top (x - x'))` over frequencies from its
spectral density (Rahimi and Recht 2007). Each frequency gives a cosine and a sine, so that the
variance is exact at every point. Frequencies come from a scrambled Sobol sequence, which covers the
density more evenly than independent draws do. Frequencies of a product are sums of its factors'
frequencies. Linear and constant kernels have features that are exact.

Letters: M points, D inputs, F frequencies, L features.
"""

import itertools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType
from gpflow.kernels import (
    Constant,
    Exponential,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Product,
    RationalQuadratic,
    SquaredExponential,
    Sum,
)
from scipy.special import gammaincinv, ndtri
from scipy.stats import qmc

from ..kernels import Laplacian

NUM_FREQUENCIES = 1024
"""For each product of stationary kernels; a power of two, as Sobol sequences want it."""

Features = Callable[[TensorType], tf.Tensor]
"""Takes inputs [batch..., M, D] to features [batch..., M, L]."""

MATERN = {Matern12: 0.5, Exponential: 0.5, Matern32: 1.5, Matern52: 2.5}
"""Smoothness of each class."""

STATIONARY = (SquaredExponential, RationalQuadratic, Laplacian, *MATERN)


def terms_of(kernel: Kernel) -> list[list[Kernel]]:
    """
    A kernel as a sum of products of kernels that have features.

    :raises ValueError: If it is no such sum.
    """
    if type(kernel) is Sum:
        return [term for part in kernel.kernels for term in terms_of(part)]
    if type(kernel) is Product:
        choices = itertools.product(*(terms_of(part) for part in kernel.kernels))
        return [[leaf for term in terms for leaf in term] for terms in choices]
    if type(kernel) not in (*STATIONARY, Linear, Constant):
        raise ValueError(
            f"No features are known for the kernel {type(kernel).__name__}, so that its functions"
            " cannot be drawn as a whole. Squared exponential, Matern, exponential, Laplacian,"
            " rational quadratic, linear and constant kernels, sums and products of these can. For"
            " any kernel, predict_f_samples (of a posterior: predict_samples) draws at points that"
            " are given."
        )
    return [[kernel]]


def prior_features(kernel: Kernel, num_inputs: int, origin: tf.Tensor, seed: int) -> Features:
    """
    Features whose inner product is the kernel, on average over seeds.

    :param origin: [D], what is subtracted from the inputs of stationary kernels.
    """
    terms = terms_of(kernel)
    parts = [
        term_features(term, num_inputs, origin, (seed, number)) for number, term in enumerate(terms)
    ]

    def features(X: TensorType) -> tf.Tensor:
        return tf.concat([part(X) for part in parts], axis=-1)

    return features


def term_features(
    term: list[Kernel], num_inputs: int, origin: tf.Tensor, seed: tuple[int, int]
) -> Features:
    """Features of a product of kernels."""
    stationary = [leaf for leaf in term if type(leaf) in STATIONARY]
    linear = [leaf for leaf in term if type(leaf) is Linear]
    scales = [leaf for leaf in term if type(leaf) is not Linear]
    rng = np.random.default_rng(seed)
    waves = uniform_numbers(rng, [num_active(leaf, num_inputs) for leaf in stationary])
    signs = [
        rng.choice([-1.0, 1.0], size=(num_active(leaf, num_inputs), NUM_FREQUENCIES))
        for leaf in linear
    ]

    def features(X: TensorType) -> tf.Tensor:
        slopes = [linear_columns(leaf, X) for leaf in linear]
        if stationary:
            angles = [
                leaf_angles(leaf, X - tf.cast(origin, X.dtype), u)
                for leaf, u in zip(stationary, waves, strict=True)
            ]
            columns = waves_of_angles(tf.add_n(angles))
            # A random sign for each input keeps the mean over features, at no more features.
            for slope, sign in zip(slopes, signs, strict=True):
                sloped = tf.matmul(slope, tf.cast(sign, X.dtype))
                columns *= tf.concat([sloped, sloped], axis=-1)
        else:
            columns = tf.ones_like(X[..., :1])
            for slope in slopes:
                columns = products_of_columns(columns, slope)
        variances = [tf.cast(leaf.variance, X.dtype) for leaf in scales]
        return columns * tf.sqrt(tf.reduce_prod(tf.stack([tf.ones([], X.dtype), *variances])))

    return features


def num_active(kernel: Kernel, num_inputs: int) -> int:
    """Number of inputs that a kernel sees."""
    active = kernel.active_dims
    return len(range(num_inputs)[active]) if isinstance(active, slice) else len(active)


def uniform_numbers(rng: np.random.Generator, sizes: list[int]) -> list[AnyNDArray]:
    """[F, D + 1] for each stationary kernel of D inputs, evenly spread over the unit cube."""
    if not sizes:
        return []
    ends = np.cumsum([size + 1 for size in sizes])
    cube = qmc.Sobol(int(ends[-1]), seed=rng).random(NUM_FREQUENCIES)
    tiny = float(np.finfo(np.float64).eps)
    return np.split(np.clip(cube, tiny, 1.0 - tiny), ends[:-1], axis=1)


@check_shapes("X: [batch..., M, D]", "return: [batch..., M, F]")
def leaf_angles(kernel: Kernel, X: TensorType, u: AnyNDArray) -> tf.Tensor:
    r"""
    :math:`\omega_f^\top x` with frequencies from the spectral density of a stationary kernel.

    These are normal, with the deviation 1 / lengthscale; those of a Matern kernel are divided by
    the root of a mean-one gamma variable (multivariate t), and those of a rational quadratic kernel
    are multiplied with one. Those of a Laplacian kernel have a Cauchy distribution in each input.

    :param u: [F, D + 1], numbers between zero and one.
    """
    columns, _ = kernel.slice(X, None)
    standard = ndtri(u[:, :-1])
    if type(kernel) is Laplacian:
        standard = np.tan(np.pi * (u[:, :-1] - 0.5))
    if type(kernel) in MATERN:
        nu = MATERN[type(kernel)]
        standard = standard / np.sqrt(gammaincinv(nu, u[:, -1:]) / nu)
    if type(kernel) is Exponential:  # GPflow's is exp(-r / 2)
        standard = standard / 2.0
    frequencies = tf.constant(standard, tf.float64)
    if type(kernel) is RationalQuadratic:
        alpha = tf.cast(kernel.alpha, tf.float64)
        frequencies *= tf.sqrt(tfp.math.igammainv(alpha, tf.constant(u[:, -1:])) / alpha)
    scaled = columns / tf.cast(kernel.lengthscales, X.dtype)
    return tf.matmul(scaled, tf.cast(frequencies, X.dtype), transpose_b=True)


@check_shapes("angles: [batch..., M, F]", "return: [batch..., M, L]")
def waves_of_angles(angles: TensorType) -> tf.Tensor:
    """Cosines and sines, whose squares sum to one at every point."""
    scale = 1.0 / np.sqrt(NUM_FREQUENCIES)
    return scale * tf.concat([tf.cos(angles), tf.sin(angles)], axis=-1)


@check_shapes("X: [batch..., M, D]", "return: [batch..., M, active]")
def linear_columns(kernel: Linear, X: TensorType) -> tf.Tensor:
    """Exact features of a linear kernel."""
    columns, _ = kernel.slice(X, None)
    return columns * tf.sqrt(tf.cast(kernel.variance, X.dtype))


@check_shapes("A: [batch..., M, a]", "B: [batch..., M, b]", "return: [batch..., M, ab]")
def products_of_columns(A: TensorType, B: TensorType) -> tf.Tensor:
    """Each column of A times each column of B."""
    products = A[..., :, None] * B[..., None, :]
    return tf.reshape(products, tf.concat([tf.shape(A)[:-1], [A.shape[-1] * B.shape[-1]]], axis=0))
