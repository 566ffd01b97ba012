"""One host of a lab: runs programs, and has a link to each network that can be cut, mended, reshaped and read."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.testing.lab import commands, links, namespaces
from shoal.testing.lab.links import Counters, Place
from shoal.testing.lab.shapes import LinkShape

Started = Callable[["subprocess.Popen[Any]"], None]


class Link:
    """A host's interface in one of the lab's networks. ``interface``: its name; ``address``: IPv4; ``shape``: the link's."""

    def __init__(self, place: Place, shape: LinkShape) -> None:
        self.interface = place.interface
        self.address = place.address
        self.namespace = place.namespace
        self.shape = LinkShape()
        self._place = place
        self.reshape(shape)

    def cut(self) -> None:
        """Unplugs the cable: what waits in the queues is lost, nothing passes in either direction until ``mend``.

        The host sees its interface lose the carrier, and keeps its address, its connections and the link's shape.
        """
        commands.batch("ip", [f"link set {self._place.port} down"], self._place.switch)

    def mend(self) -> None:
        """Plugs the cable in again."""
        commands.batch("ip", [f"link set {self._place.port} up"], self._place.switch)

    def reshape(self, shape: LinkShape) -> None:
        """Changes rates, queues and burst at once, congestion control and offload for new connections.

        Raises ConfigurationError where the kernel has no shaper, or not that congestion control.
        """
        before = self.shape
        commands.batch("tc", links.sending_lines(self._place, shape, before), self.namespace)
        commands.batch("tc", links.receiving_lines(self._place, shape, before), self._place.switch)
        commands.batch("ip", links.offload_lines(self._place, shape, before), self.namespace)
        if shape.congestion_control != before.congestion_control:
            name = shape.congestion_control or links.machines_congestion_control()
            links.set_congestion_control(self._place, name)
        if shape.slow_start_after_idle != before.slow_start_after_idle:
            links.set_slow_start_after_idle(self._place, shape.slow_start_after_idle)
        self.shape = shape

    def counters(self) -> Counters:
        """What the interface and the shapers at both ends of the link have counted until now."""
        return links.read_counters([self._place], self._place.switch)[0]


class Host(Link):
    """A network namespace with an interface in each network of the lab. Made by ``Lab``.

    It shares everything else with the machine: files, /etc/hosts (unless ``knows`` says otherwise), the host's name, /dev/shm, process numbers, CPU time.
    ``index`` counts from 0; ``name`` is ``host0`` and so on, for people; ``address`` is its IPv4 address; ``namespace``
    is what ``ip netns`` calls it; ``shape`` is its link's in the first network; ``links`` has one in each network, that
    one first.
    """

    def __init__(self, place: Place, shape: LinkShape, started: Started, further: Sequence[Link] = ()) -> None:
        super().__init__(place, shape)
        self.index = place.index
        self.name = f"host{place.index}"
        self.links: list[Link] = [self, *further]
        self._started = started

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs a program on this host: for ``subprocess``, or behind a launcher of your own.

        ``ip netns exec`` becomes the program: its process number, signals and exit code are the program's. The network
        in /proc and /sys is the host's own.
        """
        return commands.inside(self.namespace, arguments)

    def start(self, arguments: Sequence[str], **popen: Any) -> "subprocess.Popen[Any]":
        """Starts a program on this host and does not wait for it; it is killed, with its children, with the lab.

        ``popen``: as for ``subprocess.Popen``; unless it says otherwise, the program has a session of its own, so that
        a terminal's Ctrl-C does not reach it.
        """
        process = subprocess.Popen(self.command(arguments), **{"start_new_session": True, **popen})
        self._started(process)
        return process

    def knows(self, names: Mapping[str, Sequence[str]]) -> None:
        """What programs that are started here from now on find under some names: their addresses, instead of /etc/hosts."""
        lines = [f"{address} {name}" for name, addresses in names.items() for address in addresses]
        namespaces.write_hosts(self.namespace, "".join(f"{line}\n" for line in ["127.0.0.1 localhost", *lines]))

    def cut_from(self, other: "Host") -> None:
        """Lets nothing pass between this host and one other, in either direction, until ``mend_to``: a partial partition.

        Neither sees anything but silence: what is sent is dropped by the switch.
        """
        self._reach(other, reachable=False)

    def mend_to(self, other: "Host") -> None:
        """Lets the two reach each other again."""
        self._reach(other, reachable=True)

    def _reach(self, other: "Host", *, reachable: bool) -> None:
        commands.batch("ip", links.reaching_lines(other._place, reachable=reachable), self.namespace)
        commands.batch("ip", links.reaching_lines(self._place, reachable=reachable), other.namespace)

    def __repr__(self) -> str:
        return f"<{self.name} at {self.address} in {self.namespace}>"
