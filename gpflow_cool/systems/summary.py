"""
What one pass over all rows tells before training: their number, scales, and some of the rows.

With a `tf.distribute.Strategy` every replica reads its shard of the chunks, and all get the same
summary, which does not depend on their number but for rounding.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray

from ..variation import check_ranges, is_constant
from .rows import Rows, sum_over_replicas


def scales_of_moments(
    variance: AnyNDArray, mean_square: AnyNDArray, constant: AnyNDArray
) -> AnyNDArray:
    """The scales of tasks, [T], from their moments, and which of them are constant."""
    return np.where(constant, np.where(mean_square > 0, mean_square, 1.0), variance)


def positive_or_one(value: float) -> float:
    """A kernel's mean variance, or 1 where it is not a positive number."""
    return value if np.isfinite(value) and value > 0 else 1.0


SAMPLE_ROWS, SAMPLE_NUMBERS = 2**16, 2**22
"""At most so many rows, and so many numbers in them (32 MB), are drawn at random in a summary."""

MOST_FOUND = 1.25
"""So many times the rows of a sample are kept until the smallest are selected, which takes time."""

NOT_DRAWN = 2.0
"""Above the random number of every row."""

Centred = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Diagonal = Callable[[tf.Tensor], tf.Tensor]


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
    centred: Centred,
    diagonal: Diagonal,
    strategy: tf.distribute.Strategy | None = None,
) -> Summary:
    """
    Check and summarise all rows, in one pass.

    :param centred: The targets with the mean function subtracted.
    :param diagonal: k(x, x) of every row.
    :param strategy: Whose replicas share the pass.
    :raises ValueError: If an entry is not finite, naming its row, or a task too large or too small.
    """
    shares: dict[int, Share] = {}

    def read(num_shards: int, shard: int) -> list[tf.Tensor]:
        shares[shard] = share = Share(rows, num_shards, shard)
        share.read(centred, diagonal)
        tables = [np.zeros((num_shards, len(part))) for part in share.vectors()]
        for table, part in zip(tables, share.vectors(), strict=True):
            table[shard] = part
        return [tf.constant(table) for table in tables]

    sums, keys, places = (table.numpy() for table in sum_over_replicas(read, strategy))
    if np.any(sums[:, -1]):
        check_rows(rows)
    trace = float(np.sum(sums[:, -2]))
    moments = Moments.merged(sums[:, :-2], rows.dtype.as_numpy_dtype)
    if not moments.count:
        raise ValueError("The data has no rows: a tf.data.Dataset must yield them in every pass.")
    check_ranges(moments.low, moments.high, moments.dtype)
    return Summary(
        moments.count,
        moments.scales(),
        moments.mean_squares(),
        positive_or_one(trace / moments.count),
        joined_sample(rows, shares, keys, places, strategy),
    )


class Share:
    """What a replica finds in its shard of the chunks."""

    def __init__(self, rows: Rows, num_shards: int, shard: int) -> None:
        self.rows, self.shard = rows, (num_shards, shard)
        self.moments, self.trace, self.is_bad = Moments(rows.num_tasks), 0.0, False
        self.sample = Sample(sample_size(rows), shard, num_shards)

    def read(self, centred: Centred, diagonal: Diagonal) -> None:
        """Read the shard; where an entry is not finite, go on: the others wait for the sums."""
        for X, Y in self.rows.chunks(*self.shard):
            self.is_bad |= not (np.isfinite(X).all() and np.isfinite(Y).all())
            with np.errstate(over="ignore", invalid="ignore"):  # told afterwards
                self.moments.add(centred(X, Y).numpy())
            self.trace += float(tf.reduce_sum(diagonal(X)))
            self.sample.add(X.numpy(), Y.numpy())

    def vectors(self) -> tuple[AnyNDArray, AnyNDArray, AnyNDArray]:
        """Sums; and of the sampled rows their random numbers and their places in the data."""
        rest = self.sample.size - len(self.sample)
        sums = np.append(self.moments.vector(), [self.trace, self.is_bad])
        keys = np.pad(self.sample.keys, (0, rest), constant_values=NOT_DRAWN)
        return sums, keys, np.pad(self.sample.places, (0, rest))


