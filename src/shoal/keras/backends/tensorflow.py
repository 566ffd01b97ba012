"""On TensorFlow: operations of its own, eager and in the function that Keras makes of a training step."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.job.groups import Group
from shoal.tensorflow import averaging, collectives


def average(gradients: Sequence[Any], names: Sequence[str], op: str, group: Group | None) -> list[Any]:
    if tf.distribute.has_strategy():
        raise NotImplementedError(
            "a DistributedOptimizer averages one gradient a rank: leave out tf.distribute, and start a rank for each device"
        )
    if op in ("mean", "sum"):
        averaged = averaging.average(gradients, names, op, group)
        return [_shaped(result, gradient) for result, gradient in zip(averaged, gradients, strict=True)]
    return [collectives.allreduce(each, op, name, group) for each, name in zip(gradients, names, strict=True)]


def _shaped(result: Any, gradient: Any) -> Any:
    """The same, of a shape that TensorFlow keeps when it puts one function into another; there Keras's steps need it."""
    if tf.executing_eagerly() or isinstance(result, tf.IndexedSlices):
        return result
    return tf.ensure_shape(result, gradient.shape)
