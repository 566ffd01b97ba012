"""Who was last is found by group, name and occurrence, whatever order each rank has."""

import random
import time

import numpy as np
import pytest

from shoal.job.trace import OPERATION, UNNUMBERED
from shoal.ops.timeline import waits
from shoal.ops.timeline.waits import Calls, Waits

Call = tuple[str, str, int, float]  # group, name, occurrence, when it was submitted


def calls(made: list[Call]) -> Calls:
    texts = [""]
    for group, name, _, _ in made:
        texts += [text for text in (name, group) if text not in texts]
    rows = np.zeros(len(made), OPERATION)
    for row, (group, name, occurrence, _) in zip(rows, made, strict=True):
        row["group"], row["name"], row["occurrence"] = texts.index(group), texts.index(name), occurrence
    return Calls(rows, np.array([when for *_, when in made], np.float64), texts)


def found(waited: Waits) -> list[tuple[float, int]]:
    return list(zip(waited.all_called.tolist(), waited.last.tolist(), strict=True))


def test_the_last_to_call_is_named_to_all() -> None:
    ranks = [
        calls([("", "a", 0, 10.0), ("", "b", 0, 20.0)]),
        calls([("", "b", 0, 25.0), ("", "a", 0, 26.0)]),
        calls([("", "a", 0, 12.0), ("", "b", 0, 90.0)]),
    ]
    first, second, third = waits.find(ranks, 3)
    assert found(first) == [(26.0, 1), (90.0, 2)]
    assert found(second) == [(90.0, 2), (26.0, 1)]
    assert found(third) == [(26.0, 1), (90.0, 2)]
    assert waits.blamed(ranks, [first, second, third]) == {
        1: (1, pytest.approx((16.0 + 14.0) / 1e9, abs=1e-6)),
        2: (1, pytest.approx((70.0 + 65.0) / 1e9, abs=1e-6)),
    }


def test_occurrences_and_groups_are_told_apart() -> None:
    some = "[0, 2] tail 0"
    ranks = [
        calls([("", "a", 0, 1.0), ("", "a", 1, 2.0), (some, "a", 0, 3.0)]),
        calls([("", "a", 0, 4.0), ("", "a", 1, 5.0)]),
        calls([("", "a", 0, 6.0), ("", "a", 1, 1.5), (some, "a", 0, 0.5)]),
    ]
    assert [found(one) for one in waits.find(ranks, 3)] == [
        [(6.0, 2), (5.0, 1), (3.0, 0)],
        [(6.0, 2), (5.0, 1)],
        [(6.0, 2), (5.0, 1), (3.0, 0)],
    ]


def test_where_a_members_call_is_not_there_nobody_is_blamed() -> None:
    ranks = [calls([("", "a", 0, 1.0)]), calls([("", "b", 0, 2.0)])]
    for one in waits.find(ranks, 2):
        assert np.isnan(one.all_called).all()
        assert one.last.tolist() == [-1]
    assert waits.blamed(ranks, waits.find(ranks, 2)) == {}
    assert [found(one) for one in waits.find([calls([]), calls([])], 2)] == [[], []]


def test_calls_without_a_number_are_nobody_elses() -> None:
    own = "[1]  0"
    ranks = [
        calls([("", "a", UNNUMBERED, 1.0), ("", "a", 4, 2.0), ("", "a", UNNUMBERED, 3.0)]),
        calls(
            [("", "a", UNNUMBERED, 4.0), ("", "a", 4, 5.0), (own, "a", UNNUMBERED, 6.0), (own, "a", UNNUMBERED, 7.0)]
        ),
    ]
    first, second = (found(one) for one in waits.find(ranks, 2))
    nobody = pytest.approx((np.nan, -1), nan_ok=True)
    assert first == [nobody, (5.0, 1), nobody]
    # Of a group of one the core counts no calls.
    assert second == [nobody, (5.0, 1), (6.0, 1), (7.0, 1)]


def test_parts_are_found_without_looking_at_all_rows_for_each() -> None:
    rows = 200_000
    ranks = [Calls(np.zeros(rows, OPERATION), np.arange(rows, dtype=np.float64), [""]) for _ in range(2)]
    for one in ranks:
        one.rows["occurrence"] = np.arange(rows)
    began = time.process_time()
    waits.find(ranks, 2, at_a_time=200)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("at_a_time", [1, 7, 100, 10_000])
def test_it_is_the_same_however_many_are_looked_at_together(at_a_time: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    made = [("", f"name {index % 7}", index // 7) for index in range(300)]
    when = {(rank, call): chance.random() for rank in range(4) for call in made}
    ranks = []
    for rank in range(4):
        order = chance.sample(made, len(made))
        ranks.append((order, calls([(*call, when[rank, call]) for call in order])))
    for (order, _), one in zip(ranks, waits.find([one for _, one in ranks], 4, at_a_time), strict=True):
        last = [max(range(4), key=lambda rank, call=call: when[rank, call]) for call in order]  # type: ignore[misc]
        expected = [(when[rank, call], rank) for rank, call in zip(last, order, strict=True)]
        assert found(one) == expected, f"seed {seed}"
