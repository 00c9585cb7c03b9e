"""
Rows of data in chunks: arrays, files mapped into memory, and streams that do not fit into memory.

Sums over rows are taken chunk by chunk, so that memory does not grow with N. With a
`tf.distribute.Strategy` each replica adds up the chunks of its shard, and one all-reduce adds up
the replicas: only sums are sent, M^2 + M T numbers for statistics, whatever the number of rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.config import default_float

from .. import checks

CHUNK_ROWS = 8192
"""Rows per chunk where their number is not given."""

Chunk = tuple[tf.Tensor, tf.Tensor]
"""X [n, D] and Y [n, T] of some rows, in the float type of the model's data."""


class Rows(ABC):
    """Data that can be read chunk by chunk, any number of times."""

    num_inputs: int
    num_tasks: int
    chunk_rows: int
    dtype: tf.DType
    """Of the chunks."""

    num_rows: int | None = None
    """N, where it is known beforehand and :meth:`arrays` gives all rows."""

    @abstractmethod
    def chunks(self, num_shards: int = 1, shard: int = 0) -> Iterator[Chunk]:
        """All chunks, or every `num_shards`-th of them from number `shard` on."""

    def first(self) -> Chunk | None:
        """The first chunk, None if there is none."""
        return next(iter(self.chunks()), None)

    @abstractmethod
    def arrays(self) -> Chunk:
        """All rows at once."""

    def with_more(self, X: AnyNDArray, Y: AnyNDArray) -> "Rows":
        """These rows and some more."""
        raise ValueError("No rows can be added to these: build the model again on all rows.")


class ArrayRows(Rows):
    """
    Arrays, also ones that NumPy maps into memory: they are read one chunk at a time.

    :param chunk_rows: Rows per chunk.
    """

    def __init__(self, X: AnyNDArray, Y: AnyNDArray, chunk_rows: int) -> None:
        check_array(X, "X", checks.INPUTS_ARE_COLUMNS)
        check_array(Y, "Y", checks.TASKS_ARE_COLUMNS)
        if len(X) != len(Y):
            raise ValueError(
                f"X has {len(X)} rows and Y has {len(Y)}: row n of Y must hold the targets at row n"
                " of X."
            )
        self.X, self.Y, self.chunk_rows = X, Y, chunk_rows
        self.num_rows = len(X)
        self.dtype = tf.as_dtype(default_float())
        self.num_inputs, self.num_tasks = int(X.shape[1]), int(Y.shape[1])

    def chunks(self, num_shards: int = 1, shard: int = 0) -> Iterator[Chunk]:
        step = self.chunk_rows
        for n in range(shard * step, len(self.X), num_shards * step):
            part = slice(n, n + step)
            yield self._tensor(self.X[part]), self._tensor(self.Y[part])

    def arrays(self) -> Chunk:
        return self._tensor(self.X), self._tensor(self.Y)

    def _tensor(self, array: AnyNDArray) -> tf.Tensor:
        return tf.constant(np.asarray(array), self.dtype)

    def with_more(self, X: AnyNDArray, Y: AnyNDArray) -> Rows:
        """These rows and some more, as new arrays."""
        if isinstance(self.X, np.memmap) or isinstance(self.Y, np.memmap):
            raise ValueError(
                "X or Y is mapped from a file, and would have to be read whole: append the rows to"
                " the file, and build the model again."
            )
        return ArrayRows(np.vstack([self.X, X]), np.vstack([self.Y, Y]), self.chunk_rows)


class TensorRows(Rows):
    """Tensors, or variables that may change, in one chunk."""

    def __init__(self, X: tf.Tensor | tf.Variable, Y: tf.Tensor | tf.Variable) -> None:
        self.X, self.Y, self.dtype, self.num_rows = X, Y, X.dtype, X.shape[0]
        self.num_inputs, self.num_tasks = int(X.shape[1]), int(Y.shape[1])
        self.chunk_rows = CHUNK_ROWS

    def chunks(self, num_shards: int = 1, shard: int = 0) -> Iterator[Chunk]:
        if shard == 0:
            yield tf.convert_to_tensor(self.X), tf.convert_to_tensor(self.Y)

    def arrays(self) -> Chunk:
        return self.X, self.Y


