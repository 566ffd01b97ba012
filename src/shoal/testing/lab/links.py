"""The link between a host and the switch: a veth pair, shaped at both ends, and its counters.

What leaves an interface is what a shaper can hold back, so the host's end (``eth0``, in the host's namespace) shapes
what the host sends, and the switch's end (``port3``, in the switch's namespace) what it receives. Functions here give
the lines of ``ip``, ``tc`` and ``bridge`` that make a link; who runs them decides how many go into one process.
"""

import os
from dataclasses import dataclass
from typing import Any

from shoal.errors import ConfigurationError
from shoal.testing.lab import commands
from shoal.testing.lab.shapes import LinkShape

SWITCH = "switch"
MAX_HOSTS = 250
NOBODY = "02:00:0a:62:ff:ff"  # no host's hardware address: the switch drops what is sent to it

_FIREWALL_ON_BRIDGES = "net/bridge/bridge-nf-call-iptables"
_CONGESTION_CONTROL = "net/ipv4/tcp_congestion_control"
_SLOW_START_AFTER_IDLE = "net/ipv4/tcp_slow_start_after_idle"


@dataclass(frozen=True)
class Place:
    """Where a host is on a network: everything that follows from its index and the lab's name."""

    index: int
    namespace: str
    switch: str  # the switch's namespace
    network: int = 0  # which of the lab's

    @property
    def interface(self) -> str:
        return f"eth{self.network}"

    @property
    def address(self) -> str:
        return f"10.98.{self.network}.{self.index + 1}"

    @property
    def mac(self) -> str:
        return f"02:00:0a:62:{self.network:02x}:{self.index + 1:02x}"

    @property
    def port(self) -> str:
        return f"port{self.index}"


@dataclass(frozen=True)
class Counters:
    """What a host's interface has sent and received since the lab began, and what its link has dropped.

    Bytes are those of Ethernet frames as the interface sees them: data that segmentation offload leaves in one piece of
    up to 64 KB counts as one packet with one header. ``sent_on_wire`` and ``received_on_wire`` are the bytes that the
    shaper of that direction let through, for which it took the link's time: of all frames that a network card makes of
    such a piece, each with its headers. ``dropped_sending`` and ``dropped_receiving`` are the packets for which there was
    no room in the queue of that direction. What shapers count, they count since that direction was last unshaped; None:
    it is unshaped.
    """

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    sent_on_wire: int | None
    received_on_wire: int | None
    dropped_sending: int
    dropped_receiving: int


def switch_lines(places: list[Place], mtu: int) -> list[str]:
    """ip: the switch with its ports, each joined to the host's end, in the switch's namespace.

    The switch learns and guesses nothing (``forwarding_lines`` tells it who is where), and no interface has an IPv6
    address: nothing is on the wire but what the hosts send.
    """
    lines = [
        f"link add {SWITCH} mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        *_without_ipv6(SWITCH),
        f"link set {SWITCH} up",
    ]
    for place in places:
        peer = f"{place.interface} mtu {mtu} address {place.mac} netns {place.namespace}"
        lines += [
            f"link add {place.port} mtu {mtu} type veth peer name {peer}",
            *_without_ipv6(place.port),
            f"link set {place.port} master {SWITCH}",
            f"link set {place.port} type bridge_slave learning off flood off",
            f"link set {place.port} up",
        ]
    return lines


def forwarding_lines(places: list[Place]) -> list[str]:
    """bridge: which host is behind which port."""
    return [f"fdb add {place.mac} dev {place.port} master static" for place in places]


def without_firewall(switch: str) -> None:
    """Packets that cross the switch pass no firewall's hooks: a switch has none, and they cost processor time.

    Where the kernel has no such setting (module br_netfilter) they pass none anyway.
    """
    commands.write_setting(switch, _FIREWALL_ON_BRIDGES, "0")


def host_lines(place: Place, places: list[Place]) -> list[str]:
    """ip: the host's address and the other hosts', in its namespace. Nobody has to ask, whatever is being dropped."""
    return [
        "link set lo up",
        *_without_ipv6(place.interface),
        f"address add {place.address}/24 dev {place.interface}",
        f"link set {place.interface} up",
        *(
            f"neighbour add {other.address} lladdr {other.mac} dev {place.interface} nud permanent"
            for other in places
            if other is not place
        ),
    ]


