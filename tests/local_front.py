"""A dedicated server in a thread of the test, for as long as a ``with`` block, and how it watches its connections."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

from shoal.config.addresses import Address
from shoal.net.deadlines import Deadlines
from shoal.net.loop_thread import LoopThread
from shoal.server.front import Front

SECRET = b"the secret of these tests"


@contextlib.contextmanager
def running(
    port: int = 0, secret: bytes = SECRET, stranger: float = 1.0, *others: bytes, encrypts: bool = False
) -> Iterator[Front]:
    """Listens on loopback with one secret, or with ``others`` before it; drops strangers after ``stranger`` seconds."""
    deadlines = Deadlines(stranger=stranger, answer=5.0)
    front = Front("127.0.0.1", port, 2, [*others, secret], deadlines, encrypts=encrypts)
    thread = LoopThread("shoal-front")
    thread.start(front.run())
    try:
        yield front
    finally:
        thread.stop()


def keepalive_of_ends_at(address: Address) -> list[tuple[int, int, int]]:
    """Of every connection that was accepted at this address of this process: seconds before the kernel asks a silent host,
    seconds between two questions, and how many it asks."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):  # noqa: PTH116
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.getsockname()[:2] == tuple(address) and end.getpeername():
                    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                    idle, interval, count = (end.getsockopt(socket.IPPROTO_TCP, option) for option in options)
                    found.append((idle, interval, count))
    return found
