"""Operations whose arrays may be an accelerator's.

They are submitted when they are called, as any other. A transfer brings their arrays to memory of the host, and opens a
gate when they are there; until then the core holds the operation (docs/decisions/gates.md). Results go back as soon as
they are there, on a thread for callbacks; or the device takes them back by itself, if it is left to one of its streams to
wait for them.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from shoal import _native
from shoal.job import unheard
from shoal.job.groups import Group
from shoal.ops import callbacks, collectives
from shoal.ops.handles import Handle
from shoal.ops.operations import Plan

_log = logging.getLogger("shoal")


class Transfer(Protocol):
    """How the arrays of one operation come into memory of the host, and their results back."""

    def depart(self) -> _native.Gate:
        """Nothing more goes out. The gate opens when everything is there."""

    def returning(self) -> AbstractContextManager[None]:
        """Inside, results are taken back; afterwards they can be followed."""

    def return_early(self) -> bool:
        """Leaves it to the device to take the results back when they are there. False: it is not to, or cannot."""

    def way_back(self) -> AbstractContextManager[Any]:
        """What this thread asks of the device comes after the results."""

    def follow(self) -> None:
        """What this thread asks of the device from now on finds the results."""

    def close(self) -> None:
        """The operation needs its memory no more. May be called again."""


def submit(
    called: str,
    name: str | None,
    group: Group,
    plan: Callable[[Group], Plan],
    timeout: float | None,
    transfer: Transfer | None,
) -> "AnyHandle":
    """As ``collectives.submit``. ``transfer``: of arrays that are still to come."""
    if transfer is None:
        return collectives.submit(called, name, group, plan, timeout=timeout)

    def staged(group: Group) -> Plan:
        callbacks.prepare()  # the other members hear of it if there is no thread
        planned = plan(group)

        def finish(handle: _native.Handle) -> Any:
            with transfer.returning():
                return planned.finish(handle)

        return planned._replace(finish=finish)

    try:
        handle = collectives.submit(called, name, group, staged, timeout=timeout, depart=transfer.depart)
    except BaseException:
        transfer.close()
        raise
    return StagedHandle(handle, transfer)


@contextmanager
def failing_everywhere(called: str, name: str | None, group: Group) -> Iterator[None]:
    """What is raised in here is told to the other members, which wait for the operation, too."""
    try:
        yield
    except Exception as error:
        collectives.submit(called, name, group, failing(error))
        raise


def failing(error: Exception) -> Callable[[Group], Plan]:
    """What ``submit`` raises when it makes the plan, and the other members hear."""

    def plan(_: Group) -> Plan:
        raise error

    return plan


class Pending(Protocol):
    """An operation, or what consists of several, for those who only wait for it."""

    def done(self) -> bool:
        """As ``Handle.done``."""

    def wait(self, timeout: float | None = None) -> Any:
        """As ``Handle.wait``."""

    @property
    def finished_ns(self) -> int:
        """As ``Handle.finished_ns``."""


class StagedHandle:
    """An operation on arrays of an accelerator, for those who know a ``Handle``."""

    def __init__(self, handle: Handle, transfer: Transfer) -> None:
        self._handle = handle
        self._transfer = transfer
        self._settling = threading.Lock()
        self._has_settled = False
        handle.call_when_done(self._take_back)

    def done(self) -> bool:
        return self._handle.done()

    def wait(self, timeout: float | None = None) -> Any:
        """As ``Handle.wait``. What the device is asked afterwards finds the results in their arrays."""
        try:
            outcome = self._handle.wait(timeout)
        except Exception:
            if self._handle.done():
                unheard.heard(self)
            raise
        self._transfer.follow()
        return outcome

    def await_end(self) -> Exception | None:
        """What made it fail."""
        try:
            self._handle.wait()
        except Exception as error:
            return error
        return None

    def wait_in_stream(self) -> bool:
        """As ``wait``, but the device waits and the host goes on: whether that can be.

        What makes the operation fail is raised later (shoal.job.unheard); the results hold NaN then, where their dtype
        has it. False: nothing has been done.
        """
        if not self.returns_early():
            return False
        self._transfer.follow()
        return True

    def returns_early(self) -> bool:
        """Whether the results come back without the host, and can be followed from now on."""
        with self._settling:
            if self._has_settled or self._handle.done() or not self._transfer.return_early():
                return False
            unheard.expect(self)
            return True

    @property
    def finished_ns(self) -> int:
        """As ``Handle.finished_ns``."""
        return self._handle.finished_ns

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """As ``Handle.call_when_done``. The callback asks the device on the way on which the results come back."""

        def call() -> None:
            with self.way_back():
                callback()

        self._handle.call_when_done(call)

    def way_back(self) -> AbstractContextManager[Any]:
        """What this thread asks of the device comes after the results."""
        return self._transfer.way_back()

    def _take_back(self) -> None:
        """As soon as it is done, whether or not somebody waits for it."""
        failure: Exception | None = None
        try:
            failure = self.await_end()
            if failure is not None:
                _log.debug("%s", failure)  # for whoever waits
        finally:
            with self._settling:
                self._has_settled = True
            unheard.ended(self, failure)
            self._transfer.close()


AnyHandle = Handle | StagedHandle


def wait_in_stream_or_here(handle: Pending) -> None:
    """Leaves it to the device to wait, if that is its way. Otherwise as ``Handle.wait``."""
    if not (isinstance(handle, StagedHandle) and handle.wait_in_stream()):
        handle.wait()


def first_failure(handles: Iterable[Pending]) -> Exception | None:
    """Waits until all are done, or leaves that to the device. What went wrong first, in their order."""
    first: Exception | None = None
    for handle in handles:
        try:
            wait_in_stream_or_here(handle)
        except RuntimeError as failure:
            first = first or failure
    return first
