"""The job that a process group needs, and the group in it.

The default process group joins the job, unless ``shoal.init`` has, and leaves it again when it is destroyed. Ranks meet
through the store that PyTorch's rendezvous has made, so no variable of Shoal has to be set, whatever the init method.
"""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d

from shoal.config.addresses import is_loopback, is_unspecified, parse_host
from shoal.config.launchers import Launch, read_launch
from shoal.errors import ConfigurationError
from shoal.job import runtime
from shoal.job.groups import Group
from shoal.tuning import topology

# What torchrun sets in every process that it starts, and programs that start their own mostly do not.
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def join(store: Any, rank: int, size: int) -> bool:
    """Joins the job of the default process group. False if this process has joined it before, by ``shoal.init``.

    Raises ConfigurationError if that was another one, else what ``shoal.init`` does.
    """
    if not runtime.is_initialized():
        runtime.init(store, _launch=_launch(store, rank, size))
        return True
    if (runtime.rank(), runtime.size()) != (rank, size):
        raise ConfigurationError(
            f"this process is rank {runtime.rank()} of {runtime.size()} in the job that shoal.init() joined, but rank {rank} of "
            f"{size} for init_process_group: leave out shoal.init(), or call shoal.shutdown() before"
        )
    return False


def join_default() -> bool:
    """Joins a job of the ranks of PyTorch's default process group, whatever its backend, as ``join`` does."""
    store = PrefixStore("shoal", distributed_c10d._get_default_store())
    return join(store, dist.get_rank(), dist.get_world_size())


def group_of(ranks: list[int], name: str, timeout: timedelta) -> Group:
    """The group of these ranks, for the process group that PyTorch calls ``name``; no ranks: of all.

    Raises ConfigurationError if there is no job, ShoalError in a forked child.
    """
    if not runtime.is_initialized():
        runtime.refuse_in_child()
        raise ConfigurationError(
            'a process group of backend "shoal" needs the job that all ranks join: call init_process_group("shoal"), or '
            "shoal.torch.init() on every rank before new_group"
        )
    return Group(ranks or range(runtime.size()), name=f"c10d {name}", timeout=timeout.total_seconds())


def _launch(store: Any, rank: int, size: int) -> Launch:
    """Who this rank is: as PyTorch says, on the machine that the launcher or else the other ranks tell of."""
    # Set in any case: whether another rank needs it is not known here.
    store.set(f"machine/{rank}", topology.machine())
    if all(name in os.environ for name in _LAUNCHER_VARIABLES):
        launch = read_launch(os.environ)
        if (launch.rank, launch.size) == (rank, size):
            return launch
    machines = [store.get(f"machine/{other}") for other in range(size)]
    own = machines[rank]
    return Launch(
        launcher="torch.distributed",
        rank=rank,
        size=size,
        local_rank=machines[:rank].count(own),
        local_size=machines.count(own),
        master_host=_master_host(store),
        master_port=0,
        job="",
    )


def _master_host(store: Any) -> str | None:
    """Where rank 0 is: the host of ``init_method="tcp://host:port"``, which is the store's, or what the environment says.

    Rank 0 may have given its store a host that leads nowhere from another machine.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore) and not is_unspecified(store.host) and not is_loopback(store.host):
        return str(store.host)
    try:
        return parse_host(os.environ["MASTER_ADDR"])
    except (KeyError, ValueError):
        return None
