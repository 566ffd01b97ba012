"""A dedicated server is killed in the middle of a step: the others go on, with the bits of an undisturbed run.

Each round is a job of its own: servers get SIGKILL one after the other, at random moments of random steps, sometimes one while
the loss of another is being made good. A failing round prints its seed, which gives the same choices.
"""

import functools
import random
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from losing_servers import (
    STEPS,
    Ran,
    every_operation,
    large_sums,
    training,
    training_in_16_bits,
    until_told,
    without_rank_one,
)
from relay import Relay

from shoal import ShoalError
from shoal.testing import Cluster, ClusterJob, run_ranks

RANKS = 3
# Until training goes on: what the longest step takes beyond an ordinary one of the same run.
PROMPT = 2.0
# For a whole job. Far beyond what it takes.
SECONDS = 120.0

Program = Callable[[], Ran]
PROGRAMS: list[Program] = [every_operation, training]


@functools.cache
def undisturbed(program: Program) -> str:
    """The digest of a run that loses nothing: the number of servers makes no difference to it."""
    (digest,) = {ran.digest for ran in run_ranks(program, RANKS, servers=1, timeout=SECONDS)}
    return digest


def step_of(job: ClusterJob, ranks: Iterable[int] = range(RANKS)) -> int:
    """The step that the slowest of these ranks has begun, or -1."""
    begun = [re.findall(r"^step (\d+)$", job.stdout(rank), re.MULTILINE) for rank in ranks]
    return min(int(steps[-1]) if steps else -1 for steps in begun)


def wait_for_step(job: ClusterJob, step: int, ranks: Iterable[int] = range(RANKS)) -> None:
    deadline = time.monotonic() + SECONDS
    while step_of(job, ranks) < step:
        assert time.monotonic() < deadline, "\n".join(outcome.describe() for outcome in job.wait(1))
        time.sleep(0.001)


