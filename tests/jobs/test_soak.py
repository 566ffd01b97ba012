"""Long runs leave memory, descriptors and threads where they were."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.testing import run_ranks

ELEMENTS = [1, 7, 1000, 5000, 20_000, 60_000]
WINDOW = 16  # operations open at once


def resources() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "resident kB": int(status["VmRSS"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "native threads": int(status["Threads"]),
        "Python threads": threading.active_count(),
    }


def soak(operations: int) -> tuple[dict[str, int], dict[str, int]]:
    shoal.init()
    arrays = [np.ones(elements, np.float32) for elements in ELEMENTS]
    early: dict[str, int] = {}
    handles: list[shoal.Handle] = []
    for index in range(operations):
        if index == 1000:
            early = resources()
        if len(handles) == WINDOW:
            handles.pop(0).wait()
        handles.append(shoal.allreduce_async(arrays[index % len(arrays)], name=f"tensor {index % 100}"))
    for handle in handles:
        assert handle.wait()[0] == 1.0
    late = resources()
    shoal.shutdown()
    return early, late


@pytest.mark.slow
@pytest.mark.parametrize("servers", [0, 2])
def test_twenty_thousand_operations_leave_nothing_behind(servers: int) -> None:
    for early, late in run_ranks(soak, 3, 20_000, servers=servers, timeout=900):
        print(f"after 1,000: {early}, after 20,000: {late}")
        for name in ("descriptors", "native threads", "Python threads"):
            assert late[name] == early[name], f"{name}: {early} then {late}"
        # The allocator's own coming and going; 1 kB an operation would be 19 MB.
        assert late["resident kB"] - early["resident kB"] < 6_000, f"{early} then {late}"
