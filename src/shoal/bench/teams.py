"""Starting the processes of a benchmark at a place, and keeping what they write. ``shoal_teams`` and ``mpi_teams`` start theirs with it."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.bench.conductor import BenchError, Player, Stage
from shoal.bench.contestants.torch_ranks import GLOO_INTERFACES, GLOO_LAZY
from shoal.bench.places import Place, Running
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
    """Everything that was started, and where its output is. ``alive`` raises when one of them has ended.

    ``program``: what Python runs on each rank, with one more argument (``member_command``). ``task``: what it is told
    besides, whatever JSON can carry.
    """

    place: Place
    stage: Stage
    folder: Path
    program: Sequence[str] = ("-m", "shoal.bench.member")
    task: Mapping[str, Any] = field(default_factory=dict)
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

    def member_command(
        self,
        contestant: str,
        hosts: str | Sequence[str],
        arguments: Mapping[str, Any],
        python: str = sys.executable,
    ) -> list[str]:
        """A rank of a contestant; ``hosts`` is its own address, or all ranks' where it does not know its rank yet."""
        asked = {
            "control": self.stage.address,
            "token": self.stage.token,
            "contestant": contestant,
            "arguments": dict(arguments),
            "host": hosts,
            "task": dict(self.task),
        }
        return [python, *self.program, json.dumps(asked)]


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


def hosts_of_ranks(place: Place) -> list[int]:
    """By rank: neighbours are on one host as far as it goes."""
    return [host for host in range(place.nodes) for _ in range(place.ranks_each)]


# "gloo wide": the interface as often as this, which is so many connections between two ranks, and so many threads.
WIDTH = 4


def start_gloo(troupe: Troupe, name: str = "gloo") -> list[Player]:
    """Ranks of torch.distributed with gloo, which meet in a store of rank 0.

    ``name``: ``gloo``; ``gloo lazy``, whose ranks connect when they need to; ``gloo wide``, with several connections.
    """
    place = troupe.place
    environment = base_environment() | {GLOO_INTERFACES: place.interface()}
    environment.pop(GLOO_LAZY, None)
    if name == "gloo wide":
        environment[GLOO_INTERFACES] = ",".join([place.interface()] * WIDTH)
    elif name == "gloo lazy":
        environment[GLOO_LAZY] = "1"
    port = place.free_ports(0, 1)
    hosts = hosts_of_ranks(place)
    for rank, host in enumerate(hosts):
        store = {"host": place.address(0), "port": port, "rank": rank, "size": len(hosts)}
        command = troupe.member_command(name, place.address(host), {"store": store})
        troupe.start(host, f"{name} rank {rank}", command, environment)
    return troupe.stage.admit(len(hosts), START_SECONDS, troupe.alive)


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_TAIL_CHARACTERS:].strip() if path.exists() else ""
