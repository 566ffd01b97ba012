"""Shoal for TensorFlow: collective operations on tensors, eager and in ``tf.function``.

Needs TensorFlow 2.13 or later, for Linux; nothing of it is needed where Shoal is built.

May import errors, the names of ``shoal``, and the folders from config to gradients; never another framework's folder.
"""

from shoal import init, is_initialized, local_rank, local_size, rank, shutdown, size
from shoal.tensorflow import derivatives as _derivatives
from shoal.tensorflow.collectives import allgather, allreduce, alltoall, broadcast, grouped_allreduce, reducescatter

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
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
