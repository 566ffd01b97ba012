"""Shoal for Keras 3, on TensorFlow, PyTorch and JAX: wrap the optimizer, and each step applies gradients averaged over all ranks.

import shoal.keras

model.compile(shoal.keras.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss="mse")

Which backend it is Keras decides (KERAS_BACKEND); nothing of another one is imported.

May import errors, the names of ``shoal``, the folders from config to gradients, and tensorflow, torch and jax.
"""

from shoal import init, is_initialized, local_rank, local_size, rank, shutdown, size
from shoal.keras import callbacks
from shoal.keras.logs import average_metrics
from shoal.keras.optimizer import DistributedOptimizer
from shoal.keras.saving import load_model
from shoal.keras.variables import broadcast_variables

__all__ = [
    "DistributedOptimizer",
    "average_metrics",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
