"""A lab: hosts around one switch, made in one call and gone with the ``with`` block, or with the process.

Order of events: abandoned labs are removed; the janitor starts; namespaces, links, shapes. Closing kills what was
started, then whatever else runs on the hosts, then deletes the namespaces, and the links with them.
"""

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from shoal.testing.lab import commands, links, namespaces
from shoal.testing.lab.hosts import Host, Link
from shoal.testing.lab.links import MAX_HOSTS, Counters, Place
from shoal.testing.lab.shapes import LinkShape

MTU = 1500
_MTU_RANGE = range(576, 65536)
_labels = itertools.count()


class Lab:
    """``hosts`` hosts whose links have the shape ``shape``, or the one of ``shapes`` for a host's index.

    ``name``: a word for the names of the namespaces, so that they are recognised in ``ip netns``; once at a time in a
    process. ``mtu``: bytes of an IP packet. ``further``: networks beside the first, in which every host has a link of this shape
    (``eth1`` and so on, ``Host.links``). Raises ValueError for what cannot be; ConfigurationError where this process
    is not root's, iproute2 is not installed, or the kernel lacks what a link asks for.

    ``hosts`` is the list of hosts, by index. Use a lab in one thread. A process forked from this one may use it, but
    only this one ends it.
    """

    def __init__(
        self,
        hosts: int,
        shape: LinkShape = LinkShape(),  # noqa: B008 (frozen)
        *,
        shapes: Mapping[int, LinkShape] | None = None,
        name: str | None = None,
        mtu: int = MTU,
        further: Sequence[LinkShape] = (),
    ) -> None:
        shapes = shapes or {}
        _check(hosts, shapes, name, mtu)
        commands.require_root()
        self._ip = commands.find_tool("ip")
        namespaces.clean(self._ip)
        prefix = f"{namespaces.own_prefix()}{name or next(_labels)}-"
        if namespaces.existing(prefix):
            raise ValueError(f"this process has a lab named {name!r} already")
        switch = f"{prefix}switch"
        self._namespaces = [switch, *(f"{prefix}host{index}" for index in range(hosts))]
        self._places = [Place(index, name, switch) for index, name in enumerate(self._namespaces[1:])]
        networks = [
            self._places,
            *(self._places_in(number, f"{switch}{number}") for number in range(1, len(further) + 1)),
        ]
        self._namespaces += [places[0].switch for places in networks[1:]]
        self._owner = os.getpid()
        self._started: list[subprocess.Popen[Any]] = []
        self._closed = False
        self._janitor = namespaces.Janitor(prefix, self._ip)
        self.hosts: list[Host] = []
        try:
            commands.batch("ip", [f"netns add {name}" for name in self._namespaces])
            for places in networks:
                _build(places, mtu)
            for place in self._places:
                others = [Link(places[place.index], own) for places, own in zip(networks[1:], further, strict=True)]
                self.hosts.append(Host(place, shapes.get(place.index, shape), self._started.append, others))
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> list[str]:
        """The hosts' addresses, by index."""
        return [host.address for host in self.hosts]

    def counters(self) -> list[Counters]:
        """What every host's interface and link have counted until now, by index; cheaper than one by one."""
        return links.read_counters(self._places, self._namespaces[0])

    def close(self) -> None:
        """Kills what runs on the hosts and removes them. May be called again."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        try:
            self._kill_started()
            namespaces.remove(self._namespaces, self._ip)
        finally:
            self._janitor.close()

    def __enter__(self) -> "Lab":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _places_in(self, network: int, switch: str) -> list[Place]:
        """The same hosts in a further network."""
        return [Place(place.index, place.namespace, switch, network) for place in self._places]

    def _kill_started(self) -> None:
        # A process that is still on its way into its namespace is not found there.
        for process in self._started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        namespaces.kill_all(self._namespaces)
        for process in self._started:
            process.wait()


def _build(places: list[Place], mtu: int) -> None:
    """One network: its switch, and the hosts' links to it."""
    switch = places[0].switch
    commands.batch("ip", links.switch_lines(places, mtu), switch)
    commands.batch("bridge", links.forwarding_lines(places), switch)
    links.without_firewall(switch)
    for place in places:
        commands.batch("ip", links.host_lines(place, places), place.namespace)


def _check(hosts: int, shapes: Mapping[int, LinkShape], name: str | None, mtu: int) -> None:
    if not 1 <= hosts <= MAX_HOSTS:
        raise ValueError(f"a lab has from 1 to {MAX_HOSTS} hosts, not {hosts}")
    strangers = [index for index in shapes if not 0 <= index < hosts]
    if strangers:
        raise ValueError(f"there is no host {strangers[0]} to shape: the lab's hosts are 0 to {hosts - 1}")
    if name is not None and not re.fullmatch(r"[A-Za-z]\w{0,31}", name):
        raise ValueError(f"a lab's name is a word that begins with a letter, not {name!r}")
    if mtu not in _MTU_RANGE:
        raise ValueError(f"the MTU is a number of bytes from {_MTU_RANGE.start} to {_MTU_RANGE[-1]}, not {mtu}")
