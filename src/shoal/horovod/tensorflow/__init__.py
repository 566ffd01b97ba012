"""Horovod's API for TensorFlow 2: ``import shoal.horovod.tensorflow as hvd``.

Operations are in a module for each, alone and in groups; ``mpi_ops`` has those that Horovod has there. Training has
``DistributedGradientTape`` and ``DistributedOptimizer`` and what gives all ranks the same start.

May import what ``shoal.horovod`` may, and the folder tensorflow.
"""

from typing import TYPE_CHECKING, Any

from shoal.horovod.common.util import gpu_available
from shoal.horovod.tensorflow import elastic, mpi_ops, util
from shoal.horovod.tensorflow.allreduce import allreduce, grouped_allreduce
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from shoal.horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from shoal.horovod.tensorflow.hook import BroadcastGlobalVariablesHook
from shoal.horovod.tensorflow.mpi_ops import *  # noqa: F403
from shoal.horovod.tensorflow.optimizer import DistributedOptimizer
from shoal.horovod.tensorflow.reducescatter import grouped_reducescatter, reducescatter
from shoal.horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from shoal.horovod.tensorflow.util import _executing_eagerly as _executing_eagerly

if TYPE_CHECKING:
    from shoal.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "allreduce",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "gpu_available",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
    "util",
    *(name for name in mpi_ops.__all__ if not name.startswith("_")),
]


def __getattr__(name: str) -> Any:
    # A layer of Keras, which takes seconds to import.
    if name == "SyncBatchNormalization":
        from shoal.horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
