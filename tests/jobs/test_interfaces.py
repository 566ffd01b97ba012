"""Jobs whose hosts are in two networks: lanes are spread over them, and one of them may be cut. Real, shaped links; needs root."""

import re
import secrets
import subprocess
import sys
import time

import pytest
from lab_hosts import needs_lab
from lab_job import LabJob, lab_job

from shoal.testing.lab import Lab, LinkShape

pytestmark = needs_lab

RANKS = 2
FAST, SLOW = 200e6, 100e6
PEER_TIMEOUT = 5
LATEST = PEER_TIMEOUT + 3
BOTH = "eth0,eth1"
STEPS = 40


def steps_of(job: LabJob) -> int:
    return job.output(0).count("step ")


@pytest.mark.parametrize("servers", [0, 2])
def test_shares_follow_the_rates_of_the_networks(servers: int) -> None:
    with lab_job(
        RANKS,
        "average(8)",
        servers=servers,
        rate=FAST,
        further=[SLOW],
        module="interface_steps",
        SHOAL_INTERFACE=BOTH,
        SHOAL_LOG="info",
    ) as job:
        assert job.wait(60) == [0] * RANKS, job.everything()
        first, second = map(int, re.findall(r"^sent (\d+) (\d+)$", job.output(0), re.MULTILINE)[0])
        assert first + second == pytest.approx(8e6, rel=0.1)
        assert first / second == pytest.approx(FAST / SLOW, rel=0.3)
        said = re.search(r"links: eth0 (\S+) MB/s; eth1 (\S+) MB/s;", job.output(0))
        assert said is not None, job.everything()
        assert float(said[1]) / float(said[2]) == pytest.approx(FAST / SLOW, rel=0.3)


def test_a_network_has_at_least_one_lane_and_all_have_as_many() -> None:
    with lab_job(
        RANKS, "say_weights()", further=[FAST], module="interface_steps", SHOAL_INTERFACE=BOTH, SHOAL_SOCKETS="3"
    ) as job:
        assert job.wait(60) == [0] * RANKS, job.everything()
        lanes, *weights = re.findall(r"^weights (.*)$", job.output(0), re.MULTILINE)[0].split()
        assert (lanes, len(weights)) == ("4", RANKS * 4)


def lab_ranks(lab: Lab, interfaces: list[str], **environment: str) -> list[str]:
    """What ranks with these values of SHOAL_INTERFACE say when they join in vain."""
    ranks = []
    for rank, chosen in enumerate(interfaces):
        own = {
            "SHOAL_SECRET": environment.get("SHOAL_SECRET") or "0123456789abcdef",
            "SHOAL_RENDEZVOUS": f"{lab.addresses[0]}:7000",
            "SHOAL_INTERFACE": chosen,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(interfaces)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            **environment,
        }
        command = [sys.executable, "-c", "import shoal; shoal.init()"]
        ranks.append(lab.hosts[rank].start(command, env=own, stderr=subprocess.PIPE, text=True))
    return [rank.communicate(timeout=60)[1] for rank in ranks]


def test_ranks_that_use_different_numbers_of_networks_are_refused_by_name() -> None:
    with Lab(2, LinkShape(rate=FAST), further=[LinkShape(rate=FAST)]) as lab:
        for said in lab_ranks(lab, [BOTH, "eth0"]):
            assert re.search(r"rank 0 \(\S+\) uses 2 networks \(eth0, eth1\)", said), said
            assert re.search(r"rank 1 \(\S+\) uses one network", said), said
            assert "name one interface for each network" in said


