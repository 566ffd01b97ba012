"""Callbacks: what follows when an operation or a message is done, on threads of Shoal's own.

A native thread completes operations and runs nothing else. So a callback may take its time, call operations and wait for
them, also for operations that have callbacks themselves: a thread that begins a callback makes sure that another thread
waits for the next. Callbacks of different operations may therefore run at the same time, in any order.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from itertools import count

from shoal import _native

_log = logging.getLogger("shoal")

# Idle threads that are kept. Two suffice while callbacks do not wait.
_KEPT = 2

# How long one wait of a thread lasts at most, in seconds.
_TURN = 3600.0

# How long the end of the interpreter waits for callbacks that have begun, in seconds.
_PATIENCE = 1.0


class _Threads:
    """Invariant: while callbacks are to come, at least one thread waits for them and runs none.

    If the system has no thread for that, callbacks wait for the running ones, until it has one again.
    """

    def __init__(self) -> None:
        self._completions = _native.Completions()
        self._open: dict[int, Callable[[], None]] = {}
        self._sources: dict[int, Callable[[], None]] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self.are_over = False

    def add(self, operation: _native.Handle | None, callback: Callable[[], None]) -> None:
        """To be called when the operation is done; None: now. Raises RuntimeError if the system has no thread for it."""
        self.prepare()
        number = next(self._numbers)
        self._open[number] = callback
        if operation is None:
            self._completions.add(number)
        else:
            operation.tell(self._completions, number)

    def add_source(self, callback: Callable[[], None]) -> tuple[_native.Completions, int]:
        """To be called whenever the number is added to the completions."""
        self.prepare()
        number = next(self._numbers)
        self._sources[number] = callback
        return self._completions, number

    def remove_source(self, number: int) -> None:
        self._sources.pop(number, None)

    def prepare(self) -> None:
        """Raises RuntimeError if no thread is here and the system has none."""
        if self._idle == 0:
            with self._lock:
                self._start_if_none_is_idle()

    def close(self) -> None:
        self.are_over = True
        self._completions.close()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_PATIENCE)

    def _serve(self) -> None:
        while True:
            try:
                number = self._completions.next(_TURN)
            except RuntimeError:  # closed
                return
            if number is None:
                continue
            with self._lock:
                self._idle -= 1
                self._start_if_none_is_idle()
            self._call(number)
            with self._lock:
                if self._idle >= _KEPT:
                    self._threads.discard(threading.current_thread())
                    return
                self._idle += 1

    def _call(self, number: int) -> None:
        # Not in _serve, which would keep the callback, and the memory that it knows, until the next operation is done.
        callback = self._open.pop(number, None) or self._sources.get(number)
        if callback is not None:  # else its source has gone
            _run(callback)

    def _start_if_none_is_idle(self) -> None:
        if self._idle == 0:
            thread = threading.Thread(target=self._serve, name="shoal-callbacks", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
                return
            self._idle += 1
            self._threads.add(thread)


_threads = _Threads()


def call_when_done(operation: _native.Handle, callback: Callable[[], None]) -> None:
    """Calls ``callback`` once, on another thread, when the operation is done. What it raises is logged.

    Raises RuntimeError if the system has no thread for that: then it is not called.
    """
    _threads.add(operation, callback)


def prepare() -> None:
    """From now on there is a thread for callbacks, so that none is refused. Raises RuntimeError if the system has none."""
    _threads.prepare()


def call_soon(callback: Callable[[], None]) -> None:
    """As ``call_when_done``, of what is done already."""
    _threads.add(None, callback)


def add_source(callback: Callable[[], None]) -> tuple[_native.Completions, int]:
    """Calls ``callback`` on a thread of Shoal's own whenever native code adds the number to the completions, until ``remove_source``.

    Raises RuntimeError if the system has no thread for that.
    """
    return _threads.add_source(callback)


def remove_source(number: int) -> None:
    _threads.remove_source(number)


def are_over() -> bool:
    """Whether the interpreter ends, and no callback begins any more. Handlers of ``atexit`` that are older than this module come after that."""
    return _threads.are_over


def expected(call: Callable[[], None]) -> Callable[[], None]:
    """``call``, which is to be called once, on any thread. It counts as pending until it runs; then its thread counts as a caller.

    For calls of which the core knows nothing. Otherwise a rank that waits could be taken for one of a circle (docs/decisions/circles.md).
    """
    _native.count_callbacks(1)

    def begin() -> None:
        _native.note_call()
        _native.count_callbacks(-1)
        call()

    return begin


def start_thread(call: Callable[[], None], name: str) -> threading.Thread:
    """``call`` on a thread of its own, which the interpreter's end waits for and which is ``expected``. RuntimeError: the system has none."""
    thread = threading.Thread(target=expected(call), name=name, daemon=False)
    try:
        thread.start()
    except RuntimeError:
        _native.count_callbacks(-1)
        raise
    return thread


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        _log.exception("a callback of an operation failed")


def _close() -> None:
    """A thread that comes back from the native core into an interpreter that has ended would abort the process."""
    _threads.close()


def _forget_after_fork() -> None:
    """The threads, and what they wait for, are the parent's."""
    global _threads
    _threads = _Threads()


# After the handlers of whoever imports this.
atexit.register(_close)
os.register_at_fork(after_in_child=_forget_after_fork)