def joined_sample(
    rows: Rows,
    shares: dict[int, Share],
    keys: AnyNDArray,
    places: AnyNDArray,
    strategy: tf.distribute.Strategy | None,
) -> "Sample":
    """
    The rows with the smallest random numbers of all shards, in the order of the data.

    Each replica writes its rows into an array of zeros, and the sum of these is sent.

    :param keys: [shards, size], the random numbers.
    :param places: [shards, size], where the rows are.
    """
    size = min(keys.shape[1], int(np.sum(keys < NOT_DRAWN)))
    chosen = np.argsort(keys, axis=None, kind="stable")[:size]
    chosen = chosen[np.argsort(places.ravel()[chosen], kind="stable")]
    owners, numbers = np.divmod(chosen, keys.shape[1])

    def write(_: int, shard: int) -> list[tf.Tensor]:
        own = owners == shard
        parts = [np.zeros((size, count)) for count in (rows.num_inputs, rows.num_tasks)]
        for part, values in zip(parts, shares[shard].sample.parts, strict=False):
            part[own] = values[numbers[own]]
        return [tf.constant(part) for part in parts]

    sample, dtype = Sample(keys.shape[1]), rows.dtype.as_numpy_dtype
    parts = [part.numpy().astype(dtype) for part in sum_over_replicas(write, strategy)]
    sample.found = [(keys.ravel()[chosen], places.ravel()[chosen], *parts)]
    sample.num_found = size
    return sample


def sample_size(rows: Rows) -> int:
    """How many rows a summary draws."""
    return max(1, min(SAMPLE_ROWS, SAMPLE_NUMBERS // (rows.num_inputs + rows.num_tasks)))


def check_rows(rows: Rows) -> None:
    """Raise at the first entry of all rows that is not finite."""
    count = 0
    for X, Y in rows.chunks():
        check_chunk(X.numpy(), "X", count)
        check_chunk(Y.numpy(), "Y", count)
        count += len(X)


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
        squares = np.sum(np.square(Y - mean), axis=0)
        self._add(len(Y), mean, squares, Y.min(0), Y.max(0))

    def _add(
        self,
        count: int,
        mean: AnyNDArray,
        squares: AnyNDArray,
        low: AnyNDArray,
        high: AnyNDArray,
    ) -> None:
        shift, total = mean - self.mean, self.count + count
        self.squares += squares + np.square(shift) * self.count * count / total
        self.mean += shift * count / total
        self.count = total
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    def vector(self) -> AnyNDArray:
        """All numbers in one vector; zeros where there are no rows."""
        parts = np.concatenate([self.mean, self.squares, self.low, self.high])
        return np.append(float(self.count), parts if self.count else np.zeros_like(parts))

    @classmethod
    def merged(cls, vectors: AnyNDArray, dtype: type) -> "Moments":
        """The moments of all rows, from the vectors of several parts of them."""
        moments = cls((vectors.shape[1] - 1) // 4)
        moments.dtype = np.dtype(dtype)
        for count, *parts in vectors:
            if count:
                with np.errstate(over="ignore", invalid="ignore"):
                    moments._add(int(count), *np.split(np.array(parts), 4))
        return moments

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

    :param shard: Number of the first chunk; `num_shards` chunks further is the next one.
    """

    def __init__(self, size: int, shard: int = 0, num_shards: int = 1) -> None:
        self.size = size
        self.chunk, self.num_shards = shard, num_shards
        self.below = NOT_DRAWN
        self.found: list[tuple[AnyNDArray, ...]] = []
        self.num_found = 0

    def add(self, *parts: AnyNDArray) -> None:
        """Add the rows of a chunk, given as arrays of equal length."""
        count = len(parts[0])
        keys = np.random.default_rng([0, self.chunk]).random(count)
        places = self.chunk + np.arange(count) / count
        self.chunk += self.num_shards
        low = keys < self.below  # most rows of a long stream go no further
        self.found.append(tuple(part[low] for part in (keys, places, *parts)))
        self.num_found += int(np.sum(low))
        if self.num_found > MOST_FOUND * self.size:
            self.select()

    def select(self) -> None:
        """Keep the rows with the smallest numbers of those that were found."""
        if len(self.found) > 1 or self.num_found > self.size:
            together = [np.concatenate(parts) for parts in zip(*self.found, strict=True)]
            kept = np.sort(np.argsort(together[0])[: self.size])
            self.found = [tuple(part[kept] for part in together)]
            self.num_found = len(kept)
        if self.num_found == self.size:
            self.below = float(np.max(self.found[0][0]))

    @property
    def keys(self) -> AnyNDArray:
        """The random numbers of the rows."""
        self.select()
        return self.found[0][0] if self.found else np.zeros(0)

    @property
    def places(self) -> AnyNDArray:
        """Where the rows are in the data: the number of the chunk, and how far they are in it."""
        self.select()
        return self.found[0][1] if self.found else np.zeros(0)

    @property
    def parts(self) -> tuple[AnyNDArray, ...]:
        """The rows, as arrays of equal length, in their order."""
        self.select()
        return self.found[0][2:] if self.found else ()

    def __len__(self) -> int:
        return len(self.keys)

    def smallest(self, count: int) -> list[AnyNDArray]:
        """So many of the rows, in their order; a larger number of them has those of a smaller."""
        kept = np.sort(np.argsort(self.keys)[:count])
        return [part[kept] for part in self.parts]
