"""The contestants: one module for each library, none of which is imported before a process takes that part."""

from collections.abc import Mapping
from typing import Any

from shoal.bench.contestants.base import Buffer, Contestant, FloatArray
from shoal.bench.naming import SHOAL, family

__all__ = ["Buffer", "Contestant", "FloatArray", "join"]


def join(name: str, arguments: Mapping[str, Any]) -> Contestant:
    """Makes this process a rank of contestant ``name``; returns when all ranks are there.

    ``arguments``: what that contestant's constructor needs. Raises ImportError if the library is not there, and whatever the
    library raises.
    """
    if family(name) == SHOAL:
        from shoal.bench.contestants.shoal_ranks import ShoalRanks, ShoalRanksOfTorch

        own = dict(arguments)
        return ShoalRanksOfTorch(**own) if own.pop("c10d", False) else ShoalRanks(**own)
    library = family(name)
    if library in ("gloo", "nccl"):
        from shoal.bench.contestants.torch_ranks import Gloo, Nccl

        return Gloo(**arguments) if library == "gloo" else Nccl(**arguments)
    if library == "horovod":
        from shoal.bench.contestants.horovod_ranks import Horovod

        return Horovod(**arguments)
    from shoal.bench.contestants.mpi import Mpi

    return Mpi(library, **arguments)
