"""The operations under the module's name that scripts import them from: ``from horovod.torch.mpi_ops import synchronize``."""

import shoal.horovod
from shoal.horovod import *  # noqa: F403
from shoal.horovod.common import basics as _basics
from shoal.horovod.torch.allgather import (
    HorovodAllgather,
    HorovodGroupedAllgather,
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from shoal.horovod.torch.allreduce import (
    HorovodAllreduce,
    HorovodGroupedAllreduce,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from shoal.horovod.torch.alltoall import HorovodAlltoall, alltoall, alltoall_async
from shoal.horovod.torch.broadcast import (
    HorovodBroadcast,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from shoal.horovod.torch.compression import Compression
from shoal.horovod.torch.reducescatter import (
    HorovodGroupedReducescatter,
    HorovodReducescatter,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from shoal.horovod.torch.runtime import init as init
from shoal.horovod.torch.sparse import sparse_allreduce_async
from shoal.horovod.torch.synchronization import barrier, join, poll, synchronize

# What needs no framework, with an ``init`` of PyTorch's, and the operations.
__all__ = [
    *shoal.horovod.__all__,
    "Compression",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "_basics",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
