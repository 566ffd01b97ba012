"""Ranks whose lanes are served by several threads: docs/decisions/channels.md."""

from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.testing import run_ranks

LARGE = 1_000_000


def processor_times() -> list[int]:
    """Of each thread of the engine, in clock ticks."""
    times = []
    for task in Path("/proc/self/task").iterdir():
        name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
        if name == "shoal":
            times.append(sum(map(int, fields.split()[11:13])))
    return times


def sums_and_threads() -> tuple[list[int], list[int]]:
    """What large and small sums cost each thread of the engine."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    for name, count, rounds in (("small", 10, 300), ("large", LARGE, 60)):
        before = processor_times() if name == "large" else []
        for _ in range(rounds):
            result = shoal.allreduce(np.full(count, rank, np.float32), op="sum", name=name)
            assert result.min() == result.max() == size * (size - 1) / 2
    after = processor_times()
    shoal.shutdown()
    return before, after


@pytest.mark.parametrize(("sockets", "threads", "expected"), [("3", "2", 2), ("2", "8", 2), ("4", "1", 1)])
def test_large_sums_are_the_work_of_all_threads(sockets: str, threads: str, expected: int) -> None:
    environment = {"SHOAL_SOCKETS": sockets, "SHOAL_THREADS": threads}
    for before, after in run_ranks(sums_and_threads, 2, servers=1, environment=environment, timeout=120):
        assert len(before) == len(after) == expected
        assert all(late > early for early, late in zip(before, after, strict=True))
