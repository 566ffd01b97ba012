"""The recordings of all ranks come to rank 0, which writes the file."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.job.trace import MARK, OPERATION, Recording
from shoal.ops.timeline import chrome, clocks, waits
from shoal.ops.timeline.clocks import Clock, Offset
from shoal.ops.timeline.meeting import Meeting

# Seconds that other ranks wait until rank 0 has written the file: so many, and more for each operation and mark in it.
_WRITING, _WRITING_EACH = 900.0, 50e-6


@dataclass(frozen=True)
class About:
    """What a timeline says of itself. ``names``: of all ranks of the job. ``epoch_ns``: of rank 0's clock, the file's 0."""

    job: str
    names: Sequence[str]
    started: str
    epoch_ns: int
    marks_cycles: bool

    def metadata(self, held: Sequence[int], offsets: Sequence[Clock], dropped: Sequence[int]) -> dict[str, Any]:
        """``held``: whose events are in the file; the others are in their order."""
        return {
            "job": self.job,
            "began": self.started,
            # By Horovod's name for it, which tools for its timelines look for.
            "start_time_since_epoch_in_micros": round(datetime.fromisoformat(self.started).timestamp() * 1e6),
            "ranks": [self.names[rank] for rank in held],
            "clock": "microseconds of rank 0's monotonic clock since the recording began",
            "clock of rank 0 at 0, us": self.epoch_ns / 1000,
            "clocks": {
                self.names[rank]: {
                    "ahead of rank 0 at the beginning, us": clock.begin.ahead_ns / 1000,
                    "ahead of rank 0 at the end, us": clock.end.ahead_ns / 1000,
                    "error at most, us": clock.error_ns / 1000,
                }
                for rank, clock in zip(held, offsets, strict=True)
            },
            "events dropped": {self.names[rank]: many for rank, many in zip(held, dropped, strict=True) if many},
        }


def bring_together(
    meeting: Meeting,
    about: About,
    began: Sequence[Offset],
    recording: Recording,
    path: Path,
    missing: dict[str, str],
) -> None:
    """Collective. Writes the file to rank 0's ``path``. ``began``: what was measured of the clocks of all the job's ranks.

    Raises a ShoalError, on every rank, if it has not been written.
    """
    ended = clocks.measure(meeting)
    texts = json.dumps(recording.texts).encode()
    parts: tuple[bytes | bytearray, ...] = (texts, recording.operations, recording.marks)
    heads = meeting.objects([[len(part) for part in parts], recording.dropped, recording.ended_ns])
    problem = ""
    with _spool(path.parent if meeting.leads else None) as folder:
        arrived: list[list[Path]] = []
        for index, part in enumerate(parts):
            # Whatever happens on this rank's disk, the ranks stay in step.
            paths, trouble = meeting.collect(part, [head[0][index] for head in heads], folder / str(index))
            arrived.append(paths)
            problem = problem or trouble
        if meeting.leads and not problem:
            offsets = [Clock(began[rank], end) for rank, end in zip(meeting.ranks, ended, strict=True)]
            metadata = about.metadata(meeting.ranks, offsets, [head[1] for head in heads])
            if missing:
                metadata["missing"] = missing
            try:
                _write(path, meeting.ranks, about, offsets, arrived, [head[2] for head in heads], metadata)
            except Exception as error:  # the others wait to hear of it
                problem = f"{type(error).__name__}: {error}"
    rows = sum(head[0][1] // OPERATION.itemsize + head[0][2] // MARK.itemsize for head in heads)
    problem = meeting.objects(problem, patience=_WRITING + rows * _WRITING_EACH)[0]
    if problem:
        raise ShoalError(
            f"{about.names[0]} could not write the timeline ({problem}): give it a folder that it may write to, with room"
        )


def _write(
    path: Path,
    ranks: Sequence[int],
    about: About,
    offsets: Sequence[Clock],
    arrived: Sequence[Sequence[Path]],
    ended: Sequence[int],
    metadata: dict[str, Any],
) -> None:
    texts: list[list[str]] = [json.loads(one.read_bytes()) for one in arrived[0]]
    rows = [waits.rows_of(_mapped(one)) for one in arrived[1]]
    marks = [chrome.rows_of_marks(_mapped(one)) for one in arrived[2]]
    calls = [
        waits.Calls(some, clock.common(some["submitted"], about.epoch_ns), text)
        for some, clock, text in zip(rows, offsets, texts, strict=True)
    ]
    found = waits.find(calls, len(about.names))
    names = [json.dumps(about.names[rank]) for rank in ranks]
    metadata["waited for"] = {
        about.names[ranks[last]]: {"operations": many, "seconds that the others waited, added up": seconds}
        for last, (many, seconds) in waits.blamed(calls, found).items()
    }

    def events() -> Iterator[str]:
        for index, rank in enumerate(ranks):
            drawn = chrome.Rank(rank, about.names, offsets[index], about.epoch_ns, about.marks_cycles)
            yield drawn.about()
            yield from drawn.operations(rows[index], texts[index], ended[index], found[index], names)
            yield from drawn.marks(marks[index], texts[index])

    chrome.write(path, events(), metadata)


def write_alone(path: Path, rank: int, about: About, began: Offset, recording: Recording, why: str) -> None:
    """A file of this rank's own events, which says why the others' are not in it. Raises OSError."""
    clock = Clock(began, began)
    drawn = chrome.Rank(rank, about.names, clock, about.epoch_ns, about.marks_cycles)
    metadata = about.metadata([rank], [clock], [recording.dropped])
    metadata["missing"] = {name: why for index, name in enumerate(about.names) if index != rank}
    path.parent.mkdir(parents=True, exist_ok=True)

    def events() -> Iterator[str]:
        yield drawn.about()
        yield from drawn.operations(waits.rows_of(recording.operations), recording.texts, recording.ended_ns)
        yield from drawn.marks(chrome.rows_of_marks(recording.marks), recording.texts)

    chrome.write(path, events(), metadata)


class _spool:
    """A folder beside the file for what arrives, where this rank takes it in; gone afterwards."""

    def __init__(self, beside: Path | None) -> None:
        self._beside = beside
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        if self._beside is not None:
            # Without it, what arrives cannot be kept, which is said then.
            with suppress(OSError):
                self._folder = tempfile.TemporaryDirectory(prefix=".shoal-timeline-", dir=self._beside)
        return Path(self._folder.name if self._folder is not None else os.devnull)

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _mapped(path: Path) -> Any:
    """The file's bytes, which stay on disk as long as nobody reads them."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else b""
