"""How often the conductor repeats an operation: until a turn lasts as long as the plan says."""

import os
import threading
import time
from collections.abc import Mapping
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


@pytest.mark.parametrize(
    ("first", "later"), [(0.005, 20e-6), (0.01, 0.01), (0.06, 0.06)], ids=["slow at first", "even", "long"]
)
def test_a_turn_lasts_as_long_as_it_should(tmp_path: Path, first: float, later: float) -> None:
    stage = unix_stage(tmp_path)
    contestants = {"sleeper": Sleeper(first, later)}

    def take_part() -> None:
        Part(connect(stage.address), contestants, "127.0.0.1").serve(
            introduction(contestants, stage.token, str(os.getpid()))
        )

    thread = threading.Thread(target=take_part)
    thread.start()
    try:
        players = stage.admit(1, 10, lambda: None)
        conductor = Conductor({"sleeper": players}, Watch(), 10, lambda: None)
        (result,) = conductor.measure(PLAN, 4096, lambda *_: None)
        conductor.close()
    finally:
        stage.close()
        thread.join(10)
    assert not thread.is_alive()
    lasted = [turn.seconds * result.repetitions for turn in result.turns]
    assert min(lasted) > 0.8 * PLAN.turn_seconds
    assert result.repetitions <= 2 * PLAN.turn_seconds / later
