"""What each rank does in the part of inside_node.py that compares dtypes: all-reduces of arrays in memory that the ranks share."""

import statistics
import time

import torch

import shoal
from shoal import runtime


def seconds_by_dtype(size: int, rounds: int) -> dict[str, float]:
    """Of a mean of ``size`` bytes in place: the median, by the name of the dtype."""
    shoal.init()
    memory = runtime.allocate(size)
    if memory is None:
        raise shoal.ShoalError(f"rank {shoal.rank()} shares no memory with other ranks")
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        array = torch.from_numpy(memory).view(dtype)
        found[str(dtype).removeprefix("torch.")] = statistics.median([_seconds(array) for _ in range(rounds + 1)][1:])
    shoal.shutdown()
    return found


def _seconds(array: torch.Tensor) -> float:
    shoal.barrier()
    began = time.perf_counter()
    shoal.allreduce_(array, op="mean")
    shoal.barrier()
    return time.perf_counter() - began
