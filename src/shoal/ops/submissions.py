"""The operations of a group on this rank, in the order in which they were called.

An operation on arrays of an accelerator cannot be submitted when it is called: a transfer has to bring their elements first.
Ranks match operations without a name by the order in which they are submitted. So later operations wait for it, also those
on the CPU. If nothing waits, the caller of an operation on the CPU submits it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from shoal import _native
from shoal.errors import Timeout
from shoal.job.groups import Group
from shoal.ops import callbacks, collectives
from shoal.ops.handles import Handle
from shoal.ops.operations import Plan

_log = logging.getLogger("shoal")

# How long the thread that submits looks for more to do before it ends, in seconds. The interpreter's end waits for it.
_LINGERS = 0.05


class Transfer(Protocol):
    """How the arrays of one operation come into memory of the host, and their results back."""

    def sent(self) -> None:
        """Nothing more goes out."""

    def wait_until_out(self) -> None:
        """Waits until the elements are there."""

    def returning(self) -> AbstractContextManager[None]:
        """Inside, results are taken back; afterwards they can be followed."""

    def way_back(self) -> AbstractContextManager[Any]:
        """What this thread asks of the device comes after the results."""

    def follow(self) -> None:
        """What this thread asks of the device from now on finds the results."""

    def close(self) -> None:
        """The operation needs its memory no more. May be called again."""


class Submissions:
    """The operations of one group. Those without a name are called by one thread."""

    def __init__(self) -> None:
        self._turns: deque[_Turn] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(
        self,
        called: str,
        name: str | None,
        group: Group,
        plan: Callable[[Group], Plan],
        timeout: float | None,
        transfer: Transfer | None,
    ) -> "AnyHandle":
        """As ``collectives.submit``, at once if that can be, else when its arrays are there and its turn has come.

        ``transfer``: of arrays that are still to come. What is wrong with the arguments is raised here in either case.
        """
        if transfer is None and not self._turns:
            return collectives.submit(called, name, group, plan, timeout=timeout)
        handle = LaterHandle(called, transfer)
        try:
            planned = plan(group)
        except Exception as error:
            # In its turn too, so that the other members hear of this operation and not of another.
            self._add(_Turn(handle, called, name, group, _raising(error), timeout))
            handle.wait()
            raise
        if transfer is not None:
            transfer.sent()
        self._add(_Turn(handle, called, name, group, lambda _: planned, timeout))
        return handle

    def _add(self, turn: "_Turn") -> None:
        with self._changed:
            if self._thread is None:
                try:
                    # What is submitted there has callbacks.
                    callbacks.prepare()
                    # The interpreter's end waits for it: a thread that came back from the device after that would
                    # abort.
                    self._thread = callbacks.start_thread(self._take_turns, "shoal-submissions")
                except RuntimeError as error:
                    # Nothing is before it. The other members hear of it.
                    turn._replace(plan=_raising(error)).take()
                    raise
            self._turns.append(turn)
            self._changed.notify()

    def _take_turns(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: bool(self._turns), _LINGERS):
                    self._thread = None
                    return
            # It stays among them until it is submitted, so that nothing that is called meanwhile overtakes it.
            self._turns[0].take()
            self._turns.popleft()


class LaterHandle:
    """An operation that may not have been submitted yet, for those who know a ``Handle``."""

    def __init__(self, called: str, transfer: Transfer | None) -> None:
        self._called = called
        self._transfer = transfer
        self._lock = threading.Lock()
        self._submitted = threading.Event()
        self._handle: Handle | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        return self._submitted.is_set() and (self._handle is None or self._handle.done())

    def wait(self, timeout: float | None = None) -> Any:
        """As ``Handle.wait``. What the device is asked afterwards finds the results in their arrays."""
        _native.note_call()
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._submitted.wait(timeout):
            raise Timeout(
                f"{self._called} has not begun after {timeout:g} s: the device has not done what comes before it. It goes on, "
                "so wait again"
            )
        if self._handle is None:
            assert self._error is not None, "what could not be submitted has an error"
            raise self._error.with_traceback(None)
        outcome = self._handle.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if self._transfer is not None:
            self._transfer.follow()
        return outcome

    @property
    def finished_ns(self) -> int:
        """As ``Handle.finished_ns``."""
        assert self._handle is not None, "it is to be asked of an operation that has been done"
        return self._handle.finished_ns

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """As ``Handle.call_when_done``. The callback asks the device on the way on which the results come back."""
        with self._lock:
            if not self._submitted.is_set():
                self._callbacks.append(callback)
                return
        self._call(callback)

    def begin(self, handle: Handle) -> None:
        """It has been submitted."""
        self._handle = handle
        handle.call_when_done(self._take_back)
        self._settle()

    def fail(self, error: Exception) -> None:
        """It could not be submitted."""
        self._error = error
        self._release()
        self._settle()

    def planned(self, plan: Plan) -> Plan:
        """The plan, once the arrays are there; its results go back to them."""
        transfer = self._transfer
        if transfer is None:
            return plan
        transfer.wait_until_out()

        def finish(handle: Any) -> Any:
            with transfer.returning():
                return plan.finish(handle)

        return plan._replace(finish=finish)

    def _take_back(self) -> None:
        """As soon as it is done, whether or not somebody waits for it."""
        assert self._handle is not None, "this is called when it is done"
        try:
            self._handle.wait()
        except Exception as error:
            _log.debug("%s: %s", self._called, error)  # for whoever waits
        finally:
            self._release()

    def _release(self) -> None:
        if self._transfer is not None:
            self._transfer.close()

    def _settle(self) -> None:
        with self._lock:
            self._submitted.set()
        for callback in self._callbacks:
            self._call(callback)
        self._callbacks.clear()

    def _call(self, callback: Callable[[], None]) -> None:
        def call() -> None:
            if self._transfer is None:
                callback()
            else:
                with self._transfer.way_back():
                    callback()

        if self._handle is None:
            callbacks.call_soon(call)
        else:
            self._handle.call_when_done(call)


AnyHandle = Handle | LaterHandle


def first_failure(handles: Iterable[AnyHandle]) -> Exception | None:
    """Waits until all are done. What went wrong first, in their order."""
    first: Exception | None = None
    for handle in handles:
        try:
            handle.wait()
        except RuntimeError as failure:
            first = first or failure
    return first


class _Turn(NamedTuple):
    """An operation that waits to be submitted."""

    handle: LaterHandle
    called: str
    name: str | None
    group: Group
    plan: Callable[[Group], Plan]
    timeout: float | None

    def take(self) -> None:
        try:
            begun = collectives.submit(self.called, self.name, self.group, self._plan, timeout=self.timeout)
        except Exception as error:
            self.handle.fail(error)
        else:
            self.handle.begin(begun)

    def _plan(self, group: Group) -> Plan:
        return self.handle.planned(self.plan(group))


def _raising(error: Exception) -> Callable[[Group], Plan]:
    def plan(_: Group) -> Plan:
        raise error

    return plan
