"""The ranks that make a timeline together: what they tell each other, over the job's own connections.

All of a meeting's ranks call the same methods in the same order. A rank that does not come makes all of them raise, at
the latest when the patience of one of them is over; the job goes on.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shoal.job.groups import Group, world
from shoal.job.session import Session
from shoal.ops import collectives, operations
from shoal.ops.handles import Handle

NAME = "shoal timeline"

# Bytes of a rank that go to the first one at a time: so many at most, and so many from all of them together.
_CHUNK, _CHUNKS_OF_ALL = 4 << 20, 64 << 20
# Seconds that a wait goes on after the operation should have failed by itself.
_GRACE = 5.0


class Meeting:
    """``ranks``: who meets, in rising order; rank 0 is one of them. ``patience``: seconds to wait for one who does not come."""

    def __init__(self, session: Session, ranks: Sequence[int], patience: float) -> None:
        self.ranks = list(ranks)
        self.rank = session.rank
        self.patience = patience
        self._group = world() if len(self.ranks) == session.size else Group(self.ranks, NAME)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, to which everything comes."""
        return self.rank == 0

    def objects(self, own: Any, patience: float | None = None) -> list[Any]:
        """What each rank gives, in the order of ``ranks``: anything that JSON has."""
        line = json.dumps(own).encode() + b"\n"
        rows = np.frombuffer(line, np.uint8)
        everything = self._call("allgather", operations.allgather, rows, patience=patience).wait(self._limit(patience))
        return [json.loads(one) for one in everything.tobytes().splitlines()]

    def clocks(self, own: int) -> "tuple[list[int], Handle]":
        """A time of each rank, and the operation that has brought them."""
        handle = self._call("allgather", operations.allgather, np.array([own], np.int64))
        return handle.wait(self._limit()).tolist(), handle

    def signal(self) -> Handle:
        """What rank 0 sends to all: done after rank 0 has called it."""
        handle = self._call("broadcast", operations.broadcast, np.zeros(1, np.int64), 0, True)
        handle.wait(self._limit())
        return handle

    def collect(self, data: bytes | bytearray, sizes: Sequence[int], stem: Path) -> tuple[list[Path], str]:
        """Brings everybody's ``data`` to files of rank 0's, in the order of ``ranks``: ``stem`` and the rank. ``sizes``: how
        many bytes each has. Only a chunk of each is in memory at a time. On other ranks there are no files.

        Also: why they could not be written, "" if they were. The ranks are in step in any case.
        """
        chunk = max(64 << 10, min(_CHUNK, _CHUNKS_OF_ALL // len(self.ranks)))
        paths = [stem.with_name(f"{stem.name}-{rank}") for rank in self.ranks] if self.leads else []
        trouble = ""
        with ExitStack() as opened:
            files: list[BinaryIO] = []
            try:
                files += [opened.enter_context(path.open("wb")) for path in paths]
            except OSError as error:
                trouble = str(error)
            for begin in range(0, max(sizes), chunk):
                part = np.frombuffer(bytes(data[begin : begin + chunk]), np.uint8)
                splits = [part.size] + [0] * (len(self.ranks) - 1)
                handle = self._call("alltoall", operations.alltoall, part, splits, False)
                came = handle.wait(self._limit())
                if self.leads and not trouble:
                    trouble = _append(files, came, handle.splits or ())
        return paths, trouble

    def _call(self, called: str, plan: Callable[..., Any], *arguments: Any, patience: float | None = None) -> Handle:
        limit = self.patience if patience is None else patience
        return collectives.submit(called, NAME, self._group, plan, *arguments, timeout=limit)

    def _limit(self, patience: float | None = None) -> float:
        """A wait with an end: a rank that waits here for others does not count as blocked, so it is no part of a circle."""
        return (self.patience if patience is None else patience) + _GRACE


def _append(files: Sequence[BinaryIO], came: NDArray[np.uint8], sizes: Sequence[int]) -> str:
    """One rank's bytes to each file. Why not; "" if so."""
    at = 0
    try:
        for file, size in zip(files, sizes, strict=True):
            file.write(came[at : at + size].tobytes())
            file.flush()
            at += size
    except OSError as error:
        return str(error)
    return ""
