"""The timeline is a Trace Event file; nothing is recorded when nobody asked for it."""

import json
import time
from pathlib import Path

import pytest

from shoal.job import trace


@pytest.fixture
def recorder(tmp_path: Path) -> trace.Recorder:
    return trace.Recorder(tmp_path / "new" / "folder", "job", 2, "host")


def test_events_come_with_names_and_microseconds(recorder: trace.Recorder) -> None:
    trace.start(recorder)
    trace.instant("gradient ready", parameter="weight")
    trace.operation_began(7, "allreduce", time.monotonic_ns(), tensor="weight")
    with trace.span("backward"):
        trace.operation_ended(7, "allreduce", sent_ns=time.monotonic_ns(), done_ns=time.monotonic_ns(), status=0)
    assert trace.stop() is recorder
    document = json.loads(recorder.write().read_text())
    about, ready, submit, sent, complete, backward = document["traceEvents"]
    assert "rank 2 (host" in about["args"]["name"]
    assert (ready["ph"], ready["name"], ready["args"]) == ("i", "gradient ready", {"parameter": "weight"})
    assert (submit["ph"], submit["id"], submit["args"]["event"]) == ("b", 7, "submit")
    assert (sent["ph"], sent["id"], sent["args"]["event"]) == ("n", 7, "first byte sent")
    assert (complete["ph"], complete["id"], complete["args"]["event"]) == ("e", 7, "complete")
    assert (backward["ph"], backward["name"]) == ("X", "backward")
    assert ready["ts"] <= submit["ts"] <= sent["ts"] <= complete["ts"] <= backward["ts"] + backward["dur"]
    assert {event["pid"] for event in document["traceEvents"]} == {2}


def test_nothing_is_recorded_before_start_and_after_stop(recorder: trace.Recorder) -> None:
    trace.instant("too early")
    trace.start(recorder)
    assert trace.stop() is recorder
    trace.instant("too late")
    assert trace.stop() is None
    assert len(json.loads(recorder.write().read_text())["traceEvents"]) == 1


def test_a_long_recording_is_cut_and_says_so(recorder: trace.Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "EVENT_LIMIT", 3)
    trace.start(recorder)
    for _ in range(5):
        trace.instant("event")
    trace.stop()
    assert json.loads(recorder.write().read_text())["droppedEvents"] == 2
