"""Links that break, for a while or for good, and for some only: real jobs on a lab's hosts. Needs root."""

import itertools
import re
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from lab_hosts import needs_lab
from lab_job import Failure, LabJob, lab_job

from shoal.testing.lab import Host

pytestmark = [needs_lab, pytest.mark.slow]

RANKS = 3
PEER_TIMEOUT = 5
# Beyond the timeout: the kernel asks once a second, and links are looked at once a second.
LATEST = PEER_TIMEOUT + 3
ENDLESS = 'work("large all-reduce", False)'


@pytest.mark.parametrize("servers", [0, 1])
def test_a_cut_of_five_seconds_costs_time_and_nothing_else(servers: int) -> None:
    with lab_job(RANKS, "work_for(15)", servers=servers) as job:
        victim = job.lab.hosts[-1]  # a rank's host, or the server's
        time.sleep(1)
        victim.cut()
        time.sleep(5)
        steps = job.output(0).count("step")
        assert steps > 0
        mended = time.monotonic()
        victim.mend()
        job.wait_for(lambda: job.output(0).count("step") > steps + 3, 20)
        print(f"went on {time.monotonic() - mended:.2f} s after the link was mended")
        assert job.wait(60) == [0] * RANKS, job.everything()


def test_a_cut_that_is_shorter_than_the_peer_timeout_is_so_for_a_server_too() -> None:
    """And longer than the default, which is nobody's here."""
    with lab_job(RANKS, "work_for(45)", servers=1, SHOAL_PEER_TIMEOUT="60") as job:
        server = job.lab.hosts[-1]
        time.sleep(1)
        server.cut()
        time.sleep(18)
        steps = job.output(0).count("step")
        mended = time.monotonic()
        server.mend()
        job.wait_for(lambda: job.output(0).count("step") > steps + 3, 30)
        print(f"went on {time.monotonic() - mended:.2f} s after the link was mended")
        assert job.wait(60) == [0] * RANKS, job.everything()
        assert "is lost" not in job.everything()


def break_for_good(job: LabJob, how: Callable[[list[Host]], None]) -> list[Failure]:
    """Breaks something; each rank's error, which came neither early nor late, and after which the rank has ended."""
    time.sleep(0.5)
    began = time.monotonic()
    how(job.lab.hosts)
    assert 0 not in job.wait(LATEST + 20)
    ended = time.monotonic() - began
    failures = job.failures()
    for failure in failures:
        print(f"{failure.when - began:.2f} s: {failure.kind} {failure.text}")
        assert failure.kind == "PeerLost"
        assert PEER_TIMEOUT - 2 < failure.when - began < LATEST
    print(f"all have ended after {ended:.2f} s")
    assert ended < LATEST + 3
    return failures


