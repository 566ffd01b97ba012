"""Ranks meet at whatever name the launcher gives: several addresses of which some lead nowhere, a service's address, a name that
means the loopback on rank 0's machine. Real jobs on a lab's hosts, which need root.
"""

import contextlib
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab_hosts import needs_lab

from shoal.testing.lab import Host, Lab, commands, links

pytestmark = needs_lab

PORT = 7000
PROGRAM = """
import numpy as np, shoal
shoal.init()
gathered = shoal.allgather(np.array([float(shoal.rank())]))  # from rank to rank
print("gathered", *gathered.astype(int), "summed", int(shoal.allreduce(1.0, op="sum")), flush=True)
shoal.shutdown()
"""
RELAY = "import sys, time, relay; relay.Relay(sys.argv[1], host='0.0.0.0', port=int(sys.argv[2])); time.sleep(600)"


@dataclass(frozen=True)
class Place:
    """Where a rank is, and what it is told."""

    host: Host
    master: str
    local_rank: int = 0
    local_size: int = 1


@dataclass
class Job:
    processes: list["subprocess.Popen[bytes]"]
    outputs: list[Path]

    def wait(self, seconds: float = 40.0) -> list[int]:
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self.processes):
            assert time.monotonic() < deadline, self.everything()
            time.sleep(0.02)
        return [process.returncode for process in self.processes]

    def output(self, rank: int) -> str:
        return self.outputs[rank].read_text()

    def everything(self) -> str:
        return "\n".join(f"--- rank {rank}\n{path.read_text()}" for rank, path in enumerate(self.outputs))

    def assert_all_met(self, size: int) -> None:
        assert self.wait() == [0] * size, self.everything()
        ranks = " ".join(map(str, range(size)))
        for rank in range(size):
            assert f"gathered {ranks} summed {size}" in self.output(rank), self.everything()


@contextlib.contextmanager
def started(places: list[Place], size: int | None = None, **environment: str) -> Iterator[Job]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "MASTER_"))}
    clean |= {"PYTHONPATH": str(Path(__file__).parent), "SHOAL_SECRET": secrets.token_hex(16), **environment}
    first = 0 if size is None else 1  # without rank 0
    with tempfile.TemporaryDirectory() as folder:
        job = Job([], [])
        for rank, place in enumerate(places, first):
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size or len(places)),
                "LOCAL_RANK": str(place.local_rank),
                "LOCAL_WORLD_SIZE": str(place.local_size),
                "MASTER_ADDR": place.master,
                "MASTER_PORT": str(PORT - 1),
            }
            path = Path(folder) / str(rank)
            with path.open("wb") as output:
                job.processes.append(
                    place.host.start(
                        [sys.executable, "-c", PROGRAM], env=clean | own, stdout=output, stderr=subprocess.STDOUT
                    )
                )
            job.outputs.append(path)
        try:
            yield job
        finally:
            for process in job.processes:
                process.kill()
                process.wait()


def with_a_filtered_ipv6(lab: Lab) -> None:
    """Every host finds two addresses under "head": an IPv6 address of the first host, to which nothing gets, and its IPv4's."""
    for host in lab.hosts:
        commands.batch("ip", [f"address add fd98::{host.index + 1}/64 dev eth0 nodad"], host.namespace)
        host.knows({"head": ["fd98::1", lab.addresses[0]]})
        if host.index > 0:
            unknown = f"neighbour add fd98::1 lladdr {links.NOBODY} dev eth0 nud permanent"
            commands.batch("ip", [unknown], host.namespace)


def test_a_name_whose_first_address_is_filtered() -> None:
    with Lab(2) as lab:
        with_a_filtered_ipv6(lab)
        with started([Place(host, "head") for host in lab.hosts]) as job:
            job.assert_all_met(2)
            assert "still trying" not in job.everything()


@pytest.mark.slow
def test_a_server_whose_names_first_address_is_filtered() -> None:
    with Lab(3) as lab:
        with_a_filtered_ipv6(lab)
        secret = {"SHOAL_SECRET": secrets.token_hex(16)}
        command = [sys.executable, "-m", "shoal.cli", "server", "--host", "head"]
        lab.hosts[0].start(command, env={**os.environ, **secret}, stdout=subprocess.DEVNULL)
        places = [Place(host, lab.addresses[1]) for host in lab.hosts[1:]]
        with started(places, **secret, SHOAL_SERVERS="head:7077", SHOAL_COLOCATED="never") as job:
            job.assert_all_met(2)


@pytest.mark.slow
def test_an_error_tells_of_every_address_of_the_name() -> None:
    with Lab(2) as lab:
        with_a_filtered_ipv6(lab)
        with started([Place(lab.hosts[1], "head")], size=2, SHOAL_TIMEOUT="9") as job:
            assert job.wait() == [1]
            said = job.output(0)
    tried = rf"\(\[fd98::1\]:{PORT}: no answer for 7.5 s; {lab.addresses[0]}:{PORT}: Connection refused\)"
    assert re.search(rf"Timeout: rank 1 could not reach rank 0 at head:{PORT} for \d+ s {tried}", said), said


@pytest.mark.slow
def test_a_services_address_that_no_machine_has() -> None:
    """As the ClusterIP of a service of Kubernetes: something forwards its connections to rank 0's machine."""
    with Lab(4) as lab:
        service = lab.hosts[3]
        relay = [sys.executable, "-c", RELAY, f"{lab.addresses[0]}:{PORT}", str(PORT)]
        service.start(relay, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)})
        with started([Place(host, service.address) for host in lab.hosts[:3]]) as job:
            job.assert_all_met(3)
            assert f"listens at port {PORT} of every address" in job.output(0)


@pytest.mark.slow
@pytest.mark.parametrize("own", ["localhost", "head"])
def test_a_name_that_means_the_loopback_on_rank_zeros_machine(own: str) -> None:
    """As Debian writes it into /etc/hosts, and as operators of Kubernetes tell the first rank. Its neighbour is met as well."""
    with Lab(3) as lab:
        lab.hosts[0].knows({"head": ["127.0.1.1"]})
        for host in lab.hosts[1:]:
            host.knows({"head": [lab.addresses[0]]})
        first = [Place(lab.hosts[0], own, local_rank, 2) for local_rank in range(2)]
        with started([*first, *(Place(host, "head") for host in lab.hosts[1:])]) as job:
            job.assert_all_met(4)
