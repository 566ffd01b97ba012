"""Connections while a job comes together: reaching a host, the handshake and messages.

A host may have several addresses, of which some lead nowhere. All are called, each with its own timeout, and the first at
which the handshake succeeds is taken (RFC 8305, with the handshake in the place of the connection).

Nothing here reads a byte more than it was asked for: afterwards the socket goes to the native core, which must find its
first frame whole. All sockets are non-blocking and close-on-exec, and a forked child closes those that are still Python's.
"""

import asyncio
import contextlib
import copy
import errno
import os
import socket
import struct
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.config.addresses import Address, Resolved, is_numeric, is_unix, resolve, unix_address
from shoal.net import congestion, descriptors, encryption, handshake, messages
from shoal.net.encryption import Connection
from shoal.net.messages import Message

# Seconds between the calls to two addresses of a host, unless the first has failed before.
_STAGGER = 0.25

# From linux/socket.h: process, user and group.
_CREDENTIALS = struct.Struct("iII")

_open_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


class Closed(ConnectionError):
    """The other side closed the connection where bytes were expected."""


class Silent(TimeoutError):
    """The other side accepts connections, but does not answer."""


class NoAnswer(TimeoutError):
    """There is no connection to the other side, or its kernel does not answer any more."""


class Tried(NamedTuple):
    """What came of the call to one address."""

    address: Resolved
    error: "OSError | handshake.HandshakeRefused"

    def __str__(self) -> str:
        said = why(self.error) if isinstance(self.error, OSError) else str(self.error)
        return f"{named(self.address)}: {said}"


class Unreached(OSError):
    """A host answered at none of its addresses. ``tried``: all of them, in the order of the calls."""

    def __init__(self, tried: Sequence[Tried]) -> None:
        super().__init__(errno.EHOSTUNREACH, "; ".join(map(str, tried)))
        self.tried = tuple(tried)


def why(error: OSError) -> str:
    """What the operating system says, without what Python adds to it; of several addresses, for each."""
    ours = (Closed, Silent, NoAnswer, Unreached, encryption.Damaged, socket.gaierror)
    if isinstance(error, ours) or error.errno is None:
        return error.strerror or str(error)
    return descriptors.say_gone(error) if descriptors.exhausted(error) else os.strerror(error.errno)


def causes(error: OSError) -> "list[OSError | handshake.HandshakeRefused]":
    """What went wrong, by address if there were several."""
    return [tried.error for tried in error.tried] if isinstance(error, Unreached) else [error]


def says_nothing(error: OSError) -> bool:
    """Whether all that was reached has ended the connection without a word."""
    without_a_word = (Closed, ConnectionResetError, BrokenPipeError)
    return all(isinstance(cause, without_a_word) for cause in causes(error))


def named(resolved: Resolved) -> str:
    """A numeric address, as people write it."""
    if isinstance(resolved.sockaddr, bytes):
        return str(unix_address(resolved.sockaddr))
    return str(Address(*resolved.sockaddr[:2]))


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


async def connect(resolved: Resolved, sources: Sequence[str] = ()) -> socket.socket:
    """A connection to one address. ``sources``: numeric addresses to come from. Raises OSError."""
    link = watched(Connection(resolved.family, socket.SOCK_STREAM))
    try:
        _bind_source(link, resolved, sources)
        congestion.prepare(link)
        await asyncio.get_running_loop().sock_connect(link, resolved.sockaddr)
        congestion.settle(link)
    except BaseException:
        link.close()
        raise
    return link


def _bind_source(link: socket.socket, target: Resolved, sources: Sequence[str]) -> None:
    """Of several sources the one that leads there, or else the first. Loopback is reached from loopback, whatever
    interface was asked for."""
    if isinstance(target.sockaddr, bytes):
        return
    if target.sockaddr[0] == "::1" or str(target.sockaddr[0]).startswith("127."):
        return
    fitting = [source for source in sources if (":" in source) == (target.family == socket.AF_INET6)]
    if len(fitting) > 1 and (leading := _source_toward(target)) in fitting:
        fitting = [leading]
    if fitting:
        link.bind((fitting[0], 0))


def _source_toward(target: Resolved) -> str:
    """The address that this machine would use; "" if there is no way. Sends nothing."""
    with contextlib.suppress(OSError), socket.socket(target.family, socket.SOCK_DGRAM) as unbound:
        unbound.connect(target.sockaddr)
        return str(unbound.getsockname()[0])
    return ""


def _watch_kernel(link: socket.socket, silence: float) -> None:
    """Breaks the connection when the other host's kernel has not answered for so many seconds."""
    if link.family == socket.AF_UNIX:
        return
    third = max(1, round(silence / 3))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * silence))


