"""Ranks of one process whose operations meet in memory: an operation is done as soon as every rank has called it.

Nothing waits here. To wait for an operation that is not done is a mistake of the test.
"""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


class Operation:
    """One operation, known by its label. ``combine``: makes the result of the arrays of all ranks, by rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.arrays: dict[int, Any] = {}
        self.failure: str | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.finished_ns = 0

    def join(self, rank: int, array: Any, combine: Callable[[list[Any]], Any]) -> None:
        assert rank not in self.arrays, "each rank opens an operation once"
        self.arrays[rank] = array
        if self.done():
            if self.failure is None:
                result = combine([self.arrays[rank].copy() for rank in range(self.size)])
                for each in self.arrays.values():
                    each[:] = result
            for callback in self.callbacks:
                callback()

    def done(self) -> bool:
        return len(self.arrays) == self.size

    def wait(self) -> None:
        assert self.done(), "it would never end"
        if self.failure is not None:
            raise RuntimeError(self.failure)

    def call_when_done(self, callback: Callable[[], None]) -> None:
        if self.done():
            callback()
        else:
            self.callbacks.append(callback)


class Ranks:
    """``opened``: the labels that each rank has opened, in its order."""

    def __init__(self, size: int) -> None:
        self._operations: dict[str, Operation] = {}
        self.size = size
        self.opened: dict[int, list[str]] = defaultdict(list)
        self.failed: dict[int, list[str]] = defaultdict(list)

    def __getitem__(self, rank: int) -> "NamedOperationsInMemory":
        return NamedOperationsInMemory(self, rank)

    def join(self, rank: int, label: str, array: Any, combine: Callable[[list[Any]], Any]) -> Operation:
        operation = self._operations.setdefault(label, Operation(self.size))
        self.opened[rank].append(label)
        operation.join(rank, array, combine)
        return operation

    def fail(self, rank: int, label: str, reason: str) -> None:
        operation = self._operations.setdefault(label, Operation(self.size))
        operation.failure = operation.failure or reason
        self.failed[rank].append(label)
        operation.join(rank, np.zeros(0), lambda arrays: arrays[0])


class NamedOperationsInMemory:
    """What ``gradients`` asks of ``NamedOperations``, for one rank."""

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self._ranks, self._rank = ranks, rank
        self.group = SimpleNamespace(rank=rank, size=ranks.size)
        self.here = self.member(rank)

    def member(self, index: int) -> str:
        return f"rank {index} (host{index})"

    def allreduce(self, label: str, array: Any, op: str) -> Operation:
        combine: dict[str, Callable[[list[Any]], Any]] = {
            "max": lambda arrays: np.max(arrays, axis=0),
            "mean": lambda arrays: np.mean(arrays, axis=0),
        }
        return self._ranks.join(self._rank, label, array, combine[op])

    def broadcast(self, label: str, array: Any, root: int = 0) -> Operation:
        return self._ranks.join(self._rank, label, array, lambda arrays: arrays[root])

    def fail(self, label: str, reason: str) -> None:
        self._ranks.fail(self._rank, label, reason)
