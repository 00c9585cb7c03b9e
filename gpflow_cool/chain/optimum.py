r"""
The best b and sigma2 of every task, for a fixed kernel, from one shared grid of ratios.

Given the ratio r = b / sigma2 the best noise is :math:`\sigma^2_t = y_t^\top M_t^{-1} y_t / N`, so
that one number per task is left. One Cholesky factor per grid value gives the terms of all tasks
there (:mod:`.terms`). Between grid values the logarithms of the quadratic forms and the log
determinants are interpolated: as functions of log r they have no singularity nearer than
:math:`i \pi`. The gradient of the best terms is the partial one at the best ratios (envelope
theorem), and so is that of their interpolation, whose weights stay fixed.

Letters: N rows, T tasks, J grid values, F points of the finer grid; "..." are orders of the tasks.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..systems.spectrum import System
from .terms import (
    factor_diagonal,
    log_likelihood_terms,
    quadratic_forms,
    root_or_one,
    weight_costs,
    weight_systems,
)

LOG_RATIOS = np.arange(-8.0, 16.25, 0.5)
"""Logarithms of the ratios on the grid, for a kernel whose mean variance is one. At the lowest one
there is no signal to speak of, and the highest one is beyond any noise floor."""

DEGREE = 5
"""Of the polynomials between grid values. Log determinants of 200 rows are then wrong by 2e-4 at
most, for spectra that fall slowly and quickly; with degree 3 by 2e-3."""

FINE = 8
"""Points per step of the grid at which terms are compared, before Newton's method finds the
maximum."""

NEWTON_STEPS = 3
"""From so close the last one moves log r by less than 1e-8."""

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
    last = len(LOG_RATIOS) - 1 - DEGREE
    first = tf.clip_by_value(tf.floor(places) - DEGREE // 2, 0.0, float(last))
    polynomials = np.polynomial.polynomial.polyder(COEFFICIENTS, derivative, axis=1)
    powers = tf.stack([(places - first) ** k for k in range(polynomials.shape[1])], axis=-1)
    local = tf.einsum("...k,pk->...p", powers, polynomials)
    nodes = tf.cast(first, tf.int32)[..., None] + tf.range(DEGREE + 1)
    placed = tf.one_hot(nodes, len(LOG_RATIOS), dtype=tf.float64)
    return tf.reduce_sum(local[..., None] * placed, axis=-2)


FINE_PLACES = np.arange((len(LOG_RATIOS) - 1) * FINE + 1) / FINE


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


@check_shapes("places: [batch..., T]", "values: [batch..., J, T]", "return: [batch..., T]")
def at_places(values: TensorType, places: TensorType, derivative: int = 0) -> tf.Tensor:
    """Values on the grid, or their derivatives, at each task's own place."""
    weights = interpolation_weights(places, derivative)
    return tf.einsum("...tj,...jt->...t", weights, values)


@check_shapes("return: [batch..., T]")
def best_places(values: GridValues) -> tf.Tensor:
    """Where on the grid each task's term is largest: on a finer grid, then by Newton's method."""
    fine = interpolation_weights(tf.constant(FINE_PLACES))  # [F, J]
    log_quadratic, half_log_det = (tf.matmul(fine, part) for part in values[:2])  # [..., F, T]
    floor = values.floor[..., None, :] + tf.zeros_like(log_quadratic)
    terms, _ = terms_at_best_noise(log_quadratic, half_log_det, values.num_rows, floor)
    best = tf.cast(tf.argmax(terms, axis=-2), tf.float64) / FINE
    places = best
    for _ in range(NEWTON_STEPS):
        slope, bend = slope_and_bend(values, places)
        step = tf.where(bend < 0.0, -slope / tf.where(bend < 0.0, bend, -1.0), tf.sign(slope))
        places = tf.clip_by_value(places + step, best - 1.0 / FINE, best + 1.0 / FINE)
        places = tf.clip_by_value(places, 0.0, float(len(LOG_RATIOS) - 1))
    return places


