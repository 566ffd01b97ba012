"""Shoal for PyTorch: wrap the model, and each backward pass leaves gradients that are averaged over all ranks.

from shoal.torch import DistributedDataParallel

model = DistributedDataParallel(model)
"""

from shoal import local_rank, local_size, rank, shutdown, size
from shoal.torch.distributed import DistributedDataParallel
from shoal.torch.runtime import init

__all__ = ["DistributedDataParallel", "init", "local_rank", "local_size", "rank", "shutdown", "size"]
