"""What each rank does in node_blocks.py: the same collectives on both backends, in turns; and a step of FSDP2 on each."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from shoal.bench import flow

BACKENDS = ("shoal", "gloo")
LINK = "eth0"

# By size, operation and backend: of every turn, seconds until the last rank had its result, and the bytes that crossed the
# first host's link, out and in.
Turn = tuple[float, int, int]
Found = dict[str, dict[str, dict[str, list[Turn]]]]


def take_turns(sizes: Sequence[int], turns: int, ranks: int) -> dict[str, Any]:
    """``ranks``: of a host. What rank 0 returns counts."""
    torch.set_num_threads(1)
    dist.init_process_group("shoal")
    groups: dict[str, Any] = {"shoal": None, "gloo": dist.new_group(backend="gloo")}
    found: Found = {}
    rate = _measure_link(ranks)
    for size in sizes:
        calls = {backend: _calls(size // 4, groups[backend]) for backend in BACKENDS}
        for operation in calls[BACKENDS[0]]:
            times: dict[str, list[Turn]] = {backend: [] for backend in BACKENDS}
            found.setdefault(str(size), {})[operation] = times
            for turn in range(-1, turns):
                for backend in BACKENDS:
                    taken = _timed(calls[backend][operation])
                    if turn >= 0:
                        times[backend].append(taken)
    steps = {backend: _fsdp_steps(groups[backend], turns) for backend in BACKENDS}
    dist.destroy_process_group()
    return {"rate": rate, "turns": found, "fsdp2": steps}


def _calls(elements: int, group: Any) -> dict[str, Callable[[], Any]]:
    size = dist.get_world_size()
    own, whole, result = torch.ones(elements // size), torch.ones(elements), torch.ones(elements)
    return {
        "all-gather": lambda: dist.all_gather_into_tensor(result, own, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(own, whole, group=group),
        "all-to-all": lambda: dist.all_to_all_single(result, whole, group=group),
    }


def _timed(call: Callable[[], Any]) -> Turn:
    dist.barrier()
    before = _crossed()
    began = time.monotonic()
    call()
    taken = torch.tensor([time.monotonic() - began], dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    after = _crossed()
    return float(taken), after[0] - before[0], after[1] - before[1]


def _crossed() -> tuple[int, int]:
    """Bytes that this host's interface has sent and received, as the interface sees them."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == LINK:
            counted = numbers.split()
            return int(counted[8]), int(counted[0])
    raise RuntimeError(f"this host has no interface {LINK}")


def _measure_link(ranks: int) -> float:
    """Bytes a second of one flow from the first host to the second."""
    where: list[Any] = [None]
    rank = dist.get_rank()
    listener = None
    if rank == ranks:
        address = os.environ["NODE_BLOCKS_ADDRESS"]
        listener = flow.listen(address)
        where = [(address, listener.getsockname()[1])]
    dist.broadcast_object_list(where, src=ranks)
    rate = [0.0]
    if listener is not None:
        rate = [flow.receive(listener)]
    elif rank == 0:
        flow.send(*where[0])
    dist.broadcast_object_list(rate, src=ranks)
    return rate[0]


def _fsdp_steps(group: Any, steps: int) -> list[float]:
    """Seconds of each step of a small transformer's blocks under FSDP2, of all ranks the slowest."""
    torch.manual_seed(0)
    width, layers = 1024, 4
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.ReLU(), torch.nn.Linear(2 * width, width))
        for _ in range(layers)
    ]
    model = torch.nn.Sequential(*blocks)
    mesh = DeviceMesh.from_group(group if group is not None else dist.group.WORLD, "cpu")
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(4, width)
    taken = []
    for step in range(-1, steps):
        dist.barrier()
        began = time.monotonic()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds = torch.tensor([time.monotonic() - began], dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        if step >= 0:
            taken.append(float(seconds))
    return taken
