"""What a function may know of the job that it runs in, which may be a later one than that in which it was traced.

How many ranks there are is found when it runs. What XLA compiles has the number in it, and fails where it is another one; so
does what was traced for a group that has this rank alone, or has it not. In a job of one rank averages of gradients leave
nothing of Shoal's in a function, which then averages nothing in a later job either.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.job.groups import Group, world
from shoal.ops import doors
from shoal.tensorflow import naming, xla
from shoal.tensorflow.library import operations


def place(kind: str, name: str, group: int, members: int = 0) -> doors.Place:
    """Who this rank is in the group of this number: in a graph tensors of int64. ``members``: as many are expected; 0: any.

    ``kind``, ``name``: of what is computed with that, for messages. Not for what XLA compiles.
    """
    if tf.executing_eagerly():
        return doors.place(group)
    found = operations.shoal_place(
        kind=kind, tensor_name=name, group=group, expected_members=members, expected_index=-1
    )
    return doors.Place(found.members, found.index)


def members(kind: str, group: Group | None = None) -> Any:
    """How many members the group has: a number, or in a graph a tensor. ``kind``: of what is computed with it."""
    chosen = world() if group is None else group
    graph = naming.current_graph()
    if graph is None:
        return chosen.size
    if chosen.rank is None or xla.is_compiled(graph):
        with tf.control_dependencies(_checks(kind, chosen, graph)):
            return tf.constant(chosen.size, tf.int64)
    return place(kind, naming.name_of_function(graph), doors.number_of(chosen)).members


def divisor_of_gradients(group: Group | None = None) -> Any:
    """``members``, by which gradients are divided; in a job of one rank the number 1."""
    return 1 if world().size == 1 else members("gradients", group)


def as_traced(kind: str, tensors: Sequence[Any], group: Group) -> list[Any]:
    """The tensors, slices or None, which are right as they are only as long as the group has as many members as now, or this
    rank is none of them: otherwise the graph fails. In a job of one rank as they are."""
    graph = naming.current_graph()
    if graph is None or world().size == 1:
        return list(tensors)
    with tf.control_dependencies(_checks(kind, group, graph)):
        return [
            None if each is None else tf.nest.map_structure(tf.identity, each, expand_composites=True)
            for each in tensors
        ]


def _checks(kind: str, group: Group, graph: Any) -> list[Any]:
    """What fails in another job: operations, to wait for; a program that XLA compiles fails as a whole."""
    is_member = group.rank is not None
    number = doors.number_of(group) if is_member else doors.number_in_job(world())
    expected = group.size if is_member else 0
    name = naming.name_of_function(graph)
    if xla.is_compiled(graph):
        xla.check(kind, name, number, expected)
        return []
    return [place(kind, name, number, expected).members]
