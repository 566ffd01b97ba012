"""Starting the processes of a benchmark at a place: the dedicated servers, and each contestant's ranks."""

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.bench.conductor import BenchError, Player, Stage
from shoal.bench.places import Place, Running
from shoal.bench.plan import Plan
from shoal.processes import describe_exit

START_SECONDS = 120.0
_TAIL_CHARACTERS = 3000
# Variables by which a process could take itself for a rank of somebody else's job.
_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_FD",
)
_LAUNCHER_PREFIXES = ("SHOAL_", "TORCHELASTIC_", "OMPI_", "PMIX_", "HYDRA_", "MPI_LOCAL", "SLURM_")


@dataclass
class Troupe:
    """Everything that was started, and where its output is. ``alive`` raises when one of them has ended."""

    place: Place
    stage: Stage
    folder: Path
    _running: dict[str, tuple[Running, Path]] = field(default_factory=dict)

    def start(self, host: int, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Running:
        output = self.folder / f"{name.replace(' ', '-')}.txt"
        running = self.place.start(host, name, command, environment, output)
        self._running[name] = (running, output)
        return running

    def alive(self) -> None:
        """Raises BenchError with the end of what it wrote, if a process has ended."""
        for name, (running, output) in self._running.items():
            code = running.exit_code()
            if code is not None:
                raise BenchError(f"{name} {describe_exit(code)}\n{_tail(output)}")

    def tail(self, name: str) -> str:
        """The end of what a process wrote."""
        return _tail(self._running[name][1])

    def member_command(self, contestant: str, hosts: str | Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
        """A rank of a contestant; ``hosts`` is its own address, or all ranks' where it does not know its rank yet."""
        asked = {
            "control": self.stage.address,
            "token": self.stage.token,
            "contestant": contestant,
            "arguments": dict(arguments),
            "host": hosts,
        }
        return [sys.executable, "-m", "shoal.bench.member", json.dumps(asked)]


def base_environment() -> dict[str, str]:
    """This process's, without what belongs to another job, and with one thread a rank for libraries that ask."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHERS and not name.startswith(_LAUNCHER_PREFIXES)
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def start_shoal(troupe: Troupe, plan: Plan) -> tuple[list[Player], list[int]]:
    """Dedicated servers and ranks. The processes by rank, and the servers' process ids."""
    place = troupe.place
    environment = base_environment() | {"SHOAL_SECRET": secrets.token_hex(32), **plan.environment}
    servers, pids = _start_servers(troupe, environment)
    meeting = f"{place.address(0)}:{place.free_ports(0, 1)}"
    for rank in range(place.nodes):
        own = environment | {
            "RANK": str(rank),
            "WORLD_SIZE": str(place.nodes),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "SHOAL_RENDEZVOUS": meeting,
        }
        if servers:
            own["SHOAL_SERVERS"] = ",".join(servers)
        command = troupe.member_command("shoal", place.address(rank), {"limits": dict(plan.limits)})
        troupe.start(rank, f"shoal rank {rank}", command, own)
    return troupe.stage.admit(place.nodes, START_SECONDS, troupe.alive), pids


def start_gloo(troupe: Troupe) -> list[Player]:
    """Ranks of torch.distributed with gloo, which meet in a store of rank 0."""
    place = troupe.place
    environment = base_environment() | {"GLOO_SOCKET_IFNAME": place.interface()}
    port = place.free_ports(0, 1)
    for rank in range(place.nodes):
        store = {"host": place.address(0), "port": port, "rank": rank, "size": place.nodes}
        command = troupe.member_command("gloo", place.address(rank), {"store": store})
        troupe.start(rank, f"gloo rank {rank}", command, environment)
    return troupe.stage.admit(place.nodes, START_SECONDS, troupe.alive)


def _start_servers(troupe: Troupe, environment: Mapping[str, str]) -> tuple[list[str], list[int]]:
    place = troupe.place
    running, ready = [], []
    own = {
        name: value
        for name, value in environment.items()
        if not name.startswith("SHOAL_") or name in ("SHOAL_SECRET", "SHOAL_LOG")
    }
    for index in range(place.servers):
        host = place.nodes + index
        command = [sys.executable, "-m", "shoal.cli", "server", "--host", place.address(host), "--port", "0"]
        running.append(troupe.start(host, f"server {index}", command, own))
        ready.append(f"server {index}")
    return [_listening_at(troupe, name) for name in ready], [process.pid for process in running]


def _listening_at(troupe: Troupe, name: str) -> str:
    """What a server says once it listens. Raises BenchError."""
    deadline = time.monotonic() + START_SECONDS
    words = "listening on "
    while time.monotonic() < deadline:
        for line in troupe.tail(name).splitlines():
            if words in line:
                return line.split(words)[1].split(",")[0]
        troupe.alive()
        time.sleep(0.02)
    raise BenchError(f"{name} did not listen in {START_SECONDS:g} s\n{troupe.tail(name)}")


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_TAIL_CHARACTERS:].strip() if path.exists() else ""
