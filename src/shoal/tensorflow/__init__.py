"""Shoal for TensorFlow: gradients averaged over all ranks, and collective operations, eager and in ``tf.function``.

import shoal.tensorflow as stf

with tf.GradientTape() as tape:
    loss = ...
tape = stf.DistributedGradientTape(tape)

Models that Keras trains go through ``shoal.keras``, sessions of TensorFlow 1 through ``DistributedOptimizer`` here.

Needs TensorFlow 2.13 or later, for Linux; nothing of it is needed where Shoal is built.

May import errors, the names of ``shoal``, and the folders from config to gradients; never another framework's folder.
"""

from typing import TYPE_CHECKING, Any

from shoal import init, is_initialized, local_rank, local_size, rank, shutdown, size
from shoal.tensorflow import derivatives as _derivatives
from shoal.tensorflow.collectives import allgather, allreduce, alltoall, broadcast, grouped_allreduce, reducescatter
from shoal.tensorflow.hook import BroadcastGlobalVariablesHook
from shoal.tensorflow.optimizer import DistributedOptimizer
from shoal.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from shoal.tensorflow.variables import broadcast_variables

if TYPE_CHECKING:
    from shoal.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "BroadcastGlobalVariablesHook",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_variables",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]

del _derivatives


def __getattr__(name: str) -> Any:
    # A layer of Keras, which takes seconds to import.
    if name == "SyncBatchNormalization":
        from shoal.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
