"""A rank that is stopped is late, not dead: the others say whom they wait for and for what, and go on when it does."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from busy_ranks import FLOODS, flood

import shoal
from shoal.testing import Cluster, ClusterJob

RANKS = 3
VICTIM = 1
STOPPED_SECONDS = 20.0
# Shorter than the stop.
PEER_TIMEOUT = {"SHOAL_PEER_TIMEOUT": "3"}
ZERO_WINDOW_PROBE = "04"


def wait_for(condition: Callable[[], bool], job: ClusterJob, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "\n".join(outcome.describe() for outcome in job.wait(1))
        time.sleep(0.01)


def sockets_of(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = str(descriptor.readlink())
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def probing_a_full_buffer(pids: list[int]) -> int:
    """How many connections of these processes have data for which the other side has no room: what their kernel says."""
    inodes = set().union(*(sockets_of(pid) for pid in pids))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[9] in inodes and line[5].split(":")[0] == ZERO_WINDOW_PROBE for line in lines)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_until_flooded(job: ClusterJob, moments: Path) -> None:
    """The victim stops itself again and again, until more is on its way to it than it has room for."""
    others = [process.pid for rank, process in enumerate(job.processes) if rank != VICTIM]
    for _ in range(200):
        wait_for(lambda: is_stopped(job.processes[VICTIM].pid), job)
        time.sleep(0.5)
        if probing_a_full_buffer(others) > 0:
            moments.unlink()
            return
        job.signal(VICTIM, signal.SIGCONT)
    raise AssertionError("its buffers were never full")


def stop_and_continue(job: ClusterJob, moments: Path | None = None) -> None:
    """A rank is stopped for 20 s, and the job then goes on to its end, which is a good one.

    ``moments``: while this file exists, the rank stops itself, and it counts once its receive buffers are full.
    """
    others = [rank for rank in range(RANKS) if rank != VICTIM]
    if moments is not None:
        wait_until_flooded(job, moments)
    else:
        job.signal(VICTIM, signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    if moments is not None:
        assert probing_a_full_buffer([job.processes[rank].pid for rank in others]) > 0
    assert all(job.processes[rank].running() for rank in others)
    said = [job.stderr(rank) for rank in others]
    job.signal(VICTIM, signal.SIGCONT)
    for outcome in job.wait(60):
        assert outcome.exit_code == 0, outcome.describe()
    for text in said:
        print(text)
        assert re.search(rf"has not moved on rank \d \(.*\) for 1[0-9]\.\d s: .*rank {VICTIM} \(", text), text


def train(steps: int) -> None:
    import torch

    from shoal.torch import DistributedDataParallel

    torch.manual_seed(1)
    torch.set_num_threads(1)
    shoal.init()
    model = DistributedDataParallel(torch.nn.Linear(64, 64), fusion_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 64), float(shoal.rank()))).square().mean().backward()
        optimizer.step()
        print("working" if step == 0 else "step", step, flush=True)
        time.sleep(0.005)
    digest = float(sum(parameter.double().sum() for parameter in model.parameters()))
    assert np.ptp(shoal.allgather(np.array([digest]))) == 0
    shoal.shutdown()


def one_does_not_call(stop: bool) -> None:
    shoal.init()
    shoal.allreduce(1.0, name="loss")
    if shoal.rank() == VICTIM:
        if stop:
            print("working", flush=True)
        time.sleep(6)
        return
    time.sleep(1)
    try:
        shoal.allreduce(1.0, name="gradient")
    except shoal.Timeout:
        time.sleep(0.5)  # the end of this rank must not reach the other before its own time is out
        raise


@pytest.mark.parametrize(
    "stop", [pytest.param(False, id="busy", marks=pytest.mark.slow), pytest.param(True, id="stopped")]
)
def test_a_timeout_tells_who_did_not_call_and_what_it_did_last(stop: bool) -> None:
    with Cluster(RANKS, servers=1, environment={"SHOAL_TIMEOUT": "2", "SHOAL_COLOCATED": "never"}) as cluster:
        job = cluster.start(one_does_not_call, stop)
        if stop:
            wait_for(lambda: "working" in job.stdout(VICTIM), job)
            job.signal(VICTIM, signal.SIGSTOP)
            wait_for(lambda: not any(job.processes[rank].running() for rank in (0, 2)), job)
            job.signal(VICTIM, signal.SIGCONT)
        outcomes = job.wait(30)
    told = (
        rf"allreduce of 'gradient' on rank \d \(.*\): allreduce 'gradient' has not moved on rank \d \(.*\) for 2\.\d s: "
        rf"rank {VICTIM} \(.*\) has not called it \(the servers asked last heard of it [23]\.\d s ago, after it called allreduce "
        r"'loss'\); every other rank has called it; see what is late there"
    )
    for outcome in outcomes:
        if outcome.rank != VICTIM:
            assert type(outcome.exception) is shoal.Timeout, outcome.describe()
            assert re.match(told, str(outcome.exception)), outcome.describe()


def the_home_is_stopped() -> None:
    """Of many names one has its home on the stopped rank; there the others hear from each other's servers only."""
    shoal.init()
    shoal.barrier(name="begin")
    print("working", flush=True)
    time.sleep(1)
    handles = [shoal.allreduce_async(1.0, name=f"value {index}") for index in range(12)]
    for handle in handles:
        with pytest.raises(shoal.Timeout) as caught:
            handle.wait()
        print(caught.value, flush=True)


def test_a_timeout_names_a_home_that_does_not_answer() -> None:
    with Cluster(RANKS, environment={"SHOAL_TIMEOUT": "2"}) as cluster:
        job = cluster.start(the_home_is_stopped)
        wait_for(lambda: all("working" in job.stdout(rank) for rank in range(RANKS)), job)
        job.signal(VICTIM, signal.SIGSTOP)
        others = [rank for rank in range(RANKS) if rank != VICTIM]
        wait_for(lambda: all(job.stdout(rank).count("value") >= 12 for rank in others), job)
        said = [job.stdout(rank) for rank in others]
        job.kill()
    for text in said:
        assert all(f"rank {VICTIM} (" in line for line in text.splitlines() if "value" in line)
        assert re.search(
            rf"rank {VICTIM} \(.*\), whose process averages a part of it, does not answer; .*; its home", text
        )
        assert re.search(rf"rank {VICTIM} \(.*\) has not called it", text)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [0, 1])
def test_training_waits_for_a_stopped_rank_and_goes_on_with_it(servers: int) -> None:
    with Cluster(RANKS, servers=servers, environment=PEER_TIMEOUT) as cluster:
        job = cluster.start(train, 300)
        wait_for(lambda: "step 20\n" in job.stdout(VICTIM), job)
        stop_and_continue(job)


@pytest.mark.slow
@pytest.mark.parametrize("operation", FLOODS)
def test_a_stopped_rank_whose_receive_buffers_are_full_is_not_cut_off(operation: str, tmp_path: Path) -> None:
    moments = tmp_path / "moments"
    moments.touch()
    with Cluster(RANKS, environment=PEER_TIMEOUT) as cluster:
        stop_and_continue(cluster.start(flood, operation, 80, VICTIM, str(moments)), moments)
