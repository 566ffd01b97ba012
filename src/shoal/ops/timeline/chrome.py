"""The file: Trace Event Format, which ui.perfetto.dev and chrome://tracing open. docs/timeline.md says how to read it.

A process of the file is a rank. An operation is three bars on one of the rank's tracks: the whole of it under its name,
below it ``NEGOTIATE_<collective>`` until all members had called it, then ``<collective>``. Tracks are as many as there
were operations at once. Times in the file are microseconds.
"""

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from shoal.job.trace import MARK, OPEN, UNNUMBERED
from shoal.ops.timeline.clocks import Clock
from shoal.ops.timeline.waits import Waits

COLLECTIVES = {1: "allreduce", 2: "reducescatter", 3: "broadcast", 4: "allgather", 5: "alltoall", 6: "barrier"}

# Threads of the file that are none of the process: above all thread numbers of Linux.
_FIRST_TRACK = 10_000_000
_CYCLES = _FIRST_TRACK - 1

# So many rows are text in memory at a time.
_ROWS = 20_000
# So many flushes of before are remembered, while a file is written bit by bit.
_FLUSHES = 10_000


@dataclass
class Rank:
    """How events of one rank are drawn. ``names``: of the job's ranks, by rank, for whom others waited."""

    rank: int
    names: Sequence[str]
    clock: Clock
    epoch_ns: int
    marks_cycles: bool
    _busy: list[tuple[float, int]] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _tracks: int = 0
    _flushes: set[int] = field(default_factory=set)
    _quoted: list[str] = field(default_factory=list)

    def about(self) -> str:
        """Who it is: the first line of its events."""
        return _lines(
            _metadata(self.rank, 0, "process_name", {"name": self.names[self.rank]}),
            _metadata(self.rank, 0, "process_sort_index", {"sort_index": self.rank}),
        )

    def operations(
        self,
        rows: NDArray[np.void],
        texts: Sequence[str],
        now_ns: int,
        waits: Waits | None = None,
        last_names: Sequence[str] = (),
    ) -> Iterator[str]:
        """Lines, some at a time. ``now_ns``: of the rank's clock, until when open operations are drawn.

        Without ``waits`` an operation's wait ends when this rank has heard that all had called it. ``last_names``: of the
        ranks that ``waits`` tells of.
        """
        quoted = self._quoted_of(texts)
        order = np.argsort(rows["submitted"], kind="stable")
        for begin in range(0, len(order), _ROWS):
            chosen = order[begin : begin + _ROWS]
            some = rows[chosen]
            all_called = np.full(len(some), np.nan) if waits is None else np.rint(waits.all_called[chosen]) / 1000
            last = [-1] * len(some) if waits is None else waits.last[chosen].tolist()
            yield "".join(self._operations(some, quoted, now_ns, all_called, last, last_names))
        if self.marks_cycles:
            yield "".join(self._cycles(rows))

    def marks(self, rows: NDArray[np.void], texts: Sequence[str]) -> Iterator[str]:
        """Lines, some at a time."""
        quoted = self._quoted_of(texts)
        for begin in range(0, len(rows), _ROWS):
            some = rows[begin : begin + _ROWS]
            yield "".join(self._marks(some, texts, quoted))

    def _quoted_of(self, texts: Sequence[str]) -> list[str]:
        """As JSON. Of the same recording each time, whose texts only become more."""
        self._quoted += [json.dumps(text) for text in texts[len(self._quoted) :]]
        return self._quoted

    def _operations(
        self,
        rows: NDArray[np.void],
        quoted: Sequence[str],
        now_ns: int,
        known_all_called: NDArray[np.float64],
        last: Sequence[int],
        last_names: Sequence[str],
    ) -> Iterator[str]:
        rank = self.rank
        submitted = self._microseconds(rows["submitted"])
        is_open = rows["status"] == OPEN
        done = np.maximum(self._microseconds(np.where(is_open, now_ns, rows["done"])), submitted)
        # Not known where some rank's call is not recorded: then what this rank has heard, if it has.
        not_heard = np.where(is_open, done, np.nan)
        heard = np.where(rows["all_called"] > 0, self._microseconds(rows["all_called"]), not_heard)
        known = np.where(np.isnan(known_all_called), heard, known_all_called)
        all_called = np.clip(known, submitted, done)  # clocks have errors
        moments = (
            np.where(rows[name] > 0, rows[name] - rows["submitted"], -1).tolist()
            for name in ("input_ready", "sent", "all_called", "first_result")
        )
        columns = (
            zip(rows["name"].tolist(), rows["group"].tolist(), rows["collective"].tolist(), strict=True),
            rows["occurrence"].tolist(),
            rows["nbytes"].tolist(),
            rows["status"].tolist(),
            submitted.tolist(),
            all_called.tolist(),
            done.tolist(),
            last,
            *moments,
        )
        # This is what writing a long timeline takes its time for: few calls, and what is the same of many is made once.
        known_words: dict[tuple[int, int, int], tuple[str, str, str]] = {}
        for kind, occurrence, nbytes, status, begin, called, end, who, ready, sent, heard_ns, result in zip(
            *columns, strict=True
        ):
            words = known_words.get(kind)
            if words is None:
                words = known_words[kind] = _words(kind, quoted)
            whole, waiting, moving = words
            track = self._track(begin, end)
            if track < 0:
                track = -track
                yield self._track_name(track)
            head = f'{{"ph":"X","pid":{rank},"tid":{track},"ts":'
            at = f"{begin:.3f}"
            details = f"{nbytes}" if occurrence == UNNUMBERED else f'{nbytes},"occurrence":{occurrence}'
            if ready >= 0:
                details += f',"ns to input ready":{ready}'
            if sent >= 0:
                details += f',"ns to first byte sent":{sent}'
            if heard_ns >= 0:
                details += f',"ns until heard that all had called":{heard_ns}'
            if result >= 0:
                details += f',"ns to first result":{result}'
            if status:
                details += ',"status":"open"' if status == OPEN else f',"status":"failed ({status})"'
            lines = f'{head}{at},"dur":{end - begin:.3f},{whole}{details}}}}},\n'
            if called == called:  # no NaN
                waited = "}" if who < 0 else f'"last to call":{last_names[who]}}}'
                lines += f'{head}{at},"dur":{called - begin:.3f},{waiting}{waited}}},\n'
                begin, at = called, f"{called:.3f}"
            yield f'{lines}{head}{at},"dur":{end - begin:.3f},{moving}}},\n'

    def _cycles(self, rows: NDArray[np.void]) -> Iterator[str]:
        """When operations were first written to the network or to shared memory. What was written together is one."""
        sent = rows[rows["sent"] > 0]
        alone = sent["sent"][sent["flush"] == 0]
        together = np.sort(sent[sent["flush"] > 0], order=("flush", "sent"))
        flushes, first = np.unique(together["flush"], return_index=True)
        new = first[[flush not in self._flushes for flush in flushes.tolist()]] if len(first) else first
        if len(self._flushes) > _FLUSHES:
            self._flushes.clear()
        self._flushes.update(flushes.tolist())
        for at in np.sort(self._microseconds(np.concatenate([alone, together["sent"][new]]))).tolist():
            yield f'{{"ph":"i","s":"p","pid":{self.rank},"tid":{_CYCLES},"ts":{at:.3f},"name":"CYCLE_START"}},\n'

    def _marks(self, rows: NDArray[np.void], texts: Sequence[str], quoted: Sequence[str]) -> Iterator[str]:
        began = self._microseconds(rows["began"]).tolist()
        ended = self._microseconds(rows["ended"]).tolist()
        columns = (rows["name"].tolist(), rows["details"].tolist(), rows["ended"].tolist(), rows["thread"].tolist())
        for name, details, is_span, thread, begin, end in zip(*columns, began, ended, strict=True):
            kind = f'"X","dur":{end - begin:.3f}' if is_span else '"i","s":"t"'
            arguments = texts[details] or "{}"
            yield (
                f'{{"ph":{kind},"pid":{self.rank},"tid":{thread},"ts":{begin:.3f},"cat":"program","name":{quoted[name]},'
                f'"args":{arguments}}},\n'
            )

    def _track(self, begin: float, end: float) -> int:
        """The first one on which nothing is drawn any more; negative: it is new."""
        while self._busy and self._busy[0][0] <= begin:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        new = not self._free
        if new:
            track = _FIRST_TRACK + self._tracks
            self._tracks += 1
        else:
            track = heapq.heappop(self._free)
        heapq.heappush(self._busy, (end, track))
        return -track if new else track

    def _track_name(self, track: int) -> str:
        number = track - _FIRST_TRACK
        return _lines(
            _metadata(self.rank, track, "thread_name", {"name": f"operations {number + 1}"}),
            # Perfetto sorts by it: above the program's threads.
            _metadata(self.rank, track, "thread_sort_index", {"sort_index": number - 1000}),
        )

    def _microseconds(self, times: NDArray[Any]) -> NDArray[np.float64]:
        # Whole nanoseconds, so that bars that end together do so to the last digit.
        return np.rint(self.clock.common(times.astype(np.int64), self.epoch_ns)) / 1000


