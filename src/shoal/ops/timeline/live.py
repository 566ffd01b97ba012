"""The file of a timeline while it is recorded: what rank 0 has seen so far, added to as operations end.

It is an array that nobody closes, which the Trace Event Format allows: it can be opened at any time, also if the program
is killed. An operation's wait for other ranks ends when this rank has heard that all had called it; who was last is
known only when the ranks' recordings are together, and the whole file takes this one's place.
"""

import json
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.job.trace import MARK, OPERATION, Recorder
from shoal.ops.timeline.chrome import Rank, rows_of_marks
from shoal.ops.timeline.waits import Calls, Waits, find, rows_of

_log = logging.getLogger("shoal")

# Seconds between two writes, so that many short operations are not many writes.
_PAUSE = 0.02


class Live:
    """Begins the file at ``path``; raises OSError. ``end`` ends it."""

    def __init__(self, path: Path, drawn: Rank, recorder: Recorder) -> None:
        # Without a buffer, which a forked child would have too, and write once more.
        self._file = path.open("wb", buffering=0)
        self._drawn = drawn
        self._names = [json.dumps(name) for name in drawn.names]
        self._recorder = recorder
        self._operations = 0
        self._marks = 0
        self._changed = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="shoal-timeline", daemon=True)
        try:
            self._put("[\n" + drawn.about())
            self._thread.start()
        except BaseException:
            self._file.close()
            raise
        recorder.changed = self._changed

    def end(self) -> None:
        """Writes what has ended until now."""
        self._ending = True
        self._changed.set()
        self._thread.join()

    def _waits(self, rows: NDArray[np.void], texts: Sequence[str]) -> Waits | None:
        """Where this rank knows who was last: it is alone."""
        if len(self._names) > 1:
            return None
        submitted = self._drawn.clock.common(rows["submitted"], self._drawn.epoch_ns)
        return find([Calls(rows, submitted, texts)], 1)[0]

    def _run(self) -> None:
        try:
            with self._file:
                while not self._ending:
                    self._changed.wait()
                    if not self._ending:
                        time.sleep(_PAUSE)
                    self._changed.clear()
                    self._write()
        except OSError as error:
            _log.warning("the timeline cannot be written while it is recorded: %s", error)
            self._recorder.changed = None

    def _write(self) -> None:
        operations, marks = self._recorder.since(self._operations, self._marks)
        texts = self._recorder.texts()  # after the rows that name them
        self._operations += len(operations) // OPERATION.itemsize
        self._marks += len(marks) // MARK.itemsize
        rows = rows_of(operations)
        for lines in self._drawn.operations(rows, texts, time.monotonic_ns(), self._waits(rows, texts), self._names):
            self._put(lines)
        for lines in self._drawn.marks(rows_of_marks(marks), texts):
            self._put(lines)

    def _put(self, lines: str) -> None:
        data = memoryview(lines.encode())
        while data:
            data = data[self._file.write(data) :]
