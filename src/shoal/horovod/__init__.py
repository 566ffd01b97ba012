"""Horovod's door: the API of Horovod on Shoal, so that a script of Horovod's runs when its import is changed.

import shoal.horovod.torch as hvd    # or shoal.horovod.tensorflow, shoal.horovod.keras

``python -m shoal.horovod train.py`` runs a script that still says ``import horovod`` (aliases.py). What is here and in
``common`` needs no framework; each framework has a folder of its own, and none of them imports another's: but Keras's names,
``shoal.horovod.keras`` and ``shoal.horovod.tensorflow.keras``, are for Keras on TensorFlow. docs/horovod.md tells what differs.

May import errors, the names of ``shoal``, and the folders from config to gradients; ``shoal.horovod.torch`` that of PyTorch
too, ``shoal.horovod.tensorflow`` that of TensorFlow, and in it ``keras`` that of Keras.
"""

from shoal.horovod.common.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from shoal.horovod.common.timeline import start_timeline, stop_timeline

# The release of Horovod whose API this is, for scripts that ask.
__version__ = "0.28.1"

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
