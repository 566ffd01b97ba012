"""Gradients of the collective operations, as Horovod has them.

That of a sum is the sum of the members' gradients, that of a mean their mean. Where an operation hands members' elements on,
it is the mean of the gradients that come back for them. What has no gradient (min, max, product) raises LookupError.
"""

from typing import Any

import tensorflow as tf

from shoal.ops import doors
from shoal.ops.operations import OPERATORS
from shoal.tensorflow import naming, traced
from shoal.tensorflow.library import operations

SUM, MEAN = OPERATORS["sum"], OPERATORS["mean"]


class _Made:
    """The operation whose gradient is wanted."""

    def __init__(self, operation: Any) -> None:
        self.inputs = operation.inputs
        self.outputs = operation.outputs
        self.group = operation.get_attr("group")
        self._operation = operation
        self._name = operation.get_attr("tensor_name").decode()

    def number(self, attribute: str) -> int:
        number: int = self._operation.get_attr(attribute)
        return number

    @property
    def place(self) -> doors.Place:
        """Numbers, or in a graph tensors."""
        return traced.place("gradient", self._name, self.group)

    def call(self, function: Any, what: str, **arguments: Any) -> Any:
        """An operation of its gradient, in its group. Its name says what it is, and which: several losses may have gone through it."""
        graph = naming.current_graph()
        name = "" if graph is None else naming.name_of_call(f"{self._name}.{what}", graph)
        order = naming.order_of(name, self.group, graph)
        return naming.made(function(tensor_name=name, group=self.group, order=order, **arguments), graph)


def _reducer(made: _Made) -> int:
    op = made.number("op")
    if op not in (SUM, MEAN):
        name = next(name for name, number in OPERATORS.items() if number == op)
        raise LookupError(f"{name} over the ranks has no gradient: only sum and mean have one")
    return op


@tf.RegisterGradient("ShoalAllreduce")
def _of_allreduce(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    return made.call(operations.shoal_allreduce, "gradient", x=gradient, op=_reducer(made)), None


@tf.RegisterGradient("ShoalReducescatter")
def _of_reducescatter(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    if _reducer(made) == SUM:
        gradient = gradient * tf.cast(made.place.members, gradient.dtype)
    return made.call(operations.shoal_allgather, "gradient", x=gradient), None


@tf.RegisterGradient("ShoalAllgather")
def _of_allgather(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    mean = made.call(operations.shoal_allreduce, "gradient", x=gradient, op=MEAN)
    shape = tf.shape(made.inputs[0], out_type=tf.int64)
    rows = made.call(operations.shoal_allgather, "rows", x=shape[:1])
    begin = tf.reduce_sum(rows[: made.place.own])
    own = mean[begin : begin + shape[0]]
    return tf.ensure_shape(own, made.inputs[0].shape), None


@tf.RegisterGradient("ShoalBroadcast")
def _of_broadcast(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    mean = made.call(operations.shoal_allreduce, "gradient", x=gradient, op=MEAN)
    return tf.where(tf.equal(made.place.own, made.number("root")), mean, tf.zeros_like(mean)), None


@tf.RegisterGradient("ShoalAlltoall")
def _of_alltoall(operation: Any, gradient: Any, _: Any) -> Any:
    made = _Made(operation)
    back, _ = made.call(operations.shoal_alltoall, "gradient", x=gradient, splits=made.outputs[1])
    return back, None, None
