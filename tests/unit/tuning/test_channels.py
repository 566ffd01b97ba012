"""How many lanes a job has, and how many threads serve them."""

import os

import pytest

from shoal.tuning import topology
from shoal.tuning.channels import Threads, lanes_and_channels
from shoal.tuning.measured import Network

GIGABIT = 125_000_000


def network(gigabits: float) -> Network:
    return Network((round(gigabits * GIGABIT),) * 2, (), 1e-4)


def ranks(processors: int, *asked: int) -> list[Threads]:
    return [Threads(one, processors) for one in asked or (0, 0)]


@pytest.mark.parametrize(
    ("gigabits", "processors", "found"),
    [(1, 64, 1), (10, 64, 1), (12, 64, 1), (25, 64, 3), (100, 64, 8), (25, 4, 2), (25, 2, 1), (25, 1, 1)],
)
def test_a_fast_link_has_several_where_processors_allow(gigabits: float, processors: int, found: int) -> None:
    assert lanes_and_channels(None, ranks(processors), network(gigabits)) == (found, found)


def test_the_ranks_of_a_machine_share_its_processors_unless_each_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert [topology.processors(ranks) for ranks in (1, 4, 16, 32)] == [16, 4, 1, 1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    assert topology.processors(4) == 4


def test_where_nothing_was_measured_there_is_one() -> None:
    assert lanes_and_channels(None, ranks(64), None) == (1, 1)
    assert lanes_and_channels(4, ranks(64), None) == (4, 1)


def test_what_is_asked_for_counts_and_the_least_of_it() -> None:
    assert lanes_and_channels(4, ranks(2, 3, 2), None) == (4, 2)
    assert lanes_and_channels(2, ranks(2, 8), network(1)) == (2, 2)
    assert lanes_and_channels(None, ranks(64, 2, 0), network(100)) == (2, 2)
    assert lanes_and_channels(None, ranks(64, 5), network(1)) == (1, 1)
    assert lanes_and_channels(4, ranks(64), network(100)) == (4, 4)


def test_a_rank_that_was_given_less_counts_for_all() -> None:
    assert lanes_and_channels(None, [Threads(0, 64), Threads(0, 4)], network(100)) == (2, 2)
