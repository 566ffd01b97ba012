"""Where the ranks and servers of a job are started: this machine, or another one over ssh (remote.py). A job does not tell
them apart."""

import concurrent.futures
import subprocess
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from shoal.config.addresses import default_source, is_loopback
from shoal.processes.environment import HOST, free_master_port
from shoal.processes.guard import Guard
from shoal.processes.hosts import is_own
from shoal.processes.process import Process, Watched
from shoal.processes.program import Program
from shoal.processes.servers import ServerProcess, start_server
from shoal.tuning.topology import machine


class Facts(NamedTuple):
    """What a machine says of itself: the address at which others reach it.

    ``machine``: its name among the nodes of a job (``tuning.topology``). ``client``: the address of this machine as that one sees it; "" if it does not know.
    """

    address: str
    machine: str
    client: str = ""


class HostFailed(RuntimeError):
    """A host cannot be used, or is gone; the message says which, why, and what to do."""


class StartedServer(Protocol):
    """A server that was started on a machine."""

    @property
    def process(self) -> Watched: ...

    def wait_ready(self) -> str:
        """Its ``host:port``, once it listens. Call once. Raises ServerFailed."""


class Machine(Protocol):
    """``lost``: becomes the reason when the machine cannot be reached any more; what ran there has ended then."""

    lost: concurrent.futures.Future[str]

    def wait_ready(self) -> Facts:
        """Returns when things can be started there. Raises HostFailed."""

    def master_port(self) -> int:
        """A port there that is free, and the next. Call it when the servers listen. Raises HostFailed."""

    def start_rank(self, rank: int, name: str, program: Program, environment: Mapping[str, str]) -> Watched: ...

    def start_server(self, index: int, environment: Mapping[str, str]) -> StartedServer: ...

    def pause(self) -> None:
        """This process is about to stop (Ctrl-Z); the machine is to go on meanwhile."""

    def resume(self) -> None:
        """This process goes on."""

    def second_passed(self) -> None:
        """Call this once a second: a machine that says nothing for too many of them is lost."""

    def hurry(self) -> None:
        """Everything there is to end at once: from now on the machine's silence is borne for a few seconds."""

    def close(self) -> None:
        """When everything that was started there has ended."""


class Here:
    """This machine. ``address``: at which others reach it; ``ports``: SHOAL_PORT_RANGE. Use it in a thread that lives as
    long as what is started."""

    def __init__(self, guard: Guard, ports: tuple[int, int] | None, address: str) -> None:
        self.lost: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._guard = guard
        self._ports = ports
        self._address = address

    def wait_ready(self) -> Facts:
        return Facts(self._address, machine())

    def master_port(self) -> int:
        try:
            return free_master_port(self._address, self._ports)
        except RuntimeError as error:
            raise HostFailed(str(error)) from None

    def start_rank(self, rank: int, name: str, program: Program, environment: Mapping[str, str]) -> Process:
        return Process(
            name,
            program.command,
            environment,
            self._guard,
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            hands_on=program.is_python,
        )

    def start_server(self, index: int, environment: Mapping[str, str]) -> ServerProcess:
        return start_server(index, environment, self._guard, host=self._address, port=self._ports or 0)

    def pause(self) -> None:
        """Nothing here waits for this process to move."""

    def resume(self) -> None:
        """Nothing has changed."""

    def second_passed(self) -> None:
        """The kernel says what has ended here."""

    def hurry(self) -> None:
        """Nothing here is waited for."""

    def close(self) -> None:
        """Nothing is left to be done."""


def own_address(as_seen: Iterable[str]) -> str:
    """The address of this machine that others reach: the first at which one sees it, unless that is another's (a jump host's)."""
    for address in as_seen:
        # One with a zone means nothing elsewhere.
        if address and "%" not in address and not is_loopback(address) and is_own(address):
            return address
    return default_source() or HOST
