"""Where the ranks meet and with which secret, before any of them has spoken to another.

Rank 0 listens at the meeting place; the others learn it from the environment or, if the launcher has one, from its
store. Its name need not mean the same on rank 0's machine (a service of Kubernetes, a line in /etc/hosts). If it is no
address of that machine, or only a loopback address, rank 0 listens at all its addresses, provided that there is a secret. A
store is an object with ``set(key, value)`` and a ``get(key)`` that waits until the key is set, as PyTorch's TCPStore.
"""

import contextlib
import errno
import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.assembly import secrets
from shoal.assembly.terms import rank_on
from shoal.config.addresses import (
    Address,
    default_source,
    is_loopback,
    is_numeric,
    is_unix,
    parse_found_host,
)
from shoal.config.interfaces import Interface, interfaces_of
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError, Timeout
from shoal.net import encryption, listening, messages, sockets

_log = logging.getLogger("shoal")

# How often each rank of this process has met through a store: every time has a key of its own.
_times_met: Counter[int] = Counter()


class Store(Protocol):
    """What the ranks of a launcher share. Keys and values are text or bytes."""

    def set(self, key: str, value: str, /) -> Any: ...
    def get(self, key: str, /) -> Any: ...


@dataclass
class MeetingPoint:
    """``listeners``: on rank 0 only. ``interfaces``: those that SHOAL_INTERFACE allows, empty: all.
    ``everywhere``: rank 0 listens at all of its machine's addresses. ``leaves_machine``: ranks of other machines may hold the
    secret.

    ``again``: asks the store once more, where there is one. What it held may be from an earlier start of the job: torchrun
    keeps its store when it starts the ranks anew, and rank 0 may not have written to it yet.
    """

    address: Address
    secret: bytes
    interfaces: list[Interface]
    listeners: Sequence[socket.socket] = ()
    everywhere: bool = False
    leaves_machine: bool = True
    again: Callable[[], "MeetingPoint"] | None = None

    @property
    def sources(self) -> list[str]:
        """This machine's addresses that SHOAL_INTERFACE allows, those of its first interface first; empty: all."""
        return _addresses_of(self.interfaces)

    @property
    def listens_at(self) -> str:
        """Where rank 0 listens, for messages."""
        if self.everywhere:
            return f"port {self.address.port} of every address of host {socket.gethostname()}"
        return ", ".join(str(sockets.local_address(listener)) for listener in self.listeners)

    @property
    def is_by_name(self) -> bool:
        """Whether others may find something else under the host's name than this machine does."""
        return not (is_unix(self.address.host) or is_numeric(self.address.host))


def meet(settings: Settings, store: Store | None = None) -> MeetingPoint:
    """The meeting place of a job of several ranks. May wait for rank 0 if there is a store.

    Raises ConfigurationError for a missing address or secret, a taken port, an unknown interface, or without what encryption
    needs; Timeout.
    """
    if settings.encrypts:
        encryption.require()
    interfaces = _interfaces(settings)
    if store is None:
        address = _known_address(settings)
        return _at(settings, address, _secret(settings, address), interfaces)
    _times_met[settings.rank] += 1
    _require_secret_for_far_servers(settings)
    key = f"shoal/{_times_met[settings.rank]}"
    return _host(settings, store, key, interfaces) if settings.rank == 0 else _guest(settings, store, key, interfaces)


def _require_secret_for_far_servers(settings: Settings) -> None:
    """Every rank sees for itself that it is missing, before any waits for another."""
    far = _far_servers(settings)
    if far and not secrets.configured_secrets(settings):
        raise _no_secret(settings, f"the servers {', '.join(far)} are")


def _far_servers(settings: Settings) -> list[str]:
    return [str(server) for server in settings.servers if not is_loopback(server.host)]


def _addresses_of(interfaces: Sequence[Interface]) -> list[str]:
    return [str(address.ip) for interface in interfaces for address in interface.addresses]


def _interfaces(settings: Settings) -> list[Interface]:
    try:
        return interfaces_of(settings.interfaces)
    except ValueError as error:
        raise ConfigurationError(
            f"SHOAL_INTERFACE={','.join(settings.interfaces)!r} on {rank_on(settings.rank, socket.gethostname())}: {error}"
        ) from None


def _known_address(settings: Settings) -> Address:
    address = settings.meeting_place()
    if address is None:
        raise ConfigurationError(
            f"rank {settings.rank} does not know where rank 0 is ({settings.launch.launcher} does not say): set "
            f"SHOAL_RENDEZVOUS=host:port, with the host of rank 0 and the same on every rank{_promise(settings)}"
        )
    return address


def _at(settings: Settings, address: Address, secret: bytes, interfaces: list[Interface]) -> MeetingPoint:
    has_secret = bool(secrets.configured_secrets(settings))
    meeting_point = MeetingPoint(
        address, secret, interfaces, leaves_machine=has_secret and not settings.launch.one_machine
    )
    if settings.rank == 0:
        meeting_point.listeners, meeting_point.everywhere = _listen(settings, address, has_secret)
    return meeting_point


def _host(settings: Settings, store: Store, key: str, interfaces: list[Interface]) -> MeetingPoint:
    """Rank 0 opens a port and puts it into the store, with a fresh secret if none is set."""
    everywhere = False
    if settings.rendezvous is not None:
        listeners, everywhere = _listen(settings, settings.rendezvous, True)
    else:
        own, master_port = _own_host(settings, _addresses_of(interfaces)), settings.launch.master_port
        listeners = [listening.listen_in_range(own, settings.port_range, master_port)]
    try:
        address = settings.rendezvous or sockets.local_address(listeners[0])
        secret, published = _secret_for_store(settings, address)
        store.set(key, json.dumps({"address": address, "secret": published}))
    except BaseException:
        listening.close_all(listeners)
        raise
    return MeetingPoint(address, secret, interfaces, listeners, everywhere)


