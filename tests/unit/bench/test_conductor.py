"""The conductor's turns: how long they last, and in which order contestants have them."""

import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from shoal.bench.channel import connect
from shoal.bench.conductor import Conductor, unix_stage
from shoal.bench.contestants import Buffer, FloatArray
from shoal.bench.contestants.base import ArrayBuffer
from shoal.bench.part import Part, introduction
from shoal.bench.plan import Plan
from shoal.bench.watch import Watch

PLAN = Plan(sizes=(4096,), rounds=3, turn_seconds=0.05)


class Sleeper:
    """A contestant of one rank, which takes ``first`` seconds for each of the first three operations of a turn, and ``later``."""

    version, rank, size = "1", 0, 1
    limits: Mapping[str, int] = MappingProxyType({})

    def __init__(self, first: float, later: float) -> None:
        self._first, self._later = first, later
        self._calls = 0

    def buffer(self, content: FloatArray) -> Buffer:
        return ArrayBuffer(content, self._take_time)

    def barrier(self) -> None:
        self._calls = 0

    def close(self) -> None: ...

    def _take_time(self) -> None:
        self._calls += 1
        time.sleep(self._first if self._calls <= 3 else self._later)


@contextmanager
def conducted(folder: Path, contestants: dict[str, Sleeper]) -> Iterator[Conductor]:
    """A conductor of these, which all are in one process."""
    stage = unix_stage(folder)

    def take_part() -> None:
        Part(connect(stage.address), contestants, "127.0.0.1").serve(
            introduction(contestants, stage.token, str(os.getpid()))
        )

    thread = threading.Thread(target=take_part)
    thread.start()
    try:
        players = stage.admit(1, 10, lambda: None)
        conductor = Conductor(dict.fromkeys(contestants, players), Watch(), 10, lambda: None)
        yield conductor
        conductor.close()
    finally:
        stage.close()
        thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("first", "later"), [(0.005, 20e-6), (0.01, 0.01), (0.06, 0.06)], ids=["slow at first", "even", "long"]
)
def test_a_turn_lasts_as_long_as_it_should(tmp_path: Path, first: float, later: float) -> None:
    with conducted(tmp_path, {"sleeper": Sleeper(first, later)}) as conductor:
        (result,) = conductor.measure(PLAN, 4096, lambda *_: None)
    lasted = [turn.seconds * result.repetitions for turn in result.turns]
    assert statistics.median(lasted) > 0.8 * PLAN.turn_seconds
    assert result.repetitions <= 2 * PLAN.turn_seconds / later


def test_contestants_of_one_library_repeat_equally_often(tmp_path: Path) -> None:
    contestants = {"shoal": Sleeper(0.002, 0.002), "gloo": Sleeper(0.01, 0.01), "shoal ring": Sleeper(0.004, 0.004)}
    with conducted(tmp_path, contestants) as conductor:
        ours, gloo, ring = conductor.measure(PLAN, 4096, lambda *_: None)
    assert ours.repetitions == ring.repetitions > gloo.repetitions
    assert min(turn.seconds * ours.repetitions for turn in ours.turns) > 0.8 * PLAN.turn_seconds


def test_contestants_have_their_turns_in_another_order_every_round(tmp_path: Path) -> None:
    heard: dict[int, list[str]] = {}
    contestants = {name: Sleeper(0.001, 0.001) for name in ("one", "two", "three")}
    with conducted(tmp_path, contestants) as conductor:
        results = conductor.measure(
            Plan(sizes=(4096,), rounds=6, turn_seconds=0.001),
            4096,
            lambda name, _size, number, _rounds: heard.setdefault(number, []).append(name),
        )
    rehearsed = heard.pop(0)
    assert rehearsed == [result.contestant for result in results] == list(contestants)
    assert len({tuple(order) for order in heard.values()}) == 6
    assert all(sorted(order) == sorted(contestants) for order in heard.values())
    assert [len(result.turns) for result in results] == [6, 6, 6]
