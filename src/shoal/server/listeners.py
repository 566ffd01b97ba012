"""Where a dedicated server listens, and at which addresses others reach it: it may be in several networks."""

import errno
import logging
import random
import socket
from collections.abc import Iterator, Sequence

from shoal.config.addresses import Address, is_loopback, is_unspecified
from shoal.config.interfaces import interfaces_of, own_addresses
from shoal.errors import ConfigurationError
from shoal.net import listening, sockets

_log = logging.getLogger("shoal")

# Ports that are tried where any will do, but the same at several addresses: nearly all are free.
_TRIES = 16


def default_host(interfaces: Sequence[str]) -> str:
    """Where to listen if nobody says: at the first of these interfaces that is there, or on the loopback.

    Raises ConfigurationError if none of them is.
    """
    found, missing = _found(interfaces)
    if missing and not found:
        raise ConfigurationError(f"SHOAL_INTERFACE={','.join(interfaces)!r} of shoal server: {missing[0]}")
    return found[0] if found else "127.0.0.1"


def listen_on(host: str, port: int | tuple[int, int], interfaces: Sequence[str]) -> list[socket.socket]:
    """At the host, and if others can reach that, on these interfaces as well where there are several. At one port.

    One interface says which of its own a rank uses; the machine of a server need not have it. Nor need it have each of
    several: rank 0 knows which networks the job uses, and names what is missing. Raises ConfigurationError.
    """
    further: list[str] = []
    if len(interfaces) > 1 and not is_loopback(host) and not is_unspecified(host):
        further, missing = _found(interfaces)
        for why in missing:
            _log.warning("the server at %s does not listen on all of SHOAL_INTERFACE: %s", host, why)
    if not further and isinstance(port, tuple):
        return [listening.listen_in_range(host, port)]
    failure: OSError | None = None
    for candidate in _candidates(port):
        try:
            return _listen_at(host, candidate, further)
        except OSError as error:
            failure = error
            if error.errno != errno.EADDRINUSE:
                break
    assert failure is not None, "there is a port to try"
    shown = " and ".join(dict.fromkeys([host, *further]))
    if isinstance(port, tuple) and failure.errno == errno.EADDRINUSE:
        raise ConfigurationError(
            f"SHOAL_PORT_RANGE={port[0]}-{port[1]}: every port of it is taken on {shown}; widen it"
        )
    raise ConfigurationError(
        f"shoal server cannot listen on {shown if further else Address(host, _first(port))} ({sockets.why(failure)}): choose another "
        "--host or --port"
    )


def _first(port: int | tuple[int, int]) -> int:
    return port[0] if isinstance(port, tuple) else port


def _candidates(port: int | tuple[int, int]) -> Iterator[int]:
    if isinstance(port, tuple):
        yield from random.sample(range(port[0], port[1] + 1), port[1] + 1 - port[0])
    else:
        yield from [port] * (1 if port else _TRIES)


def _listen_at(host: str, port: int, further: Sequence[str]) -> list[socket.socket]:
    """At one port everywhere. Raises OSError."""
    listeners = listening.listen(Address(host, port))
    try:
        own = [sockets.local_address(listener) for listener in listeners]
        for other in further:
            if other not in [address.host for address in own]:
                listeners += listening.listen(Address(other, own[0].port))
    except BaseException:
        listening.close_all(listeners)
        raise
    return listeners


def _found(interfaces: Sequence[str]) -> tuple[list[str], list[str]]:
    """The addresses of these interfaces, and what is wrong with those that are not there."""
    found: list[str] = []
    missing: list[str] = []
    for entry in interfaces:
        try:
            found += [str(one.ip) for interface in interfaces_of([entry]) for one in interface.addresses]
        except ValueError as error:
            missing.append(str(error))
    return found, missing


def reached_at(listeners: Sequence[socket.socket]) -> list[Address]:
    """Where others may reach these; one for all addresses stands for each that this machine has."""
    found = [sockets.local_address(listener) for listener in listeners]
    everywhere = {":" in address.host: address.port for address in found if is_unspecified(address.host)}
    if not everywhere:
        return found
    own = [Address(host, everywhere[":" in host]) for host in own_addresses() if (":" in host) in everywhere]
    return own or found
