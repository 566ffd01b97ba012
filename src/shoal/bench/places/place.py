"""What the benchmark needs of a place: hosts that have addresses and run programs. Nodes come first, then servers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal.bench.report import Network
from shoal.bench.watch import Watch


class Running(Protocol):
    """A program that was started at a place. It does not outlive the place."""

    @property
    def pid(self) -> int:
        """Of the program itself, not of something around it."""

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""

    def stop(self) -> None:
        """Asks it to end (SIGTERM). What it started lives until the place is closed."""


class Place(Protocol):
    """``nodes`` hosts with ``ranks_each`` ranks of each contestant, ``servers`` hosts with a dedicated server each.

    Ranks of one host may share memory, ranks of different hosts are not told that they could.
    """

    name: str
    nodes: int
    ranks_each: int
    servers: int

    def address(self, host: int) -> str:
        """Of one of the hosts, as the others reach it."""

    def interface(self) -> str:
        """The name of every host's network interface."""

    def free_ports(self, host: int, count: int) -> int:
        """The first of so many ports in a row that nobody uses on that host."""

    def wrap(self, host: int, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` on a host."""

    def start(
        self, host: int, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> Running:
        """Runs a program on a host, with this environment and no other; both its outputs go to a file."""

    def watch(self, server_pids: Sequence[int]) -> Watch: ...
    def network(self, rate: float) -> Network:
        """The links, given the payload rate of one flow between the first two hosts."""

    def facts(self) -> dict[str, str]:
        """The shape of the place, for the report."""

    def close(self) -> None: ...
