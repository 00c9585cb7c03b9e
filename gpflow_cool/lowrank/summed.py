"""Rows of which only sums are left: a model that has read a stream predicts without it."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, TensorType

from .rows import ArrayRows, Chunk, Rows
from .statistics import Statistics


class SummedRows(ArrayRows):
    """
    Sums over all rows at one setting of the parameters, and a few of the rows.

    :param X: The rows that are left, drawn at random.
    :param sums: Sums over all rows.
    :param W: The whitening that the sums were taken with. Another computer may find another one.
    :param variance: Covariance of the inducing variables, which shows whether parameters change.
    """

    def __init__(
        self,
        X: AnyNDArray,
        Y: AnyNDArray,
        chunk_rows: int,
        sums: Statistics,
        W: TensorType,
        variance: TensorType,
    ) -> None:
        super().__init__(X, Y, chunk_rows)
        self.sums, self.W, self.variance = sums, tf.convert_to_tensor(W), np.asarray(variance)
        self.num_rows = None

    def check_variance(self, variance: TensorType) -> None:
        """
        Compare the covariance of the inducing variables with that of the sums.

        :raises ValueError: If the parameters have changed since.
        """
        scale = np.max(np.abs(self.variance))
        precision = np.sqrt(np.finfo(self.variance.dtype).eps)
        if not np.allclose(variance, self.variance, rtol=0.0, atol=precision * scale):
            raise ValueError(
                "The kernel's parameters have changed, but of the rows only sums at the earlier"
                " parameters are left: build the model again on all rows."
            )

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
