r"""
From the chain's parameters back to the joint model
:math:`\mathrm{vec}(Y) \sim N(0, C \otimes K + \Sigma \otimes I)`.

`vec` stacks columns (task-major), so the task matrix is the left factor. All in float64.

The chain conditions each task on those before it. The order of the tasks changes C and Sigma, more
than the predicted means. For a fixed kernel another order needs no eigendecomposition, only a
solution of the inner problem, and a mean of covariances is a covariance: see
:func:`average_over_orders`.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType
from scipy.linalg.lapack import dtrtri

from . import likelihood
from .compression import compressed, dual_vectors
from .likelihood import Chain, solve_chain
from .newton import InnerSolution, solve_from, solve_orders
from .search import Box, Starts
from .spectrum import EPSILON, Spectrum
from .terms import task_problems

MAX_NOISE_RATIO = 3.0
"""The given order is left out of averages if its noise is so many times that of random orders."""


class MultitaskParameters(NamedTuple):
    """
    The joint model's matrices, each [T, T].

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
    >>> parameters = model.multitask_parameters()
    >>> A = np.linalg.inv(np.eye(2) - parameters.W)
    >>> np.allclose(parameters.Sigma, A @ np.diag(model.sigma2) @ A.T)
    True
    """

    B: tf.Tensor
    """Prior covariance of the tasks' input components, b on its diagonal."""

    C: tf.Tensor
    """Task covariance."""

    Sigma: tf.Tensor
    """Noise covariance."""

    W: tf.Tensor
    """Weights of earlier tasks; strictly lower triangular."""


@check_shapes("W: [T, T]", "return: [T, T]")
def mixing_matrix(W: TensorType) -> tf.Tensor:
    r"""
    The map from the chain's innovations to the tasks.

    .. math:: A = (I - W)^{-1}
    """
    eye = tf.eye(tf.shape(W)[0], dtype=W.dtype)
    return tf.linalg.triangular_solve(eye - W, eye)


@check_shapes("W: [T, T]", "sigma2: [T]", "return: [T, T]")
def noise_covariance(W: TensorType, sigma2: TensorType) -> tf.Tensor:
    r"""
    Noise covariance of the joint model.

    .. math:: \Sigma = A \, \mathrm{diag}(\sigma^2) \, A^\top, \qquad A = (I - W)^{-1}

    :param W: Row t holds the weights of the tasks before t; strictly lower triangular.
    """
    A = mixing_matrix(W)
    return symmetric(tf.matmul(A * sigma2, A, transpose_b=True))


@check_shapes("W: [T, T]", "B: [T, T]", "return: [T, T]")
def task_covariance(W: TensorType, B: TensorType) -> tf.Tensor:
    r"""
    Task covariance of the joint model.

    .. math:: C = A \, B \, A^\top, \qquad A = (I - W)^{-1}
    """
    A = mixing_matrix(W)
    return symmetric(tf.matmul(tf.matmul(A, B), A, transpose_b=True))


@check_shapes("S: [T, T]", "return: [T, T]")
def symmetric(S: TensorType) -> tf.Tensor:
    """Symmetric to the last bit, which a product of matrices is not."""
    return 0.5 * (S + tf.transpose(S))


@check_shapes("weights: [batch..., R, T]", "floor: [batch..., T]", "return: [batch..., T, T]")
def weight_correlation(weights: TensorType, floor: TensorType) -> tf.Tensor:
    r"""
    Correlation of the tasks' weight vectors.

    .. math:: \rho_{tu} = w_t^\top w_u \, / \, (|w_t| \, |w_u|)

    A task without signal has correlation 1 with itself and 0 with the others, never NaN.

    :param floor: Lengths up to this are zero to rounding.
    """
    length = tf.linalg.norm(weights, axis=-2)
    scale = tf.where(length > floor, tf.math.reciprocal_no_nan(length), tf.zeros_like(length))
    unit = weights * scale[..., None, :]
    rho = tf.matmul(unit, unit, transpose_a=True)
    return tf.linalg.set_diag(rho, tf.ones_like(length))


@check_shapes("b: [T]", "rho: [batch..., T, T]", "return: [batch..., T, T]")
def input_covariance(b: TensorType, rho: TensorType) -> tf.Tensor:
    r"""
    Prior covariance of the input components.

    .. math:: B_{tu} = \sqrt{b_t b_u} \, \rho_{tu}
    """
    root = tf.sqrt(b)
    return root[:, None] * root[None, :] * rho


