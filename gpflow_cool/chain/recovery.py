r"""
From the chain's parameters back to the joint model
:math:`\mathrm{vec}(Y) \sim N(0, C \otimes K + \Sigma \otimes I)`.

`vec` stacks columns (task-major), so the task matrix is the left factor. All in float64.

With the mean weights W, the map :math:`A = (I - W)^{-1}` from innovations to tasks, and B the prior
covariance of the tasks' own functions,

.. math:: C = A (B + \mathrm{diag}(u)) A^\top, \qquad
          \Sigma = A \, \mathrm{diag}(\sigma^2 + u') A^\top

where u and u' are what the weights' uncertainty adds; they are zero where the weights are taken at
their maximum. The order of the tasks matters little; a mean over orders is a covariance as well.

Letters: N rows, T tasks, R eigenvectors, J ratios of the grid, O orders.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..systems.spectrum import EPSILON, MAX_NUMBERS, Spectrum, System
from .optimum import (
    RATIOS,
    GramsOnGrid,
    best_terms_of_orders,
    grid_values,
    ratios_at,
    ratios_on_grid,
    scaled_grams,
    variance_unit,
)
from .terms import Chain, inverse_factor, own_systems, target_scales, weight_systems

CORRELATIONS = ("mean", "map", "monte_carlo")


class MultitaskParameters(NamedTuple):
    """
    The joint model's matrices, each [T, T].

    >>> import gpflow, numpy as np
    >>> from gpflow_cool import CoolMTGP
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)])
    >>> model = CoolMTGP((X, Y), gpflow.kernels.SquaredExponential(lengthscales=0.3))
    >>> parameters = model.multitask_parameters(correlation="map")
    >>> A = np.linalg.inv(np.eye(2) - parameters.W)
    >>> np.allclose(parameters.Sigma, A @ np.diag(model.sigma2) @ A.T)
    True
    """

    B: tf.Tensor
    """Prior covariance of the tasks' own functions, b on its diagonal."""

    C: tf.Tensor
    """Task covariance."""

    Sigma: tf.Tensor
    """Noise covariance."""

    W: tf.Tensor
    """Weights of earlier tasks; strictly lower triangular."""


class Recovered(NamedTuple):
    """What the joint model's matrices are made of."""

    W: tf.Tensor  # [T, T], mean weights
    B: tf.Tensor  # [T, T]
    sigma2: tf.Tensor  # [T]
    signal_uncertainty: tf.Tensor  # [T], u
    noise_uncertainty: tf.Tensor  # [T], u'

    @property
    def innovations(self) -> tf.Tensor:
        """Covariance of the tasks' own functions, with what the weights' uncertainty adds."""
        return self.B + tf.linalg.diag(self.signal_uncertainty)

    @property
    def noise(self) -> tf.Tensor:
        """Variance of the tasks' own noises, with what the weights' uncertainty adds."""
        return self.sigma2 + self.noise_uncertainty

    def matrices(self) -> MultitaskParameters:
        """B, C, Sigma and W."""
        A = mixing_matrix(self.W)
        return MultitaskParameters(
            B=self.B,
            C=symmetric(tf.matmul(tf.matmul(A, self.innovations), A, transpose_b=True)),
            Sigma=symmetric(tf.matmul(A * self.noise[..., None, :], A, transpose_b=True)),
            W=self.W,
        )


@check_shapes("W: [batch..., T, T]", "return: [batch..., T, T]")
def mixing_matrix(W: TensorType) -> tf.Tensor:
    r"""
    The map from the chain's innovations to the tasks.

    .. math:: A = (I - W)^{-1}
    """
    return inverse_factor(residual_map(W))


@check_shapes("W: [batch..., T, T]", "return: [batch..., T, T]")
def residual_map(W: TensorType) -> tf.Tensor:
    """Its row t, e_t - w_t, takes the targets to the residual of task t."""
    return tf.eye(tf.shape(W)[-1], dtype=W.dtype) - W


@check_shapes("S: [batch..., T, T]", "return: [batch..., T, T]")
def symmetric(S: TensorType) -> tf.Tensor:
    """Symmetric to the last bit, which a product of matrices is not."""
    return 0.5 * (S + tf.linalg.matrix_transpose(S))


@check_shapes(
    "systems: [batch..., S, T, T]", "places: [batch..., B, 2]", "return: [batch..., B, T]"
)
def own_rows(systems: TensorType, places: TensorType) -> tf.Tensor:
    """
    Row t of the matrix of system s, for tasks t that belong to systems s.

    :param places: s and t.
    """
    return tf.gather_nd(systems, places, batch_dims=systems.shape.rank - 3)


