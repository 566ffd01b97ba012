"""All-to-all: each rank has rows for each, with gradients. Errors are those of allreduce.py."""

from typing import Any

import tensorflow as tf

from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.tensorflow.calls import group_of, name_of
from shoal.horovod.tensorflow.rows import as_rows_of, carried
from shoal.tensorflow import collectives


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows that the ranks have for this one, one rank after the other.

    Arguments:
        tensor: of shape (rows, ...).
        splits: how many of this rank's rows go to each rank, in integers; rows beyond their sum go to none. With it the
            result is a pair: also how many rows came from each rank, in the dtype of ``splits``. None: each rank gets the
            same number, and the rows alone are returned.
        name, ignore_name_scope, process_set: as for ``allgather``.

    Raises tf.errors.InvalidArgumentError for splits that do not fit to the tensor, ValueError for splits that are no integers.
    """
    group = group_of(process_set)
    given = tf.convert_to_tensor(tensor)
    wire_name = name_of("alltoall", name)
    if splits is None:
        received, _ = collectives.alltoall(carried(given), None, wire_name, group)
        return as_rows_of(given, received)
    counts = tf.convert_to_tensor(splits)
    if not counts.dtype.is_integer:
        raise ValueError(f"splits are numbers of rows, in integers, got {counts.dtype.name}")
    received, received_counts = collectives.alltoall(_sent(carried(given), counts), counts, wire_name, group)
    return as_rows_of(given, received), tf.cast(received_counts, counts.dtype)


def _sent(rows: Any, counts: Any) -> Any:
    """The rows that ``counts`` give away: the first ones. Counts that make no sense are left to the operation to refuse."""
    total = tf.reduce_sum(counts)
    if tf.executing_eagerly() and rows.shape.rank and not 0 <= int(total) < rows.shape[0]:
        return rows
    return rows if rows.shape.rank == 0 else rows[: tf.maximum(total, 0)]
