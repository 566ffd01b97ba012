"""Jobs that do nothing but operations, until one of their ranks is killed, frozen or cut off: for the tests of failures."""

import itertools
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import shoal
from shoal.job import runtime

# What a rank does over and over. Arrays are large enough for several segments from each server where the name says so.
Step = Callable[[], object]


def _steps() -> dict[str, Step]:
    rank, size = shoal.rank(), shoal.size()
    large = np.ones(500_000, np.float32)
    rows = np.ones((996, 100), np.float32)
    memory = runtime.allocate(large.nbytes)
    shared = large if memory is None else memory.view(np.float32)
    return {
        "small all-reduce": lambda: shoal.allreduce(1.0, name="loss"),
        "large all-reduce": lambda: shoal.allreduce_(large, name="gradient"),
        "all-reduce of shared arrays": lambda: shoal.allreduce_(shared, name="gradient"),
        "broadcast": lambda: shoal.broadcast_(large, root=size - 1, name="model"),
        "all-gather": lambda: shoal.allgather(rows[: 100 * (rank + 1)], name="samples"),
        "all-to-all": lambda: shoal.alltoall(rows, splits=[996 // size] * size, name="tokens"),
        "reduce-scatter": lambda: shoal.reducescatter(rows, name="shards"),
        "barrier": lambda: shoal.barrier(name="step"),
    }


OPERATIONS = (
    "small all-reduce",
    "large all-reduce",
    "broadcast",
    "all-gather",
    "all-to-all",
    "reduce-scatter",
    "barrier",
    "training",
)

# Those that ranks of one machine do in the memory that they share.
INSIDE_NODE = (*OPERATIONS, "all-reduce of shared arrays")


def training_step() -> Step:
    import torch

    from shoal.torch import DistributedDataParallel

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)), fusion_mb=0.02
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def loader_batches() -> Iterator[object]:
    """Batches from two forked workers of PyTorch's DataLoader, without end."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader: DataLoader[object] = DataLoader(
        TensorDataset(torch.zeros(256, 16)), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def work(operation: str, with_loader: bool) -> None:
    """Says ``working``, and repeats the operation until it fails; then ``failed``, when, and when it had called it (CLOCK_MONOTONIC)."""
    shoal.init()
    chance = random.Random(os.getpid())
    step = training_step() if operation == "training" else _steps()[operation]
    batches = loader_batches() if with_loader else itertools.repeat(None)
    step()
    print("working", flush=True)
    called = time.monotonic()
    try:
        while True:
            next(batches)
            # What a rank computes between two operations, so that they do not all wait at the same moment.
            time.sleep(chance.choice([0.0, 0.0, 0.001, 0.02]))
            called = time.monotonic()
            step()
    except BaseException as error:
        print("failed", time.monotonic(), called, getattr(error, "rank", None), type(error).__name__, error, flush=True)
        raise


def work_for(seconds: float) -> None:
    """All-reduces of 2 MB, each checked, until ``seconds`` are over on every rank."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    began = time.monotonic()
    step = 0
    while shoal.allreduce(time.monotonic() - began < seconds, op="max", name="goes on"):
        result = shoal.allreduce(np.full(500_000, rank + step, np.float32), op="sum", name="gradient")
        assert result.min() == result.max() == size * (size - 1) / 2 + size * step
        print("working" if step == 0 else f"step {step}", time.monotonic(), flush=True)
        step += 1
    shoal.shutdown()


# Much more than the receive buffers of a process that does not read can take: the senders' kernels find them full.
RECEIVE_BUFFER = 256 << 10
FLOOD_ELEMENTS = 8_000_000
FLOOD_LIMITS = {"segment": 1 << 20, "credit": 64 << 20}
FLOODS = ("all-reduce", "broadcast", "all-gather")


def _bound_receive_buffers() -> None:
    """Of every connection of this process; how far they grow is else the machine's choice (tcp_rmem)."""
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.is_socket():
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)


def flood(operation: str, rounds: int, victim: int, moments: str) -> None:
    """Moves 32 MB a round with windows as large, and checks every result.

    As long as the file ``moments`` exists, the victim stops itself in the middle of each round.
    """
    shoal.init(_limits=FLOOD_LIMITS)
    rank, size = shoal.rank(), shoal.size()
    if rank == victim:
        _bound_receive_buffers()
    for index in range(rounds):
        name = f"{operation} {index}"
        mine = np.full(FLOOD_ELEMENTS, rank + index, np.float32)
        if operation == "all-reduce":
            handle = shoal.allreduce_async_(mine, op="sum", name=name)
            expected = [size * (size - 1) / 2 + size * index] * size
        elif operation == "broadcast":
            handle = shoal.broadcast_async_(mine, root=0, name=name)
            expected = [index] * size
        else:
            handle = shoal.allgather_async(mine[: FLOOD_ELEMENTS // 2], name=name)
            expected = [index + other for other in range(size)]
        if rank == victim and index > 1 and Path(moments).exists():
            time.sleep(random.uniform(0.001, 0.02))
            os.kill(os.getpid(), signal.SIGSTOP)
        for value, part in zip(expected, np.array_split(handle.wait(), size), strict=True):
            assert part.min() == part.max() == value
        print("working" if index == 0 else "round", index, flush=True)
    shoal.shutdown()
