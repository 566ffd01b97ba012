"""Joining the job from PyTorch.

The ranks of a process group share a store, and so do those that torchrun starts. It carries what Shoal needs to meet: no SHOAL_
variable has to be set.
"""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import shoal
from shoal.config.launchers import Launch, read_launch
from shoal.errors import Timeout
from shoal.torch.c10d import membership

# How long a rank waits for torchrun's store, which was there before the rank was, and in it for rank 0.
STORE_TIMEOUT = timedelta(seconds=300)


def init() -> None:
    """``shoal.init`` for the ranks of PyTorch's default process group, if there is one; else for those that the launcher tells of.

    They meet through the process group's store, or torchrun's. Raises the same errors.
    """
    if shoal.is_initialized():
        shoal.init()
    elif dist.is_available() and dist.is_initialized():
        membership.join_default()
    else:
        shoal.init(launchers_store(read_launch(os.environ)))


def launchers_store(launch: Launch) -> Any:
    """The store of torchrun's agent. None if this process was not started by torchrun, or its agent has none.

    Raises Timeout if nobody keeps the store that the environment tells of.
    """
    if launch.agent_store is None:
        return None
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = launch.agent_store
    try:
        return TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT)
    except RuntimeError as error:
        raise Timeout(
            f"rank {launch.rank} cannot reach the store of torchrun's agent at {launch.agent_store} ({str(error).splitlines()[0]}): "
            f"see whether torchrun still runs there; {launch.promise}"
        ) from error
