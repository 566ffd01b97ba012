"""This machine: every rank counts as a node, or all are on one; nothing is shaped, no root is needed."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.bench.plan import parse_pairs
from shoal.bench.report import Network
from shoal.bench.watch import Watch, loopback_links
from shoal.errors import ConfigurationError
from shoal.processes import Guard, Process, free_master_port
from shoal.processes.environment import HOST


class LocalProcess:
    """A process in a group of its own."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        return None if self._process.running() else self._process.exit.result()

    def stop(self) -> None:
        self._process.signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.finish()


class LocalPlace:
    """Use it in the main thread: the kernel ends the processes with the thread that started them."""

    name = "loopback"

    def __init__(self, nodes: int, servers: int = 0, *, one_machine: bool = False) -> None:
        if nodes < 2 or servers < 0:
            raise ConfigurationError(f"{nodes} ranks and {servers} servers: take 2 ranks or more")
        if one_machine and servers:
            raise ConfigurationError(
                "where all ranks are one node there is nothing for a server to do: leave out servers="
            )
        self.nodes = 1 if one_machine else nodes
        self.ranks_each = nodes if one_machine else 1
        self.servers = servers
        self._guard = Guard()
        self._processes: list[LocalProcess] = []

    @staticmethod
    def parse(text: str) -> "LocalPlace":
        """``n=4,servers=2`` or ``n=4,nodes=1``. Raises ConfigurationError."""
        pairs = parse_pairs(text)
        try:
            ranks, servers = int(pairs.pop("n")), int(pairs.pop("servers", "0"))
            nodes = int(pairs.pop("nodes", str(ranks)))
        except (KeyError, ValueError):
            raise ConfigurationError(f"--local {text!r} is not of the form n=4,servers=2") from None
        if pairs:
            raise ConfigurationError(f"--local {text!r}: {next(iter(pairs))!r} is neither n nor nodes nor servers")
        if nodes not in (1, ranks):
            raise ConfigurationError(
                f"--local {text!r}: all ranks are one node, or each is one: take nodes=1 or nodes={ranks}"
            )
        return LocalPlace(ranks, servers, one_machine=nodes == 1 and ranks > 1)

    @property
    def pids(self) -> list[int]:
        """Of everything that was started, in that order."""
        return [process.pid for process in self._processes]

    def address(self, host: int) -> str:
        return HOST

    def interface(self) -> str:
        return "lo"

    def free_ports(self, host: int, count: int) -> int:
        assert count <= 2
        return free_master_port()

    def wrap(self, host: int, command: Sequence[str]) -> list[str]:
        return list(command)

    def start(
        self, host: int, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> LocalProcess:
        with output.open("wb") as file:
            process = LocalProcess(Process(name, command, environment, self._guard, stdout=file, stderr=file))
        self._processes.append(process)
        return process

    def watch(self, server_pids: Sequence[int]) -> Watch:
        return Watch(server_pids, machine=True, links=loopback_links)

    def network(self, rate: float) -> Network:
        return Network(rate, shaped=False, node_factors=(1.0,) * self.nodes, server_factors=(1.0,) * self.servers)

    def facts(self) -> dict[str, str]:
        if self.ranks_each > 1:
            return {"place": f"one machine, {self.ranks_each} ranks as one node"}
        return {"place": f"loopback of one machine, {self.nodes} ranks as nodes, {self.servers} dedicated servers"}

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._guard.close()