class Reached(NamedTuple):
    """``client``: the one that shook hands over ``link``; it knows who answered."""

    link: socket.socket
    client: handshake.Client


async def connect_as(
    client: handshake.Client, address: Address, sources: Sequence[str], answer: float
) -> socket.socket:
    """``reach`` without what is known of who answered."""
    return (await reach(client, address, sources, answer)).link


async def reach(
    client: handshake.Client, address: Address, sources: Sequence[str], answer: float, *, waits: bool = False
) -> Reached:
    """Connects and proves who we are, at whichever of the host's addresses that succeeds first.

    ``client``: copied for each call. ``answer``: seconds that each address has to take the connection, and then as many
    to shake hands. ``waits``: for the second it has as long as its kernel answers at least every ``answer`` seconds.

    Raises HandshakeRefused if one that speaks Shoal refused and none took us, else OSError: that of the address, or Unreached
    if the host is a name.
    """
    try:
        found = await asyncio.wait_for(resolve_host(address), answer)
    except asyncio.TimeoutError:
        raise NoAnswer(errno.ETIMEDOUT, f"no name server answers for {answer:g} s") from None
    if not found:
        raise OSError(errno.EADDRNOTAVAIL, "the host has no address")
    return await _Calls(client, address, sources, answer, waits).first_of(found)


class _Calls:
    """Calls to the addresses of one host, at most one of which succeeds."""

    def __init__(
        self, client: handshake.Client, address: Address, sources: Sequence[str], answer: float, waits: bool
    ) -> None:
        self._client = client
        self._by_name = not (is_numeric(address.host) or is_unix(address.host))
        self._sources = sources
        self._answer = answer
        self._waits = waits
        self._running: dict[asyncio.Task[Reached], Resolved] = {}
        self._tried: list[Tried] = []

    async def first_of(self, found: Sequence[Resolved]) -> Reached:
        waiting = list(found)
        order = {resolved: place for place, resolved in enumerate(found)}
        try:
            while waiting or self._running:
                if waiting:
                    resolved = waiting.pop(0)
                    self._running[asyncio.create_task(self._call(resolved))] = resolved
                reached = await self._next(_STAGGER if waiting else None)
                if reached is not None:
                    return reached
        finally:
            await self._end()
        self._tried.sort(key=lambda tried: order[tried.address])
        raise self._failure()

    async def _call(self, resolved: Resolved) -> Reached:
        try:
            link = await asyncio.wait_for(connect(resolved, self._sources), self._answer)
        except (asyncio.TimeoutError, TimeoutError):
            raise self._no_answer() from None
        client = copy.copy(self._client)
        if self._waits:
            _watch_kernel(link, self._answer)
        try:
            await asyncio.wait_for(authenticate_client(link, client), None if self._waits else self._answer)
        except (asyncio.TimeoutError, TimeoutError) as error:
            link.close()
            if isinstance(error, OSError) and error.errno is not None:  # the kernel's
                raise self._no_answer() from None
            said = f"it accepts connections but says nothing for {self._answer:g} s"
            raise Silent(errno.ETIMEDOUT, said) from None
        except BaseException:
            link.close()
            raise
        return Reached(link, client)

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(errno.ETIMEDOUT, f"no answer for {self._answer:g} s")

    async def _next(self, seconds: float | None) -> Reached | None:
        """Waits until a call has ended, or for so long. The one that has succeeded."""
        ended, _ = await asyncio.wait(self._running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            error = task.exception()
            if error is None:
                del self._running[task]
                return task.result()
            if not isinstance(error, OSError | handshake.HandshakeRefused):
                raise error
            self._tried.append(Tried(self._running.pop(task), error))
        return None

    async def _end(self) -> None:
        for ended in await cancelled(*self._running):
            if isinstance(ended, Reached):
                ended.link.close()

    def _failure(self) -> "OSError | handshake.HandshakeRefused":
        errors = [tried.error for tried in self._tried]
        refusals = [error for error in errors if isinstance(error, handshake.HandshakeRefused)]
        ours = [error for error in refusals if error.refusal is not None]
        if not self._by_name:
            return errors[0]
        if not ours and len(refusals) < len(errors):
            return Unreached(self._tried)
        refused = (ours or refusals)[0]
        return (
            refused
            if len(errors) == 1
            else handshake.HandshakeRefused("; ".join(map(str, self._tried)), refused.refusal)
        )


async def cancelled(*tasks: "asyncio.Task[Any]") -> list[Any]:
    """What came of each task, once all of them have ended."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


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
