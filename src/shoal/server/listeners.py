"""Where a dedicated server listens, and at which addresses others reach it: it may be in several networks."""

import socket
from collections.abc import Sequence

from shoal.config.addresses import Address, is_loopback, is_unspecified
from shoal.config.interfaces import interfaces_of, own_addresses
from shoal.errors import ConfigurationError
from shoal.net import listening, sockets


def default_host(interfaces: Sequence[str]) -> str:
    """Where to listen if nobody says: at the first of these interfaces, or on the loopback. Raises ConfigurationError."""
    found = _found(interfaces, "shoal server")
    return found[0] if found else "127.0.0.1"


def listen_on(host: str, port: int | tuple[int, int], interfaces: Sequence[str]) -> list[socket.socket]:
    """At the host, and if others can reach that, on these interfaces as well. Raises ConfigurationError."""
    listeners = [listening.listen_in_range(host, port)] if isinstance(port, tuple) else _listen_at(Address(host, port))
    if is_loopback(host) or is_unspecified(host):
        return listeners
    try:
        for further in _further(interfaces, listeners):
            listeners += _listen_at(further)
    except BaseException:
        listening.close_all(listeners)
        raise
    return listeners


def _further(interfaces: Sequence[str], listeners: Sequence[socket.socket]) -> list[Address]:
    """The addresses of SHOAL_INTERFACE at which nobody listens yet."""
    own = [sockets.local_address(listener) for listener in listeners]
    found = _found(interfaces, f"the server at {own[0]}")
    return [Address(host, own[0].port) for host in found if host not in [address.host for address in own]]


def _found(interfaces: Sequence[str], who: str) -> list[str]:
    """The addresses of these interfaces. Raises ConfigurationError."""
    try:
        return [str(one.ip) for interface in interfaces_of(interfaces) for one in interface.addresses]
    except ValueError as error:
        raise ConfigurationError(f"SHOAL_INTERFACE={','.join(interfaces)!r} of {who}: {error}") from None


def _listen_at(address: Address) -> list[socket.socket]:
    try:
        return listening.listen(address)
    except OSError as error:
        raise ConfigurationError(
            f"shoal server cannot listen on {address} ({sockets.why(error)}): choose another --host or --port"
        ) from None


def reached_at(listeners: Sequence[socket.socket]) -> list[Address]:
    """Where others may reach these; one for all addresses stands for each that this machine has."""
    found = [sockets.local_address(listener) for listener in listeners]
    everywhere = {":" in address.host: address.port for address in found if is_unspecified(address.host)}
    if not everywhere:
        return found
    own = [Address(host, everywhere[":" in host]) for host in own_addresses() if (":" in host) in everywhere]
    return own or found