@check_shapes("A: [rows, T]", "outside: [T]", "return: [T, T]")
def map_correlation(spectrum: Spectrum, A: TensorType, outside: TensorType) -> tf.Tensor:
    r"""
    Correlation of the MAP input weights,
    :math:`w_{x,t}^\top w_{x,u} \propto \alpha_t^\top K \alpha_u`.

    :param A: The dual vectors in the eigenbasis.
    :param outside: Their squared length outside the span of the eigenvectors.
    """
    lam = spectrum.lam
    # Eigenvalues that are rounding would make a signal of what lies outside the span of K.
    root = tf.sqrt(tf.where(lam > spectrum.rounding, lam, tf.zeros_like(lam)))[:, None]
    A = mean_dual_vectors(spectrum, A)
    length = tf.sqrt(tf.reduce_sum(tf.square(A), axis=0) + outside)
    floor = 10.0 * spectrum.precision * tf.reduce_max(root) * length
    return weight_correlation(root * A, floor)


@check_shapes("A: [rows, T]", "return: [R, T]")
def mean_dual_vectors(spectrum: Spectrum, A: TensorType) -> tf.Tensor:
    """The dual vectors of the mean completion; of the targets where none is missing."""
    weight = tf.sqrt(tf.cast(spectrum.copies, A.dtype))
    return tf.reduce_sum(spectrum.split(A), axis=0) / weight


@check_shapes("b: [T]", "sigma2: [T]", "return: [T, T]")
def monte_carlo_correlation(
    spectrum: Spectrum,
    chain: Chain,
    b: TensorType,
    sigma2: TensorType,
    num_samples: int,
    seed: int | None,
) -> tf.Tensor:
    r"""
    Mean correlation of input weights drawn from their posterior, independently for each task.

    In the eigenbasis the coordinates are independent,
    :math:`N(b \sqrt{\lambda_n} \, \alpha_n, \; b \sigma^2 d_n)`, over the numerical rank of K. A
    kernel of infinite rank leaves many coordinates at their prior: the correlation then shrinks.
    """
    lam = spectrum.lam
    precision = tf.maximum(tf.cast(spectrum.precision, lam.dtype), EPSILON)
    inside = tf.cast(lam > spectrum.rank * precision * tf.reduce_max(lam), lam.dtype)[:, None]
    mean = inside * tf.sqrt(lam)[:, None] * mean_dual_vectors(spectrum, chain.A) * b  # [R, T]
    deviation = inside * tf.sqrt(b * sigma2 * chain.d)
    seeds = np.random.SeedSequence(seed).generate_state(2).astype(np.int64) % 2**31
    noise = tf.random.stateless_normal(
        tf.concat([[num_samples], tf.shape(mean)], axis=0), seed=seeds, dtype=lam.dtype
    )
    weights = mean + deviation * noise  # [S, R, T]
    floor = tf.zeros([num_samples, tf.shape(mean)[1]], lam.dtype)
    return tf.reduce_mean(weight_correlation(weights, floor), axis=0)


@check_shapes("b: [T]", "sigma2: [T]")
def recover(
    spectrum: Spectrum,
    b: TensorType,
    sigma2: TensorType,
    learning: str,
    correlation: str = "map",
    num_samples: int = 1,
    seed: int | None = None,
) -> MultitaskParameters:
    """
    The joint model's matrices from a spectrum and the chain's parameters.

    :param correlation: Of the tasks' input weights, "map" or "monte_carlo".
    :param num_samples: Number of draws.
    """
    if correlation == "map" and has_many_tasks(spectrum) and tf.executing_eagerly():
        return recover_many(spectrum, b, sigma2)
    chain = solve_chain(spectrum, b, sigma2, learning)
    if correlation == "map":
        rho = map_correlation(spectrum, chain.A, chain.outside)
    else:
        rho = monte_carlo_correlation(spectrum, chain, b, sigma2, num_samples, seed)
    return joint_parameters(chain.W, rho, b, sigma2)


def has_many_tasks(spectrum: Spectrum) -> bool:
    return bool(spectrum.Yr.shape[1] ** 3 > likelihood.MAX_NUMBERS)


@check_shapes("b: [T]", "sigma2: [T]")
def recover_many(spectrum: Spectrum, b: TensorType, sigma2: TensorType) -> MultitaskParameters:
    """
    As :func:`recover`, by systems of as many rows as the smaller of tasks and rows.

    The weights between tasks are the same for both ways of learning.
    """
    problems = task_problems(spectrum.numpy(), "hierarchical")
    present = np.stack([np.asarray(b), np.asarray(sigma2)], axis=1)
    fixed = Box(np.log(present), np.log(present))
    starts = Starts(np.arange(len(present)), fixed.lower)
    solution = solve_from(problems, fixed, starts)
    B, C, Sigma = recover_at_optimum(problems.spectrum, solution)
    return MultitaskParameters(*map(tf.constant, (B, C, Sigma, solution.W)))


