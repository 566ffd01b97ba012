"""How the ranks of one node come to share memory, while a job comes together: docs/protocol/format.md, "Shared memory".

The leader of the node makes the memory, which has no name, and hands it to every other one over a Unix socket in the
abstract namespace, which leaves nothing behind either. A caller that is another user, or cannot prove that it holds the
job's secret, gets nothing. If sharing fails (no memory) the job goes on without: all ranks of all nodes share, or none.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import socket
from dataclasses import dataclass

from shoal import _native
from shoal.assembly.terms import Welcome
from shoal.net import descriptors, listening, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role, Server
from shoal.tuning.topology import MOST_RANKS

_log = logging.getLogger("shoal")

# Callers that wait to be let in: all other ranks, and strangers.
_BACKLOG = 2 * MOST_RANKS

# Seconds between two looks for the leader, which may have been welcomed a moment later.
_PAUSE = 0.01


@dataclass(frozen=True)
class Node:
    """The node of one rank. ``ranks``: all of it, ascending. ``alone``: the job has no other."""

    rank: int
    ranks: tuple[int, ...]
    alone: bool
    secret: bytes
    incarnation: bytes
    deadlines: Deadlines

    @staticmethod
    def of(rank: int, welcome: Welcome, secret: bytes, deadlines: Deadlines) -> "Node":
        ranks = tuple(welcome.node_of(rank))
        return Node(rank, ranks, len(ranks) == len(welcome.hosts), secret, welcome.incarnation, deadlines)

    @property
    def leads(self) -> bool:
        return self.rank == self.ranks[0]

    def name(self) -> bytes:
        """Where its leader hands out the memory: in the abstract namespace, which is that of the network."""
        whose = b"shoal memory of the node of rank %d in job " % self.ranks[0]
        return b"\0shoal-" + hmac.digest(self.secret, whose + self.incarnation, "sha256").hex().encode()


class Giver:
    """The leader of a node: makes the memory and lets the other ranks in, until ``close``.

    ``memory`` is it. Where there is none, ``problem`` says why, and the other ranks are told that there is none. Raises OSError if it cannot
    be called.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._callers: set[asyncio.Task[None]] = set()
        self._memory: _native.SharedMemory | None = None
        self.problem: OSError | None = None
        try:
            self._memory = _native.SharedMemory(len(node.ranks), node.alone)
        except RuntimeError as error:
            self.problem = OSError(str(error))
        self._listener = sockets.watched(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            self._listener.bind(node.name())
            self._listener.listen(_BACKLOG)
        except BaseException:
            self._listener.close()
            raise
        self._giving = asyncio.create_task(self._give_all())

    @property
    def memory(self) -> "_native.SharedMemory":
        """Raises ``problem``."""
        if self._memory is None:
            assert self.problem is not None, "it says why"
            raise self.problem
        return self._memory

    async def close(self) -> None:
        tasks = [*self._callers, self._giving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _give_all(self) -> None:
        while True:
            try:
                link = await listening.accept(self._listener)
            except OSError as error:
                # The caller has gone again, or descriptors have run out: neither is the listener's end.
                level = logging.WARNING if descriptors.exhausted(error) else logging.DEBUG
                _log.log(level, "rank %d could not let a rank of its node in: %s", self._node.rank, sockets.why(error))
                await asyncio.sleep(10 * _PAUSE)
                continue
            caller = asyncio.create_task(self._give_one(sockets.watched(link)))
            self._callers.add(caller)
            caller.add_done_callback(self._callers.discard)

    async def _give_one(self, link: socket.socket) -> None:
        node = self._node
        with contextlib.closing(link):
            server = Server([node.secret], os.urandom(16), [Role.MEMORY], incarnation=node.incarnation)
            try:
                _check_user(link)
                await asyncio.wait_for(sockets.authenticate_server(link, server), node.deadlines.stranger)
                socket.send_fds(link, [b"\0"], [] if self._memory is None else [self._memory.fileno()])
                await sockets.say_last_words(link, b"")
            except (OSError, asyncio.TimeoutError, HandshakeRefused) as error:
                _log.warning("rank %d does not share memory with a process of this machine: %s", node.rank, error)


async def receive(node: Node) -> "_native.SharedMemory":
    """Every other rank of the node: the memory that its leader has made. Raises OSError."""
    try:
        descriptor = await asyncio.wait_for(_receive(node), node.deadlines.answer)
        return _native.SharedMemory.adopt(descriptor, len(node.ranks), node.alone)
    except (asyncio.TimeoutError, HandshakeRefused, RuntimeError, ValueError) as error:
        raise OSError(str(error) or f"rank {node.ranks[0]} did not answer") from None


async def _receive(node: Node) -> int:
    with contextlib.closing(await _connect(node)) as link:
        _check_user(link)
        await sockets.authenticate_client(
            link, Client(node.secret, Role.MEMORY, node.rank, incarnation=node.incarnation)
        )
        await sockets.readable(link)
        _, descriptors, _, _ = socket.recv_fds(link, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise OSError(f"rank {node.ranks[0]} has no memory to share")
    return descriptors[0]


async def _connect(node: Node) -> socket.socket:
    """Until it is there, or the caller's time is out."""
    while True:
        link = sockets.watched(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            await asyncio.get_running_loop().sock_connect(link, node.name())
            return link
        except ConnectionRefusedError:
            link.close()
        except BaseException:
            link.close()
            raise
        await asyncio.sleep(_PAUSE)


def _check_user(link: socket.socket) -> None:
    """The other side is the same user. Raises PermissionError."""
    _, user, _ = sockets.peer_credentials(link)
    if user != os.geteuid():
        raise PermissionError(f"it belongs to user {user}, this rank to user {os.geteuid()}")
