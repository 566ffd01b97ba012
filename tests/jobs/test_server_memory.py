"""A server's memory is bounded and shared by its jobs: one that needs more than is left is told, the others go on."""

import time
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.testing import Cluster

# Of which 48 MiB are the server's own.
MEMORY = "--memory=96M"

SMALL = {"segment": 16384, "credit": 65536, "eager": 65536, "small": 16384}
# 2 ranks need 4 windows of 3 MiB each: more than half of what jobs may have, less than all of it.
LARGE = {**SMALL, "credit": 3 * 1024 * 1024}
# More than all of it.
TOO_LARGE = {**SMALL, "credit": 8 * 1024 * 1024}


def sum_until(limits: dict[str, int], end: Path | None) -> int:
    """All-reduces until the file is there, every number of which is looked at. How many."""
    shoal.init(_limits=limits)
    count = 0
    while not shoal.broadcast(np.array([end is None or end.exists()]), 0)[0] or count < 3:
        for elements in (1, 100_000):
            result = shoal.allreduce(np.full(elements, shoal.rank() + count, np.float32), op="sum", name=f"{elements}")
            assert (result == 2 * count + 1).all(), f"all-reduce {count} of {elements} elements"
        if count == 0:
            print("began", flush=True)
        count += 1
    shoal.shutdown()
    return count


def refused() -> str:
    with pytest.raises(shoal.ConfigurationError) as error:
        shoal.init(_limits=TOO_LARGE)
    return str(error.value)


def test_a_job_that_needs_more_than_a_server_has_left_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    with Cluster(2, servers=1, server_arguments=[MEMORY]) as cluster:
        # One after the other each may have more than half of it.
        for _ in range(2):
            assert min(cluster.start(sum_until, LARGE, None).results()) == 3
        good = cluster.start(sum_until, SMALL, tmp_path / "end")
        deadline = time.monotonic() + 30
        while not all("began" in good.stdout(rank) for rank in range(2)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for text in cluster.start(refused).results():
            assert f"{cluster.addresses[0]} has no memory for this job" in text
            assert "jobs may take" in text
            assert "--memory" in text
            assert "1 of them have" in text
            assert "of 2 ranks, needs" in text
        # There is room for another one beside it, and what was refused has left nothing behind.
        assert min(cluster.start(sum_until, LARGE, None).results()) == 3
        (tmp_path / "end").touch()
        assert min(good.results()) > 3
