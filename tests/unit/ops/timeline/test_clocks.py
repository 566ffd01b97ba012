"""What clocks are apart is found within the bound that is given, whatever the network does."""

import random

import numpy as np
import pytest

from shoal.ops.timeline import clocks
from shoal.ops.timeline.clocks import Clock, Offset, Round

HOUR = 3600 * 10**9


def rounds_of(chance: random.Random, ahead: list[int], at: int, skewed: float) -> list[Round]:
    """Rounds whose way there and back take anything; ``skewed``: how much longer one of them is."""
    rounds = []
    for _ in range(16):
        there = [int(chance.expovariate(1 / 100_000) * skewed) for _ in ahead]
        back = [int(chance.expovariate(1 / 100_000)) for _ in ahead]
        read = [at + delay for delay in there]
        had = max(moment + delay for moment, delay in zip(read, back, strict=True))
        rounds.append(Round(at, [moment + by for moment, by in zip(read, ahead, strict=True)], had))
        at = had + 10_000
    return rounds


@pytest.mark.parametrize("skewed", [0.01, 1.0, 100.0])
def test_the_truth_is_within_the_error(skewed: float) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    ahead = [0, 5 * HOUR, -HOUR, 17]
    rounds = rounds_of(chance, ahead, 40 * HOUR, skewed)
    offsets = clocks.offsets_of(rounds, ["", "", "", ""])
    assert offsets[0] == Offset(rounds[-1].readings[0], 0, 0)
    quickest = min(one.had_ns - one.sent_ns for one in rounds)
    for truth, offset in zip(ahead, offsets, strict=True):
        assert abs(offset.ahead_ns - truth) <= offset.error_ns, f"seed {seed}"
        assert offset.error_ns <= quickest // 2 + 1, f"seed {seed}"


def test_ranks_with_one_clock_have_one_offset_and_rank_0s_has_none() -> None:
    chance = random.Random(3)
    rounds = rounds_of(chance, [0, 0, HOUR, HOUR], HOUR, 1.0)
    first, second, third, fourth = clocks.offsets_of(rounds, ["a", "a", "b", "b"])
    assert (first.ahead_ns, first.error_ns, second.ahead_ns, second.error_ns) == (0, 0, 0, 0)
    assert (third.ahead_ns, third.error_ns) == (fourth.ahead_ns, fourth.error_ns)
    assert abs(third.ahead_ns - HOUR) <= third.error_ns


def test_this_process_shares_a_clock_with_itself() -> None:
    assert clocks.identity() == clocks.identity() != ""


def test_times_come_onto_rank_0s_clock_and_drift_is_taken_out() -> None:
    # A clock that is three hours ahead, and gains 50 us in 10 s.
    begin, end = Offset(4 * HOUR, 3 * HOUR, 400), Offset(4 * HOUR + 10 * 10**9, 3 * HOUR + 50_000, 900)
    clock = Clock(begin, end)
    times = np.array([4 * HOUR, 4 * HOUR + 5 * 10**9, 4 * HOUR + 10 * 10**9], np.int64)
    assert clock.common(times, HOUR).tolist() == pytest.approx([0, 5 * 10**9 - 25_000, 10 * 10**9 - 50_000], abs=2)
    assert clock.error_ns == 900
    # Measured once only: nothing is known of drift.
    assert Clock(begin, begin).common(times, HOUR).tolist() == pytest.approx([0, 5 * 10**9, 10 * 10**9], abs=2)
