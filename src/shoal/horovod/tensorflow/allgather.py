"""All-gather: the rows of all ranks, one rank after the other, alone and in groups, with gradients.

``name`` matches the ranks' calls; ``ignore_name_scope`` means nothing. Errors are those of allreduce.py.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.tensorflow.calls import group_of, name_of, names_in_group
from shoal.horovod.tensorflow.rows import as_rows_of, carried
from shoal.tensorflow import collectives


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows of ``tensor``, of shape (rows, ...), of all ranks. Ranks may have different numbers of rows."""
    group = group_of(process_set)
    given = tf.convert_to_tensor(tensor)
    return as_rows_of(given, collectives.allgather(carried(given), name_of("allgather", name), group))


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """``allgather`` of each of the tensors; in a graph all are on their way at once. ``name``: of the group."""
    names = names_in_group(name, len(tensors))
    return [allgather(tensor, each, process_set=process_set) for tensor, each in zip(tensors, names, strict=True)]
