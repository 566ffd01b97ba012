"""Shoal for PyTorch: wrap the model, and each backward pass leaves gradients that are averaged over all ranks.

from shoal.torch import DistributedDataParallel

model = DistributedDataParallel(model)

For programs that use PyTorch's own, ``torch.distributed.init_process_group("shoal")`` needs no import (shoal.torch.c10d), and
``model.register_comm_hook(None, shoal.torch.comm_hook)`` leaves them their process group.

May import errors, the names of ``shoal``, and the folders from config to gradients; never another framework's folder.
"""

import shoal_c10d
from shoal import local_rank, local_size, rank, shutdown, size
from shoal.torch.distributed import DistributedDataParallel
from shoal.torch.hierarchy import Hierarchy
from shoal.torch.hook import comm_hook
from shoal.torch.runtime import init

__all__ = [
    "DistributedDataParallel",
    "Hierarchy",
    "comm_hook",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]

# PyTorch has done it already, unless it was told not to (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
shoal_c10d.register()
