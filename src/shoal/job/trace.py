"""A timeline of what this rank did, for chrome://tracing and ui.perfetto.dev.

With SHOAL_TRACE set to a folder, each job of each rank leaves one file ``<job>-rank<N>-<start>.json`` there, written at
shutdown. Times are microseconds of the system clock, so that the files of several ranks can be laid side by side.

It is cheap: a call costs one comparison while nothing is recorded, and makes a dict, which is appended to a list, while recording.
"""

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# A recording that nobody ends must not fill the memory: what comes after so many events is counted and dropped.
EVENT_LIMIT = 1_000_000


class Recorder:
    """The events of one job on one rank, in memory until ``write``."""

    def __init__(self, folder: Path, label: str, rank: int, host: str) -> None:
        self._folder = folder
        self._label = label
        self._rank = rank
        self._host = host
        self._started = time.time_ns()
        # What has to be added to the monotonic clock to get the time of day.
        self._offset = self._started - time.monotonic_ns()
        self._events: list[dict[str, Any]] = []
        self._dropped = 0

    def add(self, phase: str, name: str, begin_ns: int, fields: dict[str, Any], details: dict[str, Any]) -> None:
        """One event of the Trace Event Format; ``begin_ns`` is of the monotonic clock."""
        if len(self._events) >= EVENT_LIMIT:
            self._dropped += 1
            return
        event = {
            "ph": phase,
            "name": name,
            "cat": "shoal",
            "ts": (begin_ns + self._offset) / 1000,
            "pid": self._rank,
            "tid": threading.get_native_id(),
            "args": details,
        }
        event.update(fields)
        self._events.append(event)

    def write(self) -> Path:
        """The file, whole or not at all. Raises OSError if the folder cannot be written to."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]", "_", self._label) or "shoal"
        path = self._folder / f"{name}-rank{self._rank}-{self._started}.json"
        label = {"name": f"rank {self._rank} ({self._host}, process {os.getpid()})"}
        events = [{"ph": "M", "name": "process_name", "pid": self._rank, "args": label}, *self._events]
        document = {"traceEvents": events, "displayTimeUnit": "ms", "droppedEvents": self._dropped}
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(document), encoding="utf-8")
        return unfinished.replace(path)


_recorder: Recorder | None = None


def start(recorder: Recorder | None) -> None:
    """From now on events go to ``recorder``; None: nowhere."""
    global _recorder
    _recorder = recorder


def stop() -> Recorder | None:
    """Ends the recording and returns it."""
    global _recorder
    recorder, _recorder = _recorder, None
    return recorder


def recording() -> bool:
    """Whether calls of the functions below have an effect: for callers whose arguments cost something."""
    return _recorder is not None


def instant(name: str, **details: Any) -> None:
    """Something that happened now: ``instant("gradient ready", parameter="layer1.weight")``."""
    recorder = _recorder
    if recorder is not None:
        recorder.add("i", name, time.monotonic_ns(), {"s": "t"}, details)


@contextmanager
def span(name: str, **details: Any) -> Iterator[None]:
    """Something that takes as long as the block."""
    recorder = _recorder
    if recorder is None:
        yield
        return
    begin = time.monotonic_ns()
    try:
        yield
    finally:
        recorder.add("X", name, begin, {"dur": (time.monotonic_ns() - begin) / 1000}, details)


def operation_began(number: int, name: str, at_ns: int, **details: Any) -> None:
    """The operation ``number`` of this process was submitted at ``at_ns`` of the monotonic clock.

    It is drawn as a bar until it completes.
    """
    recorder = _recorder
    if recorder is not None:
        recorder.add("b", name, at_ns, {"id": number}, {"event": "submit", **details})


def operation_ended(number: int, name: str, *, sent_ns: int, done_ns: int, **details: Any) -> None:
    """The operation ``number`` was complete at ``done_ns`` of the monotonic clock, its first byte sent at ``sent_ns``.

    ``sent_ns`` 0: it sent nothing.
    """
    recorder = _recorder
    if recorder is not None:
        if sent_ns:
            recorder.add("n", name, sent_ns, {"id": number}, {"event": "first byte sent"})
        recorder.add("e", name, done_ns, {"id": number}, {"event": "complete", **details})
