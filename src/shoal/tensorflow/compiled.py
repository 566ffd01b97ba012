"""The collective operations in what XLA compiles, with their gradients (xla.py; derivatives.py has what those are).

Sizes of results have to be known when the function is traced. So where ranks may have different numbers of rows, here they
have as many; where they have not, every rank raises tf.errors.FailedPreconditionError. So it does where the sizes, or what
is computed with this rank's place, are of an earlier job.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shoal.ops import doors
from shoal.ops.operations import OPERATORS
from shoal.tensorflow import naming, xla
from shoal.tensorflow.xla import Array

SUM, MEAN = OPERATORS["sum"], OPERATORS["mean"]

# What gives the result, from the tensor, and the gradient of that, from the gradient of the result.
_Function = Callable[[Any], Any]


class Call:
    """One call. ``group``: the door's number. ``turns``: of calls of its name; None: whatever calls for it sees to that."""

    def __init__(self, kind: str, name: str, group: int, turns: xla.Turns | None = None, after: Any = None) -> None:
        self._kind = kind
        self._name = name
        self._group = group
        self._turns = turns
        self._after = after
        self.order: Any = None  # what may come after the call, once it is made
        self.place = doors.place(group)

    def of_place(self, own: bool = True) -> dict[str, int]:
        """For ``make``: the call fails where there are not as many members, or this rank is not this one of them (``own``)."""
        return {"members": self.place.members, **({"index": self.place.own} if own else {})}

    def make(self, x: Any, result: Array, numbers: dict[str, int], in_place: bool = False) -> Any:
        after = self._after if self._turns is None else self._turns.before()
        attributes: dict[str, int | str] = {"name": self._name, "group": self._group, **numbers}
        made, self.order = xla.call(
            f"shoal.{self._kind}", [x], [result], attributes, in_place=[0] if in_place else [], after=after
        )
        if self._turns is not None:
            self._turns.after([self.order])
        return tf.ensure_shape(made[0], result.shape)

    def for_gradient(self, kind: str) -> "Call":
        """A call that is of the gradient of this one."""
        graph = naming.current_graph()
        name = naming.name_of_call(f"{self._name}.gradient", graph)
        return Call(kind, name, self._group, xla.Turns(name, self._group, graph))


def call(kind: str, given: str | None, group: int, graph: Any, x: Any, **arguments: Any) -> Any:
    """What an operation of this kind gives (collectives.py).

    Raises NotImplementedError, ValueError, TypeError: it cannot be compiled.
    """
    xla.require(kind)
    xla.array_of(x, kind)
    name = naming.name_of_call(kind, graph) if given is None else given
    made = Call(kind, name, group, xla.Turns(name, group, graph, given is not None))
    functions: dict[str, Callable[..., Any]] = {
        "allreduce": allreduce,
        "reducescatter": _reducescatter,
        "broadcast": _broadcast,
        "allgather": allgather,
        "alltoall": _alltoall,
    }
    return functions[kind](made, x, **arguments)


def allreduce(made: Call, x: Any, op: int, **numbers: int) -> Any:
    def back(gradient: Any) -> Any:
        return allreduce(made.for_gradient("allreduce"), gradient, _checked(op))

    return _with_gradient(
        lambda x: made.make(x, xla.array_of(x, "allreduce"), {"op": op, **numbers}, in_place=True), back, x
    )


def allgather(made: Call, x: Any) -> Any:
    dtype, shape = xla.array_of(x, "allgather")
    members, own = made.place
    rows = _rows(shape, "allgather")

    def back(gradient: Any) -> Any:
        mean = allreduce(made.for_gradient("allreduce"), gradient, MEAN, **made.of_place())
        return mean[own * rows : (own + 1) * rows]

    result = Array(dtype, (members * rows, *shape[1:]))
    return _with_gradient(lambda x: made.make(x, result, made.of_place(own=False)), back, x)


def _broadcast(made: Call, x: Any, root: int) -> Any:
    def back(gradient: Any) -> Any:
        mean = allreduce(made.for_gradient("allreduce"), gradient, MEAN, **made.of_place())
        if made.place.own == root:
            return mean
        with tf.control_dependencies([mean]):
            return tf.zeros_like(gradient)

    return _with_gradient(lambda x: made.make(x, xla.array_of(x, "broadcast"), {"root": root}, in_place=True), back, x)


def _reducescatter(made: Call, x: Any, op: int) -> Any:
    dtype, shape = xla.array_of(x, "reducescatter")
    members, own = made.place
    rows = _rows(shape, "reducescatter")
    everyones = [rows // members + (member < rows % members) for member in range(members)]

    def back(gradient: Any) -> Any:
        if _checked(op) == SUM:
            gradient = gradient * tf.cast(members, gradient.dtype)
        if rows % members == 0:
            return allgather(made.for_gradient("allgather"), gradient)
        # As many rows from every member can be gathered; others are summed with none.
        around = [[sum(everyones[:own]), sum(everyones[own + 1 :])], *([0, 0] for _ in shape[1:])]
        return allreduce(made.for_gradient("allreduce"), tf.pad(gradient, around), SUM, **made.of_place())

    result = Array(dtype, (everyones[own], *shape[1:]))
    return _with_gradient(lambda x: made.make(x, result, {"op": op, **made.of_place(own=False)}), back, x)


def _alltoall(made: Call, x: Any, splits: Any) -> Any:
    array = xla.array_of(x, "alltoall")
    members = made.place.members
    rows = _rows(array.shape, "alltoall")
    known = tf.get_static_value(splits)
    if (
        known is None
        or len(known) not in (0, members)
        or rows % members
        or any(each != rows // members for each in known)
    ):
        raise NotImplementedError(
            f"alltoall of {'splits that are not known' if known is None else f'{rows} rows to {members} members'} cannot "
            f"be compiled by XLA, which has to know all sizes: give every member as many rows, or {xla.WITHOUT}"
        )

    def back(gradient: Any) -> Any:
        return _alltoall(made.for_gradient("alltoall"), gradient, splits)[0]

    received = _with_gradient(lambda x: made.make(x, array, made.of_place(own=False)), back, x)
    return received, tf.fill([members], tf.constant(rows // members, tf.int64))


def _with_gradient(function: _Function, back: _Function, x: Any) -> Any:
    @tf.custom_gradient
    def handed_on(x: Any) -> tuple[Any, _Function]:
        return function(x), back

    return handed_on(x)


def _checked(op: int) -> int:
    if op not in (SUM, MEAN):
        name = next(name for name, number in OPERATORS.items() if number == op)
        raise LookupError(f"{name} over the ranks has no gradient: only sum and mean have one")
    return op


def _rows(shape: tuple[int, ...], what: str) -> int:
    if not shape:
        raise ValueError(f"{what} cuts into rows: the shape must be at least rank 1, pass tf.reshape(x, [1])")
    return shape[0]