def _own_host(settings: Settings, sources: list[str]) -> str:
    """The address of this machine that other ranks can reach."""
    if settings.opens_no_port:
        return f"@{os.urandom(8).hex()}"
    if settings.launch.one_machine:
        return "127.0.0.1"
    if sources:
        return sources[0]
    master = settings.launch.master_host
    if master is not None and not is_loopback(master):
        with contextlib.suppress(OSError):
            found = listening.listen(Address(master, 0))
            listening.close_all(found[1:])
            with found[0] as probe:
                return sockets.local_address(probe).host
    return default_source() or "127.0.0.1"


def _secret_for_store(settings: Settings, address: Address) -> tuple[bytes, str | None]:
    """The secret, and what of it goes into the store: only one that was made for this job alone."""
    configured = secrets.configured_secrets(settings)
    if configured or settings.servers:
        return _secret(settings, address), None
    secret = secrets.fresh_secret()
    return secret, secret.decode()


def _guest(settings: Settings, store: Store, key: str, interfaces: list[Interface]) -> MeetingPoint:
    """Where rank 0 says that it is, or has said in an earlier start."""

    def again() -> MeetingPoint:
        return _guest(settings, store, key, interfaces)

    try:
        found = store.get(key)
    except Exception as error:
        raise Timeout(
            f"rank {settings.rank}: rank 0 has not said through the launcher's store where to meet ({error}): see whether it "
            f"runs{_promise(settings)}"
        ) from error
    address, secret = _parse_stored(found)
    address = settings.rendezvous or address
    configured = secrets.configured_secrets(settings)
    if configured or secret is None:
        secret = _secret(settings, address)
    return MeetingPoint(address, secret, interfaces, again=again)


def _parse_stored(found: Any) -> tuple[Address, bytes | None]:
    try:
        content = messages.Message("meeting", json.loads(found))
        host, port = content.address("address")
        secret = None if content.is_null("secret") else content.text("secret")
        return Address(parse_found_host(host), port), None if secret is None else secret.encode()
    except (TypeError, ValueError, RecursionError, messages.MessageError) as error:
        raise ConfigurationError(
            f"the launcher's store holds something else than a meeting place ({error}): install the same version of Shoal on "
            "every rank"
        ) from None


def _secret(settings: Settings, address: Address) -> bytes:
    configured = secrets.configured_secrets(settings)
    if configured:
        return configured[0]
    here = settings.launch.one_machine or is_loopback(address.host)
    far = _far_servers(settings)
    if here and not far:
        return secrets.user_secret(settings.secret_folder)
    if here:
        raise _no_secret(settings, f"the servers {', '.join(far)} are")
    raise _no_secret(settings, "this job's ranks are", _promise(settings))


def _no_secret(settings: Settings, who_are: str, promise: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{who_are} on other machines and rank {settings.rank} has no secret: {secrets.HOW_TO_MAKE_ONE}{promise}"
    )


def _promise(settings: Settings) -> str:
    promise = settings.launch.promise
    return f"; {promise}" if promise else ""


def _listen(settings: Settings, address: Address, has_secret: bool) -> tuple[list[socket.socket], bool]:
    """The listeners of rank 0, and whether they are at all addresses of this machine."""
    name = not (is_unix(address.host) or is_numeric(address.host))
    if name and is_loopback(address.host) and not settings.launch.one_machine:
        if has_secret:
            return _listen_everywhere(address, "leads only to this machine's loopback here"), True
        if address.host != "localhost":
            _log.warning(
                "%s means a loopback address on rank 0's machine: if there are ranks on other machines, set SHOAL_SECRET, and "
                "rank 0 listens where they can reach it",
                address.host,
            )
    try:
        return listening.listen(address), False
    except OSError as error:
        elsewhere = error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror)
        if not (elsewhere and has_secret) or settings.launch.one_machine:
            raise _cannot_listen(address, error) from None
        return _listen_everywhere(address, f"is no address of rank 0's machine ({sockets.why(error)})"), True


def _listen_everywhere(address: Address, why: str) -> list[socket.socket]:
    _log.warning(
        "%s %s: rank 0 (%s) listens at port %d of every address that its machine has, for ranks that hold the secret. If "
        "%s is not a service or gateway that leads here, nobody will come: set MASTER_ADDR or SHOAL_RENDEZVOUS to rank 0's machine",
        address.host,
        why,
        socket.gethostname(),
        address.port,
        address.host,
    )
    try:
        return listening.listen_everywhere(address.port)
    except OSError as error:
        raise _cannot_listen(address, error) from None


def _cannot_listen(address: Address, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"rank 0 cannot listen at {address}: {_advice(error)}")


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            "the port is taken by another program or job; set MASTER_PORT (the port above it is used) or SHOAL_RENDEZVOUS to "
            "a free port, the same on every rank. Under shoal run start the job again: it takes other ports"
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return (
            f"it is not an address of rank 0's machine ({sockets.why(error)}); set SHOAL_RENDEZVOUS (or MASTER_ADDR) to one "
            "that is, the same on every rank"
        )
    return f"{sockets.why(error)}; set SHOAL_RENDEZVOUS to another address or port, the same on every rank"
