"""Rows of which only sums are left: a model that has read a stream predicts without it."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray, TensorType

from .rows import ArrayRows, Chunk
from .statistics import Statistics


class SummedRows(ArrayRows):
    """
    Sums over all rows at one setting of the parameters, and a few of the rows.

    :param X: The rows that are left, drawn at random.
    :param statistics: Sums over all rows.
    :param L: The factor that the sums were taken with.
    """

    def __init__(
        self,
        X: AnyNDArray,
        Y: AnyNDArray,
        chunk_rows: int,
        statistics: Statistics,
        L: TensorType,
    ) -> None:
        super().__init__(X, Y, chunk_rows)
        self.kept, self.L = statistics, tf.convert_to_tensor(L)
        self.num_rows = None

    def statistics(self, L: TensorType) -> Statistics:
        """
        The sums.

        :raises ValueError: If the parameters have changed since.
        """
        if not np.allclose(L, self.L, rtol=1e-9, atol=1e-12):
            raise ValueError(
                "The kernel's parameters have changed, but of the rows only sums at the earlier"
                " parameters are left: build the model again on all rows."
            )
        return self.kept

    def chunks(self, num_shards: int = 1, shard: int = 0) -> Iterator[Chunk]:
        """Raise: most rows are gone."""
        raise ValueError(
            f"Of all {int(self.kept.num_rows)} rows only sums and {len(self.X)} rows are left,"
            " which is enough to predict and not to train: build the model again on all rows."
        )
