"""Jobs whose dedicated servers are killed while they run: what comes out must not show it.

Every program says on its standard output which step it has begun, and returns a digest of all bits that it has computed, and
how long its steps took.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import shoal

# For each a second or so.
STEPS = {"every_operation": 60, "large_sums": 150, "training": 400, "training_in_16_bits": 400}

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Ran:
    """``steps``: seconds of each."""

    digest: str
    steps: list[float]


def repeat(steps: int, step: Callable[[int], bytes]) -> Ran:
    """Each step returns what it has computed."""
    digest, seconds = hashlib.sha256(), []
    for number in range(steps):
        print("step", number, flush=True)
        began = time.monotonic()
        digest.update(step(number))
        seconds.append(time.monotonic() - began)
    return Ran(digest.hexdigest(), seconds)


def every_operation() -> Ran:
    """A step like that of training, and one operation of every other kind, large (several segments from each server) and small."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    random = np.random.default_rng(rank)
    parameters = np.zeros(200_003, np.float32)

    def draw(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32)

    def step(number: int) -> bytes:
        gradient = draw(parameters.size)
        windows = [
            shoal.allreduce_async_(gradient[at : at + 50_000], name=f"window {at}")
            for at in range(0, parameters.size, 50_000)
        ]
        loss = shoal.allreduce(np.float32(number + rank), name="loss")
        for handle in windows:
            handle.wait()
        np.subtract(parameters, np.float32(0.1) * gradient, out=parameters)
        results = [
            loss,
            shoal.reducescatter(draw(7 * size), op="sum", name="few rows"),
            shoal.reducescatter(draw(20_000 * size), op="sum", name="rows"),
            shoal.allgather(draw(rank + 1), name="few samples"),
            shoal.allgather(draw(30_000 + rank), name="samples"),
            shoal.alltoall(draw(5 * size), splits=[5] * size, name="few tokens"),
            shoal.alltoall(draw(10_000 * size), splits=[10_000] * size, name="tokens"),
            shoal.broadcast(draw(3), root=number % size, name="order"),
            shoal.broadcast(draw(90_000), root=number % size, name="state"),
        ]
        shoal.barrier()
        # Of blocks and rows every rank has its own.
        shared = [
            parameters,
            *(result for result in results if result.size not in (7, 20_000, 5 * size, 10_000 * size)),
        ]
        return b"".join(np.asarray(result).tobytes() for result in shared)

    ran = repeat(STEPS["every_operation"], step)
    shoal.shutdown()
    return ran


def large_sums() -> Ran:
    """All-reduces of 1.2 MB, two at a time."""
    shoal.init()
    random = np.random.default_rng(shoal.rank())

    def step(number: int) -> bytes:
        arrays = [random.standard_normal(300_000, np.float32) for _ in range(2)]
        handles = [shoal.allreduce_async_(array, name=f"array {index}") for index, array in enumerate(arrays)]
        for handle in handles:
            handle.wait()
        return b"".join(array.tobytes() for array in arrays)

    ran = repeat(STEPS["large_sums"], step)
    shoal.shutdown()
    return ran


def training(**options: Any) -> Ran:
    """A model that DistributedDataParallel averages in several buffers, cut into shards and segments."""
    import torch
    from torch_training import global_batch, make_model

    import shoal.torch
    from shoal.torch import DistributedDataParallel

    torch.set_num_threads(1)
    shoal.torch.init()
    rank, size = shoal.torch.rank(), shoal.torch.size()
    model = DistributedDataParallel(make_model(), fusion_mb=0.005, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(number: int) -> bytes:
        images, labels = (part.chunk(size)[rank] for part in global_batch(number))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())

    ran = repeat(STEPS["training"], step)
    shoal.torch.shutdown()
    return ran


def training_in_16_bits() -> Ran:
    import torch

    return training(wire_dtype=torch.bfloat16, error_feedback=True)


def without_rank_one(folder: str) -> int:
    """Rank 1 leaves at once, and its process may end. The others average with each other as in ``until_told``."""
    shoal.init()
    rank = shoal.rank()
    group = shoal.Group([0, 2])
    shoal.barrier()
    number = 0
    while rank != 1 and not shoal.allreduce(
        float((Path(folder) / "stop").exists()), op="max", name="stop", group=group
    ):
        print("step", number, flush=True)
        result = shoal.allreduce(np.full(1_000_000, rank + number, np.float32), op="sum", name="gradient", group=group)
        assert result.min() == result.max() == 2 + 2 * number
        number += 1
    shoal.shutdown()
    return number


def until_told(folder: str) -> int:
    """All-reduces of 4 MB, each checked, until there is a file ``stop`` in the folder. How many."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    number = 0
    while not shoal.allreduce(float((Path(folder) / "stop").exists()), op="max", name="stop"):
        print("step", number, flush=True)
        result = shoal.allreduce(np.full(1_000_000, rank + number, np.float32), op="sum", name="gradient")
        assert result.min() == result.max() == size * (size - 1) / 2 + size * number
        number += 1
    shoal.shutdown()
    return number
