"""``hvd.DistributedOptimizer`` of Keras: an optimizer that applies the gradients of all ranks, or of all but some layers."""

from typing import Any

import tensorflow as tf

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.common.util import known_operator
from shoal.horovod.tensorflow import optimizer as of_tensorflow
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.gradients import layers_of


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The optimizer itself, which from now on applies the gradients of all ranks. It keeps its state and its class's name.

    Gradients are combined where ``compute_gradients`` or ``get_gradients`` computes them, or else where they are applied.

    Arguments:
        optimizer: of Keras, on TensorFlow.
        name: begins the names of the variables that add up several passes.
        device_dense, device_sparse: taken, and mean nothing: gradients go through memory of the host.
        compression: how gradients travel, one of ``Compression``.
        sparse_as_dense: makes tensors of IndexedSlices before they travel.
        gradient_predivide_factor: of an average: gradients are divided by it before they are added up, the sum by the rest.
        op: Average or Sum.
        backward_passes_per_step: the gradients of so many passes are added up before they travel and are applied.
        average_aggregated_gradients: whether the sum of several passes is divided by their number.
        num_groups, groups: taken and checked; all gradients travel together.
        process_set: the ranks that take part. On others gradients are their own.
        scale_local_gradients: whether gradients of variables given to ``register_local_var`` are divided by the number of ranks.

    Raises:
        ValueError: arguments that contradict each other, another ``op``, an optimizer that is wrapped already, Keras on
            another backend.
        TypeError: ``optimizer`` is none of Keras.
    """
    if known_operator(op) not in (ReduceOp.Average, ReduceOp.Sum):
        raise ValueError(f"op={known_operator(op)!r}: with Keras op is hvd.Average or hvd.Sum")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is an optimizer of tf.compat.v1.train: wrap it with "
            "shoal.horovod.tensorflow.DistributedOptimizer"
        )
    return of_tensorflow.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = ReduceOp.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedOptimizer`` to which the weights of some layers are local: ``local_layers``, a layer or several.

    The layers may get their weights later. Raises ValueError for what is no layer of Keras, and as ``DistributedOptimizer``.
    """
    layers = layers_of(local_layers)
    distributed = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for layer in layers:
        distributed._shoal_register_local_layer(layer)
    return distributed
