"""Listening sockets while a job comes together, and who is let in through them.

A name may stand for several addresses. A listener listens at each of them that this machine has, since callers try them
all, and each may be the only one that a caller reaches.
"""

import asyncio
import contextlib
import errno
import os
import random
import select
import socket
from collections.abc import Awaitable, Callable, Sequence

from shoal.config.addresses import Address, Resolved, is_unix, resolve
from shoal.errors import ConfigurationError
from shoal.net import congestion, descriptors, handshake, messages
from shoal.net.encryption import Connection
from shoal.net.sockets import Silent, cancelled, peer_name, readable, watched, why

# Connections that wait to be accepted: as many as the kernel allows.
_BACKLOG = 4096

# Numbers that are tried for a Unix socket: nearly all are free.
_TRIES = 16

# Of an address that is not this machine's, or of a family that its kernel does not have.
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

Admit = Callable[[socket.socket, Callable[[], None]], Awaitable[None]]


def listen(address: Address) -> list[socket.socket]:
    """Listens at every address of the host that this machine has, at one port.

    Raises OSError if it has none of them, or if the port is taken at one that it has.
    """
    return _listen_at_all(resolve(address))


def listen_everywhere(port: int) -> list[socket.socket]:
    """Listens at every address of this machine. Raises OSError."""
    anywhere: list[Resolved] = [
        Resolved(socket.AF_INET, ("0.0.0.0", port)),
        Resolved(socket.AF_INET6, ("::", port)),
    ]
    return _listen_at_all(anywhere)


def _listen_at_all(wanted: Sequence[Resolved]) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    failure = OSError(errno.EADDRNOTAVAIL, "the host has no address")
    try:
        for resolved in wanted:
            try:
                listeners.append(_listen_at(_at_the_port_of(listeners, resolved)))
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
                failure = error
    except BaseException:
        close_all(listeners)
        raise
    if not listeners:
        raise failure
    return listeners


def _at_the_port_of(listeners: Sequence[socket.socket], resolved: Resolved) -> Resolved:
    """Where any port was asked for, the first one's is everyone's."""
    if not listeners or isinstance(resolved.sockaddr, bytes):
        return resolved
    host, _, *more = resolved.sockaddr
    return Resolved(resolved.family, (host, listeners[0].getsockname()[1], *more))


def _listen_at(resolved: Resolved) -> socket.socket:
    listener = socket.socket(resolved.family, socket.SOCK_STREAM)
    try:
        if resolved.family != socket.AF_UNIX:
            # Connections of an earlier job in TIME_WAIT do not count; another listener still does.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if resolved.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        congestion.prepare(listener)
        listener.bind(resolved.sockaddr)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return watched(listener)


def listen_in_range(host: str, ports: tuple[int, int] | None, not_at: int | None = None) -> socket.socket:
    """Listens at a free port, of SHOAL_PORT_RANGE if that is set. ``host``: a numeric address, or a family of Unix sockets.

    ``not_at``: a port that is kept for others. Raises ConfigurationError.
    """
    if is_unix(host):
        candidates = random.sample(range(1, 65536), _TRIES)
    elif ports is None:
        candidates = [0]
    else:
        candidates = [port for port in range(ports[0], ports[1] + 1) if port != not_at]
        random.shuffle(candidates)  # ranks on one machine do not all try the same ones
    for port in candidates:
        try:
            return listen(Address(host, port))[0]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigurationError(
                    f"cannot listen on {host} ({why(error)}): set SHOAL_INTERFACE to the network to use"
                ) from None
    first, last = ports or (0, 0)
    kept = f", or kept for PyTorch's store (MASTER_PORT={not_at})" if not_at in range(first, last + 1) else ""
    raise ConfigurationError(f"SHOAL_PORT_RANGE={first}-{last}: every port of it is taken on {host}{kept}; widen it")


