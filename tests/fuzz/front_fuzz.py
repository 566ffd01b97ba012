"""server.py: connections to a dedicated server, of strangers and of those that hold the secret. Whatever they say, no
connection ends in an exception that nobody expects, no descriptor is left, and the server goes on."""

import asyncio
import atexit
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from harness import Input, damaged, main

from shoal.assembly.terms import JobTerms
from shoal.config.settings import Limits
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role
from shoal.server.front import Front

SECRET = b"the secret of the front's fuzzer"
INCARNATION = bytes(range(16))
JOB = {"type": "job", **JobTerms((1, 1), ("a", "b"), Limits(), 15).job_fields(bytes(16), 0)}

# What has been said is all there is: nobody waits for more.
_DEADLINES = Deadlines(stranger=0.5, answer=0.5)
_SECONDS = 10.0


class _Running:
    """A server and its loop, for all inputs."""

    def __init__(self) -> None:
        logging.getLogger("shoal").setLevel(logging.CRITICAL)  # whom it refuses, a line each
        self.loop = asyncio.new_event_loop()
        self.complaints: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(f"{context!r}"))
        self.front = Front("127.0.0.1", 0, 1, [SECRET], _DEADLINES)
        self.serving = self.loop.create_task(self.front.run())
        self.run(asyncio.sleep(0.01))
        self.descriptors = _descriptors()
        atexit.register(self.close)

    def close(self) -> None:
        self.serving.cancel()
        self.run(asyncio.wait([self.serving]))
        self.loop.close()

    def run(self, what: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(asyncio.wait_for(what, _SECONDS))


_running: _Running | None = None


def one_input(data: bytes) -> None:
    global _running
    if _running is None:
        _running = _Running()
    running, given = _running, Input(data)
    for _ in range(1 + given.below(2)):
        running.run(_connection(running, given))
    running.run(_until(lambda: not running.front._core.jobs()))
    running.run(_until(lambda: _descriptors() == running.descriptors))
    assert not running.complaints, running.complaints
    assert not running.serving.done()


async def _connection(running: _Running, given: Input) -> None:
    with socket.socket() as link:
        # Thousands of these would use up the ports, if each were remembered for a minute.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.setblocking(False)
        await running.loop.sock_connect(link, running.front.address)
        with contextlib.suppress(ConnectionError, HandshakeRefused):
            await _speak(running.loop, link, given)
            link.shutdown(socket.SHUT_WR)
            while await running.loop.sock_recv(link, 65536):
                pass


async def _speak(loop: asyncio.AbstractEventLoop, link: socket.socket, given: Input) -> None:
    if given.below(8) == 7:
        await loop.sock_sendall(link, given.rest())
        return
    role = Role.MEASURE if given.below(64) == 63 else Role.SERVER
    client = Client(SECRET, role, given.below(3), incarnation=INCARNATION)
    await loop.sock_sendall(link, client.start())
    while client.expects:
        await loop.sock_sendall(link, client.feed(await _exactly(loop, link, client.expects)))
    said = given.rest() if given.below(8) == 7 else damaged(JOB, given)
    length = given.number(4) if given.below(16) == 15 else len(said)
    await loop.sock_sendall(link, length.to_bytes(4, "little") + said)


async def _exactly(loop: asyncio.AbstractEventLoop, link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await loop.sock_recv(link, count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (their number is enough)


async def _until(condition: Callable[[], bool]) -> None:
    """The core's threads end connections in their own time."""
    while not condition():
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    main(one_input)
