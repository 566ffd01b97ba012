"""Who called each operation last, and when: from the ranks' recordings on one clock.

An operation is the same on all ranks where group, name and occurrence are equal. Nothing of this goes over the network
while the job runs. Pure functions of arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.job.trace import OPERATION, UNNUMBERED

_Rows = NDArray[np.void]
_Times = NDArray[np.float64]

# So many calls are looked at together: each takes some 50 bytes then.
_AT_A_TIME = 1_000_000


@dataclass(frozen=True)
class Calls:
    """One rank's: rows of OPERATION, when it submitted each on the common clock, and its texts."""

    rows: _Rows
    submitted: _Times
    texts: Sequence[str]


@dataclass(frozen=True)
class Waits:
    """Of one rank, by row: when the last member had called the operation, and which member of the meeting that was.

    NaN and -1: some member's call is not recorded.
    """

    all_called: _Times
    last: NDArray[np.int32]


def find(ranks: Sequence[Calls], size: int, at_a_time: int = _AT_A_TIME) -> list[Waits]:
    """The waits of each. ``size``: how many ranks the job has."""
    keys, members = _keys(ranks, size)
    found = [Waits(np.full(len(one.rows), np.nan), np.full(len(one.rows), -1, np.int32)) for one in ranks]
    parts = -(-sum(len(one) for one in keys) // at_a_time)
    sorted_rows = [_sorted_by_part(one, parts) for one in keys]
    for part in range(parts):
        chosen = [rows[bounds[part] : bounds[part + 1]] for rows, bounds in sorted_rows]
        _find(chosen, keys, members, ranks, found)
    return found


def _sorted_by_part(keys: NDArray[np.int64], parts: int) -> tuple[NDArray[np.uint32], list[int]]:
    """The rows, those of each part together, and where each part begins, and the end."""
    if parts <= 1:
        return np.arange(len(keys), dtype=np.uint32), [0, len(keys)]
    part = (keys % parts).astype(np.uint32)
    rows = np.argsort(part, kind="stable").astype(np.uint32)
    return rows, np.searchsorted(part, np.arange(parts + 1), sorter=rows).tolist()


def blamed(ranks: Sequence[Calls], found: Sequence[Waits]) -> dict[int, tuple[int, float]]:
    """By member: how many operations it was the last to call, and the seconds that others waited for it, added up."""
    operations = np.zeros(len(ranks), np.int64)
    seconds = np.zeros(len(ranks))
    for rank, (one, waits) in enumerate(zip(ranks, found, strict=True)):
        known = waits.last >= 0
        last = waits.last[known]
        operations[rank] += np.count_nonzero(last == rank)
        seconds += np.bincount(last, (waits.all_called - one.submitted)[known] / 1e9, len(ranks))
    return {
        rank: (int(operations[rank]), round(float(seconds[rank]), 6)) for rank in np.flatnonzero(operations).tolist()
    }


def _find(
    chosen: Sequence[NDArray[np.uint32]],
    keys: Sequence[NDArray[np.int64]],
    members: Sequence[NDArray[np.int32]],
    ranks: Sequence[Calls],
    found: Sequence[Waits],
) -> None:
    key = np.concatenate([one[rows] for one, rows in zip(keys, chosen, strict=True)])
    if not len(key):
        return
    size = np.concatenate([one[rows] for one, rows in zip(members, chosen, strict=True)])
    when = np.concatenate([one.submitted[rows] for one, rows in zip(ranks, chosen, strict=True)])
    who = np.concatenate([np.full(len(rows), rank, np.int32) for rank, rows in enumerate(chosen)])
    order = np.lexsort((when, key))
    starts = np.flatnonzero(np.r_[True, np.diff(key[order]) != 0])
    calls = np.diff(np.r_[starts, len(order)])
    ends = order[starts + calls - 1]
    complete = calls == size[ends]
    all_called = np.empty(len(order))
    last = np.empty(len(order), np.int32)
    all_called[order] = np.repeat(np.where(complete, when[ends], np.nan), calls)
    last[order] = np.repeat(np.where(complete, who[ends], -1), calls)
    begin = 0
    for waits, rows in zip(found, chosen, strict=True):
        waits.all_called[rows] = all_called[begin : begin + len(rows)]
        waits.last[rows] = last[begin : begin + len(rows)]
        begin += len(rows)


def _keys(ranks: Sequence[Calls], size: int) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int32]]]:
    """By rank and row: a number that is equal for calls of one operation, and how many members its group has.

    A call without a number is nobody else's, and lacks members. The core gives none to a call in a group of one.
    """
    names: dict[str, int] = {}
    groups: dict[str, int] = {}
    for one in ranks:
        for text in one.texts:
            names.setdefault(text, len(names))
        for index in np.unique(one.rows["group"]):
            groups.setdefault(one.texts[index], len(groups))
    unnumbered = [one.rows["occurrence"] == UNNUMBERED for one in ranks]
    numbers = (one.rows["occurrence"][~none] for one, none in zip(ranks, unnumbered, strict=True))
    occurrences = 1 + max((int(some.max()) for some in numbers if len(some)), default=0)
    keys, members = [], []
    alone = -1
    for one, none in zip(ranks, unnumbered, strict=True):
        name = np.array([names[text] for text in one.texts], np.int64)
        group = np.array([groups.get(text, 0) for text in one.texts], np.int64)
        sizes = np.array([members_of(text, size) if text in groups else 0 for text in one.texts], np.int32)
        rows = one.rows
        of_group = group[rows["group"]] * len(names) + name[rows["name"]]
        key = of_group * occurrences + rows["occurrence"]
        size_of = sizes[rows["group"]]
        many = np.count_nonzero(none)
        key[none] = np.arange(alone, alone - many, -1)
        alone -= many
        size_of[none & (size_of > 1)] = 0
        keys.append(key)
        members.append(size_of)
    return keys, members


def members_of(group: str, size: int) -> int:
    """How many members a group has, by its identity (``Group.identity``)."""
    return size if not group else group.partition("]")[0].count(",") + 1


def rows_of(data: Any) -> _Rows:
    """Rows of OPERATION."""
    return np.frombuffer(data, OPERATION)