def test_a_server_without_one_of_the_networks_is_refused_by_name() -> None:
    secret = secrets.token_hex(16)
    with Lab(3, LinkShape(rate=FAST), further=[LinkShape(rate=FAST)]) as lab:
        command = [sys.executable, "-m", "shoal.cli", "server", "--host", lab.addresses[2]]
        server = lab.hosts[2].start(command, env={"SHOAL_SECRET": secret}, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        assert "listening" in server.stdout.readline()
        for said in lab_ranks(lab, [BOTH, BOTH], SHOAL_SECRET=secret, SHOAL_SERVERS=f"{lab.addresses[2]}:7077"):
            assert "the server 10.98.0.3:7077 listens at 10.98.0.3:7077" in said, said
            assert re.search(r"names 10\.98\.1\.0/24 \(eth1 on rank 0 \(\S+\)\) as well", said), said


def test_a_network_is_the_same_by_whatever_name_and_place() -> None:
    """On host 1 the interfaces are said the other way round."""
    with Lab(2, LinkShape(rate=FAST), further=[LinkShape(rate=FAST)]) as lab:
        for said in lab_ranks(lab, [BOTH, f"{lab.hosts[1].links[1].address},eth0"]):
            assert "Error" not in said, said


def bits_of(
    call: str,
    servers: int,
    interfaces: str,
    cut: tuple[int, int] | None = None,
    *,
    slow: float = SLOW,
    meets_in: int = 0,
) -> tuple[str, str]:
    """The digest of what came out, the same on all ranks, and what rank 0 said. ``cut``: a host and which of its networks."""
    with lab_job(
        RANKS,
        call,
        servers=servers,
        rate=FAST,
        further=[slow],
        module="interface_steps",
        meets_in=meets_in,
        SHOAL_INTERFACE=interfaces,
        SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT),
    ) as job:
        if cut is not None:
            host, network = cut
            job.lab.hosts[host].links[network].cut()
            assert steps_of(job) < STEPS - 10, "it has much to do still"
        assert job.wait(120) == [0] * RANKS, job.everything()
        found = [re.findall(r"^digest (\w+)$", job.output(rank), re.MULTILINE)[0] for rank in range(RANKS)]
        assert len(set(found)) == 1
        return found[0], job.output(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "servers", "victim", "network"),
    [
        ("every_operation", 0, 0, 1),
        ("every_operation", 0, 1, 1),
        ("every_operation", 2, 1, 1),
        ("every_operation", 2, 3, 1),
        ("averages", 0, 0, 0),
        ("averages", 0, 1, 0),
        ("averages", 2, 0, 0),
        ("averages", 2, 1, 0),
        ("averages", 2, 2, 0),
    ],
)
def test_a_network_that_is_cut_is_survived_with_the_same_bits(
    program: str, servers: int, victim: int, network: int
) -> None:
    """``victim``: the host at which one of the interfaces is cut, a rank's or a server's."""
    expected, _ = bits_of(f"{program}({STEPS}, 0.0)", servers, "eth0")
    found, said = bits_of(f"{program}({STEPS}, 0.1)", servers, BOTH, (victim, network))
    assert found == expected
    lost = re.findall(r"server (.*) is lost: rank \d \(\S+\) cannot reach it", said)
    assert lost, said
    assert all(f"eth{network}" in server for server in lost), said
    if servers:
        assert f"10.98.{network}." in lost[0]


def test_a_network_without_a_share_takes_over_when_the_other_is_cut() -> None:
    """It is too slow for one: its lanes have weight 0, and are there."""
    expected, _ = bits_of(f"averages({STEPS}, 0.0)", 0, "eth0")
    found, said = bits_of(f"averages({STEPS}, 0.1)", 0, BOTH, (1, 0), slow=SLOW / 20)
    assert found == expected
    lost = re.findall(r"server (.*) is lost: rank \d \(\S+\) cannot reach it", said)
    assert lost, said
    assert all("eth0" in server for server in lost), said


def test_the_network_in_which_the_ranks_have_met_may_be_cut() -> None:
    expected, _ = bits_of(f"averages({STEPS}, 0.0)", 0, "eth0")
    found, said = bits_of(f"averages({STEPS}, 0.1)", 0, BOTH, (1, 1), meets_in=1)
    assert found == expected
    lost = re.findall(r"server (.*) is lost: rank \d \(\S+\) cannot reach it", said)
    assert lost, said
    assert all("eth1" in server for server in lost), said


@pytest.mark.slow
def test_a_network_that_is_mended_is_used_again() -> None:
    with lab_job(
        RANKS,
        "work_for(40)",
        servers=2,
        rate=FAST,
        further=[SLOW],
        SHOAL_INTERFACE=BOTH,
        SHOAL_PEER_TIMEOUT=str(PEER_TIMEOUT),
    ) as job:
        host = job.lab.hosts[1]
        host.links[1].cut()
        job.wait_for(lambda: job.output(0).count("is lost") == 2, LATEST + 5)
        steps = steps_of(job)
        job.wait_for(lambda: steps_of(job) > steps + 3, 10)
        host.links[1].mend()
        job.wait_for(lambda: job.output(0).count("is used again") == 2, 30)
        before = host.links[1].counters().sent_bytes
        time.sleep(2)
        assert host.links[1].counters().sent_bytes > before + 1_000_000
        assert job.wait(60) == [0] * RANKS, job.everything()