def close_all(listeners: Sequence[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


async def accept(listener: socket.socket) -> socket.socket:
    """The next caller. ``listener``: non-blocking. Raises OSError.

    Cancelled, it loses none. The event loop's own sock_accept does: a caller that comes in the same turn as the
    cancellation stays open until the garbage collector finds it.
    """
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            pass
        except OSError as error:
            # The kernel says so before it looks whether anybody is there.
            if not descriptors.exhausted(error) or _has_caller(listener):
                raise
        await readable(listener)


def _has_caller(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


class _Kept:
    """A descriptor that is kept for when no other is left, if it can be had."""

    def __init__(self) -> None:
        self._number: int | None = None
        with contextlib.suppress(OSError):
            self._number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def give_back(self) -> None:
        if self._number is not None:
            os.close(self._number)
            self._number = None


class Acceptor:
    """Accepts connections and hands each to ``handle`` in a task of its own, at most ``at_once`` at a time.

    ``handle`` owns the socket, and calls its second argument when the caller has proven who it is. Until then the caller
    is a stranger, and when there is no place the one who has been there longest makes room for the next: so strangers who
    take their time keep nobody out. Where nobody is a stranger, further callers wait in the kernel. When ``handle`` raises
    OSError, TimeoutError or a refused handshake, the socket is closed and ``on_dropped`` is told.

    When no descriptor is left, a stranger makes room too. Where nobody is one, a descriptor that is kept for this takes the caller
    and lets go of it, so that it does not wait for nothing, and ``on_exhausted`` is told.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        handle: Admit,
        on_dropped: Callable[[str, Exception], None],
        at_once: int,
        on_exhausted: Callable[[OSError], None],
    ) -> None:
        self._on_exhausted = on_exhausted
        self._kept = _Kept()
        self._listeners = listeners
        self._handle = handle
        self._on_dropped = on_dropped
        self._at_once = at_once
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        # Of the tasks, in the order of their coming.
        self._strangers: dict[socket.socket, asyncio.Task[None]] = {}
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; then every connection that is still being handled is dropped and the listeners closed."""
        accepting = [asyncio.create_task(self._accept_from(listener)) for listener in self._listeners]
        try:
            await asyncio.gather(*accepting)
        finally:
            await cancelled(*accepting)
            close_all(self._listeners)
            await cancelled(*self._tasks)
            self._kept.give_back()

    async def _accept_from(self, listener: socket.socket) -> None:
        while True:
            await self._until_room()
            link = await self._accept(listener)
            self._make_room()
            task = asyncio.create_task(self._guard(link))
            self._tasks[task] = link
            self._strangers[link] = task
            task.add_done_callback(self._finished)

    async def _until_room(self) -> None:
        while len(self._tasks) >= self._at_once and not self._strangers:
            self._room.clear()
            await self._room.wait()

    def _make_room(self) -> None:
        if len(self._tasks) >= self._at_once and self._strangers:
            self._drop_a_stranger()

    def _drop_a_stranger(self) -> None:
        link, task = next(iter(self._strangers.items()))
        del self._strangers[link]
        name = peer_name(link)
        task.cancel()
        self._on_dropped(name, Silent(errno.ETIMEDOUT, "others needed its place, and it had not said who it is"))

    async def _accept(self, listener: socket.socket) -> socket.socket:
        while True:
            try:
                link = await accept(listener)
                congestion.settle(link)
                return watched(Connection.adopt(link))
            except OSError as error:
                # The caller has gone again, or descriptors have run out: neither is the listener's end.
                if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    raise
                if descriptors.exhausted(error):
                    self._make_do(listener, error)
                await asyncio.sleep(0.05)

    def _make_do(self, listener: socket.socket, error: OSError) -> None:
        """No descriptor is left for the next caller."""
        if self._strangers:
            self._drop_a_stranger()
            return
        self._kept.give_back()
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
        self._kept = _Kept()
        self._on_exhausted(error)

    async def _guard(self, link: socket.socket) -> None:
        name = peer_name(link)
        try:
            await self._handle(link, lambda: self._proven(link))
        except (OSError, asyncio.TimeoutError, handshake.HandshakeRefused, messages.MessageError) as error:
            link.close()
            self._on_dropped(name, error)
        except BaseException:
            link.close()
            raise

    def _proven(self, link: socket.socket) -> None:
        self._strangers.pop(link, None)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        link = self._tasks.pop(task)
        self._strangers.pop(link, None)
        self._room.set()
        if task.cancelled():
            link.close()  # it may have ended before it began
        elif (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a connection could not be handled", "exception": error}
            )
