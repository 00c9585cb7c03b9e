r"""
New rows given to a posterior, without another factorisation of the rows it has.

In the basis of :mod:`gpflow_cool.joint.kronecker` the tasks are independent, so that q complete
rows :math:`X'` are T systems of size q. With :math:`q_j` the posterior covariance of rotated task j
and :math:`S_j = q_j(X', X') + I`,

.. math::

    m_j(x) + q_j(x, X') \, S_j^{-1} (z'_j - m_j(X')), \qquad
    q_j(x, x') - q_j(x, X') \, S_j^{-1} q_j(X', x')

Rows with missing targets mix the rotated tasks: they are one system over their observed targets.

Letters: q new rows, T tasks, M test points, R rows of the solution, j a rotated task. Outcomes are
the leading dimensions of the new targets: several hypothetical Y at the same inputs.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from check_shapes import check_shapes
from gpflow.base import AnyNDArray, TensorType

from .. import checks
from ..systems.products import for_copies, from_eigenbasis
from .kronecker import JointSolution


class AddedRows(NamedTuple):
    """Complete rows that a posterior was conditioned on."""

    X: tf.Tensor
    """[q, D]."""

    Y: tf.Tensor
    """[outcomes..., q, T]."""

    rotated: tf.Tensor
    """[q, R], their covariance with the solution's rows, in the eigenbasis."""

    L: tf.Tensor
    """[T, q, q], Cholesky factors of S."""

    white: tf.Tensor
    """[outcomes..., T, q], L^-1 times the rotated residuals."""


class AddedTargets(NamedTuple):
    """Rows with missing targets that a posterior was conditioned on."""

    X: tf.Tensor
    """[q, D]."""

    Y: tf.Tensor
    """[outcomes..., q, T], NaN where a target is missing."""

    known: tf.Tensor
    """[q T], one where a target is observed, else zero."""

    L: tf.Tensor
    """[q T, q T], Cholesky factor of their covariance; the identity for missing targets."""

    white: tf.Tensor
    """[outcomes..., q T], L^-1 times the residuals, which are zero for missing targets."""


def new_rows(
    Xnew: Any, Ynew: Any, num_columns: int, num_tasks: int, dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor]:
    """
    Rows that a posterior is conditioned on: inputs [q, D], and targets [outcomes..., q, T] with NaN
    where one was not measured, in all outcomes alike.
    """
    Xnew, Ynew = checks.inputs(Xnew, num_columns, dtype), checks.targets(Ynew, num_tasks, dtype)
    if Xnew.shape.rank != 2 or not Xnew.shape[:1].is_compatible_with(Ynew.shape[-2:-1]):
        raise ValueError(
            f"Xnew has shape {tuple(Xnew.shape)} and Ynew has shape {tuple(Ynew.shape)}: pass"
            f" [q, {num_columns}] and [..., q, {num_tasks}], row m of Ynew with the targets at row"
            " m of Xnew."
        )
    if Xnew.shape[0] == 0:
        raise ValueError("Xnew and Ynew have no rows: pass at least one.")
    if hasattr(Ynew, "numpy"):
        check_outcomes(Ynew.numpy())
    return Xnew, Ynew


def check_outcomes(Ynew: AnyNDArray) -> None:
    """Raise if an entry is infinite, or missing in some outcomes only."""
    if np.isinf(Ynew).any():
        where = checks.place(np.argwhere(np.isinf(Ynew))[0])
        raise ValueError(
            f"Ynew{where} is infinite: pass a number where a task was measured and NaN where it was"
            " not."
        )
    missing = np.isnan(Ynew).reshape(-1, *Ynew.shape[-2:])
    if (missing != missing[:1]).any():
        row, task = np.argwhere((missing != missing[:1]).any(axis=0))[0]
        raise ValueError(
            f"Ynew[..., {row}, {task}] is NaN in some of the outcomes and a number in others:"
            " condition on each of them apart, or pass NaN in all of them."
        )


@check_shapes(
    "rotated: [q, R]",
    "V: [batch..., R, M]",
    "Kqm: [q, batch..., M]",
    "return: [batch..., T, q, M]",
)
def rotated_cross_covariance(
    solution: JointSolution, rotated: TensorType, V: TensorType, Kqm: TensorType
) -> tf.Tensor:
    r"""
    Posterior covariances of the rotated functions between q points and M others.

    .. math:: q_j = d_j k_{qm} - d_j^2 \, k_q^\top U \, \mathrm{diag}(1 / (\lambda d_j + 1)) \,
              U^\top k_m

    :param rotated: :math:`k_q^\top U`.
    :param V: :math:`U^\top k_m`.
    """
    d = solution.d
    weights = tf.transpose(solution.seen_shrinkage * tf.square(d))  # [T, R]
    explained = tf.matmul(weights[:, None, :] * rotated, V[..., None, :, :])
    return tf.einsum("t,q...m->...tqm", d, Kqm) - explained


