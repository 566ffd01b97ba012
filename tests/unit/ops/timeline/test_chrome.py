"""The file is whole or not there, and its bars are where the events were, one inside the other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.job.trace import OPEN, OPERATION
from shoal.ops.timeline import chrome
from shoal.ops.timeline.chrome import Rank
from shoal.ops.timeline.clocks import Clock, Offset
from shoal.ops.timeline.waits import Waits

EXACT = Clock(Offset(0, 0, 0), Offset(1, 0, 0))
TEXTS = ["", 'a "name"', "[0, 1] some 0"]


def row(submitted: int, done: int, **fields: int) -> np.ndarray[Any, Any]:
    made = np.zeros(1, OPERATION)
    values = {"name": 1, "collective": 1, "submitted": submitted, "done": done, **fields}
    for name, value in values.items():
        made[name] = value
    return made


def drawn(
    rows: list[np.ndarray[Any, Any]], waits: Waits | None = None, now: int = 0, cycles: bool = False
) -> list[dict[str, Any]]:
    rank = Rank(1, ["rank 0 (here)", "rank 1 (there)"], EXACT, 1000, cycles)
    lines = "".join(rank.operations(np.concatenate(rows), TEXTS, now, waits, ['"rank 0 (here)"', '"rank 1 (there)"']))
    return [json.loads(line) for line in lines.replace(",\n", "\n").splitlines()]


def bars(events: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(event["ts"], event["dur"]) for event in events if event["name"] == name]


def test_an_operation_is_its_wait_and_then_its_transfer() -> None:
    operation = row(4000, 9000, sent=4500, all_called=7500, first_result=8000, nbytes=12, occurrence=3, group=2)
    events = drawn([operation], Waits(np.array([6000.0]), np.array([0], np.int32)))
    assert bars(events, 'a "name"') == [(3.0, 5.0)]
    # The file's times are since 1000 ns, and those of the waits are already.
    assert bars(events, "NEGOTIATE_ALLREDUCE") == [(3.0, 3.0)]
    assert bars(events, "ALLREDUCE") == [(6.0, 2.0)]
    whole, wait, _ = (event for event in events if event["ph"] == "X")
    assert whole["args"] == {
        "group": "[0, 1] some 0",
        "operation": "allreduce",
        "bytes": 12,
        "occurrence": 3,
        "ns to first byte sent": 500,
        "ns until heard that all had called": 3500,
        "ns to first result": 4000,
    }
    assert wait["args"] == {"last to call": "rank 0 (here)"}
    assert {event["pid"] for event in events} == {1}


def test_where_nobody_knows_who_was_last_the_wait_ends_when_this_rank_has_heard() -> None:
    events = drawn([row(4000, 9000, all_called=7500)], Waits(np.array([np.nan]), np.array([-1], np.int32)))
    assert bars(events, "NEGOTIATE_ALLREDUCE") == [(3.0, 3.5)]
    events = drawn([row(4000, 9000)])
    assert bars(events, "NEGOTIATE_ALLREDUCE") == []
    assert bars(events, "ALLREDUCE") == [(3.0, 5.0)]


def test_a_wait_stays_inside_its_operation_whatever_clocks_say() -> None:
    waits = Waits(np.array([1000.0, 50_000.0]), np.array([0, 1], np.int32))
    events = drawn([row(4000, 9000), row(14_000, 19_000)], waits)
    assert bars(events, "NEGOTIATE_ALLREDUCE") == [(3.0, 0.0), (13.0, 5.0)]
    assert bars(events, "ALLREDUCE") == [(3.0, 5.0), (18.0, 0.0)]


def test_operations_at_once_have_lanes_of_their_own_which_are_used_again() -> None:
    events = drawn([row(2000, 9000), row(3000, 5000), row(5000, 6000), row(9000, 10_000)])
    lanes = [event["tid"] for event in events if event["name"] == 'a "name"']
    assert lanes == [lanes[0], lanes[0] + 1, lanes[0] + 1, lanes[0]]
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert named == ["operations 1", "operations 2"]


def test_what_is_open_waits_until_the_end_and_what_failed_says_so() -> None:
    events = drawn([row(2000, 0, status=OPEN), row(3000, 5000, status=4)], now=21_000)
    whole = [event for event in events if event.get("cat") == "operation"]
    assert [event["args"].get("status") for event in whole] == ["open", "failed (4)"]
    assert bars(events, "NEGOTIATE_ALLREDUCE") == [(1.0, 19.0)]


def test_a_cycle_is_marked_once_for_what_was_written_together() -> None:
    rows = [
        row(2000, 9000, sent=3000, flush=7),
        row(2500, 9000, sent=6000, flush=8),
        row(2600, 9000, sent=3100, flush=7),
        row(2700, 9000, sent=8000),
        row(2800, 9000, sent=8000),
        row(2900, 9000),
    ]
    cycles = [event["ts"] for event in drawn(rows, cycles=True) if event["name"] == "CYCLE_START"]
    assert cycles == [2.0, 5.0, 7.0, 7.0]
    assert not [event for event in drawn(rows) if event["name"] == "CYCLE_START"]


def test_a_file_is_whole(tmp_path: Path) -> None:
    rank = Rank(0, ["rank 0 (here)"], EXACT, 0, False)
    path = tmp_path / "timeline.json"
    chrome.write(path, [rank.about(), *rank.operations(row(1, 2), TEXTS, 3)], {"job": "name"})
    read = json.loads(path.read_text())
    assert read["metadata"] == {"job": "name"}
    assert [event["name"] for event in read["traceEvents"]][:2] == ["process_name", "process_sort_index"]
    assert list(tmp_path.iterdir()) == [path]


def test_or_it_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text("before")

    def events() -> Iterator[str]:
        yield '{"ph":"M"},\n'
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        chrome.write(path, events(), {})
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
