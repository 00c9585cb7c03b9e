"""
Sums over rows, on one device or on many: TensorFlow's own distribution, and nothing besides.

Each replica adds up the chunks of its shard, and one all-reduce adds up the replicas. What is sent
is the sum itself, M^2 + M T numbers for statistics, whatever the number of rows.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from .rows import Rows

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
"""What TensorFlow raises when another worker does not answer."""


def sum_over_rows(
    rows: Rows,
    function: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]],
    zero: Sequence[tf.Tensor],
    strategy: tf.distribute.Strategy | None = None,
) -> list[tf.Tensor]:
    """
    Sums, over all chunks of rows, of the tensors that a function makes of a chunk.

    :param zero: The sums over no rows.
    :param strategy: Where to compute: every replica sees its shard of the chunks.
    :raises RuntimeError: If a worker is gone.
    """
    if strategy is None:
        return sum_over_shard(rows, function, zero, 1, 0)

    def replica() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        shard = int(tf.get_static_value(context.replica_id_in_sync_group))
        part = sum_over_shard(rows, function, zero, context.num_replicas_in_sync, shard)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, part)

    try:
        total = strategy.run(replica)
        return [strategy.experimental_local_results(part)[0] for part in total]
    except LOST as error:
        raise RuntimeError(
            "Another worker does not answer any more. Start all of them again: training goes on"
            f" from the last checkpoint, if there is one. TensorFlow says: {error.message[:200]}"
        ) from error


def sum_over_shard(
    rows: Rows,
    function: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]],
    zero: Sequence[tf.Tensor],
    num_shards: int,
    shard: int,
) -> list[tf.Tensor]:
    """The same over every `num_shards`-th chunk."""
    total = list(zero)
    for X, Y in rows.chunks(num_shards, shard):
        total = [a + b for a, b in zip(total, function(X, Y), strict=True)]
    return total
