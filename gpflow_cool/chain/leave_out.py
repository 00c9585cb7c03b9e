r"""
Log densities of rows given all the other rows, from the chain, with its parameters kept.

With :math:`M_t` as in :mod:`.terms`, the rows g given all others have the log density

.. math:: \sum_t \log N \big( Q_{t,gg}^{-1} (Q_t y_t)_g \,|\, 0, \; \sigma^2_t Q_{t,gg}^{-1} \big),
          \qquad Q_t = M_t^{-1}

which charges for what the weights between tasks do not know: with about as many tasks as rows, the
densities of the joint model at C and Sigma, recovered from all rows, are far too good.

Letters: N rows, T tasks, R eigenvectors, G groups of g rows.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from ..gaussian import LOG_2PI
from ..systems.eigen import EigenSystem, ThinSystem
from .terms import Chain, inverse_factor, own_systems, target_scales


@check_shapes("Q: [G, g, g]", "residual: [G, g]", "sigma2: []", "return: [G]")
def left_out_log_densities(Q: TensorType, residual: TensorType, sigma2: TensorType) -> tf.Tensor:
    r"""
    Log densities of groups given all other rows, for one task.

    :param Q: Blocks of :math:`M^{-1}`.
    :param residual: :math:`M^{-1} y` in these rows.
    """
    L = tf.linalg.cholesky(Q)
    whitened = tf.linalg.triangular_solve(L, residual[..., None])[..., 0]
    log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)), axis=-1)
    size = tf.cast(tf.shape(residual)[-1], residual.dtype)
    noise = size * (LOG_2PI + tf.math.log(sigma2))
    return 0.5 * (log_det - noise - tf.reduce_sum(tf.square(whitened), axis=-1) / sigma2)


@check_shapes("return: [G]")
def leave_rows_out(
    system: EigenSystem | ThinSystem, chain: Chain, groups: list[AnyNDArray]
) -> tf.Tensor:
    """
    Log density of each group of rows given all the other rows, joint over rows and tasks.

    :param groups: The rows of each group.
    """
    scales, spectrum = target_scales(system, chain), system.spectrum
    found = tf.zeros([len(groups)], tf.float64)
    for tasks, M, _ in own_systems(system, chain, scales):
        inverses = inverse_factor(tf.linalg.cholesky(M))
        for place, t in enumerate(tasks):
            ratio, variance = chain.ratios[t], chain.weight_variances[t]
            d = spectrum.shrinkage(ratio[None])[0]  # [R]
            inverse = inverses[place, : t + 1, : t + 1]
            solved = system.solved_targets(d)[:, : t + 1] / scales[: t + 1]
            # Row k of L^-1 takes the targets to a column of M^-1's low-rank part, the last one to
            # M^-1 y_t over L_tt.
            rows = tf.matmul(solved, inverse, transpose_b=True)  # [N, t + 1]
            residual = rows[:, t] / inverse[t, t]
            explained = tf.sqrt(variance) * rows[:, :t]
            noise = chain.sigma2[t] / tf.square(scales[t])
            for numbers, members in groups_by_size(groups):
                low = tf.gather(explained, members)  # [G, g, t]
                Q = system.inverse_blocks(d, members) - tf.matmul(low, low, transpose_b=True)
                density = left_out_log_densities(Q, tf.gather(residual, members), noise)
                density -= tf.math.log(scales[t]) * members.shape[1]
                found = tf.tensor_scatter_nd_add(found, numbers[:, None], density)
    return found


def groups_by_size(groups: list[AnyNDArray]) -> Iterator[tuple[AnyNDArray, AnyNDArray]]:
    """Numbers [G] and rows [G, g] of the groups of each size."""
    sizes = np.array([len(group) for group in groups])
    for size in np.unique(sizes):
        numbers = np.flatnonzero(sizes == size)
        yield numbers, np.stack([groups[number] for number in numbers])
