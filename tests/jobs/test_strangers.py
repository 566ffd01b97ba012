"""Servers that others call, too: the job's numbers stay right, jobs begin, and the server stays as it was."""

import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.testing import Cluster

PER_MINUTE = 10_000
SECONDS = 20.0
MOST_GROWTH = 16 * 1024  # KiB


def sum_for(seconds: float) -> int:
    """All-reduces of several sizes until the time is over, every number of which is looked at. How many."""
    shoal.init()
    rank, size = shoal.rank(), shoal.size()
    began, count = time.monotonic(), 0
    while not shoal.broadcast(np.array([time.monotonic() - began > seconds]), 0)[0]:
        for elements in (1, 1000, 300_000):
            result = shoal.allreduce(np.full(elements, rank + count, np.float32), op="sum")
            assert (result == size * count + size * (size - 1) / 2).all(), f"all-reduce {count} of {elements} elements"
        count += 1
    shoal.shutdown()
    return count


def kibibytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


@pytest.mark.slow
@pytest.mark.parametrize("tls", ["off", "psk"])
def test_ten_thousand_strangers_a_minute_change_nothing_for_a_job(tls: str) -> None:
    environment = {"SHOAL_TLS": tls, "SHOAL_SECRET": secrets.token_hex(16)}
    with Cluster(3, servers=1, nodes=3, environment=environment) as cluster:
        server = cluster.servers[0].process.pid
        cluster.start(sum_for, 2.0).results()
        time.sleep(1.0)  # what the job had is given back
        before, open_before = kibibytes(server), descriptors(server)
        host, _, port = cluster.addresses[0].rpartition(":")
        command = [sys.executable, "-m", "shoal.testing.strangers", host, port, str(PER_MINUTE)]
        with subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as strangers:
            assert strangers.stdin is not None
            assert strangers.stdout is not None
            try:
                began = time.monotonic()
                job = cluster.start(sum_for, SECONDS)
                most = 0
                while any(process.running() for process in job.processes):
                    most = max(most, kibibytes(server))
                    time.sleep(0.1)
                assert min(job.results()) > 0
                strangers.stdin.write("off\n")
                strangers.stdin.flush()
                made = int(strangers.stdout.readline().split()[0])
                took = time.monotonic() - began
            finally:
                strangers.kill()
        print(f"{made} connections in {took:.1f} s; {before} KiB before, at most {most} KiB")
        # A busy machine may not get as many out.
        assert made > PER_MINUTE / 60 * took / 2
        assert most - before < MOST_GROWTH
        deadline = time.monotonic() + 15
        while descriptors(server) > open_before:
            assert time.monotonic() < deadline, "connections are left open"
            time.sleep(0.1)
