"""Handles: operations that have been submitted, and what comes of them."""

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from shoal import _native, callbacks, trace
from shoal.errors import ShoalError, Timeout, error_from_status

# The longest single wait in the native core; it looks for signals more often than that.
_WAIT_SECONDS = 3600.0

_numbers = count(1)


# One of each of these is made for every operation: named tuples, since frozen dataclasses take several times as long.
class Description(NamedTuple):
    """Which operation this is, for messages and the timeline."""

    operation: str
    name: str | None
    rank: int
    hosts: Sequence[str]

    def __str__(self) -> str:
        name = f" of {self.name!r}" if self.name else ""
        return f"{self.operation}{name} on rank {self.rank} ({self.hosts[self.rank]})"


class Outcome(NamedTuple):
    """What an operation gives to the caller of ``wait``."""

    array: Any = None
    splits: tuple[int, ...] | None = None


_NOTHING = Outcome()


class Handle:
    """One submitted operation.

    Until ``wait`` has returned, the arrays given to the operation must not be changed, and in the in-place forms not be
    read either. Once it is done every ``wait`` gives the same array or raises the same error; after an error the
    contents of an array that was given to an in-place form are unspecified. May be used from any thread.
    """

    __slots__ = ("__weakref__", "_description", "_error", "_finish", "_lock", "_native", "_number", "_outcome")

    def __init__(
        self,
        native: _native.Handle,
        description: Description,
        finish: Callable[[_native.Handle], Outcome],
        submitted_ns: int,
    ) -> None:
        self._native = native
        self._description = description
        self._finish: Callable[[_native.Handle], Outcome] | None = finish
        self._outcome = _NOTHING
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._number = next(_numbers)
        trace.operation_began(self._number, description.operation, submitted_ns, tensor=description.name)

    def done(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""
        return self._native.done()

    def wait(self, timeout: float | None = None) -> Any:
        """The operation's array, once it is done; None for a barrier.

        ``timeout``: seconds to wait at most. The operation goes on after that, and ``wait`` may be called again. Without
        it the wait ends, at the latest, when the operation fails because nothing has moved for the group's timeout.

        Raises Timeout when a timeout has passed, Mismatch if ranks disagree about the operation, PeerLost if a rank that
        it needs is gone, ShoalError for whatever else made it fail. KeyboardInterrupt comes through.
        """
        status = self._wait_native(timeout)
        if status is None:
            raise Timeout(
                f"{self._description} is not done after {timeout:g} s; it goes on, so wait again or look who is late"
            )
        self._settle(status)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._outcome.array

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once the operation is done, on a thread of Shoal's own; it may wait for other operations.

        What it raises is logged and goes nowhere else. At the end of the program it may not come to be called.
        """
        callbacks.call_when_done(self._native, callback)

    @property
    def finished_ns(self) -> int:
        """When the operation was done, in nanoseconds of ``time.monotonic_ns``. To be asked when it is."""
        return self._native.finished_at()

    @property
    def splits(self) -> tuple[int, ...] | None:
        """After an all-to-all: the rows received from each member, in the group's order. None before ``wait``."""
        return self._outcome.splits

    def __repr__(self) -> str:
        return f"<Handle: {self._description}, {'done' if self.done() else 'open'}>"

    def _wait_native(self, timeout: float | None) -> _native.Status | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            try:
                status = self._native.wait(max(0.0, min(left, _WAIT_SECONDS)))
            except RuntimeError as error:  # in a forked child
                raise ShoalError(f"{self._description}: {error}") from None
            if status is not None or left <= 0:
                return status

    def _settle(self, status: _native.Status) -> None:
        """Turns the status into the array or the error, the first time."""
        with self._lock:
            finish = self._finish
            if finish is None:
                return
            code = status.code
            if trace.recording():
                trace.operation_ended(
                    self._number,
                    self._description.operation,
                    sent_ns=self._native.sent_at(),
                    done_ns=self._native.finished_at(),
                    status=code,
                )
            if code:
                message = f"{self._description}: {status.message}"
                self._error = error_from_status(code, status.rank, message, self._description.hosts)
            else:
                # What is no Exception, as KeyboardInterrupt, is no outcome: the next to wait tries again.
                try:
                    self._outcome = finish(self._native)
                except ShoalError as error:
                    self._error = type(error)(f"{self._description}: {error}")
                except Exception as error:
                    self._error = error
            self._finish = None