class DatasetRows(Rows):
    """
    A `tf.data.Dataset` of pairs (x, y): of rows, which are gathered into chunks, or of chunks.

    Every pass reads it from its beginning, and it must yield the same rows each time.
    """

    def __init__(self, dataset: tf.data.Dataset, chunk_rows: int) -> None:
        spec = dataset.element_spec
        if not (isinstance(spec, tuple) and len(spec) == 2):
            raise ValueError(
                f"The tf.data.Dataset has elements {spec}, but pairs (x, y) are needed: of rows,"
                " shapes [D] and [T], or of chunks, shapes [n, D] and [n, T]."
            )
        ranks = [part.shape.rank for part in spec]
        columns: list[Any] = [part.shape[-1] if part.shape.rank else None for part in spec]
        if ranks not in ([1, 1], [2, 2]) or None in columns:
            raise ValueError(
                f"The tf.data.Dataset has elements of shapes {spec[0].shape} and {spec[1].shape},"
                " but [D] and [T], or [n, D] and [n, T], with D and T known, are needed."
            )
        self.num_inputs, self.num_tasks = int(columns[0]), int(columns[1])
        self.chunk_rows, self.dtype = chunk_rows, tf.as_dtype(default_float())
        self.dataset = dataset.batch(chunk_rows) if ranks == [1, 1] else dataset

    def chunks(self, num_shards: int = 1, shard: int = 0) -> Iterator[Chunk]:
        dtype = self.dtype
        cast = lambda X, Y: (tf.cast(X, dtype), tf.cast(Y, dtype))  # noqa: E731
        return iter(self.dataset.shard(num_shards, shard).map(cast).prefetch(2))

    def with_more(self, X: AnyNDArray, Y: AnyNDArray) -> Rows:
        """The same stream, and at its end some more rows."""
        types = [part.dtype for part in self.dataset.element_spec]
        more = tuple(tf.cast(part, kind) for part, kind in zip((X, Y), types, strict=True))
        last = tf.data.Dataset.from_tensor_slices(more).batch(self.chunk_rows)
        return DatasetRows(self.dataset.concatenate(last), self.chunk_rows)

    def arrays(self) -> Chunk:
        """Raise: a stream may not fit into memory."""
        raise ValueError(
            "The data is a tf.data.Dataset, which is not kept: save the parameters instead"
            " (gpflow.utilities.parameter_dict), and build the model again on the same data."
        )


def check_array(array: AnyNDArray, name: str, columns: str) -> None:
    """Raise unless an array is a matrix of numbers with a row and a column; reads no entry."""
    if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} has shape {array.shape} and type {array.dtype}, but a matrix of numbers with"
            f" at least one row is needed: {columns}."
        )


def make_rows(data: Any, chunk_rows: int) -> Rows:
    """
    The rows of a pair (X, Y), or of a `tf.data.Dataset` of pairs; rows as they are.

    Arrays, memory maps included, are not copied; anything else is read as numbers.
    """
    checks.positive_integer(chunk_rows, "chunk_rows")
    if isinstance(data, Rows):
        return data
    if isinstance(data, tf.data.Dataset):
        return DatasetRows(data, chunk_rows)
    parts = checks.pair(data, "data must be the pair (X, Y), or a tf.data.Dataset of such pairs")
    arrays = []
    for part, name in zip(parts, "XY", strict=True):
        if isinstance(part, tf.Variable):
            raise ValueError(
                f"{name} is a tf.Variable, but this model does not follow its changes: pass an"
                " array."
            )
        arrays.append(part if isinstance(part, np.ndarray) else checks.numbers(part, name))
    X, Y = arrays
    return ArrayRows(X, Y, chunk_rows)


# Sums over rows, on one device or on many -------------------------------------------------------

LOST_WORKER = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
"""The errors that TensorFlow raises when another worker does not answer."""


def sum_over_rows(
    rows: Rows,
    function: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]],
    zero: Sequence[tf.Tensor],
    strategy: tf.distribute.Strategy | None = None,
) -> list[tf.Tensor]:
    """
    Sums, over all chunks of rows, of the tensors that a function returns for a chunk.

    :param zero: The sums over no rows.
    :param strategy: Where to compute: every replica sees its shard of the chunks.
    """

    def sum_over_shard(num_shards: int, shard: int) -> list[tf.Tensor]:
        total = list(zero)
        for X, Y in rows.chunks(num_shards, shard):
            total = [a + b for a, b in zip(total, function(X, Y), strict=True)]
        return total

    return sum_over_replicas(sum_over_shard, strategy)


def sum_over_replicas(
    function: Callable[[int, int], list[tf.Tensor]], strategy: tf.distribute.Strategy | None
) -> list[tf.Tensor]:
    """
    Sums, over all replicas, of the tensors that a function of their number and of one's own number
    returns: one all-reduce.

    :raises RuntimeError: If a worker is gone.
    """

    def replica() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        shard = int(tf.get_static_value(context.replica_id_in_sync_group))
        part = function(context.num_replicas_in_sync, shard)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, part)

    if strategy is None:
        return function(1, 0)
    try:
        total = strategy.run(replica)
        return [strategy.experimental_local_results(part)[0] for part in total]
    except LOST_WORKER as error:
        raise RuntimeError(
            "Another worker does not answer any more. Start all of them again: training goes on"
            f" from the last checkpoint, if there is one. TensorFlow says: {error.message[:200]}"
        ) from error
