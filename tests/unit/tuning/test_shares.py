"""shares.py: for equal links exactly the balance of design's formula, for others the least time that they allow."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.config.addresses import Address
from shoal.errors import ConfigurationError
from shoal.tuning.measured import Network
from shoal.tuning.shares import (
    LARGEST_WEIGHT,
    least_time,
    link_shares,
    rate_of,
    server_places,
    server_weights,
    weights_for,
)

rates = st.floats(0.05, 1.0).map(lambda share: share * 1e8)


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


# --- Unequal links ---


def loads(nodes: list[float], servers: list[float], near: list[float], far: list[float]) -> list[float]:
    """How long each link is busy with a byte of every node, in seconds: design's balance."""
    n = len(nodes)
    return [
        *((1 + (n - 2) * share) / rate for share, rate in zip(near, nodes, strict=True)),
        *(n * share / rate for share, rate in zip(far, servers, strict=True)),
    ]


@given(st.lists(rates, min_size=2, max_size=20), st.lists(rates, max_size=20))
def test_no_link_carries_more_than_the_least_time_allows(nodes: list[float], servers: list[float]) -> None:
    tau = least_time(nodes, servers)
    near, far = link_shares(nodes, servers)
    assert sum(near) + sum(far) == pytest.approx(1)
    assert min([*near, *far]) >= 0
    assert max(loads(nodes, servers, near, far)) <= tau * (1 + 1e-9)


@given(st.lists(rates, min_size=2, max_size=20), st.lists(rates, max_size=20))
def test_the_least_time_is_the_least(nodes: list[float], servers: list[float]) -> None:
    """With less, either a node cannot send what it has, or there is not room for everything."""
    tau, n = 0.999 * least_time(nodes, servers), len(nodes)
    assume(n > 2)
    room = sum(tau * rate / n for rate in servers) + sum((tau * rate - 1) / (n - 2) for rate in nodes)
    assert room < 1 or tau * min(nodes) < 1


@pytest.mark.parametrize("nodes", range(2, 17))
def test_equal_links_are_the_same_problem(nodes: int) -> None:
    for dedicated in range(nodes + 4):
        near, far = server_weights(nodes, dedicated)
        shares = link_shares([5e7] * nodes, [5e7] * dedicated)
        whole = nodes * near + dedicated * far
        if nodes > 2:  # where a share costs a node nothing, any split takes the least time
            assert shares[0] == pytest.approx([near / whole] * nodes)
            assert shares[1] == pytest.approx([far / whole] * dedicated)
        equal = Network((50_000_000,) * nodes, (50_000_000,) * dedicated, 0.0)
        assert weights_for(equal) == ([near] * nodes, [far] * dedicated)


@pytest.mark.parametrize("dedicated", [0, 2, 8])
def test_the_rate_is_that_of_the_fullest_link(dedicated: int) -> None:
    hosts, servers = ["h"] * 8, tuple(Address(f"s{i}", 7077) for i in range(dedicated))
    network = Network((50_000_000,) * 8, (50_000_000,) * dedicated, 0.0)
    best = 1 / least_time(network.node_rates, network.server_rates)
    assert rate_of(server_places(hosts, servers, "auto", network), network) == pytest.approx(best)
    if dedicated == 2:
        # Each server receives half of what eight nodes have.
        assert rate_of(server_places(hosts, servers, "never", network), network) == pytest.approx(50e6 / 4)


def test_a_node_that_has_no_room_averages_nothing() -> None:
    half = Network((2, 2, 1, 2, 2, 2, 2, 2), (), 0.0)
    whole = LARGEST_WEIGHT
    assert weights_for(half) == ([whole, whole, 0, whole, whole, whole, whole, whole], [])
    assert least_time(half.node_rates) == 1


def test_a_slow_server_averages_as_much_less() -> None:
    near, far = weights_for(Network((200,) * 4, (200, 100, 200, 200), 0.0))
    assert far == [10_000, 5_000, 10_000, 10_000]
    assert len(set(near)) == 1
    assert 0 < near[0] < 1000
    assert weights_for(Network((200,) * 4, (200, 100), 0.0), "never") == ([0] * 4, [10_000, 5_000])
    assert weights_for(Network((200,) * 2, (200, 100), 0.0), "always") == ([10_000] * 2, [10_000, 5_000])


@given(st.lists(st.integers(10**6, 10**10), min_size=2, max_size=30), st.lists(st.integers(10**6, 10**10), max_size=30))
def test_weights_are_whole_numbers_that_say_the_same(nodes: list[int], servers: list[int]) -> None:
    """Shares too small for their connections are left out, so a link may have a little more to do."""
    near, far = weights_for(Network(tuple(nodes), tuple(servers), 0.0))
    whole = sum(near) + sum(far)
    assert whole > 0
    assert max([*near, *far]) <= LARGEST_WEIGHT
    load = loads(list(nodes), list(servers), [weight / whole for weight in near], [weight / whole for weight in far])
    left_out = 1 + 0.06 * (len(nodes) + len(servers))
    assert max(load) <= least_time(nodes, servers) * left_out


def test_places_have_the_weights_of_what_was_measured() -> None:
    servers = (Address("s", 7077), Address("t", 7077))
    places = server_places(["a", "b", "c", "d"], servers, "never", Network((9,) * 4, (10, 5), 0.0))
    assert [place.weight for place in places] == [0, 0, 0, 0, 10_000, 5_000]
    assert [place.weight for place in server_places(["a"], servers, "auto", None)] == [1, 0, 0]
