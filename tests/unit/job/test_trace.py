"""What is recorded of a rank is compact, has a limit, and is nothing when nobody asked for it."""

import json
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from shoal import _native
from shoal.job import trace


class Finished:
    """A native handle of an operation that is done."""

    def __init__(self, moments: tuple[int, int, int, int, int, int], status: int = 0) -> None:
        self._moments = moments
        self.code = status

    def done(self) -> bool:
        return True

    def wait(self, _: float) -> "Finished":
        return self

    def moments(self) -> tuple[int, int, int, int, int, int]:
        return self._moments


class Open(Finished):
    def done(self) -> bool:
        return False


def native(handle: Finished) -> _native.Handle:
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


def test_an_operation_has_its_moments_and_how_often_its_group_has_used_its_name(recorder: trace.Recorder) -> None:
    for group, name in [("", "weight"), ("", "weight"), ("[0, 1]  0", "weight"), ("", None)]:
        number = trace.operation_began(native(Finished((0, 2, 3, 4, 5, 6))), 1, group, name, 40, 1)
        trace.operation_ended(number, 0)
    recording = recorder.end()
    found = rows(recording)
    assert [recording.texts[name] for name in found["name"]] == ["weight", "weight", "weight", ""]
    assert [recording.texts[group] for group in found["group"]] == ["", "", "[0, 1]  0", ""]
    assert found["occurrence"].tolist() == [0, 1, 0, 0]
    assert found[0].tolist()[3:] == (1, 0, 40, 1, 0, 2, 3, 4, 5, 6)


def test_operations_that_nobody_waited_for_are_there_as_far_as_they_came(recorder: trace.Recorder) -> None:
    trace.operation_began(native(Finished((0, 2, 3, 4, 5, 6), status=3)), 1, "", "done", 0, 1)
    trace.operation_began(native(Open((0, 0, 0, 0, 0, 0))), 1, "", "open", 0, 1)
    found = rows(recorder.end())
    assert found["status"].tolist() == [3, trace.OPEN]
    assert found["done"].tolist() == [5, 0]


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
    assert trace.operation_began(native(Open((0, 0, 0, 0, 0, 0))), 1, "", None, 0, 1) == 0
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
    assert trace.operation_began(native(Open((0, 0, 0, 0, 0, 0))), 1, "", None, 0, 1) == 0
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
