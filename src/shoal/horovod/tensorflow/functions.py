"""What training scripts do before the first step: the same variables and objects on all ranks.

Objects travel from Python to Python, in graphs as eager, so ``session`` is taken and means nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from shoal.horovod.common import objects
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.tensorflow.calls import group_of
from shoal.tensorflow import variables as shoals


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Gives all ranks the values that the variables have on the root; the same variables in the same order on all ranks.

    Returns None when it is done; in a graph an operation that does it. ``inplace`` is taken, and means nothing: a variable has
    a second copy for as long as it is on its way. Errors are those of ``broadcast``, and a TypeError for strings.
    """
    given = list(variables)
    if not given:
        # Also before init, as with Horovod.
        return None if tf.executing_eagerly() else tf.no_op()
    return shoals.broadcast_variables(given, root_rank, group_of(process_set))


def broadcast_global_variables(root_rank: int) -> Any:
    """``broadcast_variables`` of all variables of the graph. Raises RuntimeError where there is none."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "outside a graph there are no global variables: call hvd.broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object that the root has: on the root ``obj`` itself, elsewhere a copy. ``name``: for messages.

    Raises what pickle raises on the root, and HorovodInternalError.
    """
    return objects.broadcast_object(lambda: obj, root_rank, "object" if name is None else name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """``broadcast_object`` with all arguments but the object."""
    label = "broadcast_object_fn" if name is None else name
    return lambda obj: broadcast_object(obj, root_rank, session, label, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks of the process set, in its order. ``name``: for messages.

    Raises what pickle raises, and HorovodInternalError.
    """
    return objects.allgather_object(obj, "object" if name is None else name, process_set)