@check_shapes(
    "inverse: [batch..., S, T, T]", "places: [batch..., B, 2]", "return: [batch..., B, T]"
)
def mean_weights(inverse: TensorType, places: TensorType) -> tf.Tensor:
    r"""
    Weights of the earlier tasks, each task's from the factor L of its system.

    .. math:: e_t - w_t = L_{tt} L^{-\top} e_t

    :param inverse: Inverses of the factors L of :math:`I + \lambda G`.
    :param places: The number of each task's system, and of the task.
    """
    own = own_rows(inverse, places)
    tasks = places[..., 1]
    diagonal = tf.gather(own, tasks, axis=-1, batch_dims=tasks.shape.rank)
    return tf.one_hot(tasks, tf.shape(own)[-1], dtype=own.dtype) - own / diagonal[..., None]


@check_shapes(
    "inverse: [batch..., S, T, T]",
    "places: [batch..., B, 2]",
    "A: [batch..., T, T]",
    "scaled: [batch..., B]",
    "return: [batch..., B, T]",
)
def uncertainty_map(
    inverse: TensorType, places: TensorType, A: TensorType, scaled: TensorType
) -> tf.Tensor:
    r"""
    How much of the variance of earlier tasks the weights' uncertainty adds to a task.

    .. math:: H_{tk} = a_k^\top V_t \, a_k, \qquad
              V_t = \sigma^2_t \lambda_t (I + \lambda_t G_{<t})^{-1}

    with :math:`a_k` column k of A. It is strictly lower triangular.

    :param scaled: :math:`\sigma^2_t \lambda_t`.
    """
    squares = tf.square(tf.matmul(inverse, A[..., None, :, :]))
    return scaled[..., None] * own_rows(tf.cumsum(squares, axis=-2, exclusive=True), places)


@check_shapes("H: [batch..., T, T]", "own: [batch..., T]", "return: [batch..., T]")
def added_variance(H: TensorType, own: TensorType) -> tf.Tensor:
    r"""
    What uncertain weights add to the variance of each task's own part.

    .. math:: u_t = \mathrm{tr}(V_t C'_{<t}), \qquad C' = A \, \mathrm{diag}(b + u) A^\top
              \quad \Longrightarrow \quad u = (I - H)^{-1} H b
    """
    eye = tf.eye(tf.shape(H)[-1], dtype=H.dtype)
    right = tf.linalg.matvec(H, own)[..., None]
    return tf.linalg.triangular_solve(eye - H, right)[..., 0]


@check_shapes("weights: [batch..., R, T]", "floor: [batch..., T]", "return: [batch..., T, T]")
def weight_correlation(weights: TensorType, floor: TensorType) -> tf.Tensor:
    r"""
    Correlation of the tasks' input weights.

    .. math:: \rho_{tu} = w_t^\top w_u \, / \, (|w_t| \, |w_u|)

    A task without signal has correlation 1 with itself and 0 with the others, never NaN.

    :param floor: Lengths up to this are zero to rounding.
    """
    length = tf.linalg.norm(weights, axis=-2)
    scale = tf.where(length > floor, tf.math.reciprocal_no_nan(length), tf.zeros_like(length))
    unit = weights * scale[..., None, :]
    rho = tf.matmul(unit, unit, transpose_a=True)
    return tf.linalg.set_diag(rho, tf.ones_like(length))


@check_shapes("b: [batch..., T]", "rho: [batch..., T, T]", "return: [batch..., T, T]")
def input_covariance(b: TensorType, rho: TensorType) -> tf.Tensor:
    r"""
    Prior covariance of the tasks' own functions.

    .. math:: B_{tu} = \sqrt{b_t b_u} \, \rho_{tu}
    """
    root = tf.sqrt(b)
    return root[..., :, None] * root[..., None, :] * rho


