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

    Arguments are those of ``shoal.horovod.tensorflow.DistributedOptimizer``, which says what they mean, but:
        optimizer: of Keras, on TensorFlow.
        name: begins the names of the variables that add up several passes.
        op: Average or Sum.

    Raises:
        ValueError: arguments that contradict each other, another ``op``, an optimizer that is wrapped already, Keras on
            another backend.
        TypeError: ``optimizer`` is none of Keras.
    """
    arguments = dict(locals())  # before there is another one
    if known_operator(op) not in (ReduceOp.Average, ReduceOp.Sum):
        raise ValueError(f"op={known_operator(op)!r}: with Keras op is hvd.Average or hvd.Sum")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is an optimizer of tf.compat.v1.train: wrap it with "
            "shoal.horovod.tensorflow.DistributedOptimizer"
        )
    return of_tensorflow.DistributedOptimizer(**arguments)


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
    arguments = dict(locals())  # before there is another one
    layers = layers_of(arguments.pop("local_layers"))
    distributed = DistributedOptimizer(**arguments)
    for layer in layers:
        distributed._shoal_gradients.register_local_layer(layer)
    return distributed