def _words(kind: tuple[int, int, int], quoted: Sequence[str]) -> tuple[str, str, str]:
    """Of the bars of operations of one name, group and collective: what they have behind their times. The first goes on
    with the bytes."""
    name, group, collective = kind
    what = COLLECTIVES.get(collective, "operation")
    of_group = f'"group":{quoted[group]},' if group else ""
    shown = quoted[name] if name else f'"{what}"'
    return (
        f'"cat":"operation","name":{shown},"args":{{{of_group}"operation":"{what}","bytes":',
        f'"cat":"wait","name":"NEGOTIATE_{what.upper()}","args":{{',
        f'"cat":"transfer","name":"{what.upper()}"',
    )


def rows_of_marks(data: Any) -> NDArray[np.void]:
    """Rows of MARK."""
    return np.frombuffer(data, MARK)


def write(path: Path, events: Iterable[str], metadata: dict[str, Any]) -> None:
    """The file, whole or not at all. Raises OSError."""
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for lines in events:
                file.write(lines)
            _close(file, metadata)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _close(file: TextIO, metadata: dict[str, Any]) -> None:
    # Each line before ends with a comma.
    last = {"ph": "M", "name": "shoal_timeline", "pid": 0, "tid": 0, "args": {"format": 1}}
    file.write(json.dumps(last) + f'\n],"metadata":{json.dumps(metadata)}}}\n')


def _metadata(rank: int, thread: int, name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": rank, "tid": thread, "args": arguments})


def _lines(*events: str) -> str:
    return "".join(f"{event},\n" for event in events)