@check_shapes("L: [T, p, p]", "cross: [T, p, q]", "own: [T, q, q]", "return: [T, rows, rows]")
def extend_factors(L: TensorType, cross: TensorType, own: TensorType) -> tf.Tensor:
    r"""
    Cholesky factors of covariances that have grown by q rows.

    :param cross: :math:`L^{-1}` times the covariance of the old rows with the new ones.
    :param own: Cholesky factors of the new rows' covariance given the old ones.
    """
    above = tf.concat([L, tf.zeros_like(cross)], axis=-1)
    return tf.concat([above, tf.concat([tf.linalg.matrix_transpose(cross), own], -1)], axis=-2)


def join_outcomes(first: tf.Tensor, second: tf.Tensor, axis: int) -> tf.Tensor:
    """Join two tensors [outcomes..., a, b], whose outcomes may have to be broadcast."""
    outcomes = tf.broadcast_dynamic_shape(tf.shape(first)[:-2], tf.shape(second)[:-2])
    parts = [
        tf.broadcast_to(part, tf.concat([outcomes, tf.shape(part)[-2:]], axis=0))
        for part in (first, second)
    ]
    return tf.concat(parts, axis=axis)


def extend_rows(old: AddedRows, new: AddedRows, cross: TensorType) -> AddedRows:
    """
    Both together.

    :param new: Given the old rows.
    :param cross: As for :func:`extend_factors`.
    """
    return AddedRows(
        X=tf.concat([old.X, new.X], axis=0),
        Y=join_outcomes(old.Y, new.Y, axis=-2),
        rotated=tf.concat([old.rotated, new.rotated], axis=0),
        L=extend_factors(old.L, cross, new.L),
        white=join_outcomes(old.white, new.white, axis=-1),
    )


Rows = tuple[tf.Tensor, tf.Tensor]


def split_complete(X: tf.Tensor, Y: tf.Tensor) -> tuple[Rows | None, Rows | None]:
    """
    The complete rows, and those with missing targets; None where there are no such rows.

    Where a graph does not know Y, all rows count as complete, and NaN is an error when it runs.
    """
    known = tf.get_static_value(Y)
    if known is None:
        message = (
            "Ynew has NaN. Inside tf.function, a posterior of complete data can be given complete"
            " rows only, because the graph depends on what is missing: call condition_on outside."
        )
        return (X, tf.debugging.check_numerics(Y, message)), None
    other = tuple(axis for axis in range(known.ndim) if axis != known.ndim - 2)
    complete = np.isfinite(known).all(axis=other)

    return pick_rows(X, Y, complete), pick_rows(X, Y, ~complete)


def pick_rows(X: tf.Tensor, Y: tf.Tensor, chosen: AnyNDArray) -> Rows | None:
    """Some of the rows; None if there are none. Gradients are dense, as those of gather are not."""
    rows = np.flatnonzero(chosen)
    if len(rows) in (0, len(chosen)):
        return (X, Y) if len(rows) else None
    some = [tf.stack([part[..., row, :] for row in rows], axis=-2) for part in (X, Y)]
    return some[0], some[1]


@check_shapes("whitened: [batch..., T, q, M]", "white: [outcomes..., T, q]", "P: [T, T]")
def rotated_shift(whitened: TensorType, white: TensorType, P: TensorType) -> tf.Tensor:
    r"""
    [outcomes..., batch..., M, T], what the new rows add to the mean of the tasks.

    .. math:: \sum_j P_{tj} \, (L_j^{-1} q_j(X', x))^\top \, L_j^{-1} r_j
    """
    flat = tf.reshape(white, tf.concat([[-1], tf.shape(white)[-2:]], axis=0))
    shift = tf.einsum("ujq,...jqm,tj->u...mt", flat, whitened, P)
    return split_outcomes(shift, white.shape.rank - 2, white)


@check_shapes("whitened: [batch..., E, M, T]", "white: [outcomes..., E]")
def target_shift(whitened: TensorType, white: TensorType) -> tf.Tensor:
    """[outcomes..., batch..., M, T], the same for observed targets of any rows."""
    flat = tf.reshape(white, tf.concat([[-1], tf.shape(white)[-1:]], axis=0))
    return split_outcomes(
        tf.einsum("ue,...emt->u...mt", flat, whitened), white.shape.rank - 1, white
    )


def split_outcomes(flat: tf.Tensor, rank: int, like: tf.Tensor) -> tf.Tensor:
    """The first axis split into the first `rank` ones of another tensor."""
    return tf.reshape(flat, tf.concat([tf.shape(like)[:rank], tf.shape(flat)[1:]], axis=0))


