"""Hosts and ports: written as text, resolved, and told apart (is this one only reachable from this machine?).

A host is a name, an IPv4 address or an IPv6 address; in ``host:port`` IPv6 is written in brackets. If all processes are on
one machine it may be a family of Unix sockets instead, ``@`` and its name, in which ports are numbers. Their names are in
the abstract namespace, which no other machine reaches, and leave nothing behind.
"""

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}")

# Of interfaces, the names that mean nothing to a shell: hosts become arguments of programs.
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")

# What the names of all our Unix sockets begin with.
_UNIX_PREFIX = "shoal-"
_UNIX_HOST = re.compile(r"@[0-9a-f]{1,64}")
_UNIX_NAME = re.compile(rb"\0shoal-([0-9a-f]+)-([0-9]{1,5})")

# From linux/sockios.h: the IPv4 address of a network interface.
_SIOCGIFADDR = 0x8915


class Address(NamedTuple):
    """A host (name, IPv4 or IPv6 without brackets, or a family of Unix sockets) and a port from 0 to 65535 (0: any free one)."""

    host: str
    port: int

    def __str__(self) -> str:
        if is_unix(self.host):
            return f"@{_UNIX_PREFIX}{self.host[1:]}-{self.port}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Resolved(NamedTuple):
    """One numeric address that a host stands for: an address family and what ``connect`` and ``bind`` take."""

    family: socket.AddressFamily
    sockaddr: tuple[str, int] | tuple[str, int, int, int] | bytes


def parse_address(text: str) -> Address:
    """``host:port`` as an Address, the port from 1 to 65535. Raises ValueError saying what is wrong."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not host:port")
    return Address(parse_host(host, bracketed=True), parse_port(port))


def parse_host(text: str, *, bracketed: bool = False) -> str:
    """A host name or numeric address. ``bracketed``: IPv6 must be in brackets, and they are taken off."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return _parse_ipv6(text[1:-1])
    if ":" in text:
        if bracketed:
            raise ValueError(f"{text!r}: an IPv6 address is written in brackets, as in [::1]:7077")
        return _parse_ipv6(text)
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not the name or address of a host")
    return text


def _parse_ipv6(text: str) -> str:
    address = ipaddress.IPv6Address(text)
    if address.scope_id is not None and not _ZONE.fullmatch(address.scope_id):
        raise ValueError(f"{text!r}: {address.scope_id!r} is not the name or number of a network interface")
    return str(address)


def parse_found_host(text: str) -> str:
    """A host as another process of the job says it: a family of Unix sockets too. Raises ValueError."""
    return text if _UNIX_HOST.fullmatch(text) else parse_host(text)


def parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ValueError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_unix(host: str) -> bool:
    """Whether this is a family of Unix sockets of this machine."""
    return host.startswith("@")


def unix_address(name: bytes) -> Address:
    """The address of a socket that has this name in the kernel. Raises ValueError if it is none of ours."""
    found = _UNIX_NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a socket of Shoal")
    return Address(f"@{found[1].decode()}", int(found[2]))


def is_unspecified(host: str) -> bool:
    """Whether this is 0.0.0.0 or ::, which means every address of a machine and can only be listened on."""
    return is_numeric(host) and ipaddress.ip_address(host).is_unspecified


def resolve(address: Address) -> list[Resolved]:
    """The numeric addresses of a host, best first. Does not ask a name server for numeric ones. Raises OSError."""
    if is_unix(address.host):
        return [Resolved(socket.AF_UNIX, f"\0{str(address)[1:]}".encode())]
    flags = socket.AI_NUMERICHOST if is_numeric(address.host) else 0
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    usable = [info for info in found if info[0] in (socket.AF_INET, socket.AF_INET6)]
    return list(dict.fromkeys(Resolved(info[0], info[4]) for info in usable))  # type: ignore[arg-type]


def is_loopback(host: str) -> bool:
    """Whether a host can only be reached from this machine. False for a name that cannot be resolved."""
    if is_unix(host):
        return True
    try:
        found = resolve(Address(host, 0))
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(_bare(str(entry.sockaddr[0]))).is_loopback for entry in found)


def default_source() -> str | None:
    """The address that this machine uses toward others: without a route to everywhere, its first that is not the loopback's. None
    if it has none. Sends nothing.
    """
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    found = [address for _, name in socket.if_nameindex() for address in [*_ipv4_of(name), *_ipv6_of(name)]]
    return next((address for address in found if not is_loopback(address)), None)


def interface_addresses(chosen: Sequence[str]) -> list[str]:
    """The numeric addresses of network interfaces, given by name or by one of their addresses.

    Raises ValueError naming an interface that this machine does not have.
    """
    return [found for entry in chosen for found in _addresses_of(entry)]


def _addresses_of(interface: str) -> list[str]:
    if is_numeric(interface):
        return [interface]
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise ValueError(f"{interface!r} is not a network interface of this machine, which has {', '.join(names)}")
    found = [*_ipv4_of(interface), *_ipv6_of(interface)]
    if not found:
        raise ValueError(f"the network interface {interface!r} has no address")
    return found


def _ipv4_of(interface: str) -> list[str]:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6_of(interface: str) -> list[str]:
    """Those with global scope: a link-local address means nothing without the interface's number."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [str(ipaddress.IPv6Address(bytes.fromhex(f[0]))) for f in fields if f[5] == interface and f[3] == "00"]


def _bare(numeric: str) -> str:
    return numeric.partition("%")[0]
