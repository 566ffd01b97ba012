"""What happens on this rank while a timeline is recorded: operations, and moments and spans of the program's thread.

A call costs one comparison while nothing is recorded. While recording, an event is a few dozen bytes in one flat array
(``OPERATION``, ``MARK``) and its texts are kept once, so that ``EVENT_LIMIT`` events take 80 MB. What comes after so
many is counted and dropped. Times are nanoseconds of ``time.monotonic_ns`` on this rank; ``shoal.ops.timeline`` brings the
ranks' recordings together on one clock.
"""

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from shoal import _native

    _Begun = tuple[_native.Course, int, int, int, int, int]

# A recording that nobody ends must not fill the memory.
EVENT_LIMIT = 1_000_000
# Different names, of operations and all else.
TEXT_LIMIT = 100_000

# Of an operation whose end nobody knows yet.
OPEN = -1

# Of an operation that has no number: the core has not taken its call yet, or has refused it.
UNNUMBERED = (1 << 32) - 1

# ``name``, ``group``: which of the texts. ``occurrence``: how often the group had used the name before, as the core
# counts it on all members alike, or UNNUMBERED. ``status``: as of a native Status, or OPEN. ``nbytes``: of this rank's
# array. The rest are times, 0 where it did not come to that, and the flush (``_native.Course.moments``).
OPERATION = np.dtype(
    [
        ("name", "<u4"),
        ("group", "<u4"),
        ("occurrence", "<u4"),
        ("collective", "<i2"),
        ("status", "<i2"),
        ("nbytes", "<i8"),
        ("submitted", "<i8"),
        ("input_ready", "<i8"),
        ("sent", "<i8"),
        ("all_called", "<i8"),
        ("first_result", "<i8"),
        ("done", "<i8"),
        ("flush", "<i8"),
    ]
)

# ``details``: which of the texts, JSON. ``ended`` 0: a moment, not a span.
MARK = np.dtype([("name", "<u4"), ("details", "<u4"), ("began", "<i8"), ("ended", "<i8"), ("thread", "<i8")])

_pack_operation = struct.Struct("<IIIhh8q").pack
_pack_mark = struct.Struct("<IIqqq").pack
_numbers = count(1)
_NOTHING = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Recording:
    """What one rank has recorded: rows of OPERATION and MARK, as bytes, and their texts. ``dropped``: events too many."""

    texts: list[str]
    operations: bytearray = field(repr=False)
    marks: bytearray = field(repr=False)
    dropped: int
    began_ns: int
    ended_ns: int


