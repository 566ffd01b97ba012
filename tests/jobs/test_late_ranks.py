"""A rank that is stopped, or whose interpreter is held by a call into C, is late and not lost: also to those who connect to it for the
first time, and while the job comes together.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.testing import Cluster

pytestmark = pytest.mark.slow

# Longer than a host has to answer, and than strangers, servers and ranks have while a job comes together.
LATE_SECONDS = 20.0
LATE_AT_START_SECONDS = 35.0
NAMES = ("a", "b", "c", "d")  # the home of some of them is not in the late process


def stop_for_a_while() -> None:
    wake = f"import os, time, signal; time.sleep({LATE_SECONDS}); os.kill({os.getpid()}, signal.SIGCONT)"
    subprocess.Popen([sys.executable, "-c", wake], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_the_interpreter(seconds: float = LATE_SECONDS) -> None:
    """As a long call into C that does not let other Python threads run."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def gather_from_rank_to_rank(late: int, stops: bool) -> None:
    shoal.init()
    shoal.barrier()
    data = np.full(1 << 16, float(shoal.rank()))
    if shoal.rank() == late:
        handles = [shoal.allgather_async(data, name=name) for name in NAMES]
        time.sleep(0.5)  # the openings are out
        stop_for_a_while() if stops else hold_the_interpreter()
    else:
        time.sleep(2)  # the other one is late by now
        handles = [shoal.allgather_async(data, name=name) for name in NAMES]
    began = time.monotonic()
    for handle in handles:
        assert list(handle.wait()[:: 1 << 16]) == list(range(shoal.size()))
    if shoal.rank() != late:
        assert time.monotonic() - began > LATE_SECONDS / 2
    shoal.shutdown()


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_is_stopped_is_not_lost_when_others_connect_to_it_first(late: int) -> None:
    with Cluster(2) as cluster:
        cluster.start(gather_from_rank_to_rank, late, True).results(60)


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_whose_interpreter_is_busy_is_not_lost_when_others_connect_to_it_first(late: int) -> None:
    with Cluster(2) as cluster:
        cluster.start(gather_from_rank_to_rank, late, False).results(60)


def late_at(moment: str, late: int) -> float:
    """Joins, with one rank that holds its interpreter from this moment on. The seconds that it took."""
    from shoal.assembly import member, server_links

    if int(os.environ["RANK"]) == late:
        before = server_links.ServerLinks.connect if moment == "welcomed" else member._Member._open_listener

        async def held(self: object, *arguments: object) -> object:
            hold_the_interpreter(LATE_AT_START_SECONDS)
            return await before(self, *arguments)

        if moment == "welcomed":
            server_links.ServerLinks.connect = held  # type: ignore[method-assign,assignment]
        else:
            member._Member._open_listener = held  # type: ignore[method-assign,assignment]
    began = time.monotonic()
    shoal.init()
    took = time.monotonic() - began
    assert shoal.allreduce(1.0, op="sum") == shoal.size()
    shoal.shutdown()
    return took


@pytest.mark.parametrize("moment", ["connected", "welcomed"])
def test_a_job_begins_when_a_rank_whose_interpreter_was_busy_goes_on(moment: str) -> None:
    """Before it has said that it joins, and when others connect to the server in its process."""
    with Cluster(3) as cluster:
        job = cluster.start(late_at, moment, 1)
        assert min(job.results(90)) > LATE_AT_START_SECONDS / 2


def join_when_told(folder: str) -> None:
    rank = os.environ["RANK"]
    if rank == "0":
        (Path(folder) / "pid").write_text(str(os.getpid()))
    else:
        while not (Path(folder) / "stopped").exists():
            time.sleep(0.01)
    shoal.init()
    assert shoal.allreduce(1.0, op="sum") == shoal.size()
    shoal.shutdown()


def test_a_job_begins_when_a_rank_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """Rank 0, which listens already."""
    with Cluster(2) as cluster:
        job = cluster.start(join_when_told, str(tmp_path))
        deadline = time.monotonic() + 30
        while "rank 0 has waited" not in job.stderr(0):
            assert time.monotonic() < deadline, job.stderr(0)
            time.sleep(0.05)
        job.signal(0, signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        time.sleep(LATE_SECONDS)
        assert job.processes[1].running()
        job.signal(0, signal.SIGCONT)
        for outcome in job.wait(60):
            assert outcome.exit_code == 0, outcome.describe()
        assert re.search(r"accepts connections but says nothing.* still trying", job.stderr(1)), job.stderr(1)


def sum_until_all_have_been_late() -> int:
    shoal.init()
    ended = time.monotonic() + LATE_SECONDS + 3
    data = np.ones(1 << 18)
    steps = 0
    while shoal.allreduce(float(time.monotonic() < ended), op="max", name="goes on") > 0:
        assert np.all(shoal.allreduce(data, op="sum", name="data") == shoal.size())
        steps += 1
        if steps == 3:
            print("working", flush=True)
        if steps == 3 and shoal.rank() == 1:
            hold_the_interpreter()
    shoal.shutdown()
    return steps


def test_a_server_that_is_lost_while_an_interpreter_is_busy_is_replaced() -> None:
    with Cluster(3, servers=2) as cluster:
        job = cluster.start(sum_until_all_have_been_late)
        deadline = time.monotonic() + 30
        while "working" not in job.stdout(1):
            assert time.monotonic() < deadline, job.stderr(1)
            time.sleep(0.05)
        time.sleep(2)
        cluster.servers[0].process.kill()
        assert len(set(job.results(90))) == 1
        assert "dedicated servers left: 1 of 2" in job.stderr(0)
        assert "rank 1 (" not in re.findall(r"(.*) is lost", job.stderr(0))[0]
