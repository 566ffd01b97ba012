"""The collective operations on TensorFlow's tensors: eager and in ``tf.function``.

They are those of ``shoal``, with the same arguments and errors, as operations of TensorFlow's own: many are in flight at
the same time, none of TensorFlow's threads waits for them, and gradients go through them.

In a function every call has a name by which the ranks' calls are matched: the one given, or the function's name and
which of its calls this is. So all ranks run the same functions, and as often. Eager calls without a name are matched by their order.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.job.groups import Group, world
from shoal.ops import doors
from shoal.ops.collectives import NAME_LIMIT
from shoal.ops.operations import OPERATORS
from shoal.tensorflow import naming, traced, xla
from shoal.tensorflow.library import operations

# Where the gradient of an operation is one that carries its name, and this.
GRADIENT = ".gradient"


def allreduce(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """The elementwise ``op`` over the members, of the shape and dtype of ``x``, as ``shoal.allreduce``.

    Arguments:
        x: a tensor, a variable, what ``tf.convert_to_tensor`` takes, or ``tf.IndexedSlices``, of which the result is the
            slices of all members, for "sum" and "mean"; same shape and dtype on every member, but for how many slices there
            are. dtypes: float16, bfloat16, float32, float64, the integers of 8 to 64 bits, bool.
        op: "mean" or "sum" (neither of bool), "min", "max" or "product".
        name, group: as for ``shoal.allreduce``.

    Raises:
        TypeError, ValueError: an argument is wrong.
        tf.errors.FailedPreconditionError: members disagree; this process is in no job, or leaves it.
        tf.errors.UnknownError: whatever else made it fail: a rank is lost, nothing has moved for the group's timeout.
    """
    if isinstance(x, tf.IndexedSlices):
        return _allreduce_slices(x, op, name, group)
    tensor = tf.convert_to_tensor(x)
    if op in ("sum", "mean") and tensor.dtype == tf.bool:
        raise TypeError(f"bool has no {op}: use op='max' for any, op='min' for all, or cast to an integer")
    return _call(operations.shoal_allreduce, "allreduce", name, group, x=tensor, op=_number_of(op))


def reducescatter(x: Any, op: str = "mean", name: str | None = None, group: Group | None = None) -> Any:
    """This member's rows of the elementwise ``op``, as ``shoal.reducescatter``.

    Arguments:
        x: as for ``allreduce`` but dense, of shape (n, ...). The first n mod size members get a row more.
        op, name, group: as for ``allreduce``.

    Raises: as ``allreduce``, and tf.errors.InvalidArgumentError if ``x`` has no dimension.
    """
    return _call(
        operations.shoal_reducescatter, "reducescatter", name, group, x=tf.convert_to_tensor(x), op=_number_of(op)
    )


def allgather(x: Any, name: str | None = None, group: Group | None = None) -> Any:
    """The members' rows one after the other, as ``shoal.allgather``.

    Arguments:
        x: of shape (n, ...); n may differ between members.
        name, group: as for ``allreduce``.

    Raises: as ``reducescatter``.
    """
    return _call(operations.shoal_allgather, "allgather", name, group, x=tf.convert_to_tensor(x))


def broadcast(x: Any, root: int = 0, name: str | None = None, group: Group | None = None) -> Any:
    """What ``x`` is on rank ``root``, as ``shoal.broadcast``.

    Arguments:
        x: as for ``allreduce`` but dense.
        root: a rank of the job that is a member of the group.
        name, group: as for ``allreduce``.

    Raises: as ``allreduce``.
    """
    members = (world() if group is None else group).ranks
    if root not in members:
        raise ValueError(f"root {root} is not a member of {group or 'the job'}; root is a rank of the job")
    return _call(
        operations.shoal_broadcast, "broadcast", name, group, x=tf.convert_to_tensor(x), root=members.index(root)
    )


def alltoall(x: Any, splits: Any = None, name: str | None = None, group: Group | None = None) -> Any:
    """Sends some rows to each member: what came from all of them, one after the other, and how many rows from each.

    Arguments:
        x: of shape (n, ...).
        splits: how many rows go to each member: a tensor or a list of integers. None: the same number to each.
        name, group: as for ``allreduce``.

    Returns: the rows, and an int64 tensor with the number of rows that came from each member.

    Raises: as ``reducescatter``; tf.errors.InvalidArgumentError for splits that do not add up.
    """
    counts = tf.zeros([0], tf.int64) if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int64)
    return _call(operations.shoal_alltoall, "alltoall", name, group, x=tf.convert_to_tensor(x), splits=counts)


def grouped_allreduce(
    xs: Sequence[Any], op: str = "mean", name: str | None = None, group: Group | None = None
) -> list[Any]:
    """``allreduce`` of each of several tensors, which are on their way together.

    Arguments:
        xs: as for ``allreduce``, each.
        name: of all of them.
        op, group: as for ``allreduce``.
    """
    names = [None if name is None else f"{name}.{index}" for index in range(len(xs))]
    return [allreduce(x, op, each, group) for x, each in zip(xs, names, strict=True)]


def _allreduce_slices(x: Any, op: str, name: str | None, group: Group | None) -> Any:
    if op not in ("sum", "mean"):
        raise ValueError(f"IndexedSlices have no {op}: pass tf.convert_to_tensor(x)")
    names = (None, None) if name is None else (f"{name}.values", f"{name}.indices")
    values = allgather(x.values, names[0], group)
    indices = allgather(x.indices, names[1], group)
    if op == "mean":
        values = values / tf.cast(traced.members("allreduce", group), values.dtype)
    return tf.IndexedSlices(values, indices, x.dense_shape)


def _number_of(op: str) -> int:
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be one of {', '.join(OPERATORS)}, got {op!r}")
    return OPERATORS[op]


def _call(function: Any, kind: str, name: str | None, group: Group | None, **arguments: Any) -> Any:
    graph = naming.current_graph()
    number = _group(group)
    given = None if name is None else _checked_name(name)
    if graph is not None and xla.is_compiled(graph):
        from shoal.tensorflow import compiled

        return compiled.call(kind, given, number, graph, **arguments)
    called = given or ""
    if graph is not None and given is None:
        called = naming.name_of_call(kind, graph)
    elif graph is not None and not graph.building_function:
        called = naming.numbered(called, graph)  # such a graph orders nothing
    order = naming.order_of(called, number, graph)
    return naming.made(function(tensor_name=called, group=number, order=order, **arguments), graph)


def _group(group: Group | None) -> int:
    if group is None:
        return 0
    if group.rank is None:
        raise ValueError(f"rank {group.session.rank} is not a member of {group}")
    return doors.number_of(group)


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a text, got {name!r}")
    if not name or name.startswith("#") or len(name.encode()) > NAME_LIMIT:
        raise ValueError(f"name must have 1 to {NAME_LIMIT} bytes of UTF-8 and not begin with '#', got {name!r}")
    return name