@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_is_cut_off_for_good_is_lost_to_the_others_and_they_to_it(victim: int) -> None:
    with lab_job(RANKS, ENDLESS, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        failures = break_for_good(job, lambda hosts: hosts[victim].cut())
    for rank, failure in enumerate(failures):
        if rank != victim:
            assert failure.rank == victim
    if victim == 0:
        assert failures[0].rank in (1, 2)  # whichever it noticed first
    else:
        assert failures[victim].rank == 0


def test_two_ranks_that_cannot_reach_each_other_are_one_loss_for_all() -> None:
    with lab_job(RANKS, ENDLESS, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        failures = break_for_good(job, lambda hosts: hosts[1].cut_from(hosts[2]))
    lost = {failure.rank for failure in failures}
    assert lost in ({1}, {2}), failures
    assert all("cannot reach it (" in failure.text for failure in failures)


def test_two_ranks_without_a_way_to_each_other_are_one_loss_for_all() -> None:
    """Their kernels know that there is none, and so send nothing that could stay without an answer."""

    def take_ways_away(hosts: list[Host]) -> None:
        for host, other in ((hosts[1], hosts[2]), (hosts[2], hosts[1])):
            subprocess.run(host.command(["ip", "route", "add", "unreachable", other.address]), check=True)

    with lab_job(RANKS, ENDLESS, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        failures = break_for_good(job, take_ways_away)
    lost = {failure.rank for failure in failures}
    assert lost in ({1}, {2}), failures


def test_a_rank_that_cannot_reach_the_coordinator_is_lost() -> None:
    with lab_job(RANKS, ENDLESS, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        failures = break_for_good(job, lambda hosts: hosts[0].cut_from(hosts[1]))
    assert [failure.rank for failure in failures] == [1, 0, 1]


def longest_pause(job: LabJob) -> float:
    """The seconds between two steps of work_for on rank 0."""
    times = [float(when) for when in re.findall(r"^(?:working|step \d+) ([\d.]+)$", job.output(0), re.MULTILINE)]
    return max(after - before for before, after in itertools.pairwise(times))


def one_server_is_lost(servers: int, how: Callable[[list[Host]], None], noticed_by: str) -> None:
    """The first server is; the job goes on without it, and every result is right."""
    with lab_job(RANKS, "work_for(14)", servers=servers, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        server = f"server {job.lab.addresses[RANKS]}:7077"
        time.sleep(1)
        how(job.lab.hosts)
        assert job.wait(60) == [0] * RANKS, job.everything()
        pause = longest_pause(job)
        print(f"stood still for {pause:.2f} s")
        assert PEER_TIMEOUT - 2 < pause < LATEST
        said = re.findall(r"^.*is lost: .*$", job.output(0), re.MULTILINE)
        assert len(said) == 1, job.everything()
        pattern = rf"{server} is lost: rank {noticed_by} \(\S+\) cannot reach it \(.*\); dedicated servers left: {servers - 1} of"
        assert re.search(pattern, said[0]), said
        assert not any("is lost" in job.output(rank) for rank in range(1, RANKS)), job.everything()


@pytest.mark.parametrize("servers", [1, 2])
def test_a_server_that_is_cut_off_for_good_is_replaced(servers: int) -> None:
    one_server_is_lost(servers, lambda hosts: hosts[RANKS].cut(), r"\d")


@pytest.mark.parametrize("servers", [1, 2])
def test_a_server_that_one_rank_cannot_reach_is_replaced_for_all(servers: int) -> None:
    one_server_is_lost(servers, lambda hosts: hosts[1].cut_from(hosts[RANKS]), "1")


@pytest.mark.parametrize("for_one", [False, True], ids=["for all", "for one"])
def test_a_server_whose_link_is_mended_is_used_again(for_one: bool) -> None:
    with lab_job(RANKS, "work_for(40)", servers=2, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        server, host = job.lab.hosts[RANKS], job.lab.hosts[1]
        host.cut_from(server) if for_one else server.cut()
        job.wait_for(lambda: "is lost" in job.output(0), LATEST + 5)
        time.sleep(4)  # attempts in vain
        assert "is used again" not in job.output(0), job.everything()
        host.mend_to(server) if for_one else server.mend()
        mended = time.monotonic()
        job.wait_for(lambda: "is used again" in job.output(0), 30)
        print(f"used again {time.monotonic() - mended:.2f} s after the link was mended")
        before = server.counters()
        assert job.wait(60) == [0] * RANKS, job.everything()
        after = server.counters()
        assert after.sent_bytes - before.sent_bytes > 10_000_000
        assert job.output(0).count("is lost") == 1, job.everything()


def test_two_ranks_that_cannot_reach_each_other_need_not_while_servers_average() -> None:
    """And when all servers are lost, the third rank averages, which both of them reach."""
    servers = 4
    with lab_job(RANKS, "work_for(16)", servers=servers, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        job.lab.hosts[1].cut_from(job.lab.hosts[2])
        job.wait_for(lambda: job.output(0).count("It averages nothing") == 2, LATEST + 5)
        assert "dedicated servers left" not in job.output(0), job.everything()
        for server in job.servers:
            server.kill()
        job.wait_for(lambda: f"dedicated servers left: 0 of {servers}" in job.output(0), 5)
        assert job.wait(60) == [0] * RANKS, job.everything()
        print(f"stood still for {longest_pause(job):.2f} s")
        assert longest_pause(job) < 2


def test_a_stopped_server_is_late_and_not_lost() -> None:
    with lab_job(RANKS, "work_for(16)", servers=2, SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT)) as job:
        time.sleep(1)
        job.servers[0].send_signal(signal.SIGSTOP)
        time.sleep(13)
        job.servers[0].send_signal(signal.SIGCONT)
        assert job.wait(60) == [0] * RANKS, job.everything()
        assert longest_pause(job) > 12
        for rank in range(RANKS):
            assert "is lost" not in job.output(rank), job.everything()
            assert f"server {job.lab.addresses[RANKS]}:7077 does not answer" in job.output(rank), job.everything()
