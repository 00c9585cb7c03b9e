r"""
The best b and sigma2 of every task, for a fixed kernel, from one shared grid of ratios.

Given the ratio r = b / sigma2 the best noise is :math:`\sigma^2_t = y_t^\top M_t^{-1} y_t / N`, so
that one number per task is left. One Cholesky factor per grid value gives the terms of all tasks
there (:mod:`.terms`). Between grid values the logarithms of the quadratic forms and the log
determinants are interpolated: as functions of log r they have no singularity nearer than
:math:`i \pi`. (The places are logarithms of r plus a small number, so that r = 0 is one of them.)
The gradient of the best terms is the partial one at the best ratios (envelope theorem), and so is
that of their interpolation, whose weights stay fixed.

Letters: N rows, T tasks, J grid values, F points of the finer grid; "..." are orders of the tasks.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..graphs import shared_graph
from ..systems.spectrum import (
    GRAMS,
    MATRIX,
    NUMBER,
    VECTOR,
    Spectrum,
    System,
    inside_gradient,
    rotated_gradient,
)
from .terms import (
    factor_diagonal,
    log_likelihood_terms,
    quadratic_forms,
    root_or_one,
    weight_costs,
    weight_systems,
)

STEP = 0.5
NODES = np.arange(-8.0, 20.25, STEP)
RATIOS = np.exp(NODES) - np.exp(NODES[0])
"""The ratios on the grid, for a kernel whose variance is typically one. The lowest is zero.
Where the noise is at its floor and lengthscales are long, the best logarithm was up to 20 (60 rows
of polynomials without noise, five kernels); with ratios up to e^16 alone, the loss of such fits was
3 to 10 nats higher."""

LEAST_RATIO = 1e-10
"""Stands for zero in b, which must be positive."""

DEGREE = 5
"""Of the polynomials between grid values. Log determinants of 200 rows are then wrong by 2e-4 at
most, for spectra that fall slowly and quickly; with degree 3 by 2e-3."""

FINE = 8
"""Points per step of the grid at which terms are compared, before Newton's method finds the
maximum."""

NEWTON_STEPS = 5
"""From so close the third one moves log r by less than 1e-8. Where the noise comes to its floor,
the second derivative jumps, and steps that leave the bracket are halved instead."""

TINY = float(np.finfo(np.float64).tiny)


def lagrange_coefficients(degree: int) -> AnyNDArray:
    """[degree + 1, degree + 1], row k holds the polynomial that is 1 at k and 0 at the others."""
    points = np.arange(degree + 1.0)
    return np.linalg.inv(np.vander(points, increasing=True)).T


COEFFICIENTS = lagrange_coefficients(DEGREE)


@check_shapes("places: [batch...]", "return: [batch..., J]")
def interpolation_weights(places: TensorType, derivative: int = 0) -> tf.Tensor:
    """
    What values on the grid are multiplied by to get the value, or a derivative, at a place.

    :param places: From 0 to J - 1.
    """
    last = len(RATIOS) - 1 - DEGREE
    first = tf.clip_by_value(tf.floor(places) - DEGREE // 2, 0.0, float(last))
    polynomials = np.polynomial.polynomial.polyder(COEFFICIENTS, derivative, axis=1)
    powers = tf.stack([(places - first) ** k for k in range(polynomials.shape[1])], axis=-1)
    local = tf.einsum("...k,pk->...p", powers, polynomials)
    nodes = tf.cast(first, tf.int32)[..., None] + tf.range(DEGREE + 1)
    placed = tf.one_hot(nodes, len(RATIOS), dtype=tf.float64)
    return tf.reduce_sum(local[..., None] * placed, axis=-2)


FINE_PLACES = np.arange((len(RATIOS) - 1) * FINE + 1) / FINE


class GridValues(NamedTuple):
    """What the terms of all tasks are made of, at every ratio of the grid."""

    log_quadratic: tf.Tensor  # [..., J, T], log of y^T M^-1 y
    half_log_det: tf.Tensor  # [..., J, T], half of log |M|, or of log |r K + I| if hierarchical
    num_rows: tf.Tensor  # []
    floor: tf.Tensor  # [..., T], smallest noise variance


class Optimum(NamedTuple):
    """The best parameters of every task, [..., T] each."""

    terms: tf.Tensor
    place: tf.Tensor  # on the grid, from 0 to J - 1
    sigma2: tf.Tensor


@check_shapes("diagonal: [batch..., J, T]", "log_det: [J]", "floor: [batch..., T]")
def grid_values(
    diagonal: TensorType,
    log_det: TensorType,
    num_rows: TensorType,
    weight_variance: TensorType,
    floor: TensorType,
    learning: str,
) -> GridValues:
    r"""
    Quadratic forms and log determinants of all tasks at all ratios.

    :param diagonal: Of the factors of :math:`I + \lambda G`.
    :param log_det: :math:`\log |r K + I|`.
    """
    quadratic = tf.maximum(quadratic_forms(diagonal, weight_variance), TINY)
    half_log_det = 0.5 * log_det[:, None] + weight_costs(diagonal, learning)
    return GridValues(tf.math.log(quadratic), half_log_det, num_rows, floor)


@check_shapes("log_quadratic: [batch..., T]", "half_log_det: [batch..., T]", "floor: [batch..., T]")
def terms_at_best_noise(
    log_quadratic: TensorType, half_log_det: TensorType, num_rows: TensorType, floor: TensorType
) -> tuple[tf.Tensor, tf.Tensor]:
    """Terms and noise variances, where each task has the best noise that its floor allows."""
    quadratic = tf.exp(log_quadratic)
    sigma2 = tf.maximum(quadratic / num_rows, floor)
    return log_likelihood_terms(quadratic, half_log_det, sigma2, num_rows), sigma2


@check_shapes("weights: [batch..., T, J]", "values: [batch..., J, T]", "return: [batch..., T]")
def interpolated(weights: TensorType, values: TensorType) -> tf.Tensor:
    """Values on the grid, or their derivatives, at each task's own place."""
    return tf.einsum("...tj,...jt->...t", weights, values)


