"""Two jobs on the same servers: what one of them does wrong is its own trouble."""

import time
from collections.abc import Callable

import numpy as np
import pytest

import shoal
from shoal.errors import Mismatch
from shoal.testing import Cluster

SECONDS = 15.0


def sum_for(seconds: float) -> int:
    """All-reduces of several sizes until the time is over, every number of which is looked at. How many."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    began, count = time.monotonic(), 0
    while not shoal.broadcast(np.array([time.monotonic() - began > seconds]), 0)[0]:
        for elements in (1, 1000, 300_000):
            result = shoal.allreduce(np.full(elements, rank + count, np.float32), op="sum", name=f"{elements}")
            assert (result == size * count + size * (size - 1) / 2).all(), f"all-reduce {count} of {elements} elements"
        count += 1
    shoal.shutdown()
    return count


def disagree() -> None:
    """The same names as the other job's, with shapes that differ."""
    shoal.init()
    for elements in (1, 1000, 300_000):
        with pytest.raises(Mismatch):
            shoal.allreduce(np.ones(elements + shoal.rank(), np.float32), op="sum", name=f"{elements}")
    shoal.shutdown()


def never_finish() -> None:
    """Everyone but the last rank waits for it."""
    shoal.init()
    handles = [
        shoal.allreduce_async(np.ones(300_000, np.float32), op="sum", name=f"{index}")
        for index in range(20)
        if shoal.rank() + 1 < shoal.size()
    ]
    print("waiting", flush=True)
    time.sleep(60)
    for handle in handles:
        handle.wait()


@pytest.mark.slow
def test_a_job_is_right_beside_one_that_misbehaves() -> None:
    with Cluster(3, servers=2, nodes=3) as cluster:
        good = cluster.start(sum_for, SECONDS)
        disagreeing = cluster.start(disagree)
        silent = cluster.start(never_finish)
        dying = cluster.start(sum_for, SECONDS)
        disagreeing.results()
        _until(lambda: all("waiting" in silent.stdout(rank) for rank in range(3)))
        dying.processes[1].kill()
        outcomes = dying.wait()
        assert all(outcome.exit_code != 0 for outcome in outcomes)
        assert "PeerLost" in outcomes[0].traceback
        silent.kill()
        assert min(good.results()) > 0
        # And the servers take another one.
        assert min(cluster.start(sum_for, 0.5).results()) > 0


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)
