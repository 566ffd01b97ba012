"""Handles: operations that have been submitted, and what comes of them."""

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal import _native
from shoal.assembly.terms import rank_name
from shoal.errors import ShoalError, Timeout, error_from_status
from shoal.job import trace
from shoal.ops import callbacks

if TYPE_CHECKING:
    from shoal.job.session import Session
    from shoal.ops.operations import Plan


def described(operation: str, name: str | None, session: "Session") -> str:
    """Which operation it is, and where: for messages."""
    of_name = f" of {name!r}" if name else ""
    return f"{operation}{of_name} on {rank_name(session.rank, session.hosts)}"


class Handle:
    """One submitted operation.

    Until ``wait`` has returned, the arrays given to the operation must not be changed, and in the in-place forms not be
    read either. Once it is done every ``wait`` gives the same array or raises the same error; after an error the
    contents of an array that was given to an in-place form are unspecified. May be used from any thread.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_error",
        "_finish",
        "_lock",
        "_name",
        "_native",
        "_number",
        "_operation",
        "_row_bytes",
        "_session",
    )

    def __init__(
        self,
        native: _native.Handle,
        operation: str,
        name: str | None,
        session: "Session",
        plan: "Plan",
        number: int,
    ) -> None:
        """``operation``: what it is called in messages. ``number``: in the timeline; 0 where there is none."""
        self._native = native
        self._operation = operation
        self._name = name
        self._session = session
        self._finish: Callable[[_native.Handle], Any] | None = plan.finish
        self._row_bytes = plan.row_bytes
        self._array: Any = None
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._number = number

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
        seconds = math.inf if timeout is None else timeout
        try:
            status = self._native.wait(seconds)
        except RuntimeError as error:  # in a forked child
            raise ShoalError(f"{self._described()}: {error}") from None
        if status is None:
            raise Timeout(
                f"{self._described()} is not done after {seconds:g} s; it goes on, so wait again or look who is late"
            )
        if self._finish is not None:
            self._settle(status)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._array

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
        if not self._row_bytes or self._finish is not None or self._error is not None:
            return None
        return tuple(block // self._row_bytes for block in self._native.blocks())

    def __repr__(self) -> str:
        return f"<Handle: {self._described()}, {'done' if self.done() else 'open'}>"

    def _described(self) -> str:
        return described(self._operation, self._name, self._session)

    def _settle(self, status: _native.Status) -> None:
        """Turns the status into the array or the error, the first time."""
        with self._lock:
            finish = self._finish
            if finish is None:
                return
            code = status.code
            if self._number:
                trace.operation_ended(self._number)
            if code:
                message = f"{self._described()}: {status.message}"
                self._error = error_from_status(code, status.rank, message, self._session.hosts)
            else:
                # What is no Exception, as KeyboardInterrupt, is no outcome: the next to wait tries again.
                try:
                    self._array = finish(self._native)
                except ShoalError as error:
                    self._error = type(error)(f"{self._described()}: {error}")
                except Exception as error:
                    self._error = error
            self._finish = None