def reaching_lines(other: Place, *, reachable: bool) -> list[str]:
    """ip, in a host's namespace: whether what it sends to another host gets there, or to an address that nobody has."""
    mac = other.mac if reachable else NOBODY
    return [f"neighbour replace {other.address} lladdr {mac} dev {other.interface} nud permanent"]


def sending_lines(place: Place, shape: LinkShape, before: LinkShape) -> list[str]:
    """tc, in the host's namespace: what the host sends."""
    room = f"burst {shape.burst} limit {shape.sending_queue}"
    return _shaper_lines(place.interface, shape.sending, before.sending, room)


def receiving_lines(place: Place, shape: LinkShape, before: LinkShape) -> list[str]:
    """tc, in the switch's namespace: what the host receives."""
    return _shaper_lines(place.port, shape.receiving, before.receiving, f"burst {shape.burst} limit {shape.queue}")


def offload_lines(place: Place, shape: LinkShape, before: LinkShape) -> list[str]:
    """ip, in the host's namespace: how large a piece of new connections' data is."""
    if shape.largest_piece == before.largest_piece:
        return []
    return [f"link set {place.interface} gso_max_size {shape.largest_piece}"]


def _shaper_lines(device: str, rate: float | None, rate_before: float | None, room: str) -> list[str]:
    if rate is None:
        return [] if rate_before is None else [f"qdisc delete dev {device} root"]
    # Replacing a shaper by its like changes the one that is there, with what waits in it and its counters.
    return [f"qdisc replace dev {device} root tbf rate {round(rate)}bit {room}"]


def set_congestion_control(place: Place, name: str) -> None:
    """For the host's new TCP connections. Raises ConfigurationError, with what there is, where the kernel refuses."""
    if not commands.write_setting(place.namespace, _CONGESTION_CONTROL, name):
        raise ConfigurationError(
            f"the kernel does not let a lab use the congestion control {name!r}: it has "
            f"{_setting('tcp_available_congestion_control')}, and allows in network namespaces "
            f"{_setting('tcp_allowed_congestion_control')} (for another: modprobe tcp_{name}, then add it to "
            "net.ipv4.tcp_allowed_congestion_control)"
        )


def set_slow_start_after_idle(place: Place, on: bool) -> None:
    """For all of the host's TCP connections. Raises ConfigurationError."""
    if not commands.write_setting(place.namespace, _SLOW_START_AFTER_IDLE, str(int(on))):
        raise ConfigurationError(f"the kernel does not let a lab change {_SLOW_START_AFTER_IDLE.replace('/', '.')}")


def machines_congestion_control() -> str:
    return _setting("tcp_congestion_control")


def read_counters(places: list[Place], switch: str) -> list[Counters]:
    """The counters of some hosts of the lab whose switch's namespace is ``switch``, in their order."""
    links = {link["ifname"]: link["stats64"] for link in commands.query("ip", ["-s", "link", "show"], switch)}
    receiving = _shapers(switch)
    return [_counters(place, links[place.port], receiving.get(place.port)) for place in places]


def _counters(place: Place, statistics: dict[str, dict[str, Any]], receiving: dict[str, Any] | None) -> Counters:
    sending = _shapers(place.namespace).get(place.interface)
    sent, received = statistics["rx"], statistics["tx"]  # the switch's end receives what the host sends
    return Counters(
        sent_bytes=sent["bytes"],
        received_bytes=received["bytes"],
        sent_packets=sent["packets"],
        received_packets=received["packets"],
        sent_on_wire=None if sending is None else sending["bytes"],
        received_on_wire=None if receiving is None else receiving["bytes"],
        dropped_sending=0 if sending is None else sending["drops"],
        dropped_receiving=0 if receiving is None else receiving["drops"],
    )


def _shapers(namespace: str) -> dict[str, dict[str, Any]]:
    """What the shapers of a namespace have counted, by device."""
    shapers = commands.query("tc", ["-s", "qdisc", "show"], namespace)
    return {shaper["dev"]: shaper for shaper in shapers if shaper["kind"] == "tbf"}


def _without_ipv6(device: str) -> list[str]:
    # Before the interface is up, or it has announced itself already. A kernel without IPv6 has nothing to turn off.
    return [f"link set {device} addrgenmode none"] if os.path.exists("/proc/sys/net/ipv6") else []  # noqa: PTH110


def _setting(name: str) -> str:
    with open(f"/proc/sys/net/ipv4/{name}") as file:  # noqa: PTH123
        return file.read().strip()
