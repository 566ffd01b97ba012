"""Reduce-scatter: this rank's rows of the sum or mean, alone and in groups, with gradients.

Tensors have the same shape (rows, ...) on all ranks; the first rows mod ranks of them get one row more. ``op`` is Average
or Sum. The other arguments, and the errors, are those of allreduce.py; HorovodInternalError for another ``op``.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.horovod.common.averages import operator_for, scatterable
from shoal.horovod.common.compression import compressed
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.common.util import known_operator
from shoal.horovod.tensorflow.calls import group_of, name_of
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.rows import as_rows_of, carried
from shoal.horovod.tensorflow.scaling import scaled, scaled_after
from shoal.tensorflow import collectives


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the mean or sum of the ranks' tensors."""
    group = group_of(process_set)
    operator = scatterable(known_operator(op))

    def reduced(travelling: list[Any]) -> list[Any]:
        given = scaled(travelling[0], prescale_factor)
        is_floating = given.dtype.is_floating
        own = collectives.reducescatter(
            carried(given), operator_for(operator, is_floating), name_of("reducescatter", name), group
        )
        return [as_rows_of(given, scaled_after(own, operator, group, postscale_factor))]

    with tf.device(device_dense):
        return compressed(compression, [tf.convert_to_tensor(tensor)], reduced)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = ReduceOp.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """``reducescatter`` of each of the tensors, in a list; in a graph all are on their way at once."""
    if not tensors:
        return tensors
    return [
        reducescatter(
            tensor,
            device_dense,
            compression,
            op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for tensor in tensors
    ]
