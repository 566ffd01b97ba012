"""A dedicated server in a thread of the test, for as long as a ``with`` block."""

import contextlib
from collections.abc import Iterator

from shoal.background import LoopThread
from shoal.patience import Patience
from shoal.server import Front

SECRET = b"the secret of the bootstrap's tests"


@contextlib.contextmanager
def running(
    port: int = 0, secret: bytes = SECRET, stranger: float = 1.0, *others: bytes, encrypts: bool = False
) -> Iterator[Front]:
    """Listens on loopback with one secret, or with ``others`` before it; drops strangers after ``stranger`` seconds."""
    patience = Patience(stranger=stranger, answer=5.0)
    front = Front("127.0.0.1", port, 2, [*others, secret], patience, encrypts=encrypts)
    thread = LoopThread("shoal-front")
    thread.start(front.run())
    try:
        yield front
    finally:
        thread.stop()
