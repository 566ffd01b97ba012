"""Which ranks are one node."""

import pytest

from shoal.tuning.measured import Network
from shoal.tuning.shares import server_places
from shoal.tuning.topology import MOST_RANKS, by_node, largest_node, leaders_of, machine


@pytest.mark.parametrize(
    ("places", "leaders"),
    [
        ([("a", 0), ("a", 1), ("a", 2)], (0, 0, 0)),
        ([("a", 0), ("a", 1), ("b", 0), ("b", 1)], (0, 0, 2, 2)),
        ([("a", 0), ("b", 0), ("a", 1), ("b", 1)], (0, 1, 0, 1)),  # dealt out in turns
        ([("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)], (0, 0, 0, 3, 3)),
        ([("a", 0), ("a", 1), ("a", 0), ("a", 1)], (0, 0, 2, 2)),  # a machine that is cut into nodes
        ([("a", 0), ("a", 0), ("a", 0)], (0, 1, 2)),
        ([("a", 1), ("a", 0)], (0, 1)),  # a launcher with an order of its own
    ],
)
def test_a_node_is_what_begins_with_a_local_rank_0(places: list[tuple[str, int]], leaders: tuple[int, ...]) -> None:
    assert leaders_of(places) == leaders


def test_a_machine_with_too_many_ranks_shares_nothing() -> None:
    places = [("a", rank) for rank in range(MOST_RANKS + 1)]
    assert leaders_of(places) == tuple(range(MOST_RANKS + 1))
    assert leaders_of(places[:-1]) == (0,) * MOST_RANKS


def test_the_largest_node_counts() -> None:
    assert largest_node((0, 0, 2, 2, 2)) == 3
    assert largest_node((0, 1)) == 1


def test_this_machine_has_a_name_of_its_own() -> None:
    assert machine() == machine()
    assert len(machine()) == 32


def test_the_ranks_of_a_node_share_its_link() -> None:
    assert by_node(Network((5, 5, 10, 10, 10), (7,), 0.1), (0, 0, 2, 2, 2)) == Network((10, 30), (7,), 0.1)
    assert by_node(None, (0, 0)) is None


def test_only_the_first_rank_of_a_node_averages() -> None:
    places = server_places(["a", "a", "b", "b"], (), "auto", None, (0, 0, 2, 2))
    assert [place.weight for place in places] == [1, 0, 1, 0]
