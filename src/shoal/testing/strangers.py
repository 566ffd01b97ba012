"""Callers that have no business with a server: port scans, web browsers, connections that say nothing or a byte a second,
lengths that nobody has memory for, wrong secrets. For tests and benchmarks of what they cost.

    python -m shoal.testing.strangers HOST PORT PER_MINUTE

calls until its standard input ends. Each line of its input turns it off or on, first off; it answers each with a line: the
number of connections made until then, and how many of them are open. With SHOAL_TLS=psk in its environment some callers
begin to encrypt: browsers, holders of another secret, and callers that have recorded how a rank that holds SHOAL_SECRET
began.
"""

import asyncio
import contextlib
import functools
import itertools
import os
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence

from shoal import _native
from shoal.net import encryption
from shoal.net.handshake import HELLO_BYTES, Client, HandshakeRefused, Role

# Of those who stay: longer than a server has patience with anybody.
_STAYS = 8.0
_BYTE_EVERY = 0.5
# Open at once: within the descriptors that a process usually has.
_MOST_OPEN = 900

_HUGE = struct.pack("<Q", 2**63) * 16


async def _scan(link: socket.socket) -> None:
    """Looks whether something listens, and goes."""


async def _reset(link: socket.socket) -> None:
    """The same, without a goodbye."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _browse(link: socket.socket) -> None:
    await _say(link, b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser\r\nAccept: */*\r\n\r\n")
    await _until_closed(link)


async def _say_nothing(link: socket.socket) -> None:
    await _until_closed(link)


async def _say_little(link: socket.socket) -> None:
    for byte in Client(os.urandom(32), Role.SERVER, 0).start():
        await _say(link, bytes([byte]))
        await asyncio.sleep(_BYTE_EVERY)


async def _huge(link: socket.socket) -> None:
    """Every field as large as it can be, and more of it."""
    await _say(link, _HUGE)
    await _until_closed(link)


async def _huge_hello(link: socket.socket) -> None:
    """The same behind a beginning that is right."""
    await _say(link, b"SHOAL\x01\x02" + _HUGE)
    await _until_closed(link)


async def _wrong_secret(link: socket.socket) -> None:
    client = Client(os.urandom(32), Role.SERVER, 0)
    await _say(link, client.start())
    challenge = b""
    while len(challenge) < HELLO_BYTES:
        more = await asyncio.get_running_loop().sock_recv(link, HELLO_BYTES - len(challenge))
        if not more:
            return
        challenge += more
    await _say(link, client.feed(challenge))
    await _until_closed(link)


async def _say_and_stay(said: bytes, link: socket.socket) -> None:
    await _say(link, said)
    await _until_closed(link)


_Kind = Callable[[socket.socket], Awaitable[None]]

_KINDS: tuple[_Kind, ...] = (
    _scan, _browse, _say_nothing, _huge, _reset, _say_little, _wrong_secret, _huge_hello,
)  # fmt: skip


def encrypting(secret: bytes) -> tuple[_Kind, ...]:
    """Callers of a server that holds this secret and encrypts. They do not know it: one has recorded how a rank began."""
    recorded = _client_hello(secret)
    beginnings = [recorded, recorded[: len(recorded) // 2], _client_hello(os.urandom(32)), _browsers_client_hello()]
    return tuple(functools.partial(_say_and_stay, beginning) for beginning in beginnings)


def _client_hello(secret: bytes) -> bytes:
    identity = encryption.identity(secret, Role.SERVER, 0)
    tls = _native.Tls.client(identity.decode(), encryption.key(secret, identity))
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        tls.handshake(near.fileno())
        return far.recv(4096)


def _browsers_client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    browser = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        browser.do_handshake()
    return outgoing.read()


async def _say(link: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(link, data)


async def _until_closed(link: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(link, 4096):
        pass


class Strangers:
    """``per_minute`` connections to ``host`` and ``port``, one of each kind after another, while ``calling`` is set.

    ``more``: kinds beside those in the clear."""

    def __init__(self, host: str, port: int, per_minute: float, more: Sequence[_Kind] = ()) -> None:
        self._address = (host, port)
        self._kinds = (*_KINDS, *more)
        self._interval = 60.0 / per_minute
        self.calling = asyncio.Event()
        self.calling.set()
        self.made = 0
        self._open: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        """Until cancelled. Who is late calls more often until the number is right again."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        for kind in itertools.cycle(self._kinds):
            if not self.calling.is_set():
                await self.calling.wait()
                due = loop.time()
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += self._interval
            while len(self._open) >= _MOST_OPEN:
                await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._call(kind))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _call(self, kind: _Kind) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError, HandshakeRefused), socket.socket() as link:
            link.setblocking(False)
            await asyncio.get_running_loop().sock_connect(link, self._address)
            self.made += 1
            await asyncio.wait_for(kind(link), _STAYS)


async def _follow_input(strangers: Strangers) -> None:
    loop = asyncio.get_running_loop()
    calling = asyncio.create_task(strangers.run())
    while await loop.run_in_executor(None, sys.stdin.readline):
        if strangers.calling.is_set():
            strangers.calling.clear()
        else:
            strangers.calling.set()
        print(strangers.made, strangers.open, flush=True)
    calling.cancel()


def _from_environment() -> Sequence[_Kind]:
    return encrypting(os.environ["SHOAL_SECRET"].encode()) if os.environ.get("SHOAL_TLS") == "psk" else ()


if __name__ == "__main__":
    asyncio.run(_follow_input(Strangers(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), _from_environment())))