@check_shapes("return: [batch..., T]")
def best_places(values: GridValues) -> tf.Tensor:
    """Where on the grid each task's term is largest: on a finer grid, then by Newton's method."""
    fine = interpolation_weights(tf.constant(FINE_PLACES))  # [F, J]
    log_quadratic, half_log_det = (tf.matmul(fine, part) for part in values[:2])  # [..., F, T]
    floor = values.floor[..., None, :] + tf.zeros_like(log_quadratic)
    terms, _ = terms_at_best_noise(log_quadratic, half_log_det, values.num_rows, floor)
    best = tf.cast(tf.argmax(terms, axis=-2), tf.float64) / FINE
    ends = best - 1.0 / FINE, best + 1.0 / FINE
    low, high = (tf.clip_by_value(end, 0.0, float(len(RATIOS) - 1)) for end in ends)
    places = best
    for _ in range(NEWTON_STEPS):
        slope, bend = slope_and_bend(values, places)
        low, high = tf.where(slope > 0.0, places, low), tf.where(slope > 0.0, high, places)
        newton = places - slope / tf.where(bend < 0.0, bend, -1.0)
        fits = (bend < 0.0) & (low <= newton) & (newton <= high)
        places = tf.where(fits, newton, 0.5 * (low + high))
    return places


