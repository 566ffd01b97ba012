"""Failures of operations whose callers went on without knowing how they would end.

Where a stream of an accelerator waits for an operation, the host does not. What goes wrong then is raised by the next
operation of the program's or its next wait, or else when the job is left. If the process ends before, it ends with
status 1 (process_exit.py). Callbacks raise nothing of it: nobody might look.
"""

import copy
import os
import threading
from typing import Protocol

from shoal.errors import ShoalError


class Operation(Protocol):
    def await_end(self) -> Exception | None:
        """What made it fail."""


_lock = threading.RLock()  # an operation may be let go of, and so end, anywhere
_open: set[Operation] = set()
failed: dict[object, Exception] = {}  # in the order in which they came up
"""Not empty where there is something to raise: for those who look at every small operation."""


def expect(operation: Operation) -> None:
    """Its caller has gone on. Whoever finds that it has ended says so."""
    with _lock:
        _open.add(operation)


def ended(operation: Operation, failure: Exception | None) -> None:
    """Does nothing for an operation that is not expected, or of whose failure somebody has heard."""
    with _lock:
        if operation in _open:
            _open.remove(operation)
            if failure is not None:
                failed[operation] = failure


def heard(operation: Operation) -> None:
    """Somebody has waited on the host all the same, and knows."""
    if _open or failed:
        with _lock:
            _open.discard(operation)
            failed.pop(operation, None)


def note(failure: Exception) -> None:
    """A failure that nobody waits for."""
    with _lock:
        failed[object()] = failure


def wait_for_all() -> None:
    """Until every one has ended."""
    with _lock:
        waiting = list(_open)
    for operation in waiting:
        ended(operation, operation.await_end())


def take_first() -> Exception | None:
    """The first failure that nobody has heard of. It and those after it, most of which follow from it, are heard of now."""
    if not failed:
        return None
    with _lock:
        failures = list(failed.values())
        failed.clear()
    if not failures:
        return None
    first = failures[0]
    if not isinstance(first, ShoalError):
        return first
    told = copy.copy(first)
    told.args = (
        f"{first} (its result was waited for in a stream of the device, so what followed it there has run on numbers that "
        "are no result: go on from a checkpoint)",
    )
    return told


def raise_first() -> None:
    """Does nothing if all went well. For what a program calls, outside of callbacks."""
    failure = take_first()
    if failure is not None:
        raise failure


def _forget() -> None:
    """After a fork: they are the parent's, and so is who has the lock."""
    global _lock
    _lock = threading.RLock()
    _open.clear()
    failed.clear()


os.register_at_fork(after_in_child=_forget)
