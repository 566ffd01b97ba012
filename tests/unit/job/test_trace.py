"""What is recorded of a rank is compact, has a limit, and is nothing when nobody asked for it."""

import json
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from shoal import _native
from shoal.job import trace


class Submitted:
    """A native handle while somebody records, and the course of its operation."""

    def __init__(self, occurrence: int | None = None, moments: tuple[int, ...] | None = None, code: int = 0) -> None:
        self._occurrence = occurrence
        self._moments = moments
        self._code = code

    def course(self) -> "Submitted":
        return self

    def ended(self) -> bool:
        return self._moments is not None

    def occurrence(self) -> int | None:
        return self._occurrence

    def code(self) -> int:
        return self._code

    def moments(self) -> tuple[int, ...] | None:
        return self._moments


def native(handle: Submitted) -> _native.Handle:
    return cast(_native.Handle, handle)


@pytest.fixture
def recorder() -> Iterator[trace.Recorder]:
    recorder = trace.Recorder()
    trace.start(recorder)
    yield recorder
    trace.stop()


def rows(recording: trace.Recording) -> np.ndarray[Any, Any]:
    return np.frombuffer(recording.operations, trace.OPERATION)


def marks(recording: trace.Recording) -> np.ndarray[Any, Any]:
    return np.frombuffer(recording.marks, trace.MARK)


def test_an_operation_has_its_moments_and_the_number_of_its_call(recorder: trace.Recorder) -> None:
    for group, name, occurrence in [("", "weight", 7), ("", "weight", 9), ("[0, 1]  0", "weight", 0), ("", None, None)]:
        handle = Submitted(occurrence, (0, 2, 3, 4, 5, 6))
        trace.operation_ended(trace.operation_began(native(handle), 1, group, name, 40, 1))
    recording = recorder.end()
    found = rows(recording)
    assert [recording.texts[name] for name in found["name"]] == ["weight", "weight", "weight", ""]
    assert [recording.texts[group] for group in found["group"]] == ["", "", "[0, 1]  0", ""]
    assert found["occurrence"].tolist() == [7, 9, 0, trace.UNNUMBERED]
    assert found[0].tolist()[3:] == (1, 0, 40, 1, 0, 2, 3, 4, 5, 6)


def test_operations_that_nobody_waited_for_are_there_as_far_as_they_came(recorder: trace.Recorder) -> None:
    handles = [Submitted(0, (0, 2, 3, 4, 5, 6), code=3), Submitted(1), Submitted()]
    for handle in handles:
        trace.operation_began(native(handle), 1, "", "x", 0, 1)
    found = rows(recorder.end())
    assert found["status"].tolist() == [3, trace.OPEN, trace.OPEN]
    assert found["done"].tolist() == [5, 0, 0]
    assert found["occurrence"].tolist() == [0, 1, trace.UNNUMBERED]


def test_moments_and_spans_have_their_thread_and_details(recorder: trace.Recorder) -> None:
    before = time.monotonic_ns()
    trace.instant("gradient ready", parameter="weight")
    with trace.span("backward"):
        time.sleep(0.001)
    recording = recorder.end()
    moment, span = marks(recording)
    assert (recording.texts[moment["name"]], json.loads(recording.texts[moment["details"]])) == (
        "gradient ready",
        {"parameter": "weight"},
    )
    assert before <= moment["began"] <= span["began"] < span["ended"] - 900_000
    assert moment["ended"] == 0
    assert moment["thread"] == span["thread"] > 0


def test_nothing_is_recorded_before_start_and_after_stop() -> None:
    recorder = trace.Recorder()
    trace.instant("too early")
    assert not trace.recording()
    assert trace.operation_began(native(Submitted()), 1, "", None, 0, 1) == 0
    trace.start(recorder)
    assert trace.recording()
    trace.stop()
    with trace.span("too late"):
        pass
    recording = recorder.end()
    assert not recording.operations
    assert not recording.marks


def test_a_long_recording_is_cut_and_says_so(recorder: trace.Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "EVENT_LIMIT", 3)
    for _ in range(5):
        trace.instant("event")
    assert trace.operation_began(native(Submitted()), 1, "", None, 0, 1) == 0
    recording = recorder.end()
    assert len(marks(recording)) == 3
    assert recording.dropped == 3


def test_names_without_end_are_cut_and_say_so(recorder: trace.Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "TEXT_LIMIT", 3)
    for step in range(5):
        trace.instant(f"step {step}")
        trace.instant("step 0")
    recording = recorder.end()
    assert recording.texts == ["", "step 0", "step 1"]
    assert len(marks(recording)) == 7
    assert recording.dropped == 3


def test_a_million_events_take_eighty_megabytes() -> None:
    assert trace.OPERATION.itemsize == 80
    assert trace.MARK.itemsize <= trace.OPERATION.itemsize
    assert trace.EVENT_LIMIT == 1_000_000
