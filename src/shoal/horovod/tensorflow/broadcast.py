"""Broadcast: all ranks get what the root has, as a new tensor with gradients, or in variables.

``name`` matches the ranks' calls; ``root_rank`` is a rank of the job that is in the process set. Errors are those of
allreduce.py, and a ValueError for a root that is not in the process set.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.tensorflow.calls import after, group_of, name_of, names_in_group
from shoal.tensorflow import collectives


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """What the root's tensor has: of the shape and dtype of ``tensor``, which are the same on all ranks."""
    group = group_of(process_set)
    return collectives.broadcast(tf.convert_to_tensor(tensor), root_rank, name_of("broadcast", name), group)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives the variables the values that they have on the root. Returns their values, in a graph after that.

    Variables may be of TensorFlow's two kinds or of Keras'. ``name``: of all of them.
    """
    names = names_in_group(name, len(variables))
    results = []
    for variable, each in zip(variables, names, strict=True):
        assigned = variable.assign(broadcast(variable, root_rank, each, process_set=process_set))
        with after([assigned]):
            results.append(tf.identity(variable))
    return results
