"""Gradients of the collective operations, as Horovod has them.

That of a sum is the sum of the members' gradients, that of a mean their mean. Where an operation hands members' elements on,
it is the mean of the gradients that come back for them. What has no gradient (min, max, product) raises LookupError.
"""

from typing import Any

import tensorflow as tf

from shoal.ops import doors
from shoal.ops.operations import OPERATORS
from shoal.tensorflow import naming
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
        return doors.place(self.group)

    def called(self, what: str) -> dict[str, Any]:
        """How an operation of its gradient is called, and in which group: several losses may have gone through it."""
        graph = naming.current_graph()
        name = "" if graph is None else naming.name_of_call(f"{self._name}.{what}", graph)
        return {"tensor_name": name, "group": self.group, "order": naming.order_of(name, self.group, graph)}


def _reducer(made: _Made) -> int:
    op = made.number("op")
    if op not in (SUM, MEAN):
        name = next(name for name, number in OPERATORS.items() if number == op)
        raise LookupError(f"{name} over the ranks has no gradient: only sum and mean have one")
    return op


@tf.RegisterGradient("ShoalAllreduce")
def _of_allreduce(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    return operations.shoal_allreduce(x=gradient, op=_reducer(made), **made.called("gradient")), None


@tf.RegisterGradient("ShoalReducescatter")
def _of_reducescatter(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    if _reducer(made) == SUM:
        gradient = gradient * tf.cast(made.place.members, gradient.dtype)
    return operations.shoal_allgather(x=gradient, **made.called("gradient")), None


@tf.RegisterGradient("ShoalAllgather")
def _of_allgather(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    mean = operations.shoal_allreduce(x=gradient, op=MEAN, **made.called("gradient"))
    own = tf.shape(made.inputs[0], out_type=tf.int64)[:1]
    rows = tf.reshape(operations.shoal_allgather(x=own, **made.called("rows")), [made.place.members])
    return tf.split(mean, rows, axis=0)[made.place.own], None


@tf.RegisterGradient("ShoalBroadcast")
def _of_broadcast(operation: Any, gradient: Any) -> Any:
    made = _Made(operation)
    mean = operations.shoal_allreduce(x=gradient, op=MEAN, **made.called("gradient"))
    if made.place.own == made.number("root"):
        return mean, None
    # Depends on the mean: else that would be pruned in a graph of TensorFlow 1, and the root would wait for it.
    with tf.control_dependencies([] if tf.executing_eagerly() else [mean]):
        return tf.zeros_like(mean), None


@tf.RegisterGradient("ShoalAlltoall")
def _of_alltoall(operation: Any, gradient: Any, _: Any) -> Any:
    made = _Made(operation)
    back, _ = operations.shoal_alltoall(x=gradient, splits=made.outputs[1], **made.called("gradient"))
    return back, None, None
