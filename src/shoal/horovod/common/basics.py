"""The job: joining and leaving it, who this rank is in it, and what Horovod can say about how it was built.

Everything but ``init``, ``shutdown`` and what was built raises ValueError before ``init``, as Horovod does.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

import shoal
from shoal.config.launchers import read_launch
from shoal.horovod import environment
from shoal.horovod.common import process_sets as sets
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet
from shoal.horovod.common.timeline import start_as_rank_0_says
from shoal.job import runtime
from shoal.job.per_job import PerJob
from shoal.ops import collectives

Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


class AllRanks(NamedTuple):
    """What ranks tell each other, by rank: their numbers on their nodes, how many ranks those have, and whether a timeline
    is asked for.
    """

    local_ranks: list[int]
    local_sizes: list[int]
    timelines: list[int]


def _gather(session: Any) -> AllRanks:
    settings = session.settings
    own = [settings.local_rank, settings.local_size, environment.timeline() is not None]
    gathered = collectives.allgather(np.array([own], np.int32), "horovod.init")
    return AllRanks(*gathered.T.tolist())


# Asked for in ``init``, which all ranks call.
_all_ranks: PerJob[AllRanks] = PerJob(_gather)


def init(comm: Iterable[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Joins the job that the environment describes; returns when all its ranks have. A second call joins nothing.

    Arguments:
        comm: None, or the numbers of all ranks. For a part of the ranks take a process set.
        process_sets: the sets to register, in the same order on every rank. "dynamic" is taken, and changes nothing: sets may
            always be added later.

    Raises:
        ValueError: another ``comm``; two process sets of the same ranks, after which the job is joined all the same.
        ShoalError: as ``shoal.init``.
    """
    join(shoal.init, comm, process_sets)


def join(
    join_job: Callable[[], None], comm: Iterable[int] | None, process_sets: Iterable[ProcessSet] | str | None
) -> None:
    """``init``, with a framework's own way to join."""
    _check_communicator(comm)
    environment.apply()
    is_new = not runtime.is_initialized()
    join_job()
    told = _all_ranks.of(runtime.current())
    if is_new:
        start_as_rank_0_says(bool(told.timelines[0]))
    sets.register_at_init([] if process_sets is None or isinstance(process_sets, str) else list(process_sets))


def _check_communicator(comm: Any) -> None:
    if comm is None:
        return
    try:
        ranks = list(comm)
    except TypeError:
        raise ValueError(
            f"comm={comm!r}: there are no MPI communicators here: leave comm out, and pass process_sets=[...] for parts of the "
            "ranks"
        ) from None
    if not ranks:
        return
    size = runtime.size() if runtime.is_initialized() else read_launch(os.environ).size
    if ranks != list(range(size)):
        raise ValueError(
            f"comm={ranks}: a job has all ranks that were started, here {size}: leave comm out, and pass "
            f"process_sets=[hvd.ProcessSet({ranks})] instead"
        )


def shutdown() -> None:
    """Leaves the job: waits until this rank's operations are done. ``init`` may be called again. Does nothing without it."""
    shoal.shutdown()


def is_initialized() -> bool:
    """Whether this process has joined a job and not left it."""
    return runtime.is_initialized()


def size() -> int:
    """How many ranks the job has."""
    return len(sets.table().ranks[0])


def rank() -> int:
    """This process's index in the job, from 0."""
    sets.table()
    return runtime.rank()


def local_size() -> int:
    """How many ranks are on this node."""
    sets.table()
    return runtime.local_size()


def local_rank() -> int:
    """This process's index among the ranks of its node, from 0."""
    sets.table()
    return runtime.local_rank()


def cross_size() -> int:
    """How many nodes have a rank with this one's local rank."""
    return _told().local_ranks.count(local_rank())


def cross_rank() -> int:
    """The index of this node among those that have a rank with this one's local rank."""
    return _told().local_ranks[: rank()].count(local_rank())


def is_homogeneous() -> bool:
    """Whether all nodes have the same number of ranks."""
    return len(set(_told().local_sizes)) == 1


def _told() -> AllRanks:
    sets.table()
    return _all_ranks.of(runtime.current())


def mpi_threads_supported() -> bool:
    """Raises ValueError: there is no MPI here."""
    raise ValueError("there is no MPI here: other MPI libraries may be used beside Shoal from any thread")


def mpi_enabled() -> bool:
    """False: there is no MPI here."""
    return False


def mpi_built() -> bool:
    """False: there is no MPI here."""
    return False


def gloo_enabled() -> bool:
    """True: CPU tensors go over TCP without MPI, which is what scripts ask."""
    return True


def gloo_built() -> bool:
    """True, as ``gloo_enabled``. The transport is Shoal's own."""
    return True


def nccl_built() -> int:
    """0: tensors of GPUs go through memory of the host."""
    return 0


def ddl_built() -> bool:
    """False: IBM's library is not used."""
    return False


def ccl_built() -> bool:
    """False: Intel's library is not used."""
    return False


def cuda_built() -> bool:
    """False: nothing is compiled for CUDA. Tensors of CUDA devices are taken all the same."""
    return False


def rocm_built() -> bool:
    """False: nothing is compiled for ROCm."""
    return False


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The registered process sets. No part of Horovod's documented API, but its tests ask."""
    return {number: list(ranks) for number, ranks in sets.table().ranks.items()}