def slope_and_bend(values: GridValues, places: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    First and second derivative of the terms, :math:`-\tfrac{1}{2} q / \sigma^2 - \tfrac{N}{2} \log
    \sigma^2 - \tfrac{1}{2} \log |M|` with :math:`\sigma^2 = q / N` above the floor.
    """
    by = [interpolation_weights(places, derivative) for derivative in range(3)]
    log_q, log_q1, log_q2 = (interpolated(weights, values.log_quadratic) for weights in by)
    cost1, cost2 = (interpolated(weights, values.half_log_det) for weights in by[1:])
    floor = values.floor * values.num_rows
    ratio = tf.exp(log_q) / tf.maximum(tf.exp(log_q), floor)  # q / (N sigma2)
    at_floor = tf.cast(ratio < 1.0, tf.float64)
    half = 0.5 * values.num_rows * ratio
    slope = -half * log_q1 - cost1
    bend = -half * (log_q2 + at_floor * tf.square(log_q1)) - cost2
    return slope, bend


def best_terms(values: GridValues) -> Optimum:
    """The largest term of every task, with the gradient at the ratio where it is largest."""
    place = tf.stop_gradient(best_places(values))
    weights = interpolation_weights(place)
    log_quadratic, half_log_det = (interpolated(weights, part) for part in values[:2])
    rest = values.num_rows, values.floor
    terms, sigma2 = terms_at_best_noise(log_quadratic, half_log_det, *rest)
    return Optimum(terms, place, sigma2)


@shared_graph(GRAMS, GRAMS, NUMBER, MATRIX)
def best_terms_of_orders(
    log_quadratic: tf.Tensor, half_log_det: tf.Tensor, num_rows: tf.Tensor, floor: tf.Tensor
) -> Optimum:
    """:func:`best_terms` for several orders of the tasks, as a graph for all models."""
    return best_terms(GridValues(log_quadratic, half_log_det, num_rows, floor))


class GramsOnGrid(NamedTuple):
    """What a system says of the rows at every ratio of the grid."""

    gram: tf.Tensor  # [J, T, T], of targets whose mean square is one
    log_det: tf.Tensor  # [J]
    scales: tf.Tensor  # [T], roots of the targets' mean squares
    num_rows: tf.Tensor  # []

    def values(self, weight_variance: TensorType, floor: TensorType, learning: str) -> GridValues:
        """What the terms are made of, for the tasks in their own order."""
        diagonal = factor_diagonal(weight_systems(self.gram, weight_variance))
        floor = floor / tf.square(self.scales)
        rest = self.num_rows, weight_variance, floor, learning
        return grid_values(diagonal, self.log_det, *rest)


def ratios_at(places: TensorType) -> tf.Tensor:
    """The ratios at places on the grid."""
    return tf.maximum(tf.exp(NODES[0] + places * STEP) - np.exp(NODES[0]), LEAST_RATIO)


def variance_unit(spectrum: Spectrum) -> tf.Tensor:
    """
    [], the kernel's typical variance, rounded to whole steps of the grid.

    So the ratios stay the same while the kernel moves a little, and with them the error of the
    interpolation: its gradient is then that of the loss.
    """
    steps = tf.round(tf.math.log(spectrum.typical_variance) / STEP)
    return tf.stop_gradient(tf.exp(STEP * steps))


def ratios_on_grid(spectrum: Spectrum) -> tf.Tensor:
    """[J], the ratios of the grid for this kernel. At the first one, zero, G is Y^T Y."""
    return RATIOS / variance_unit(spectrum)


@check_shapes("gram: [J, T, T]", "log_det: [J]")
def scaled_grams(gram: TensorType, log_det: TensorType, num_rows: TensorType) -> GramsOnGrid:
    """
    Gram matrices of the targets divided by the roots of their mean squares.

    :param gram: At :func:`ratios_on_grid`.
    """
    scales = root_or_one(tf.linalg.diag_part(gram[0]) / num_rows)
    scaled = gram / (scales[:, None] * scales[None, :])
    return GramsOnGrid(scaled, log_det, scales, num_rows)


@functools.cache
def best_of_grams(learning: str) -> Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Best terms, ratios and noise variances of all tasks, [T] each, as a graph for all models."""

    @shared_graph(GRAMS, VECTOR, NUMBER, NUMBER, VECTOR)
    def best(
        gram: tf.Tensor,
        log_det: tf.Tensor,
        num_rows: tf.Tensor,
        weight_variance: tf.Tensor,
        floor: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        grid = scaled_grams(gram, log_det, num_rows)
        found = best_terms(grid.values(weight_variance, floor, learning))
        terms = found.terms - num_rows * tf.math.log(grid.scales)
        return terms, ratios_at(found.place), found.sigma2 * tf.square(grid.scales)

    return best


class ProfiledChain(NamedTuple):
    """The chain with b and sigma2 of every task at their best."""

    terms: tf.Tensor  # [T]
    b: tf.Tensor  # [T]
    sigma2: tf.Tensor  # [T]


def profiled_chain(
    system: System, weight_variance: TensorType, floor: TensorType, learning: str
) -> ProfiledChain:
    r"""
    :math:`\max_{b_t, \sigma^2_t} J_t` of every task, differentiable for system and lambda.

    :param weight_variance: [], lambda of the "scaled" prior.
    :param floor: [T], smallest noise variance of each task.
    """
    gram, log_det = system(ratios_on_grid(system.spectrum))
    arguments = gram, log_det, system.spectrum.num_rows, weight_variance, floor
    terms, ratio, sigma2 = best_of_grams(learning)(*arguments)
    return ProfiledChain(terms, ratio * sigma2 / variance_unit(system.spectrum), sigma2)


class Profile(NamedTuple):
    """The chain at the best b and sigma2, and the gradient of the sum of its terms."""

    chain: ProfiledChain
    gram: tf.Tensor  # [J, T, T]
    log_det: tf.Tensor  # [J]
    weight_variance: tf.Tensor  # []


@functools.cache
def profile_of_grams(learning: str) -> Callable[..., tuple[tf.Tensor, ...]]:
    """:func:`best_of_grams` and the gradient of the terms' sum, as a graph for all models."""

    @shared_graph(GRAMS, VECTOR, NUMBER, NUMBER, VECTOR)
    def profile(
        gram: tf.Tensor,
        log_det: tf.Tensor,
        num_rows: tf.Tensor,
        weight_variance: tf.Tensor,
        floor: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        sources = [gram, log_det, weight_variance]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            found = best_of_grams(learning)(gram, log_det, num_rows, weight_variance, floor)
            total = tf.reduce_sum(found[0])
        return *found, *tape.gradient(total, sources)

    return profile


class SpectrumProfile:
    """
    :func:`profiled_chain` of an exact kernel matrix, for any lambda, and its gradient in the
    eigenbasis. All models share its graphs: a fit then traces the kernel at most.
    """

    def __init__(self, spectrum: Spectrum, floor: TensorType, learning: str) -> None:
        self.spectrum, self.floor, self.learning = spectrum, floor, learning
        self.ratios = ratios_on_grid(spectrum)
        self.gram, self.log_det = spectrum.gram(self.ratios), spectrum.log_det(self.ratios)

    def __call__(self, weight_variance: TensorType) -> Profile:
        """The chain at a lambda."""
        terms, ratio, sigma2, *by = profile_of_grams(self.learning)(
            self.gram,
            self.log_det,
            self.spectrum.num_rows,
            tf.cast(weight_variance, tf.float64),
            self.floor,
        )
        b = ratio * sigma2 / variance_unit(self.spectrum)
        return Profile(ProfiledChain(terms, b, sigma2), *by)

    def gradient(self, profile: Profile) -> tuple[tf.Tensor, tf.Tensor]:
        """With respect to K in the eigenbasis, [R, R], and to the rotated targets, [S R, T]."""
        lam, Yr = self.spectrum[:2]
        parts = rotated_gradient(self.ratios, profile.gram, profile.log_det, lam, Yr)
        return inside_gradient(*parts[:3]), parts[3]