@check_shapes("W: [T, T]", "rho: [T, T]", "b: [T]", "sigma2: [T]")
def joint_parameters(
    W: TensorType, rho: TensorType, b: TensorType, sigma2: TensorType
) -> MultitaskParameters:
    """The joint model's matrices from the chain's, and the correlation of the input weights."""
    B = input_covariance(b, rho)
    return MultitaskParameters(B=B, C=task_covariance(W, B), Sigma=noise_covariance(W, sigma2), W=W)


# Averages over orders of the tasks ---------------------------------------------------------------


def some_orders(num_tasks: int, num_orders: int, seed: int | None) -> list[AnyNDArray]:
    """The tasks as they come, and other random orders; all orders, if there are no more."""
    if math.factorial(num_tasks) <= num_orders:
        return [np.array(order) for order in itertools.permutations(range(num_tasks))]
    rng = np.random.default_rng(seed)
    orders = dict.fromkeys([tuple(range(num_tasks))])
    while len(orders) < num_orders:
        orders[tuple(rng.permutation(num_tasks).tolist())] = None
    return [np.array(order) for order in orders]


@check_shapes("return[0]: [T, T]", "return[1]: [T, T]")
def average_over_orders(
    spectrum: Spectrum,
    orders: list[AnyNDArray],
    box: Box,
    learning: str,
) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    Mean of C and of Sigma over orders of the tasks.

    .. math:: \bar{C} = \frac{1}{S} \sum_s \Pi_s^\top C_s \Pi_s

    with :math:`\Pi_s` the permutation that brings the tasks into order s. The inner problem is
    solved anew for each order. The first order, that of Y's columns, is left out if errors add up
    in it from task to task, see :func:`is_ordinary`.

    :param orders: The given one, then random ones; or all that there are.
    :param box: Bounds of b and sigma2, in the tasks' own order.
    """
    problems = compressed(task_problems(spectrum.numpy(), learning))
    found = []
    for order, best in zip(orders, solve_orders(problems, orders, box), strict=True):
        _, *matrices = recover_at_optimum(problems.spectrum.of_tasks(order), best)
        back = np.argsort(order)
        found.append([matrix[np.ix_(back, back)] for matrix in matrices])
    random_only = 2 < len(orders) < math.factorial(len(orders[0]))
    if random_only and not is_ordinary(np.array([np.diag(Sigma) for _, Sigma in found])):
        found = found[1:]
    C, Sigma = (sum(part) / len(found) for part in zip(*found, strict=True))
    return C, Sigma


@check_shapes("noise: [S, T]")
def is_ordinary(noise: AnyNDArray) -> bool:
    """
    Whether the noise variances of the first order, by the geometric mean of their ratios, are not
    far above those of the others.

    Where neighbours follow each other, as from left to right along a line, each is extrapolated
    from those on one side, and errors add up: the noise may be ten times that of a random order.

    :param noise: The diagonals of Sigma.
    """
    usual = np.mean(noise[1:], axis=0)
    ratios = np.divide(noise[0], usual, out=np.ones_like(usual), where=(usual > 0) & (noise[0] > 0))
    return bool(np.mean(np.log(ratios)) <= np.log(MAX_NOISE_RATIO))


def recover_at_optimum(
    spectrum: Spectrum, best: InnerSolution
) -> tuple[AnyNDArray, AnyNDArray, AnyNDArray]:
    """
    B, C and Sigma as :func:`recover` has them, in NumPy, which is faster where there are orders.

    :param spectrum: Of NumPy arrays.
    :param best: A solution of the inner problem, whose rows may have been compressed.
    """
    (b, sigma2), lam = best.parameters.T, spectrum.lam
    A = dual_vectors(task_problems(spectrum, "hierarchical"), best.parameters, best.W)
    inside, outside = np.split(A, [len(spectrum.Yr)])
    copies = inside.reshape(-1, len(lam), len(b))
    inside = np.sum(copies, axis=0) / np.sqrt(len(copies))
    root = np.sqrt(np.where(lam > spectrum.rounding, lam, 0.0))[:, None]
    length = np.sqrt(np.sum(np.square(inside), axis=0) + np.sum(np.square(outside), axis=0))
    floor = 10.0 * spectrum.precision * np.max(root) * length
    weights = root * inside
    length = np.linalg.norm(weights, axis=0)
    has_signal = length > floor
    unit = weights * np.divide(1.0, length, out=np.zeros_like(length), where=has_signal)
    rho = unit.T @ unit
    np.fill_diagonal(rho, 1.0)
    B = np.sqrt(np.outer(b, b)) * rho
    mixing = dtrtri(np.eye(len(b)) - best.W, lower=1)[0]
    C, Sigma = mixing @ B @ mixing.T, (mixing * sigma2) @ mixing.T
    return B, 0.5 * (C + C.T), 0.5 * (Sigma + Sigma.T)
