"""What operations have in common: the ranks that take part, the names by which their calls are matched, and their order."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.horovod.common.process_sets import ProcessSet
from shoal.job import runtime
from shoal.job.groups import Group
from shoal.tensorflow import naming


def group_of(process_set: ProcessSet) -> Group:
    """The ranks of the process set.

    Raises ValueError if it is not registered, and before ``init``; tf.errors.InvalidArgumentError, as Horovod does, if this
    rank is not in it.
    """
    group = process_set.group
    if group.rank is None:
        raise tf.errors.InvalidArgumentError(
            None, None, f"rank {runtime.rank()} is not in {process_set}: only ranks that are in it call its operations"
        )
    return group


def name_of(kind: str, name: str | None) -> str | None:
    """The name of a call on the wire: with the kind in front, so that an all-reduce and a broadcast may have the same.

    In a graph a name that is used again gets a number, as TensorFlow does it: the two may run in any order, which need not be
    the same on all ranks. None: the call has no name, and is matched as shoal.tensorflow does it.
    """
    if name is None:
        return None
    full = f"{kind}.{name}"
    graph = naming.current_graph()
    return full if graph is None else naming.numbered(full, graph)


def names_in_group(name: str | None, count: int) -> list[str | None]:
    """The names of the operations of a group of this name."""
    return [None if name is None else f"{name}_{place}of{count}" for place in range(1, count + 1)]


def after(done: Sequence[Any]) -> Any:
    """A context: what is called inside runs after these. Eager, and in functions, the order of the program is kept anyway."""
    return tf.control_dependencies([] if tf.executing_eagerly() else [each for each in done if each is not None])
