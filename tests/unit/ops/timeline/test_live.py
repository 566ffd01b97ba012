"""What rank 0 writes while a timeline is recorded."""

import json
import threading
import time
from pathlib import Path

import pytest

from shoal.job.trace import Recorder
from shoal.ops.timeline.chrome import Rank
from shoal.ops.timeline.clocks import Clock, Offset
from shoal.ops.timeline.live import Live


def begin(path: Path) -> tuple[Live, Recorder]:
    recorder = Recorder()
    measured = Offset(recorder.began_ns, 0, 0)
    drawn = Rank(0, ["rank 0 (here)"], Clock(measured, measured), recorder.began_ns, False)
    return Live(path, drawn, recorder), recorder


def mark(recorder: Recorder, name: str) -> None:
    recorder.add_mark(name, time.monotonic_ns(), 0, {})


def test_the_last_events_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    live, recorder = begin(path)
    mark(recorder, "ä last word")
    live.end()
    events = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    assert events[-1]["name"] == "ä last word"


def test_nothing_is_left_in_a_buffer_that_a_forked_child_would_write_too(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    live, _ = begin(path)
    live._put("all of it")
    assert path.read_text().endswith("all of it")
    live.end()


def test_a_full_disk_ends_the_writing_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with pytest.raises(OSError, match="No space left"):
        begin(Path("/dev/full"))
    live, recorder = begin(tmp_path / "timeline.json")
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(live, "_file", full)
        mark(recorder, "too much")
        live.end()
    assert "No space left" in caplog.text
    assert recorder.changed is None
    assert not raised
