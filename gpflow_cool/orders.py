"""
Averaging the recovered covariances over orders of the tasks.

The chain conditions each task on those before it, and the order shows in C and Sigma, more than in
the predicted means. For a fixed kernel another order costs no eigendecomposition, only the inner
problem, and a mean of covariances is a covariance.
"""

import itertools
import math

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray

from . import inner
from .chain import solve_chain
from .recovery import MultitaskParameters, map_correlation, multitask_parameters
from .spectrum import Spectrum


def some_orders(num_tasks: int, num_orders: int, seed: int | None) -> list[AnyNDArray]:
    """The tasks as they come, and other random orders; all orders, if there are no more."""
    if math.factorial(num_tasks) <= num_orders:
        return [np.array(order) for order in itertools.permutations(range(num_tasks))]
    rng = np.random.default_rng(seed)
    orders = dict.fromkeys([tuple(range(num_tasks))])
    while len(orders) < num_orders:
        orders[tuple(rng.permutation(num_tasks).tolist())] = None
    return [np.array(order) for order in orders]


def reorder(spectrum: Spectrum, order: AnyNDArray) -> Spectrum:
    """The same spectrum with the tasks in another order."""
    return spectrum._replace(
        Yr=tf.gather(spectrum.Yr, order, axis=1),
        G0=tf.gather(tf.gather(spectrum.G0, order, axis=0), order, axis=1),
    )


def recover_in_order(
    spectrum: Spectrum,
    order: AnyNDArray,
    starts: AnyNDArray,
    box: inner.Box,
    learning: str,
) -> MultitaskParameters:
    """
    Solve the inner problem with the tasks in some order, and recover the joint model's matrices.

    :param starts: [S, T, 2], (b, sigma2) to start from, in the tasks' own order, as is `box`.
    :return: In the new order.
    """
    spectrum = reorder(spectrum, order)
    solution = inner.solve(
        inner.inner_spectrum(*spectrum.arrays()),
        starts[:, order],
        inner.Box(box.lower[order], box.upper[order]),
        learning,
    )
    b, sigma2 = tf.constant(solution.b), tf.constant(solution.sigma2)
    chain = solve_chain(spectrum, b, sigma2, learning)
    return multitask_parameters(chain.systems.W, b, sigma2, map_correlation(spectrum, chain))


@check_shapes("starts: [S, T, 2]", "return[0]: [T, T]", "return[1]: [T, T]")
def average_over_orders(
    spectrum: Spectrum,
    orders: list[AnyNDArray],
    starts: AnyNDArray,
    box: inner.Box,
    learning: str,
) -> tuple[AnyNDArray, AnyNDArray]:
    r"""
    Mean of C and of Sigma over orders of the tasks.

    .. math:: \bar{C} = \frac{1}{S} \sum_s \Pi_s^\top C_s \Pi_s

    with :math:`\Pi_s` the permutation that brings the tasks into order s.
    """
    num_tasks = starts.shape[1]
    C, Sigma = np.zeros([num_tasks, num_tasks]), np.zeros([num_tasks, num_tasks])
    for order in orders:
        parameters = recover_in_order(spectrum, order, starts, box, learning)
        C[np.ix_(order, order)] += parameters.C.numpy() / len(orders)
        Sigma[np.ix_(order, order)] += parameters.Sigma.numpy() / len(orders)
    return C, Sigma
