"""
Rows of data in chunks: arrays, files mapped into memory, and streams that do not fit into memory.

Sums over rows are taken chunk by chunk, so that memory does not grow with N. With a
`tf.distribute.Strategy` each replica adds up the chunks of its shard, and one all-reduce adds up
the replicas: only sums are sent, M^2 + M T numbers for statistics, whatever the number of rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray
from gpflow.config import default_float

from .. import checks
from ..chain.starting import positive_or_one, scales_of_moments
from ..chain.variation import check_ranges, is_constant

CHUNK_ROWS = 8192
"""Rows per chunk where their number is not given."""

SAMPLE_ROWS, SAMPLE_NUMBERS = 2**16, 2**22
"""At most so many rows, and so many numbers in them (32 MB), are drawn at random in a summary."""

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


class Summary(NamedTuple):
    """Results of one pass over all rows."""

    num_rows: int
    scales: AnyNDArray
    """[T], see :func:`gpflow_cool.chain.starting.task_scales`."""

    mean_squares: AnyNDArray
    """[T], means of the squared targets, mean function subtracted."""

    kernel_variance: float
    """Mean of k(x, x)."""

    sample: "Sample"
    """X and Y of rows drawn at random; of all rows, if they are few."""


def summarise(
    rows: Rows,
    centred: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    diagonal: Callable[[tf.Tensor], tf.Tensor],
) -> Summary:
    """
    Check and summarise all rows, in one pass.

    :param centred: The targets with the mean function subtracted.
    :param diagonal: k(x, x) of every row.
    :raises ValueError: If an entry is not finite, naming its row, or a task too large or too small.
    """
    count, trace = 0, 0.0
    moments = Moments(rows.num_tasks)
    sample = Sample(sample_size(rows))
    for X, Y in rows.chunks():
        check_chunk(X.numpy(), "X", count)
        check_chunk(Y.numpy(), "Y", count)
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            moments.add(centred(X, Y).numpy())
        trace += float(tf.reduce_sum(diagonal(X)))
        sample.add(X.numpy(), Y.numpy())
        count += len(X)
    if not count:
        raise ValueError("The data has no rows: a tf.data.Dataset must yield them in every pass.")
    check_ranges(moments.low, moments.high, moments.dtype)
    return Summary(
        count,
        moments.scales(),
        moments.mean_squares(),
        positive_or_one(trace / count),
        sample,
    )


def sample_size(rows: Rows) -> int:
    """How many rows a summary draws."""
    return max(1, min(SAMPLE_ROWS, SAMPLE_NUMBERS // (rows.num_inputs + rows.num_tasks)))


def check_chunk(array: AnyNDArray, name: str, before: int) -> None:
    """Raise if an entry is not finite, with its row counted from the beginning of the data."""
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = bad[0]
        is_missing = name == "Y" and np.isnan(array[row, column])
        other = ", or use CoolMTGP, which takes missing targets" if is_missing else ""
        raise ValueError(
            f"{name}[{before + row}, {column}] is {array[row, column]}. Every entry must be finite:"
            f" drop the row or fill the gap{other}."
        )


class Moments:
    """Mean, variance and range of columns, chunk by chunk (Chan et al. 1979)."""

    def __init__(self, num_columns: int) -> None:
        self.count = 0
        self.mean, self.squares = np.zeros(num_columns), np.zeros(num_columns)
        self.low, self.high = np.full(num_columns, np.inf), np.full(num_columns, -np.inf)
        self.dtype = np.dtype(np.float64)

    def add(self, Y: AnyNDArray) -> None:
        """Add some rows; `squares` are sums of squared distances from the mean."""
        self.dtype = Y.dtype
        mean = np.mean(Y, axis=0, dtype=np.float64)
        shift, total = mean - self.mean, self.count + len(Y)
        self.squares += np.sum(np.square(Y - mean), axis=0)
        self.squares += np.square(shift) * self.count * len(Y) / total
        self.mean += shift * len(Y) / total
        self.count = total
        self.low, self.high = np.minimum(self.low, Y.min(0)), np.maximum(self.high, Y.max(0))

    def scales(self) -> AnyNDArray:
        """[T], as :func:`gpflow_cool.chain.starting.task_scales` of all rows."""
        variance = self.squares / self.count
        constant = is_constant(self.low, self.high, self.dtype)
        return scales_of_moments(variance, self.mean_squares(), constant)

    def mean_squares(self) -> AnyNDArray:
        """[T], means of squares."""
        return self.squares / self.count + np.square(self.mean)


class Sample:
    """
    Rows drawn at random, without replacement, from a stream of unknown length: each row gets a
    random number, and the rows with the smallest numbers are kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.rng = np.random.default_rng(0)
        self.keys = np.zeros(0)
        self.parts: list[AnyNDArray] = []

    def add(self, *parts: AnyNDArray) -> None:
        """Add some rows, given as arrays of equal length."""
        keys = self.rng.random(len(parts[0]))
        if len(self.keys) == self.size:  # most rows of a long stream go no further
            low = keys < self.keys.max()
            keys, parts = keys[low], tuple(part[low] for part in parts)
        keys = np.concatenate([self.keys, keys])
        if self.parts:
            parts = tuple(np.concatenate(pair) for pair in zip(self.parts, parts, strict=True))
        kept = np.sort(np.argsort(keys)[: self.size])
        self.parts = [part[kept] for part in parts]
        self.keys = keys[kept]

    def __len__(self) -> int:
        return len(self.keys)

    def smallest(self, count: int) -> list[AnyNDArray]:
        """So many of the rows, in their order; a larger number of them has those of a smaller."""
        kept = np.sort(np.argsort(self.keys)[:count])
        return [part[kept] for part in self.parts]


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
    :raises RuntimeError: If a worker is gone.
    """

    def sum_over_shard(num_shards: int, shard: int) -> list[tf.Tensor]:
        total = list(zero)
        for X, Y in rows.chunks(num_shards, shard):
            total = [a + b for a, b in zip(total, function(X, Y), strict=True)]
        return total

    def replica() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        shard = int(tf.get_static_value(context.replica_id_in_sync_group))
        part = sum_over_shard(context.num_replicas_in_sync, shard)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, part)

    if strategy is None:
        return sum_over_shard(1, 0)
    try:
        total = strategy.run(replica)
        return [strategy.experimental_local_results(part)[0] for part in total]
    except LOST_WORKER as error:
        raise RuntimeError(
            "Another worker does not answer any more. Start all of them again: training goes on"
            f" from the last checkpoint, if there is one. TensorFlow says: {error.message[:200]}"
        ) from error
