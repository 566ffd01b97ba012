"""Call sites: where in a program an operation is called, so that all ranks mean the same one by the same call.

Operations that the program itself calls are matched by their order. Those that a callback calls (PowerSGD's hook has such)
come at any time in between, on one rank before and on another after the program's next, so they are named instead: by
the operation that the callback follows, and by which of its callbacks and operations they are.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

# Names are used again after so many operations. A rank never forgets how often each was used, and what it keeps of all of
# them has a limit (names_bytes in native/base/limits.h).
_RECYCLED = 4096

# A longer path is one of callbacks of callbacks of callbacks; its digest stands for it.
_LONGEST = 200

_here = threading.local()


class CallSite:
    """``path``: the same on every rank, and of no other place at about the same time. ``number``: of the operation there."""

    __slots__ = ("_callbacks", "_operations", "_path", "number")

    def __init__(self, path: str, number: int = 0) -> None:
        self.number = number
        self._path = path if len(path) <= _LONGEST else hashlib.sha256(path.encode()).hexdigest()
        self._operations = count()
        self._callbacks = count()

    def operation(self) -> "CallSite":
        """The next operation that is called here."""
        number = next(self._operations)
        return CallSite(f"{self._path}.{number % _RECYCLED}", number)

    def callback(self) -> "CallSite":
        """The next callback that follows this operation."""
        return CallSite(f"{self._path}>{next(self._callbacks)}")

    def __str__(self) -> str:
        return self._path


def current() -> CallSite | None:
    """The callback that this thread is in; None in the program itself."""
    return getattr(_here, "call_site", None)


@contextmanager
def inside(call_site: CallSite) -> Iterator[None]:
    """This thread runs that callback."""
    before = current()
    _here.call_site = call_site
    try:
        yield
    finally:
        _here.call_site = before
