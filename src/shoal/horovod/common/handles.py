"""Integer handles, and the names that are in flight.

Horovod gives numbers for operations, and refuses a second operation of a name that has not ended. Shoal itself counts how often
a name is used; so the refusal is here, at this door alone.
"""

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

from shoal.errors import ShoalError
from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.job import runtime
from shoal.job.groups import Group
from shoal.job.per_job import PerJob
from shoal.ops.handles import described
from shoal.ops.submissions import Pending


class Call(Protocol):
    """What one call has started."""

    def done(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""

    def wait(self) -> Any:
        """What the caller gets. Raises HorovodInternalError."""


class Alone:
    """One operation. ``finish``: makes what the caller gets of its result."""

    __slots__ = ("_finish", "_operation")

    def __init__(self, operation: Pending, finish: Callable[[Any], Any]) -> None:
        self._operation = operation
        self._finish = finish

    def done(self) -> bool:
        return self._operation.done()

    def wait(self) -> Any:
        try:
            result = self._operation.wait()
        except ShoalError as error:
            _note_wait()
            raise HorovodInternalError(str(error)) from error
        _note_wait()
        return self._finish(result)


class Together:
    """Several operations. ``finish``: makes what the caller gets of their results, in their order."""

    def __init__(self, operations: Sequence[Pending], finish: Callable[[list[Any]], Any]) -> None:
        self._operations = operations
        self._finish = finish

    def done(self) -> bool:
        return all(operation.done() for operation in self._operations)

    def wait(self) -> Any:
        """Waits for all of them, whatever comes of one. Raises HorovodInternalError for the first that has failed."""
        results, first = [], None
        for operation in self._operations:
            try:
                results.append(operation.wait())
            except ShoalError as error:
                first = first or error
        _note_wait()
        if first is not None:
            raise HorovodInternalError(str(first)) from first
        return self._finish(results)


def _note_wait() -> None:
    global _waits
    _waits += 1


class _OfJob:
    """``running``: (ranks of the process set, name) → the operation that was started last, while anybody may wait for it."""

    def __init__(self) -> None:
        self.started: dict[int, Call] = {}
        self.running: WeakValueDictionary[tuple[tuple[int, ...], str], Named] = WeakValueDictionary()


_jobs: PerJob[_OfJob] = PerJob(lambda _: _OfJob())
_numbers = count()

# A signal may interrupt whoever holds it, and its handler call an operation.
_lock = threading.RLock()

# How often this process has waited for something: what was called before counts as ended if it has.
_waits = 0

# Horovod looks for new operations every so often, and does not notice before that one has ended.
IN_A_ROW_SECONDS = 0.001


def hand_out(started: Call) -> int:
    """The number under which ``wait`` finds it, once."""
    number = next(_numbers)
    _jobs.of(runtime.current()).started[number] = started
    return number


def done(handle: int) -> bool:
    """Whether ``wait`` would return at once. Raises ValueError for a number that is none, or was waited for."""
    started = _of_present_job(handle)
    if started is None:
        raise ValueError(f"handle {handle} is not that of an operation on its way: it was waited for, or never given")
    ended = started.done()
    if ended:
        _note_wait()
    return ended


def wait(handle: int) -> Any:
    """What came of the operation. None if it was waited for before, as with Horovod. Raises HorovodInternalError."""
    started = _of_present_job(handle)
    if started is None:
        return None
    try:
        return started.wait()
    finally:
        _jobs.of(runtime.current()).started.pop(handle, None)


def _of_present_job(handle: int) -> Call | None:
    return _jobs.of(runtime.current()).started.get(handle) if runtime.is_initialized() else None


class Named:
    """An operation under a name, which nobody else may use from before it starts until it has ended."""

    _operation: Pending | None = None
    _begun = 0.0
    _waits_before = 0

    def start(self, start: Callable[[], Pending]) -> None:
        """Before anything but ``has_name``."""
        self._operation = start()
        self._begun = time.monotonic()
        self._waits_before = _waits

    def done(self) -> bool:
        assert self._operation is not None
        return self._operation.done()

    def wait(self, timeout: float | None = None) -> Any:
        assert self._operation is not None
        return self._operation.wait(timeout)

    @property
    def finished_ns(self) -> int:
        assert self._operation is not None
        return self._operation.finished_ns

    def has_name(self) -> bool:
        """Whether a second call with the name is an error. Two in a row always are, however fast the first has ended."""
        if self._operation is None:
            return True
        in_a_row = self._waits_before == _waits and time.monotonic() - self._begun < IN_A_ROW_SECONDS
        return in_a_row or not self._operation.done()


def start_named(name: str, group: Group, start: Callable[[], Pending]) -> Pending:
    """What ``start`` has started, under a name that must not be in flight in the group.

    Raises ValueError if it is, and what ``start`` raises.
    """
    running = _jobs.of(group.session).running
    key = (group.ranks, name)
    with _lock:
        before = running.get(key)
        if before is not None and before.has_name():
            raise ValueError(
                f"{described('operation', name, group.session)}: another one of this name is still on its way: give each that is "
                "in flight at the same time another name, or synchronize(handle) before"
            )
        running[key] = named = Named()
    try:
        named.start(start)
    except BaseException:
        with _lock:
            if running.get(key) is named:
                del running[key]
        raise
    return named
