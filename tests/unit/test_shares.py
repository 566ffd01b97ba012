"""shares.py: the weights are exactly the balance of design's formula."""

from fractions import Fraction

import pytest

from shoal.addresses import Address
from shoal.errors import ConfigurationError
from shoal.shares import server_places, server_weights


@pytest.mark.parametrize("nodes", range(2, 33))
def test_weights_are_the_balance_exactly(nodes: int) -> None:
    for dedicated in range(nodes + 4):
        near, far = server_weights(nodes, dedicated)
        whole = nodes * near + dedicated * far
        counted = min(dedicated, nodes)
        x = Fraction(nodes - counted, nodes * nodes + counted * nodes - 2 * counted)
        assert Fraction(near, whole) == x
        if dedicated:
            assert Fraction(far, whole) == (1 - nodes * x) / dedicated


@pytest.mark.parametrize("nodes", range(2, 17))
def test_the_load_of_every_link_is_equal(nodes: int) -> None:
    """A node carries M (1 + (n - 2) x), a dedicated server n y M; at k = 0 this is the bound of all-reduce."""
    for dedicated in range(1, nodes + 1):
        near, far = server_weights(nodes, dedicated)
        whole = nodes * near + dedicated * far
        assert 1 + (nodes - 2) * Fraction(near, whole) == nodes * Fraction(far, whole)
    near, _ = server_weights(nodes, 0)
    assert 1 + (nodes - 2) * Fraction(near, nodes * near) == Fraction(2 * (nodes - 1), nodes)


def test_one_node_averages_for_itself() -> None:
    assert server_weights(1, 0) == (1, 0)
    assert server_weights(1, 3) == (1, 0)


def test_who_may_average_can_be_chosen() -> None:
    assert server_weights(4, 2, "never") == (0, 1)
    assert server_weights(4, 2, "always") == (1, 1)
    with pytest.raises(ConfigurationError, match="SHOAL_SERVERS"):
        server_weights(4, 0, "never")


def test_order_of_servers() -> None:
    places = server_places(["a", "b", "c"], (Address("s", 7077),), "auto")
    assert [(str(place), place.rank, place.weight) for place in places] == [
        ("a (rank 0)", 0, 2),
        ("b (rank 1)", 1, 2),
        ("c (rank 2)", 2, 2),
        ("s:7077", None, 4),
    ]