def slope_and_bend(values: GridValues, places: TensorType) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    First and second derivative of the terms, :math:`-\tfrac{1}{2} q / \sigma^2 - \tfrac{N}{2} \log
    \sigma^2 - \tfrac{1}{2} \log |M|` with :math:`\sigma^2 = q / N` above the floor.
    """
    log_q, log_q1, log_q2 = (at_places(values.log_quadratic, places, k) for k in range(3))
    floor = values.floor * values.num_rows
    ratio = tf.exp(log_q) / tf.maximum(tf.exp(log_q), floor)  # q / (N sigma2)
    at_floor = tf.cast(ratio < 1.0, tf.float64)
    half = 0.5 * values.num_rows * ratio
    slope = -half * log_q1 - at_places(values.half_log_det, places, 1)
    bend = -half * (log_q2 + at_floor * tf.square(log_q1)) - at_places(
        values.half_log_det, places, 2
    )
    return slope, bend


def best_terms(values: GridValues) -> Optimum:
    """The largest term of every task, with the gradient at the ratio where it is largest."""
    place = tf.stop_gradient(best_places(values))
    log_quadratic, half_log_det = (at_places(part, place) for part in values[:2])
    rest = values.num_rows, values.floor
    terms, sigma2 = terms_at_best_noise(log_quadratic, half_log_det, *rest)
    return Optimum(terms, place, sigma2)


class GramsOnGrid(NamedTuple):
    """What a system says of the rows at every ratio of the grid."""

    gram: tf.Tensor  # [J, T, T], of targets whose mean square is one
    log_det: tf.Tensor  # [J]
    scales: tf.Tensor  # [T], roots of the targets' mean squares
    num_rows: tf.Tensor  # []

    def values(self, weight_variance: TensorType, floor: TensorType, learning: str) -> GridValues:
        """What the terms are made of, for the tasks in their own order."""
        diagonal = factor_diagonal(weight_systems(self.gram, weight_variance))
        floor = floor / tf.stop_gradient(tf.square(self.scales))
        rest = self.num_rows, weight_variance, floor, learning
        return grid_values(diagonal, self.log_det, *rest)


def log_ratios(places: TensorType) -> tf.Tensor:
    """Logarithms of the ratios at places on the grid."""
    return LOG_RATIOS[0] + places * (LOG_RATIOS[1] - LOG_RATIOS[0])


def ratios_on_grid(system: System) -> tf.Tensor:
    """[J + 1], the ratios of the grid for this kernel, and a zero, where G is Y^T Y."""
    unit = tf.stop_gradient(system.spectrum.mean_variance)
    return tf.concat([np.exp(LOG_RATIOS) / unit, [0.0]], axis=0)


@check_shapes("gram: [K, T, T]", "log_det: [K]")
def scaled_grams(gram: TensorType, log_det: TensorType, num_rows: TensorType) -> GramsOnGrid:
    """
    Gram matrices of the targets divided by the roots of their mean squares.

    :param gram: At :func:`ratios_on_grid`.
    """
    scales = root_or_one(tf.linalg.diag_part(gram[-1]) / num_rows)
    scaled = gram[:-1] / (scales[:, None] * scales[None, :])
    return GramsOnGrid(scaled, log_det[:-1], scales, num_rows)


@functools.cache
def best_of_grams(learning: str) -> Callable[..., tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """
    Best terms, ratios and noise variances of all tasks, [T] each, as one graph for all models.

    Traced once per process, whatever the sizes: that takes as long as a fit of few rows.
    """
    number, vector = tf.TensorSpec([], tf.float64), tf.TensorSpec([None], tf.float64)
    grams = tf.TensorSpec([len(LOG_RATIOS) + 1, None, None], tf.float64)
    log_dets = tf.TensorSpec([len(LOG_RATIOS) + 1], tf.float64)

    @tf.function(autograph=False, input_signature=[grams, log_dets, number, number, vector])
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
        return terms, tf.exp(log_ratios(found.place)), found.sigma2 * tf.square(grid.scales)

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
    gram, log_det = system(ratios_on_grid(system))
    arguments = gram, log_det, system.spectrum.num_rows, weight_variance, floor
    terms, ratio, sigma2 = best_of_grams(learning)(*arguments)
    return ProfiledChain(terms, ratio * sigma2 / system.spectrum.mean_variance, sigma2)
