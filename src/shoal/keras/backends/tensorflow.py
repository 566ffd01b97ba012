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
        return averaging.average(gradients, names, op, group)
    return [collectives.allreduce(each, op, name, group) for each, name in zip(gradients, names, strict=True)]