class Recorder:
    """The events of this rank, in memory until ``end``. ``changed``: is set when there are new ones; for one thread."""

    def __init__(self) -> None:
        self.began_ns = time.monotonic_ns()
        self.changed: threading.Event | None = None
        self.dropped = 0
        self._texts: dict[str, int] = {"": 0}
        self._adding = threading.Lock()
        self._operations = bytearray()
        self._marks = bytearray()
        self._events = 0
        # By number: what becomes of it, which holds none of its arrays, and other fields.
        self._open: dict[int, _Begun] = {}

    def operation_began(
        self,
        native: "_native.Handle",
        collective: int,
        group: str,
        name: str | None,
        nbytes: int,
        submitted_ns: int,
    ) -> int:
        """Its number, for ``operation_ended``; 0: it is not recorded."""
        course = native.course()
        group_text, name_text = self._text(group), self._text(name or "")
        if course is None or group_text is None or name_text is None or not self._counts():
            return 0
        number = next(_numbers)
        self._open[number] = (course, name_text, group_text, collective, nbytes, submitted_ns)
        return number

    def operation_ended(self, number: int) -> None:
        opened = self._open.pop(number, None)
        if opened is not None:
            self._append(opened)

    def add_mark(self, name: str, began_ns: int, ended_ns: int, details: dict[str, Any]) -> None:
        name_text = self._text(name)
        details_text = self._text(json.dumps(details) if details else "")
        if name_text is None or details_text is None or not self._counts():
            return
        self._marks += _pack_mark(name_text, details_text, began_ns, ended_ns, threading.get_native_id())
        self._tell()

    def since(self, operations: int, marks: int) -> tuple[bytes, bytes]:
        """What has ended after so many rows of each."""
        # Slices are copies, made in one step: other threads go on adding.
        return (
            bytes(self._operations[operations * OPERATION.itemsize :]),
            bytes(self._marks[marks * MARK.itemsize :]),
        )

    def texts(self) -> list[str]:
        return list(self._texts)

    def end(self) -> Recording:
        """All of it, once. Operations that nobody has waited for are in it as far as they have come."""
        for number in list(self._open):
            opened = self._open.pop(number, None)
            if opened is not None:
                self._append(opened)
        # Another thread may be in the midst of a call, and what numpy reads cannot grow.
        operations, self._operations = self._operations, bytearray()
        marks, self._marks = self._marks, bytearray()
        return Recording(
            self.texts(),
            operations,
            marks,
            self.dropped,
            self.began_ns,
            time.monotonic_ns(),
        )

    def _append(self, opened: "_Begun") -> None:
        course, name, group, collective, nbytes, submitted = opened
        status, moments = (course.code(), course.moments()) if course.ended() else (OPEN, _NOTHING)
        occurrence = course.occurrence()
        self._operations += _pack_operation(
            name,
            group,
            UNNUMBERED if occurrence is None else occurrence,
            collective,
            status,
            nbytes,
            submitted,
            *moments,
        )
        self._tell()

    def _counts(self) -> bool:
        if self._events >= EVENT_LIMIT:
            self.dropped += 1
            return False
        self._events += 1
        return True

    def _text(self, text: str) -> int | None:
        known = self._texts.get(text)
        if known is not None:
            return known
        if len(self._texts) >= TEXT_LIMIT:
            self.dropped += 1
            return None
        # Of two threads with the same new text, both have the first one's place.
        with self._adding:
            return self._texts.setdefault(text, len(self._texts))

    def _tell(self) -> None:
        changed = self.changed
        if changed is not None and not changed.is_set():
            changed.set()


_recorder: Recorder | None = None


def start(recorder: Recorder) -> None:
    """From now on events go to ``recorder``."""
    global _recorder
    _recorder = recorder


def stop() -> None:
    """Nothing is recorded any more."""
    global _recorder
    _recorder = None


def recording() -> bool:
    """Whether calls of the functions below have an effect: for callers whose arguments cost something."""
    return _recorder is not None


def instant(name: str, **details: Any) -> None:
    """Something that happened now: ``instant("gradient ready", parameter="layer1.weight")``."""
    recorder = _recorder
    if recorder is not None:
        recorder.add_mark(name, time.monotonic_ns(), 0, details)


@contextmanager
def span(name: str, **details: Any) -> Iterator[None]:
    """Something that takes as long as the block."""
    recorder = _recorder
    if recorder is None:
        yield
        return
    began = time.monotonic_ns()
    try:
        yield
    finally:
        recorder.add_mark(name, began, time.monotonic_ns(), details)


def operation_began(
    native: "_native.Handle", collective: int, group: str, name: str | None, nbytes: int, submitted_ns: int
) -> int:
    """An operation of the group that ``group`` identifies, on all its members alike, was submitted at ``submitted_ns``.

    ``nbytes``: of this rank's array. Returns its number, for ``operation_ended``; 0: it is not recorded.
    """
    recorder = _recorder
    if recorder is None:
        return 0
    return recorder.operation_began(native, collective, group, name, nbytes, submitted_ns)


def operation_ended(number: int) -> None:
    """The operation is done. Nothing if the recording has ended since."""
    recorder = _recorder
    if recorder is not None:
        recorder.operation_ended(number)