@check_shapes("V: [batch..., T, T]", "ratios: [batch..., T]")
def dual_vectors(
    spectrum: Spectrum, V: TensorType, ratios: TensorType
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    :math:`(r_t K + I)^{-1} Y v_t` of the mean completion, in the eigenbasis, [..., R, T], and the
    squared lengths outside its span, [..., T].

    :param V: Rows :math:`v_t = e_t - w_t`, which take Y to the tasks' residuals.
    """
    weight = tf.sqrt(tf.cast(spectrum.copies, tf.float64))
    Yr = tf.reduce_sum(spectrum.split(spectrum.Yr), axis=0) / weight  # [R, T]
    d = 1.0 / (spectrum.lam[:, None] * ratios[..., None, :] + 1.0)
    inside = d * tf.matmul(Yr, V, transpose_b=True)
    outside = tf.reduce_sum(tf.matmul(V, spectrum.G0) * V, axis=-1)
    return inside, tf.maximum(outside, 0.0)


@check_shapes("V: [batch..., T, T]", "ratios: [batch..., T]", "return: [batch..., T, T]")
def map_correlation(spectrum: Spectrum, V: TensorType, ratios: TensorType) -> tf.Tensor:
    r"""
    Correlation of the tasks' input weights at their maximum,
    :math:`w_{x,t}^\top w_{x,u} \propto \alpha_t^\top K \alpha_u`.

    :param V: As for :func:`dual_vectors`.
    """
    A, outside = dual_vectors(spectrum, V, ratios)
    lam = spectrum.lam
    # Eigenvalues that are rounding would make a signal of what lies outside the span of K.
    root = tf.sqrt(tf.where(lam > spectrum.rounding, lam, tf.zeros_like(lam)))[:, None]
    length = tf.sqrt(tf.reduce_sum(tf.square(A), axis=-2) + outside)
    floor = 10.0 * spectrum.precision * tf.reduce_max(root) * length
    return weight_correlation(root * A, floor)


@check_shapes("W: [T, T]", "b: [T]", "sigma2: [T]", "return: [T, T]")
def monte_carlo_correlation(
    spectrum: Spectrum,
    W: TensorType,
    b: TensorType,
    sigma2: TensorType,
    num_samples: int,
    seed: int | None,
) -> tf.Tensor:
    r"""
    Mean correlation of input weights drawn from their posterior, independently for each task.

    In the eigenbasis the coordinates are independent, with mean
    :math:`b \sqrt{\lambda_n} \, \alpha_n` and variance
    :math:`b \sigma^2 / (b \lambda_n + \sigma^2)`, over the numerical rank of K. A kernel of
    infinite rank leaves many coordinates at their prior: the correlation then shrinks.
    """
    lam = spectrum.lam
    A, _ = dual_vectors(spectrum, residual_map(W), b / sigma2)
    precision = tf.maximum(tf.cast(spectrum.precision, lam.dtype), EPSILON)
    inside = tf.cast(lam > spectrum.rank * precision * tf.reduce_max(lam), lam.dtype)[:, None]
    mean = inside * tf.sqrt(lam)[:, None] * A * (b / sigma2)  # [R, T]
    deviation = inside * tf.sqrt(b * sigma2 / (lam[:, None] * b + sigma2))
    seeds = np.random.SeedSequence(seed).generate_state(2).astype(np.int64) % 2**31
    noise = tf.random.stateless_normal(
        tf.concat([[num_samples], tf.shape(mean)], axis=0), seed=seeds, dtype=lam.dtype
    )
    weights = mean + deviation * noise  # [S, R, T]
    floor = tf.zeros([num_samples, tf.shape(mean)[1]], lam.dtype)
    return tf.reduce_mean(weight_correlation(weights, floor), axis=0)


def recover(
    system: System,
    chain: Chain,
    correlation: str = "mean",
    num_samples: int = 1,
    seed: int | None = None,
) -> Recovered:
    """
    The parts of the joint model's matrices from the chain's parameters.

    :param correlation: "mean" for C and Sigma as means over the weights between tasks; "map" with
        these weights at their maximum; "monte_carlo" as "mean", with correlations of the input
        weights as means over draws, and not at their maximum.
    :param num_samples: Number of draws.
    """
    scales, spectrum = target_scales(system, chain), system.spectrum

    def over_systems(function: Callable[..., tf.Tensor]) -> tf.Tensor:
        """A function of inverse factors and places, for some tasks at a time."""
        rows = []
        for tasks, M, _ in own_systems(system, chain, scales):
            places = tf.constant(np.stack([np.arange(len(tasks)), tasks], axis=1))
            rows.append(function(inverse_factor(tf.linalg.cholesky(M)), places))
        return tf.concat(rows, axis=0)

    W = over_systems(mean_weights)
    uncertainty = [tf.zeros_like(chain.b)] * 2
    if correlation != "map":
        A, scaled = mixing_matrix(W), chain.sigma2 / tf.square(scales) * chain.weight_variances
        H = over_systems(
            lambda inverse, places: uncertainty_map(
                inverse, places, A, tf.gather(scaled, places[:, 1])
            )
        )
        uncertainty = [
            tf.square(scales) * added_variance(H, own / tf.square(scales))
            for own in (chain.b, chain.sigma2)
        ]
    W = scales[:, None] * W / scales
    if correlation == "monte_carlo":
        rho = monte_carlo_correlation(spectrum, W, chain.b, chain.sigma2, num_samples, seed)
    else:
        rho = map_correlation(spectrum, residual_map(W), chain.ratios)
    return Recovered(W, input_covariance(chain.b, rho), chain.sigma2, *uncertainty)


# Averages over orders of the tasks ---------------------------------------------------------------


def some_orders(num_tasks: int, num_orders: int, seed: int | None) -> AnyNDArray:
    """[O, T], the tasks as they come, and other random orders; all, if there are no more."""
    if math.factorial(min(num_tasks, 20)) <= num_orders:
        return np.array(list(itertools.permutations(range(num_tasks))))
    rng = np.random.default_rng(seed)
    orders = dict.fromkeys([tuple(range(num_tasks))])
    while len(orders) < num_orders:
        orders[tuple(rng.permutation(num_tasks).tolist())] = None
    return np.array(list(orders))


def average_over_orders(
    system: System,
    orders: AnyNDArray,
    weight_variance: TensorType,
    floor: TensorType,
    learning: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    Mean of C and of Sigma over orders of the tasks.

    .. math:: \bar{C} = \frac{1}{O} \sum_o \Pi_o^\top C_o \Pi_o

    with :math:`\Pi_o` the permutation that brings the tasks into order o. Another order permutes
    the Gram matrices, and needs no other ones. b and sigma2 are found anew for each order; the
    weights are those at the ratio of the grid that is next to the best one.

    :param orders: [O, T].
    :param weight_variance: [], lambda.
    :param floor: [T], smallest noise variance of each task.
    """
    gram, log_det = system(ratios_on_grid(system.spectrum))
    grid = scaled_grams(gram, log_det, system.spectrum.num_rows)
    size = max(1, MAX_NUMBERS // (len(RATIOS) * orders.shape[1] ** 2))
    sums = [0.0, 0.0]
    for start in range(0, len(orders), size):
        block = orders[start : start + size]
        back = np.argsort(block, axis=1)
        found = matrices_of_orders(system.spectrum, grid, block, weight_variance, floor, learning)
        for k, S in enumerate(found):
            S = tf.gather(tf.gather(S, back, axis=1, batch_dims=1), back, axis=2, batch_dims=1)
            sums[k] += tf.reduce_sum(S, axis=0)
    C, Sigma = (symmetric(part / len(orders)) for part in sums)
    return C, Sigma


def matrices_of_orders(
    spectrum: Spectrum,
    grid: GramsOnGrid,
    orders: AnyNDArray,
    weight_variance: TensorType,
    floor: TensorType,
    learning: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """C and Sigma of several orders, [O, T, T] each, with the tasks in these orders."""
    gram = tf.transpose(tf.gather(grid.gram, orders, axis=1), [1, 0, 2, 3])  # [O, J, T, T]
    gram = tf.gather(gram, orders, axis=3, batch_dims=1)
    scales = tf.gather(grid.scales, orders)
    L = tf.linalg.cholesky(weight_systems(gram, weight_variance))
    values = grid_values(
        tf.linalg.diag_part(L),
        grid.log_det,
        grid.num_rows,
        weight_variance,
        tf.gather(floor, orders) / tf.square(scales),
        learning,
    )
    best = best_terms_of_orders(*values)
    sigma2, unit = best.sigma2, variance_unit(spectrum)
    b = ratios_at(best.place) / unit * sigma2
    nodes = tf.cast(tf.round(best.place), tf.int64)  # [O, T]
    ratios = ratios_at(tf.cast(nodes, tf.float64)) / unit
    tasks = tf.broadcast_to(tf.range(orders.shape[1], dtype=tf.int64), orders.shape)
    places, inverse = tf.stack([nodes, tasks], axis=2), inverse_factor(L)
    W = mean_weights(inverse, places)
    H = uncertainty_map(inverse, places, mixing_matrix(W), sigma2 * weight_variance)
    V = residual_map(W) / scales[:, None, :]
    back = np.argsort(orders, axis=1)
    rho = map_correlation(spectrum, tf.gather(V, back, axis=2, batch_dims=1), ratios)
    parts = Recovered(
        W, input_covariance(b, rho), sigma2, added_variance(H, b), added_variance(H, sigma2)
    )
    matrices = parts.matrices()
    units = scales[:, :, None] * scales[:, None, :]
    return matrices.C * units, matrices.Sigma * units
