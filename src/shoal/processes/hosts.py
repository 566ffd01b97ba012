"""Which hosts a job has: ``-H host1:4,host2:4`` and hostfiles, which ranks go where, and which of them is this machine.

A host is written as ssh takes it: a name of its configuration or of DNS, or an address, after ``user@`` where that is
another one. The ranks fill the hosts' slots in the order in which the hosts are given, as horovodrun and mpirun place them.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.config.addresses import Address, is_loopback, parse_host, resolve
from shoal.processes.environment import Place

_USER = re.compile(r"(?!-)[A-Za-z0-9_.-]+")
_HOSTFILE_LINE = re.compile(r"(?P<host>\S+?)(?::(?P<count>\d+))?(?:\s+slots\s*=\s*(?P<slots>\d+))?")


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it takes."""

    name: str
    slots: int = 1


def parse_hosts(text: str) -> list[Host]:
    """``host1:4,host2:4``; without a number it is one slot. A host that is named again has so many more.

    IPv6 addresses are in brackets. Raises ValueError saying what is wrong.
    """
    return _merged(_parse_entry(entry) for entry in text.split(","))


def parse_host_names(text: str) -> list[str]:
    """``host3,host4``, without slots. Raises ValueError."""
    return [_parse_name(entry.strip()) for entry in text.split(",")]


def read_hostfile(path: str | Path) -> list[Host]:
    """Lines ``host slots=4``, ``host:4`` or ``host``; ``#`` begins a comment. Raises ValueError naming the line, or OSError."""
    hosts = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _HOSTFILE_LINE.fullmatch(entry)
        try:
            if match is None or (match["count"] and match["slots"]):
                raise ValueError(f"{entry!r} is not of the form: host slots=4")
            hosts.append(_host(match["host"], match["count"] or match["slots"] or "1"))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not hosts:
        raise ValueError(f"{path} names no host")
    return _merged(hosts)


def assign(ranks: int, hosts: Sequence[Host]) -> list[tuple[str, Place]]:
    """Each rank's host and its place there. Hosts that no rank is left for have none.

    Raises ValueError where the hosts have fewer slots than there are ranks.
    """
    slots = sum(host.slots for host in hosts)
    if ranks > slots:
        has = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ValueError(
            f"{ranks} ranks need {ranks} slots, and {has} has {slots}: name more hosts or slots, or start fewer ranks"
        )
    assigned: list[tuple[str, Place]] = []
    for host in hosts:
        size = min(host.slots, ranks - len(assigned))
        assigned += [(host.name, Place(local_rank, size)) for local_rank in range(size)]
    return assigned


def is_here(name: str) -> bool:
    """Whether a host is this machine, so that nothing is needed to reach it. Another user's is not."""
    if "@" in name:
        return False
    own = socket.gethostname().lower()
    if name.lower() in ("localhost", own, own.partition(".")[0]) or is_loopback(name):
        return True
    try:
        found = resolve(Address(name, 0))
    except OSError:
        return False  # a name that ssh alone knows
    return all(is_own(str(entry.sockaddr[0])) for entry in found)


def is_own(address: str) -> bool:
    """Whether a numeric address is one of this machine's.

    Whether it can be listened on does not tell (net.ipv4.ip_nonlocal_bind); nor does where packets to it would come from, which
    is an interface's first address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return found in _own_ipv6()
    numeric = getattr(found, "ipv4_mapped", None) or found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # The kernel takes an address of an interface alone. Nothing is sent.
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, numeric.packed)
        except OSError:
            return False
    return True


def _own_ipv6() -> set[ipaddress.IPv6Address]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return set()  # a kernel without IPv6
    return {ipaddress.IPv6Address(bytes.fromhex(line.split()[0])) for line in lines}


def _merged(hosts: Iterable[Host]) -> list[Host]:
    merged: dict[str, Host] = {}
    for host in hosts:
        before = merged.get(host.name)
        merged[host.name] = host if before is None else replace(before, slots=before.slots + host.slots)
    return list(merged.values())


def _parse_entry(text: str) -> Host:
    entry = text.strip()
    name, colon, slots = entry.rpartition(":")
    if not colon or entry.endswith("]"):
        return _host(entry, "1")
    return _host(name, slots)


def _host(name: str, slots: str) -> Host:
    if not re.fullmatch(r"[0-9]{1,5}", slots) or int(slots) < 1:
        raise ValueError(
            f"{name}:{slots}: {slots!r} is no number of slots, which is 1 at least (as in host1:4,host2:4)"
        )
    return Host(_parse_name(name), int(slots))


def _parse_name(text: str) -> str:
    user, at, host = text.rpartition("@")
    # What begins with a hyphen would be an option of ssh's.
    if at and not _USER.fullmatch(user):
        raise ValueError(f"{text!r}: {user!r} is not the name of a user")
    return f"{user}{at}{parse_host(host, bracketed=True)}"
