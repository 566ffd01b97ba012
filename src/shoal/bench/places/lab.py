"""A lab (``shoal.testing.lab``): a host for every rank and every server, on links of the speeds asked for. Needs root."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.bench.plan import parse_pairs
from shoal.bench.report import Network
from shoal.bench.watch import Links, Watch
from shoal.errors import ConfigurationError
from shoal.testing.lab import Lab, LinkShape, parse_rate, parse_size

# Hosts of a lab are ours alone: no port of theirs is taken before we take it.
_FIRST_PORT = 20000
_INTERFACE = "eth0"
_WORDS = "nodes, ranks, servers, rate, queue, burst, offload, cc, slow_start_after_idle, slow"


@dataclass(frozen=True)
class LabShape:
    """``ranks``: on each node. ``link``: every host's; ``slow``: host → rate in bits per second, where it differs. Servers come after nodes."""

    nodes: int
    servers: int = 0
    link: LinkShape = field(default_factory=LinkShape)
    slow: Mapping[int, float] = field(default_factory=dict)
    ranks: int = 1

    @staticmethod
    def parse(text: str) -> "LabShape":
        """``nodes=8,ranks=1,servers=8,rate=400mbit,queue=256kb,burst=128kb,offload=64kb,cc=reno,slow=3:200mbit+9:100mbit``.

        Raises ConfigurationError.
        """
        pairs = parse_pairs(text)
        try:
            nodes, servers = int(pairs.pop("nodes")), int(pairs.pop("servers", "0"))
            ranks = int(pairs.pop("ranks", "1"))
            link = LinkShape(
                rate=parse_rate(pairs.pop("rate")) if "rate" in pairs else None,
                congestion_control=pairs.pop("cc", None),
                slow_start_after_idle=_is_on(pairs.pop("slow_start_after_idle", "on")),
            )
            if "queue" in pairs:
                link = replace(link, queue=parse_size(pairs.pop("queue")))
            if "burst" in pairs:
                link = replace(link, burst=parse_size(pairs.pop("burst")))
            if "offload" in pairs:
                link = replace(link, offload=parse_size(pairs.pop("offload")))
            slow = _parse_slow(pairs.pop("slow", ""))
        except (KeyError, ValueError) as error:
            why = "nodes is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(f"--lab {text!r}: {why}") from None
        if pairs:
            raise ConfigurationError(f"--lab {text!r}: {next(iter(pairs))!r} is not one of {_WORDS}")
        shape = LabShape(nodes, servers, link, slow, ranks)
        shape.check()
        return shape

    def check(self) -> None:
        """Raises ConfigurationError for what cannot be."""
        if self.nodes < 2 or self.servers < 0 or self.ranks < 1:
            raise ConfigurationError(
                f"a lab of {self.nodes} nodes of {self.ranks} ranks and {self.servers} servers: take 2 nodes or more, of a rank or more"
            )
        if self.slow and self.link.rate is None:
            raise ConfigurationError("slow= needs rate=, the speed of the other links")
        for host in self.slow:
            if not 0 <= host < self.nodes + self.servers:
                raise ConfigurationError(
                    f"there is no host {host} to be slow: nodes are 0 to {self.nodes - 1}, servers come after them"
                )

    def factors(self) -> list[float]:
        """Each host's speed as a multiple of ``link``'s."""
        rate = self.link.rate or 1.0
        return [self.slow.get(host, rate) / rate for host in range(self.nodes + self.servers)]


class LabProcess:
    """A process on a host of the lab."""

    def __init__(self, process: "subprocess.Popen[Any]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)


class LabPlace:
    name = "lab"

    def __init__(self, shape: LabShape) -> None:
        """Raises ConfigurationError where a lab cannot be made: not root, no iproute2, a kernel without shapers."""
        self.nodes = shape.nodes
        self.ranks_each = shape.ranks
        self.servers = shape.servers
        self._shape = shape
        slow = {host: replace(shape.link, rate=rate) for host, rate in shape.slow.items()}
        self._lab = Lab(shape.nodes + shape.servers, shape.link, shapes=slow)
        self._next_port = _FIRST_PORT

    @property
    def lab(self) -> Lab:
        """For what a script wants to do to links while it measures."""
        return self._lab

    def address(self, host: int) -> str:
        return self._lab.hosts[host].address

    def interface(self) -> str:
        return _INTERFACE

    def free_ports(self, host: int, count: int) -> int:
        first = self._next_port
        self._next_port += count
        return first

    def wrap(self, host: int, command: Sequence[str]) -> list[str]:
        return self._lab.hosts[host].command(list(command))

    def start(
        self, host: int, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> LabProcess:
        with output.open("wb") as file:
            process = self._lab.hosts[host].start(
                list(command), env=dict(environment), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        return LabProcess(process)

    def watch(self, server_pids: Sequence[int]) -> Watch:
        return Watch(server_pids, machine=True, links=self._links)

    def network(self, rate: float) -> Network:
        factors = self._shape.factors()
        return Network(
            # The flow that was measured went between the first two hosts.
            rate / min(factors[:2]),
            shaped=self._shape.link.rate is not None,
            burst=self._shape.link.burst if self._shape.link.rate is not None else 0,
            node_factors=tuple(factors[: self.nodes]),
            server_factors=tuple(factors[self.nodes :]),
        )

    def facts(self) -> dict[str, str]:
        link = self._shape.link
        facts = {"place": f"lab of network namespaces, {self._nodes_text()}, {self.servers} dedicated servers"}
        if link.rate is None:
            facts["links"] = "unshaped"
        else:
            facts["links"] = f"{link.rate / 1e6:g} Mbit/s, queue {link.queue} B, burst {link.burst} B"
        if self._shape.slow:
            facts["slow links"] = ", ".join(f"host {i}: {rate / 1e6:g} Mbit/s" for i, rate in self._shape.slow.items())
        if link.congestion_control is not None:
            facts["congestion control"] = link.congestion_control
        return facts

    def _nodes_text(self) -> str:
        return f"{self.nodes} nodes" + (f" of {self.ranks_each} ranks" if self.ranks_each > 1 else "")

    def close(self) -> None:
        self._lab.close()

    def _links(self) -> Links:
        counters = self._lab.counters()
        return Links(
            sum(host.sent_bytes if host.sent_on_wire is None else host.sent_on_wire for host in counters),
            sum(host.dropped_sending + host.dropped_receiving for host in counters),
        )


def _is_on(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(f"slow_start_after_idle is on or off, not {text!r}")
    return text == "on"


def _parse_slow(text: str) -> dict[int, float]:
    slow: dict[int, float] = {}
    for part in filter(None, text.split("+")):
        host, colon, rate = part.partition(":")
        if not colon or not host.isdecimal():
            raise ValueError(f"slow={text} is not of the form slow=3:200mbit or slow=3:200mbit+9:100mbit")
        slow[int(host)] = parse_rate(rate)
    return slow
