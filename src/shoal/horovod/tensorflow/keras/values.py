"""Operations on values: numbers, arrays, tensors. What comes back is a tensor; in a graph of TensorFlow 1 an array.

In such a graph the operation runs at once, in Keras's session or the program's default one. ``name`` is taken, and means
nothing: calls are matched in their order. Errors are those of the operations of ``shoal.horovod.tensorflow``.
"""

from typing import Any

import tensorflow as tf

import shoal.horovod.tensorflow as hvd
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.tensorflow.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The ranks' values combined elementwise, by default their average. Arguments are those of ``hvd.tensorflow.allreduce``."""
    return _evaluated(
        hvd.allreduce(
            tf.convert_to_tensor(value),
            average=average,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The rows of the values of all ranks, which may have different numbers of rows."""
    return _evaluated(hvd.allgather(tf.convert_to_tensor(value)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of rank ``root_rank``. The values of all have one shape and dtype."""
    return _evaluated(hvd.broadcast(tf.convert_to_tensor(value), root_rank))


def reducescatter(value: Any, name: str | None = None, op: int = ReduceOp.Average) -> Any:
    """This rank's rows of the average or sum (``op``) of the ranks' values."""
    return _evaluated(hvd.reducescatter(tf.convert_to_tensor(value), op=op))


def broadcast_global_variables(root_rank: int) -> Any:
    """Gives all variables of a graph of TensorFlow 1 the values that they have on rank ``root_rank``.

    Raises RuntimeError where there is no such graph: with eager execution, ``callbacks.BroadcastGlobalVariablesCallback`` and
    ``hvd.tensorflow.broadcast_variables`` take its place.
    """
    return _evaluated(hvd.broadcast_global_variables(root_rank))


def _evaluated(result: Any) -> Any:
    if tf.executing_eagerly() or tf.inside_function():
        return result
    return session().run(result)


def session() -> Any:
    """That in which a graph of TensorFlow 1 runs: the program's default one, or that of Keras 2."""
    chosen = tf.compat.v1.get_default_session()
    return tf.compat.v1.keras.backend.get_session() if chosen is None else chosen
