"""What a process of the benchmark does alone: a wrong result is an error; other flows are known to the moment."""

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy
import pytest

from shoal.bench.background import COUNT, NOTE, Notes
from shoal.bench.channel import Channel
from shoal.bench.contestants import Buffer, FloatArray
from shoal.bench.contestants.base import ArrayBuffer
from shoal.bench.part import Part, WrongResult


class Alone:
    """A contestant of one rank, whose sums are off by ``error`` in the last element."""

    version, rank, size = "1", 0, 1
    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, error: float) -> None:
        self._error = error

    def buffer(self, content: FloatArray) -> Buffer:
        def reduce() -> None:
            content[-1] += numpy.float32(self._error)

        return ArrayBuffer(content, reduce)

    def barrier(self) -> None: ...
    def close(self) -> None: ...


def play(error: float) -> tuple[dict[str, object], BaseException | None]:
    """The answer to one checked turn, and what the part raised."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    raised: list[BaseException] = []

    def serve() -> None:
        try:
            Part(theirs, {"alone": Alone(error)}, "127.0.0.1").serve({"rank": 0})
        except WrongResult as wrong:
            raised.append(wrong)

    thread = threading.Thread(target=serve)
    thread.start()
    assert ours.receive(10) == {"rank": 0}
    ours.send({"do": "prepare", "contestant": "alone", "bytes": 3_000_000, "check": True})
    assert ours.receive(10) == {}
    ours.send({"do": "turn", "repetitions": 1, "check": True})
    answer = ours.receive(10)
    if "error" not in answer:
        ours.send({"do": "quit"})
    thread.join(10)
    assert not thread.is_alive()
    ours.close()
    return answer, raised[0] if raised else None


def test_a_right_result_is_timed() -> None:
    answer, raised = play(error=0)
    assert raised is None
    assert set(answer) == {"start", "end", "cpu"}


def test_a_wrong_result_is_an_error_and_no_figure() -> None:
    answer, raised = play(error=1)
    assert isinstance(raised, WrongResult)
    assert "element 749999 of a sum of 3000000 bytes" in str(answer["error"])


def test_the_speed_of_another_flow_is_that_between_two_moments(tmp_path: Path) -> None:
    second = 1_000_000_000
    notes = [(0, 0), (1 * second, 100), (2 * second, 300), (3 * second, 300)]
    path = tmp_path / "notes"
    path.write_bytes(COUNT.pack(len(notes)) + b"".join(NOTE.pack(*note) for note in notes))
    read = Notes(path, lambda: None)
    assert read.rate(0, 3 * second) == pytest.approx(100)
    assert read.rate(second // 2, 3 * second // 2) == pytest.approx(150)
    assert read.rate(2 * second, 3 * second) == 0
