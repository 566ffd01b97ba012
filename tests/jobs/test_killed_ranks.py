"""A rank that is killed, at whatever moment of whatever operation, is named to every other rank within two seconds.

Each round is a job of its own: ranks repeat an operation, one of them gets SIGKILL at a random moment, and every other
one must raise PeerLost with its rank and host, soon. A failing round prints its seed, which gives the same choices.
"""

import random
import signal
import socket
import statistics
import time
from collections.abc import Iterator, Sequence

import pytest
from busy_ranks import OPERATIONS, work

import shoal
from shoal.testing import Cluster, ClusterJob

RANKS = 3
PROMPT = 2.0
START_SECONDS = 60.0


def wait_until_working(job: ClusterJob) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all("working" in job.stdout(rank) for rank in range(len(job.processes))):
        assert time.monotonic() < deadline, "\n".join(outcome.describe() for outcome in job.wait(1))
        time.sleep(0.02)


def kill_one(cluster: Cluster, seed: int, *, with_loader: bool, operations: Sequence[str] = OPERATIONS) -> list[float]:
    """One round. The seconds after which each of the other ranks knew: after the kill, or after its call if that came later."""
    chance = random.Random(seed)
    operation = operations[seed % len(operations)]
    job = cluster.start(work, operation, with_loader)
    victim = chance.randrange(len(job.processes))
    told = f"seed {seed}: rank {victim} killed during {operation}, {'with' if with_loader else 'without'} a loader"
    wait_until_working(job)
    time.sleep(chance.uniform(0.0, 0.3))
    killed = time.monotonic()
    job.signal(victim, signal.SIGKILL)
    outcomes = job.wait(30)
    seconds = []
    for outcome in outcomes:
        if outcome.rank == victim:
            assert outcome.exit_code == -signal.SIGKILL
            continue
        error = outcome.exception
        assert type(error) is shoal.PeerLost, f"{told}\n{outcome.describe()}"
        assert (error.rank, error.host) == (victim, socket.gethostname()), f"{told}\n{outcome.describe()}"
        assert f"rank {victim} ({error.host})" in str(error)
        said = outcome.stdout.split()
        known, called = map(float, said[said.index("failed") + 1 :][:2])
        # A rank that waits for workers of its DataLoader to start calls late, and cannot know before.
        seconds.append(known - max(killed, called))
        told += f"; rank {outcome.rank} called the operation {called - killed:+.3f} s after that, and knew {known - called:.3f} s later"
    assert max(seconds) < PROMPT, f"{told}: {seconds}"
    return seconds


def kill_many(cluster: Cluster, rounds: int, *, with_loader: bool, operations: Sequence[str] = OPERATIONS) -> None:
    """So many rounds, and what came of them on standard output."""
    first = random.randrange(1_000_000)
    rank_seconds = [
        known
        for index in range(rounds)
        for known in kill_one(cluster, first + index, with_loader=with_loader, operations=operations)
    ]
    print(
        f"\n{rounds} of {rounds} rounds, {len(rank_seconds)} errors; seconds after the kill: "
        f"median {statistics.median(rank_seconds):.3f}, largest {max(rank_seconds):.3f}"
    )


@pytest.fixture(params=[pytest.param(0, id="no servers", marks=pytest.mark.slow), pytest.param(2, id="two servers")])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(RANKS, servers=request.param) as made:
        yield made


def test_every_other_rank_names_the_killed_one_within_two_seconds(cluster: Cluster) -> None:
    first = random.randrange(1_000_000)
    for index in range(3):
        kill_one(cluster, first + index, with_loader=index == 0)


@pytest.mark.slow
@pytest.mark.parametrize("with_loader", [False, True], ids=["", "with a DataLoader"])
@pytest.mark.parametrize("batch", range(5))
def test_two_hundred_ranks_killed_at_random_moments(cluster: Cluster, batch: int, with_loader: bool) -> None:
    kill_many(cluster, 10, with_loader=with_loader)
