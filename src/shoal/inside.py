"""How the ranks of one machine come to share memory, while a job comes together: docs/protocol.md, section 3, "Inside".

Rank 0 makes the memory, which has no name, and hands it to every other rank over a Unix socket in the abstract namespace,
which leaves nothing behind either. Who is not the same user, or cannot prove that it holds the job's secret, gets nothing.
Where it does not work (containers that see each other's network as a foreign one, no memory) the job goes on without: all
ranks or none share it.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import socket
import struct

from shoal import _native, links
from shoal.addresses import Address
from shoal.config import Settings
from shoal.handshake import Client, HandshakeRefused, Role, Server
from shoal.patience import Patience

_log = logging.getLogger("shoal")

# The most ranks that can share memory (native/drivers/shm/memory.h).
MOST_RANKS = 64

# Callers that wait to be let in: all other ranks, and strangers.
_BACKLOG = 2 * MOST_RANKS

_CREDENTIALS = struct.Struct("iII")


def is_wanted(settings: Settings) -> bool:
    """Whether this rank knows that all ranks of the job are on its machine."""
    return settings.launch.one_machine and 1 < settings.size <= MOST_RANKS and settings.algorithm == "server"


class Giver:
    """Rank 0: makes the memory and gives it away. ``door``: where rank 0 listens, which no other process does."""

    def __init__(self, settings: Settings, secret: bytes, door: Address) -> None:
        self._size = settings.size
        self._secret = secret
        self._giving: asyncio.Task[None] | None = None
        self._callers: set[asyncio.Task[None]] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            links.watched(self._listener)
            self._listener.bind(_name(secret, door))
            self._listener.listen(_BACKLOG)
        except BaseException:
            self._listener.close()
            raise

    def give(self, incarnation: bytes, patience: Patience) -> "_native.SharedMemory":
        """Begins to let the other ranks in, until ``close``. Raises OSError where there is no memory."""
        try:
            memory = _native.SharedMemory(self._size)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        self._giving = asyncio.create_task(self._give_all(memory, incarnation, patience))
        return memory

    async def close(self) -> None:
        tasks = [*self._callers, *filter(None, [self._giving])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _give_all(self, memory: "_native.SharedMemory", incarnation: bytes, patience: Patience) -> None:
        loop = asyncio.get_running_loop()
        while True:
            link, _ = await loop.sock_accept(self._listener)
            caller = asyncio.create_task(self._give_one(links.watched(link), memory, incarnation, patience))
            self._callers.add(caller)
            caller.add_done_callback(self._callers.discard)

    async def _give_one(
        self, link: socket.socket, memory: "_native.SharedMemory", incarnation: bytes, patience: Patience
    ) -> None:
        with contextlib.closing(link):
            server = Server([self._secret], os.urandom(16), [Role.MEMORY], incarnation=incarnation)
            try:
                _check_user(link)
                await asyncio.wait_for(links.authenticate_server(link, server), patience.stranger)
                socket.send_fds(link, [b"\0"], [memory.fileno()])
                await links.say_last_words(link, b"")
            except (OSError, asyncio.TimeoutError, HandshakeRefused) as error:
                _log.warning("rank 0 does not share memory with a process of this machine: %s", error)


async def receive(
    settings: Settings, secret: bytes, door: Address, incarnation: bytes, patience: Patience
) -> "_native.SharedMemory":
    """Every other rank: the memory that rank 0, which listens at ``door``, has made. Raises OSError."""
    with contextlib.closing(links.watched(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))) as link:
        try:
            descriptor = await asyncio.wait_for(_receive(link, settings, secret, door, incarnation), patience.answer)
            return _native.SharedMemory.adopt(descriptor, settings.size)
        except (asyncio.TimeoutError, HandshakeRefused, RuntimeError, ValueError) as error:
            raise OSError(str(error) or "rank 0 did not answer") from None


async def _receive(link: socket.socket, settings: Settings, secret: bytes, door: Address, incarnation: bytes) -> int:
    loop = asyncio.get_running_loop()
    await loop.sock_connect(link, _name(secret, door))
    _check_user(link)
    await links.authenticate_client(link, Client(secret, Role.MEMORY, settings.rank, incarnation=incarnation))
    readable = asyncio.Event()
    loop.add_reader(link, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(link)
    _, descriptors, _, _ = socket.recv_fds(link, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise OSError("rank 0 has no memory to share")
    return descriptors[0]


def _name(secret: bytes, door: Address) -> bytes:
    """In the abstract namespace, which is that of the network: there no other process has rank 0's port."""
    return b"\0shoal-" + hmac.digest(secret, b"shoal memory " + str(door).encode(), "sha256").hex().encode()


def _check_user(link: socket.socket) -> None:
    """The other side is the same user. Raises PermissionError."""
    _, user, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid():
        raise PermissionError(f"it belongs to user {user}, this rank to user {os.geteuid()}")
