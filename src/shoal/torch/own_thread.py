"""A thread for calls that are made one after the other, in the order in which they were asked for."""

import queue
import threading
import weakref
from collections.abc import Callable

from shoal import _native
from shoal.ops import callbacks


class OwnThread:
    """Ends once nobody has this any more, after what was asked for. Raises RuntimeError if the system has no thread.

    A daemon: nothing waits for it at the end of the interpreter.
    """

    def __init__(self, name: str) -> None:
        # Not queue.Queue: finalizers ask, in the midst of anything.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
        weakref.finalize(self, self._calls.put, None).atexit = False

    def do(self, call: Callable[[], None]) -> None:
        """Later. It raises nothing."""
        self._calls.put(call)


def _serve(calls: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    _native.note_call()
    while not callbacks.are_over():
        call = calls.get()
        if call is None:
            return
        call()
        del call  # while it waits, it keeps nothing
