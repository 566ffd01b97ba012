"""What each rank does in c10d_collectives.py: the same operations on both backends, in turns."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

BACKENDS = ("shoal", "gloo")

# By size, operation and backend: the times of all turns, in seconds.
Found = dict[str, dict[str, dict[str, list[float]]]]


def take_turns(sizes: Sequence[int], turns: int) -> Found:
    torch.set_num_threads(1)
    dist.init_process_group("shoal")
    groups: dict[str, Any] = {"shoal": None, "gloo": dist.new_group(backend="gloo")}
    found: Found = {}
    for size in sizes:
        calls = {backend: _calls(size // 4, groups[backend]) for backend in BACKENDS}
        for operation in calls[BACKENDS[0]]:
            times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
            found.setdefault(str(size), {})[operation] = times
            for turn in range(-1, turns):
                for backend in BACKENDS:
                    seconds = _timed(calls[backend][operation])
                    if turn >= 0:
                        times[backend].append(seconds)
    dist.destroy_process_group()
    return found


def _calls(elements: int, group: Any) -> dict[str, Callable[[], Any]]:
    size = dist.get_world_size()
    own, all_of_them, result = torch.ones(elements), torch.ones(size * elements), torch.ones(size * elements)
    return {
        "broadcast": lambda: dist.broadcast(own, 0, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(result, own, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(own, all_of_them, group=group),
        "all-to-all": lambda: dist.all_to_all_single(result, all_of_them, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }


def _timed(call: Callable[[], Any]) -> float:
    dist.barrier()
    began = time.monotonic()
    call()
    return time.monotonic() - began
