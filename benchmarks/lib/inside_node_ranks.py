"""What each rank does in the part of inside_node.py that compares all-reduces with plain copies, and dtypes with each other."""

import time
from collections.abc import Callable

import numpy as np
import torch

import shoal
from shoal.job import runtime

COPIES = "copies"
ORDINARY = "float32"
SHARED_FLOAT = "float32 shared"
SHARED_HALF = "bfloat16 shared"

Turns = dict[str, list[tuple[float, float]]]


def turns_of_rank(size: int, rounds: int) -> Turns:
    """When this rank began and ended each turn, by time.monotonic(), which the ranks of a machine have in common.

    In each round one turn of each: a copy of ``size`` bytes to another array, and means of as many bytes, in place.
    """
    shoal.init()
    memory = runtime.allocate(size)
    if memory is None:
        raise shoal.ShoalError(f"rank {shoal.rank()} shares no memory with other ranks")
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    todo: dict[str, Callable[[], object]] = {
        COPIES: lambda: np.copyto(target, source),
        ORDINARY: _mean(torch.ones(size // 4)),
        SHARED_FLOAT: _mean(torch.from_numpy(memory).view(torch.float32)),
        SHARED_HALF: _mean(torch.from_numpy(memory).view(torch.bfloat16)),
    }
    turns: Turns = {name: [] for name in todo}
    for _ in range(rounds + 1):
        for name, turn in todo.items():
            shoal.barrier()
            began = time.monotonic()
            turn()
            turns[name].append((began, time.monotonic()))
    shoal.shutdown()
    return {name: kept[1:] for name, kept in turns.items()}


def _mean(array: torch.Tensor) -> Callable[[], object]:
    return lambda: shoal.allreduce_(array, op="mean")