def for_all_outcomes(part: tf.Tensor, white: tf.Tensor) -> tf.Tensor:
    """
    [outcomes..., ...], what is the same for all outcomes.

    :param white: [outcomes..., T, q].
    """
    if white.shape.rank == 2:
        return part
    return tf.broadcast_to(part, tf.concat([tf.shape(white)[:-2], tf.shape(part)], axis=0))


@check_shapes("rotated: [q, R]", "v: [S, q, T]", "return[0]: [S, R, T]", "return[1]: [S, q, T]")
def rotated_expansion(
    solution: JointSolution, rotated: TensorType, v: TensorType
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""
    Posterior covariances with q points, times weights, as factors of cross-covariances.

    .. math:: \sum_j P_{tj} \, q_j(x, X') \, v_j = k(x, X) \, B + k(x, X') \, B'

    :param rotated: As for :func:`rotated_cross_covariance`.
    :param v: Weights of the rotated functions at the points.
    """
    d, P = solution.d, solution.P
    inside = tf.einsum("qr,sqj->srj", rotated, v) * solution.seen_shrinkage * tf.square(d)
    rows = -for_copies(from_eigenbasis, solution.U, tf.matmul(inside, P, transpose_b=True))
    return rows, tf.matmul(v * d, P, transpose_b=True)


@check_shapes(
    "whitened: [batch..., E, M, T]",
    "return: [batch..., M, T, M, T] if full_cov and full_output_cov",
    "return: [batch..., T, M, M] if full_cov and (not full_output_cov)",
    "return: [batch..., M, T, T] if (not full_cov) and full_output_cov",
    "return: [batch..., M, T] if (not full_cov) and (not full_output_cov)",
)
def explained_layout(whitened: TensorType, full_cov: bool, full_output_cov: bool) -> tf.Tensor:
    """What observed targets explain of the covariance at M points, in GPflow's layouts."""
    if full_cov and full_output_cov:
        return tf.einsum("...emt,...enu->...mtnu", whitened, whitened)
    if full_cov:
        return tf.einsum("...emt,...ent->...tmn", whitened, whitened)
    if full_output_cov:
        return tf.einsum("...emt,...emu->...mtu", whitened, whitened)
    return tf.reduce_sum(tf.square(whitened), axis=-3)


@check_shapes(
    "mean: [leading..., q, T]",
    "S: [q, T, q, T]",
    "X: [q, D]",
    "Y: [outcomes..., q, T]",
)
def add_targets(mean: TensorType, S: TensorType, X: TensorType, Y: TensorType) -> AddedTargets:
    """
    Factorise the covariance of the observed targets of new rows.

    :param mean: What is predicted for them, of each outcome.
    :param S: Covariance of the new targets, noise included.
    """
    size = tf.shape(S)[0] * tf.shape(S)[1]
    observed = tf.reduce_all(
        tf.reshape(tf.math.is_finite(Y), [-1, size]), axis=0
    )  # the same for all outcomes
    known = tf.cast(observed, S.dtype)
    both = known[:, None] * known[None, :]
    # Missing targets become independent with unit variance, so that graphs know the size.
    L = tf.linalg.cholesky(both * tf.reshape(S, [size, size]) + tf.linalg.diag(1.0 - known))
    residual = Y - mean
    residual = tf.reshape(residual, tf.concat([tf.shape(residual)[:-2], [size]], axis=0))
    residual = tf.where(observed, residual, tf.zeros_like(residual))
    white = tf.linalg.triangular_solve(L, residual[..., None])[..., 0]
    return AddedTargets(X, Y, known, L, white)


@check_shapes("cross: [batch..., M, T, q, T]", "return: [batch..., E, M, T]")
def whiten_targets(added: AddedTargets, cross: TensorType) -> tf.Tensor:
    """L^-1 times the covariance of the observed targets with functions at M points."""
    shape = tf.shape(cross)
    batch, M, T, size = shape[:-4], shape[-4], shape[-3], shape[-2] * shape[-1]
    flat = tf.reshape(cross, tf.concat([batch, [M * T, size]], axis=0)) * added.known
    whitened = tf.linalg.triangular_solve(added.L, tf.linalg.matrix_transpose(flat))
    return tf.reshape(whitened, tf.concat([batch, [size, M, T]], axis=0))


@check_shapes("residual: [S, q, T]", "return: [S, q, T]")
def target_weights(added: AddedTargets, residual: TensorType) -> tf.Tensor:
    """The covariance of the observed targets, solved for residuals; zero for missing ones."""
    flat = tf.reshape(residual, [-1, tf.size(added.known)])
    flat = tf.where(added.known > 0, flat, tf.zeros_like(flat))
    solved = tf.linalg.cholesky_solve(added.L, tf.transpose(flat))
    return tf.reshape(tf.transpose(solved), tf.shape(residual))
