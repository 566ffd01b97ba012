"""Horovod's API for Keras: ``import shoal.horovod.tensorflow.keras as hvd``. ``shoal.horovod.keras`` has the same names.

For Keras on TensorFlow, of versions 3 and 2. On other backends ``shoal.keras`` does the same.

May import what ``shoal.horovod.tensorflow`` may, and the folder keras.
"""

import shoal.horovod
from shoal.horovod import *  # noqa: F403
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.keras import callbacks, elastic
from shoal.horovod.tensorflow.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from shoal.horovod.tensorflow.keras.saving import load_model
from shoal.horovod.tensorflow.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)

__all__ = [
    *shoal.horovod.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