def wait_until(job: ClusterJob, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "\n".join(outcome.describe() for outcome in job.wait(1))
        time.sleep(0.01)


def kill_servers(servers: int, kills: int, program: Program, seed: int, **environment: str) -> float:
    """One round. The seconds that the longest step took beyond an ordinary one."""
    chance = random.Random(seed)
    with Cluster(RANKS, servers=servers, environment=environment) as cluster:
        job = cluster.start(program)
        last = STEPS[program.__name__] - 1
        steps = sorted(chance.sample(range(3, last * 3 // 4), kills))
        for step, victim in zip(steps, chance.sample(range(servers), kills), strict=True):
            at_once = step != steps[0] and chance.random() < 0.4  # while the one before is being made good
            if not at_once:
                wait_for_step(job, step)
            time.sleep(chance.uniform(0, 0.003 if at_once else 0.03))
            cluster.servers[victim].process.signal(signal.SIGKILL)
        killed_in_time = step_of(job) < last
        outcomes = job.wait(SECONDS)
    told = f"seed {seed}: {kills} of {servers} servers killed, {program.__name__}"
    assert killed_in_time, f"{told}: the job was done before"
    for outcome in outcomes:
        assert outcome.exit_code == 0, f"{told}\n{outcome.describe()}"
        assert outcome.value.digest == undisturbed(program), f"{told}: other bits on rank {outcome.rank}"
    # One rank says, once for each, which server was lost, why, and how many are left.
    said = re.findall(
        r"server \S+ is lost: rank \d \(\S+\) cannot reach it \(.*\); dedicated servers left: (\d) of (\d)",
        outcomes[0].stderr,
    )
    assert said == [(str(servers - 1 - lost), str(servers)) for lost in range(kills)], f"{told}\n{outcomes[0].stderr}"
    assert not any(outcome.stderr for outcome in outcomes[1:]), f"{told}\n{outcomes[1].describe()}"
    longest = max(max(outcome.value.steps) - statistics.median(outcome.value.steps) for outcome in outcomes)
    assert longest < PROMPT, f"{told}: a step took {longest:.2f} s longer than others"
    return longest


@pytest.mark.parametrize(
    ("servers", "kills", "program"),
    [
        (3, 2, every_operation),
        (1, 1, every_operation),
        pytest.param(2, 2, training, marks=pytest.mark.slow),
        pytest.param(2, 2, training_in_16_bits, marks=pytest.mark.slow),
    ],
    ids=["two of three", "the only one", "all, in training", "all, in 16 bits"],
)
def test_killed_servers_change_no_bit(servers: int, kills: int, program: Program) -> None:
    kill_servers(servers, kills, program, random.randrange(1_000_000))


@pytest.mark.parametrize(("servers", "kills"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_killed_servers_change_no_bit_where_operations_are_divided_among_threads(servers: int, kills: int) -> None:
    seed = random.randrange(1_000_000)
    kill_servers(servers, kills, large_sums, seed, SHOAL_SOCKETS="2", SHOAL_THREADS="2")


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=["every operation", "training"])
@pytest.mark.parametrize("servers", [1, 2, 3, 4])
def test_two_hundred_servers_killed_in_mid_step(servers: int, program: Program) -> None:
    """All of them in each job, so that in the end the ranks average among themselves. 25 or more with each number."""
    rounds = -(-25 // servers)
    first = random.randrange(1_000_000)
    longest = [kill_servers(servers, servers, program, first + index) for index in range(rounds)]
    print(
        f"\n{rounds * servers} of {rounds * servers} servers; seconds that the longest step of a job took beyond an ordinary one: "
        f"median {statistics.median(longest):.3f}, largest {max(longest):.3f}"
    )


def averaged_by(cluster: Cluster, index: int) -> int:
    """The processor time, in clock ticks, that a server has used."""
    fields = Path(f"/proc/{cluster.servers[index].process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def kill_and_restart(cluster: Cluster, job: ClusterJob, times: int) -> None:
    """The first server, for the so many-th time; until it averages again."""
    wait_for_step(job, step_of(job) + 5)
    cluster.servers[0].process.signal(signal.SIGKILL)
    wait_until(job, lambda: job.stderr(0).count("is lost") == times)
    wait_for_step(job, step_of(job) + 5)
    cluster.restart_server(0)
    wait_until(job, lambda: job.stderr(0).count("is used again") == times)
    used = averaged_by(cluster, 0)
    wait_until(job, lambda: averaged_by(cluster, 0) > used + 5)


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_server_that_is_started_again_is_used_again(servers: int) -> None:
    """Killed twice in one job; the second time it has to wait longer, since it was lost soon after it was back."""
    # With two servers in two channels: both lose one, and it is said once.
    environment = {"SHOAL_SOCKETS": "2", "SHOAL_THREADS": str(servers)}
    with Cluster(RANKS, servers=servers, environment=environment) as cluster:
        job = cluster.start(until_told, str(cluster.folder))
        for times in (1, 2):
            kill_and_restart(cluster, job, times)
        (cluster.folder / "stop").touch()
        assert len(set(job.results(SECONDS))) == 1
        said = [line.partition(" is ")[2] for line in job.stderr(0).splitlines()]
        assert len(said) == 4
        assert all(f"servers left: {servers - 1} of" in line for line in said[::2]), said
        assert (
            said[1]
            == said[3]
            == f"used again: every rank has reached it; dedicated servers left: {servers} of {servers}"
        )


@pytest.mark.slow
def test_a_server_that_is_back_with_another_secret_is_refused_and_that_is_said_once() -> None:
    with Cluster(RANKS, servers=1) as cluster:
        job = cluster.start(until_told, str(cluster.folder))
        wait_for_step(job, 3)
        cluster.servers[0].process.signal(signal.SIGKILL)
        wait_until(job, lambda: "is lost" in job.stderr(0))
        cluster.restart_server(0, {"SHOAL_SECRET": "another one for this server"})
        wait_until(job, lambda: "again yet" in job.stderr(0))
        time.sleep(3)  # for an attempt or two
        (cluster.folder / "stop").touch()
        assert len(set(job.results(SECONDS))) == 1
        said = [line for line in job.stderr(0).splitlines() if "again yet" in line]
        assert len(said) == 1
        assert "secret" in said[0], said


def test_a_server_that_is_back_as_several_is_not_used_and_that_is_said_once() -> None:
    """Behind its address is a balancer of load now, which gives each rank a process of its own."""
    with Cluster(RANKS, servers=3) as cluster:
        first, *spare = cluster.addresses
        job = cluster.start(until_told, str(cluster.folder), environment_of=lambda rank: {"SHOAL_SERVERS": first})
        wait_for_step(job, 3)
        cluster.servers[0].process.signal(signal.SIGKILL)
        wait_until(job, lambda: "is lost" in job.stderr(0))
        cluster.servers[0].process.finish()  # its port is free
        with Relay(*spare, port=int(first.rpartition(":")[2])):
            wait_until(job, lambda: "is not used again" in job.stderr(0))
            time.sleep(3)  # for an attempt or two
            wait_for_step(job, step_of(job) + 3)
            (cluster.folder / "stop").touch()
            assert len(set(job.results(SECONDS))) == 1
        said = [line for line in job.stderr(0).splitlines() if "is lost" not in line]
        assert len(said) == 1, said
        assert re.search(
            rf"server {first} is not used again: ranks 0 \(\S+\), [12] \(\S+\) reach different processes there", said[0]
        ), said


def test_a_rank_that_has_left_need_not_stay_and_the_others_take_over_without_it() -> None:
    """As many servers as ranks, so that these average nothing until all servers are lost."""
    with Cluster(RANKS, servers=RANKS) as cluster:
        job = cluster.start(without_rank_one, str(cluster.folder))
        wait_until(job, lambda: not job.processes[1].running())
        wait_for_step(job, step_of(job, [0, 2]) + 3, [0, 2])
        for server in cluster.servers:
            server.process.signal(signal.SIGKILL)
        wait_until(job, lambda: f"dedicated servers left: 0 of {RANKS}" in job.stderr(0))
        wait_for_step(job, step_of(job, [0, 2]) + 3, [0, 2])
        (cluster.folder / "stop").touch()
        numbers = job.results(SECONDS)
        assert numbers[0] == numbers[2] > numbers[1] == 0
        assert job.stderr(0).count(" is lost: ") == RANKS


def test_without_co_located_servers_the_loss_of_the_last_one_ends_the_job() -> None:
    with Cluster(RANKS, servers=1, environment={"SHOAL_COLOCATED": "never"}) as cluster:
        job = cluster.start(every_operation)
        wait_for_step(job, 3)
        cluster.servers[0].process.signal(signal.SIGKILL)
        for outcome in job.wait(SECONDS):
            assert isinstance(outcome.exception, ShoalError)
            assert re.search(
                r"server \S+ is lost: rank \d \(\S+\) cannot reach it \(.*\), and there is no other: SHOAL_COLOCATED=never keeps .*"
                r"start the job again, with more servers or without SHOAL_COLOCATED=never$",
                str(outcome.exception),
            )
