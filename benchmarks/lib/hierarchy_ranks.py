"""What each rank of hierarchy.py does: gradients through ``shoal.torch.Hierarchy``, with gloo inside the nodes."""

import time
from typing import NamedTuple

import torch
import torch.distributed as dist

import shoal.torch
from shoal import _native
from shoal.torch import hierarchy
from shoal.torch import nodes as inside

ROUNDS = 9


class Round(NamedTuple):
    """Seconds. ``between``: from when the last slice was submitted until the last was averaged, of all ranks.

    ``whole``: of the averaging. ``local``: of a reduce-scatter and an all-gather in the node alone.
    """

    between: float
    whole: float
    local: float


def averages(nbytes: int) -> tuple[list[Round], int]:
    """By rounds, the first of which does not count; and the bytes of this rank's slice."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shoal.torch.init()
    rank, size, members = dist.get_rank(), dist.get_world_size(), shoal.torch.local_size()
    nodes = [dist.new_group(list(range(begin, begin + members))) for begin in range(0, size, members)]
    node = nodes[rank // members]
    way = shoal.torch.Hierarchy(node)
    spans = _watched(way)
    gradients = torch.ones(nbytes // 4)
    own = torch.empty(len(gradients) // members)
    rounds = []
    for _ in range(ROUNDS + 1):
        spans.clear()
        dist.barrier()
        begun = time.monotonic()
        way.average(gradients, is_last=True).wait()
        whole = time.monotonic() - begun
        ((submitted, handle),) = spans
        times = torch.tensor([submitted, handle.finished_ns / 1e9], dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        dist.barrier()
        begun = time.monotonic()
        inside._reduce_scatter(own, gradients, group=node)
        inside._all_gather(gradients, own, group=node)
        rounds.append(Round(float(times[1] - times[0]), whole, time.monotonic() - begun))
    dist.barrier()
    shoal.shutdown()
    dist.destroy_process_group()
    return rounds[1:], own.nbytes


def _watched(way: hierarchy.Hierarchy) -> list[tuple[float, _native.Handle]]:
    """When slices are submitted, and their operations."""
    spans: list[tuple[float, _native.Handle]] = []
    start = way._start

    def started(bucket: hierarchy._Bucket) -> object:
        handle = start(bucket)
        spans.append((time.monotonic(), handle))
        return handle

    way._start = started  # type: ignore[method-assign, assignment]
    return spans
