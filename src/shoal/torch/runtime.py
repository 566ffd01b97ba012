"""Joining the job from PyTorch.

Under torchrun the ranks share a store, which carries what Shoal needs to meet: no SHOAL_ variable has to be set.
"""

import os
from datetime import timedelta
from typing import Any

import shoal
from shoal.launchers import read_launch

# How long a rank waits for torchrun's store, which was there before the rank was, and in it for rank 0.
STORE_TIMEOUT = timedelta(seconds=300)


def init() -> None:
    """``shoal.init``, which meets through torchrun's store if there is one. Raises the same errors."""
    shoal.init(None if shoal.is_initialized() else _launchers_store())


def _launchers_store() -> Any:
    """The store of torchrun's agent. None if this process was not started by torchrun, or its agent has none."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    launch = read_launch(os.environ)
    if launch.master_host is None:
        return None
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(launch.master_host, launch.master_port, is_master=False, timeout=STORE_TIMEOUT)
