"""Rows of which only sums are left: a model that has read a stream predicts without it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, TensorType

from .rows import ArrayRows, Chunk, Rows
from .statistics import Statistics


class Witness(NamedTuple):
    """What shows whether the parameters are those of the sums."""

    variance: AnyNDArray
    """[M, M], the covariance of the inducing variables."""

    cross: AnyNDArray
    """[M, n], their covariance with the rows that are left."""

    residual: AnyNDArray
    """[n, T], targets of these rows less the mean function."""


class SummedRows(ArrayRows):
    """
    Sums over all rows at one setting of the parameters, and a few of the rows.

    :param X: The rows that are left, drawn at random.
    :param sums: Sums over all rows.
    :param W: The whitening that the sums were taken with. Another computer may find another one.
    :param witness: Gives the witness of X and Y at the present parameters, now those of the sums.
    """

    def __init__(
        self,
        X: AnyNDArray,
        Y: AnyNDArray,
        chunk_rows: int,
        sums: Statistics,
        W: TensorType,
        witness: Callable[[tf.Tensor, tf.Tensor], Witness],
    ) -> None:
        super().__init__(X, Y, chunk_rows)
        self.sums, self.W = sums, tf.convert_to_tensor(W)
        self.witness = witness(*self.arrays())
        self.num_rows = None

    def check(self, witness: Callable[[tf.Tensor, tf.Tensor], Witness]) -> None:
        """
        Compare the present parameters with those of the sums.

        :raises ValueError: If kernel, inducing points or mean function have changed since.
        """
        now, before = witness(*self.arrays()), self.witness
        if not (is_close(now.variance, before.variance) and is_close(now.cross, before.cross)):
            raise changed("The kernel's parameters or the inducing points have")
        if not all(map(is_close, now.residual.T, before.residual.T)):
            raise changed("The mean function has")

    def chunks(self, num_shards: int = 1, shard: int = 0) -> Iterator[Chunk]:
        """Raise: most rows are gone."""
        raise self._gone("train")

    def with_more(self, X: AnyNDArray, Y: AnyNDArray) -> Rows:
        """Raise: most rows are gone."""
        raise self._gone("add rows")

    def _gone(self, what: str) -> ValueError:
        return ValueError(
            f"Of all {int(self.sums.num_rows)} rows only sums and {len(self.X)} rows are left,"
            f" which is enough to predict and not to {what}: build the model again on all rows."
        )


def changed(what: str) -> ValueError:
    return ValueError(
        f"{what} changed, but of the rows only sums from before are left: build the model again on"
        " all rows."
    )


def is_close(now: AnyNDArray, before: AnyNDArray) -> bool:
    """Whether two arrays differ by rounding only, relative to the largest entry."""
    rounding = np.sqrt(np.finfo(before.dtype).eps) * np.max(np.abs(before))
    return np.allclose(now, before, rtol=0.0, atol=rounding)
