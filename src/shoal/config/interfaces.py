"""The network interfaces of SHOAL_INTERFACE, with the networks that they are in.

Entries are names, or addresses of an interface; several of one interface are one. Addresses come with the length of their
network's prefix, so that two machines can tell which of their interfaces are in one network.
"""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.config.addresses import interface_addresses, is_numeric

# From linux/sockios.h: the mask of an interface's IPv4 network.
_SIOCGIFNETMASK = 0x891B


class Interface(NamedTuple):
    """``name``: the interface's; of an address that is none's first one, the address. ``addresses``: with their networks."""

    name: str
    addresses: tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]

    def address_like(self, host: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
        """One of the same family as this address, if there is one."""
        version = 6 if ":" in host else 4
        return next((one for one in self.addresses if one.version == version), self.addresses[0])


def interfaces_of(chosen: Sequence[str]) -> list[Interface]:
    """The interfaces, each once, in the order in which they were named.

    Raises ValueError naming one that this machine does not have.
    """
    known = {str(one.ip): (name, one) for name, one in _all()}
    found: dict[str, list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]] = {}
    for entry in chosen:
        for text in interface_addresses([entry]):
            name, address = known.get(text, (text, ipaddress.ip_interface(text)))
            of_interface = found.setdefault(name if is_numeric(entry) else entry, [])
            if address not in of_interface:
                of_interface.append(address)
    return [Interface(name, tuple(addresses)) for name, addresses in found.items()]


def own_addresses() -> list[str]:
    """All addresses of this machine that others may reach."""
    found = [one.ip for _, one in _all() if not one.ip.is_loopback]
    return [str(ip) for ip in found]


def _all() -> list[tuple[str, ipaddress.IPv4Interface | ipaddress.IPv6Interface]]:
    """Every interface's name with its first IPv4 address, and its IPv6 addresses of global scope."""
    names = [name for _, name in socket.if_nameindex()]
    found: list[tuple[str, ipaddress.IPv4Interface | ipaddress.IPv6Interface]] = []
    prefixes = _ipv6_prefixes()
    for name in names:
        try:
            addresses = interface_addresses([name])
        except ValueError:
            continue  # it has none
        for text in addresses:
            prefix = prefixes.get(text, 128) if ":" in text else _ipv4_mask(name)
            found.append((name, ipaddress.ip_interface(f"{text}/{prefix}")))
    return found


def _ipv4_mask(name: str) -> str:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFNETMASK, request)
        except OSError:
            return "32"
    return socket.inet_ntoa(answer[20:24])


def _ipv6_prefixes() -> dict[str, int]:
    """By address."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines]
    return {str(ipaddress.IPv6Address(bytes.fromhex(field[0]))): int(field[2], 16) for field in fields}
