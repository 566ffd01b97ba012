"""How far the ranks' clocks are apart, measured over the job's own connections, and times brought onto rank 0's.

A clock is CLOCK_MONOTONIC of one kernel, in one time namespace: ranks that share it are not measured. Otherwise rank 0
sends a signal, each rank reads its clock when it comes, and the readings come back. Each round bounds what every clock
is ahead of rank 0's: the reading came after rank 0 had sent, and before rank 0 had it. The truth is in what all rounds
allow, so the error is bounded whatever the network does; the quickest rounds bound it best.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.ops.timeline.meeting import Meeting

_ROUNDS = 16


@dataclass(frozen=True)
class Offset:
    """At ``at_ns`` of a rank's clock it was ``ahead_ns`` ahead of rank 0's, give or take ``error_ns``."""

    at_ns: int
    ahead_ns: int
    error_ns: int

    def fields(self) -> list[int]:
        return [self.at_ns, self.ahead_ns, self.error_ns]


@dataclass(frozen=True)
class Clock:
    """One rank's clock during a recording: what was measured when it began and when it ended. Drift in between is steady."""

    begin: Offset
    end: Offset

    @property
    def error_ns(self) -> int:
        return max(self.begin.error_ns, self.end.error_ns)

    def common(self, times: NDArray[np.int64], epoch_ns: int) -> NDArray[np.float64]:
        """Nanoseconds of rank 0's clock since its ``epoch_ns``; ``times`` of the rank's own."""
        span = max(1, self.end.at_ns - self.begin.at_ns)
        drift = (self.end.ahead_ns - self.begin.ahead_ns) / span
        # Apart, since a float has no room for a time and its nanoseconds.
        since_epoch = (times - (self.begin.ahead_ns + epoch_ns)).astype(np.float64)
        since_measured: NDArray[np.float64] = (times - self.begin.at_ns).astype(np.float64)
        return since_epoch - drift * since_measured


def identity() -> str:
    """The same text in processes that share a clock; "" where nobody can know."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):  # a kernel before 5.6 has one for all
        namespace = str(Path("/proc/self/ns/time").readlink())
    return f"{boot} {namespace}" if boot else ""


def measure(meeting: Meeting) -> list[Offset]:
    """One for each rank of the meeting, the same on all of them. Collective."""
    identities = meeting.objects(identity())
    if len(set(identities)) == 1 and identities[0]:
        return [Offset(time.monotonic_ns(), 0, 0)] * len(identities)
    rounds: list[Round] = []
    for _ in range(_ROUNDS):
        sent_ns = time.monotonic_ns()
        read_ns = meeting.signal().finished_ns
        readings, brought = meeting.clocks(read_ns)
        rounds.append(Round(sent_ns, readings, brought.finished_ns))
    found = [one.fields() for one in offsets_of(rounds, identities)] if meeting.leads else None
    told: list[Any] = meeting.objects(found)
    return [Offset(*fields) for fields in told[0]]


@dataclass(frozen=True)
class Round:
    """On rank 0's clock: when it sent, and when it had the readings, which are by rank and of the ranks' own clocks."""

    sent_ns: int
    readings: Sequence[int]
    had_ns: int


def offsets_of(rounds: Sequence[Round], identities: Sequence[str]) -> list[Offset]:
    """What the rounds say, by rank. Ranks of one identity have one clock, and what is known of one holds for all."""
    clocks = [name or f"of rank {index}" for index, name in enumerate(identities)]
    bounds: dict[str, tuple[int, int]] = {}
    for index, clock in enumerate(clocks):
        least = max(one.readings[index] - one.had_ns for one in rounds)
        most = min(one.readings[index] - one.sent_ns for one in rounds)
        known = bounds.get(clock, (least, most))
        bounds[clock] = (max(known[0], least), min(known[1], most))
    offsets = []
    for at, clock in zip(rounds[-1].readings, clocks, strict=True):
        least, most = (0, 0) if clock == clocks[0] else bounds[clock]
        # Clocks that drift during the rounds may leave nothing between the bounds, by nanoseconds.
        offsets.append(Offset(at, (least + most) // 2, (abs(most - least) + 1) // 2))
    return offsets
