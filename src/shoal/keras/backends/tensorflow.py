"""On TensorFlow: operations of its own, eager and in the function that Keras makes of a training step."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.job.groups import Group
from shoal.tensorflow import averaging, collectives


def average(
    gradients: Sequence[Any], names: Sequence[str], op: str, group: Group | None, sparse_as_dense: bool = False
) -> list[Any]:
    if tf.distribute.has_strategy():
        raise NotImplementedError(
            "a DistributedOptimizer averages one gradient a rank: leave out tf.distribute, and start a rank for each device"
        )
    given = [_dense(each) for each in gradients] if sparse_as_dense else gradients
    if op in ("mean", "sum"):
        return averaging.average(given, names, op, group)
    absent = tf.zeros([0], tf.uint8)  # as ``backends.absent``
    results = [
        collectives.allreduce(absent if each is None else each, op, name, group)
        for each, name in zip(given, names, strict=True)
    ]
    return [None if each is None else result for each, result in zip(given, results, strict=True)]


def _dense(gradient: Any) -> Any:
    # Keras's own conversion leaves them sparse.
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
