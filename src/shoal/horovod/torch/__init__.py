"""Horovod's API for PyTorch: ``import shoal.horovod.torch as hvd``.

Operations are in a module for each, all forms together; ``mpi_ops`` has them under Horovod's name. Training has
``DistributedOptimizer`` and what gives all ranks the same start.

May import what ``shoal.horovod`` may, and the folder torch.
"""

from shoal.horovod.torch import elastic, mpi_ops
from shoal.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from shoal.horovod.torch.mpi_ops import *  # noqa: F403
from shoal.horovod.torch.optimizer import DistributedOptimizer
from shoal.horovod.torch.sync_batch_norm import SyncBatchNorm

# The classes of autograd's, and what has an underscore, are for who imports the modules.
__all__ = [
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    *(name for name in mpi_ops.__all__ if not name.startswith(("_", "HorovodA", "HorovodB", "HorovodG", "HorovodR"))),
]
