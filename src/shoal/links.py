"""Sockets while a job comes together: connecting, listening, the handshake and messages over them.

Nothing here reads a byte more than it was asked for: afterwards the socket goes to the native core, which must find its
first frame whole. All sockets are non-blocking and close-on-exec, and a forked child closes those that are still Python's.
"""

import asyncio
import contextlib
import errno
import os
import random
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable, Sequence

from shoal import congestion, encryption, handshake, messages
from shoal.addresses import Address, Resolved, is_numeric, is_unix, resolve, unix_address
from shoal.encryption import Connection
from shoal.errors import ConfigurationError
from shoal.messages import Message

# Connections that wait to be accepted: as many as the kernel allows.
_BACKLOG = 4096

# Numbers that are tried for a Unix socket: nearly all are free.
_TRIES = 16

# From linux/socket.h: process, user and group.
_CREDENTIALS = struct.Struct("iII")

_open_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


class Closed(ConnectionError):
    """The other side closed the connection where bytes were expected."""


class Silent(TimeoutError):
    """The other side accepts connections, but does not answer."""


def why(error: OSError) -> str:
    """What the operating system says, without what Python adds to it."""
    if isinstance(error, Closed | Silent | encryption.Damaged | socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def watched(link: socket.socket) -> socket.socket:
    """Makes a socket ready for use here: non-blocking, without delay, closed in forked children."""
    link.setblocking(False)
    if link.family != socket.AF_UNIX:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _open_sockets.add(link)
    return link


def _close_in_child() -> None:
    for link in list(_open_sockets):
        link.close()


os.register_at_fork(after_in_child=_close_in_child)


async def readable(link: socket.socket) -> None:
    """Until there is something to read, or to accept."""
    loop = asyncio.get_running_loop()
    something = asyncio.Event()
    loop.add_reader(link, something.set)
    try:
        await something.wait()
    finally:
        loop.remove_reader(link)


async def accept(listener: socket.socket) -> socket.socket:
    """The next caller. ``listener``: non-blocking. Raises OSError.

    Cancelled, it loses none. The event loop's own sock_accept does: a caller that comes in the same turn as the
    cancellation stays open until the garbage collector finds it.
    """
    while True:
        with contextlib.suppress(BlockingIOError):
            return listener.accept()[0]
        await readable(listener)


async def receive_exactly(link: socket.socket, count: int) -> bytes:
    """The next ``count`` bytes and not one more. Raises Closed, OSError."""
    loop = asyncio.get_running_loop()
    data = bytearray(count)
    view = memoryview(data)
    while view:
        received = await loop.sock_recv_into(link, view)
        if received == 0:
            raise Closed(errno.ECONNRESET, "connection closed by the other side")
        view = view[received:]
    return bytes(data)


async def send(link: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(link, data)


async def receive_message(link: socket.socket) -> Message:
    """Raises Closed, OSError, MessageError."""
    length = messages.unpack_length(await receive_exactly(link, messages.LENGTH_BYTES))
    return messages.unpack(await receive_exactly(link, length))


async def authenticate_client(link: socket.socket, client: handshake.Client) -> None:
    """Raises Closed, OSError, HandshakeRefused."""
    if client.encrypts:
        assert isinstance(link, Connection), "what is to be encrypted comes from connect()"
        await link.begin_client(client.secret, client.role, client.rank)
    await send(link, client.start())
    while client.expects:
        await send(link, client.feed(await receive_exactly(link, client.expects)))


async def authenticate_server(link: socket.socket, server: handshake.Server) -> handshake.Hello:
    """Who called, proven. Raises Closed, OSError, HandshakeRefused (which the caller has been told)."""
    read = await _encrypt(link, server) if server.encrypts else b""
    while server.expects:
        message = read + await receive_exactly(link, server.expects - len(read))
        read = b""
        await send(link, await _answer(link, server, message))
        if server.refusal is not None:
            await say_last_words(link, b"")
            raise server.refusal
    assert server.hello is not None, "a handshake that is done has said who calls"
    return server.hello


async def _encrypt(link: socket.socket, server: handshake.Server) -> bytes:
    """What was read of a HELLO in the clear, which is to be refused. Raises as above."""
    assert isinstance(link, Connection), "what is to be encrypted comes from an Acceptor"
    try:
        read = await link.begin_server(server.secrets)
    except handshake.HandshakeRefused as error:
        if error.refusal is not None and link.caller is not None:
            server.refuse(error.refusal, *link.caller)
        raise
    if link.caller is not None:
        server.encrypted_for(*link.caller)
    return read


async def _answer(link: socket.socket, server: handshake.Server, message: bytes) -> bytes:
    """Who begins to encrypt where nobody does is told that, if it is one of ours."""
    if not server.encrypts and encryption.is_client_hello(message):
        message += await receive_exactly(link, encryption.rest_of_record(message))
        if (caller := encryption.caller(message)) is not None:
            return server.refuse(handshake.Refusal.ENCRYPTION, *caller)
    return server.feed(message[: server.expects])


async def say_last_words(link: socket.socket, data: bytes) -> None:
    """Sends and waits a moment for the other side to close: bytes that it still sends would reset what we said."""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        if data:
            await asyncio.wait_for(send(link, data), 1.0)
        link.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(_read_to_end(link), 1.0)


async def _read_to_end(link: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(link, 4096):
        pass


async def resolve_host(address: Address) -> list[Resolved]:
    """Numeric addresses at once, names without stopping the loop. Raises OSError."""
    if is_numeric(address.host) or is_unix(address.host):
        return resolve(address)
    return await asyncio.get_running_loop().run_in_executor(None, resolve, address)


async def connect(address: Address, sources: Sequence[str] = ()) -> socket.socket:
    """A connection to the first of the host's addresses that answers. ``sources``: numeric addresses to come from.

    Raises OSError of the last address tried.
    """
    failure: OSError | None = None
    for resolved in await resolve_host(address):
        link = watched(Connection(resolved.family, socket.SOCK_STREAM))
        try:
            _bind_source(link, resolved, sources)
            congestion.prepare(link)
            await asyncio.get_running_loop().sock_connect(link, resolved.sockaddr)
            congestion.settle(link)
        except OSError as error:
            failure = error
            link.close()
        except BaseException:
            link.close()
            raise
        else:
            return link
    raise failure or OSError(errno.EADDRNOTAVAIL, "the host has no address")


def _bind_source(link: socket.socket, target: Resolved, sources: Sequence[str]) -> None:
    """Loopback is reached from loopback, whatever interface was asked for."""
    if isinstance(target.sockaddr, bytes):
        return
    if target.sockaddr[0] == "::1" or str(target.sockaddr[0]).startswith("127."):
        return
    for source in sources:
        if (":" in source) == (target.family == socket.AF_INET6):
            link.bind((source, 0))
            return


async def connect_as(
    client: handshake.Client, address: Address, sources: Sequence[str], answer: float
) -> socket.socket:
    """Connects and proves who we are. Raises OSError (Closed and time-outs included) and HandshakeRefused."""
    try:
        link = await asyncio.wait_for(connect(address, sources), answer)
    except asyncio.TimeoutError:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer for {answer:g} s") from None
    try:
        await asyncio.wait_for(authenticate_client(link, client), answer)
    except asyncio.TimeoutError:
        link.close()
        raise Silent(errno.ETIMEDOUT, f"it accepts connections but says nothing for {answer:g} s") from None
    except BaseException:
        link.close()
        raise
    return link


def listen(address: Address) -> socket.socket:
    """Listens at the first of the host's addresses that this machine has. Raises OSError of the last one tried."""
    failure: OSError | None = None
    for resolved in resolve(address):
        try:
            return _listen_at(resolved)
        except OSError as error:
            failure = error
    raise failure or OSError(errno.EADDRNOTAVAIL, "the host has no address")


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


def listen_in_range(host: str, ports: tuple[int, int] | None) -> socket.socket:
    """Listens at a free port, of SHOAL_PORT_RANGE if that is set. Raises ConfigurationError."""
    first, last = ports or (0, 0)
    candidates = random.sample(range(1, 65536), _TRIES) if is_unix(host) else list(range(first, last + 1))
    random.shuffle(candidates)  # ranks on one machine do not all try the same ones
    for port in candidates:
        try:
            return listen(Address(host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigurationError(
                    f"cannot listen on {host} ({why(error)}): set SHOAL_INTERFACE to the network to use"
                ) from None
    raise ConfigurationError(f"SHOAL_PORT_RANGE={first}-{last}: every port of it is taken on {host}; widen it")


def local_address(link: socket.socket) -> Address:
    name = link.getsockname()
    if link.family == socket.AF_UNIX:
        return unix_address(name)
    return Address(name[0], name[1])


def peer_name(link: socket.socket) -> str:
    try:
        if link.family == socket.AF_UNIX:
            process, user, _ = peer_credentials(link)
            return "this process" if process == os.getpid() else f"process {process} of user {user}"
        name = link.getpeername()
        return str(Address(name[0], name[1]))
    except OSError:
        return "a host that is gone"


def peer_credentials(link: socket.socket) -> tuple[int, int, int]:
    """Of a Unix socket's other end: process, user, group, as the kernel says. Raises OSError."""
    data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(data)
    return process, user, group


class Acceptor:
    """Accepts connections and hands each to ``handle`` in a task of its own, at most ``at_once`` at a time.

    ``handle`` owns the socket, and calls its second argument when the caller has proven who it is. Until then the caller
    is a stranger, and when there is no place the one who has been there longest makes room for the next: so strangers who
    take their time keep nobody out. Where nobody is a stranger, further callers wait in the kernel. When ``handle`` raises
    OSError, TimeoutError or a refused handshake, the socket is closed and ``on_dropped`` is told.
    """

    def __init__(
        self,
        listener: socket.socket,
        handle: Callable[[socket.socket, Callable[[], None]], Awaitable[None]],
        on_dropped: Callable[[str, Exception], None],
        at_once: int,
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._on_dropped = on_dropped
        self._at_once = at_once
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        # Of the tasks, in the order of their coming.
        self._strangers: dict[socket.socket, asyncio.Task[None]] = {}
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; then every connection that is still being handled is dropped and the listener closed."""
        try:
            while True:
                await self._until_room()
                link = await self._accept()
                self._make_room()
                task = asyncio.create_task(self._guard(link))
                self._tasks[task] = link
                self._strangers[link] = task
                task.add_done_callback(self._finished)
        finally:
            self._listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_room(self) -> None:
        while len(self._tasks) >= self._at_once and not self._strangers:
            self._room.clear()
            await self._room.wait()

    def _make_room(self) -> None:
        if len(self._tasks) >= self._at_once and self._strangers:
            link, task = next(iter(self._strangers.items()))
            del self._strangers[link]
            name = peer_name(link)
            task.cancel()
            self._on_dropped(name, Silent(errno.ETIMEDOUT, "others needed its place, and it had not said who it is"))

    async def _accept(self) -> socket.socket:
        while True:
            try:
                link = await accept(self._listener)
                congestion.settle(link)
                return watched(Connection.adopt(link))
            except OSError as error:
                # The caller has gone again, or descriptors have run out: neither is the listener's end.
                if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    raise
                await asyncio.sleep(0.05)

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
