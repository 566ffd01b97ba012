"""limits.py: limits follow from what was measured, and what was given by hand stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.settings import Limits, overrides_of
from shoal.errors import ConfigurationError
from shoal.tuning.limits import KIB, in_flight, limits_for, most_of_smallest
from shoal.tuning.measured import Network

GIGABIT, FOUR_HUNDRED_MEGABIT = 119_600_000, 47_800_000
# Of frames (docs/protocol/format.md), and of packets: Ethernet, IPv4, and TCP with timestamps at the usual MTU.
FRAME_HEADER, PACKET_HEADERS, SEGMENT_PAYLOAD = 40, 66, 1448
networks = st.builds(
    lambda rate, round_trip: Network((rate, rate), (), round_trip), st.integers(10**5, 2 * 10**10), st.floats(0, 0.1)
)


def network(rate: int, round_trip: float = 20e-6) -> Network:
    return Network((rate,), (), round_trip)


def test_nothing_measured_means_the_defaults() -> None:
    assert limits_for(None, 8, {}) == Limits()


@pytest.mark.parametrize(("rate", "nodes", "expected"), [(GIGABIT, 4, 60 * KIB), (FOUR_HUNDRED_MEGABIT, 8, 30 * KIB)])
def test_what_is_known_to_be_good(rate: int, nodes: int, expected: int) -> None:
    found = limits_for(network(rate), nodes, {})
    assert (found.segment, found.credit, found.eager) == (expected // 2, expected, expected)


@given(networks, st.integers(2, 64 * 512))
def test_what_all_may_send_fits_into_a_port(measured: Network, flows: int) -> None:
    found = limits_for(measured, flows, {})
    assert 240 * KIB <= in_flight(measured) <= 4096 * KIB
    assert found.segment <= found.credit
    # Segments are not smaller than is worth their frames, so many flows may pass the rule: less than one cannot be granted.
    most = max(in_flight(measured), most_of_smallest(measured))
    assert found.credit * flows <= most or found.credit == found.segment
    assert found.segment % 256 == 0
    assert 256 <= found.segment <= 64 * KIB


@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 16, 32, 64])
def test_two_segments_of_all_nodes_fit_into_a_short_queue_with_their_headers(nodes: int) -> None:
    found = limits_for(network(FOUR_HUNDRED_MEGABIT), nodes, {})
    packets = -(-(found.segment + FRAME_HEADER) // SEGMENT_PAYLOAD)
    assert 2 * nodes * (found.segment + FRAME_HEADER + packets * PACKET_HEADERS) <= 256 * KIB


def test_many_nodes_still_fit_into_a_port() -> None:
    found = limits_for(network(FOUR_HUNDRED_MEGABIT), 64, {})
    assert (found.segment, found.credit) == (1792, 3584)


# Those of `two_of_the_smallest_segments_fill_links...` in native/tests/packet_level_test.cpp.
@pytest.mark.parametrize(
    ("rate", "nodes", "segment"), [(GIGABIT, 64, 2048), (5 * GIGABIT // 2, 32, 5120), (5 * GIGABIT, 16, 9984)]
)
def test_a_window_of_the_smallest_segments_is_two(rate: int, nodes: int, segment: int) -> None:
    found = limits_for(network(rate), nodes, {})
    assert found.segment == pytest.approx(segment, rel=0.02)
    assert found.credit == 2 * found.segment


def test_two_of_the_smallest_segments_are_too_many_for_the_port_of_very_many_nodes() -> None:
    found = limits_for(network(GIGABIT), 256, {})
    assert found.credit == found.segment


@pytest.mark.parametrize(("rate", "expected"), [(GIGABIT, 1196), (25 * GIGABIT, 29_900), (10_000, 64)])
def test_a_shard_is_what_a_link_moves_while_two_frames_are_handled(rate: int, expected: int) -> None:
    assert limits_for(network(rate), 8, {}).least_shard == expected


@pytest.mark.parametrize(
    ("rate", "servers", "expected"),
    [
        (FOUR_HUNDRED_MEGABIT, 8, 8192),
        (GIGABIT, 8, 8192),
        (5 * GIGABIT // 4, 4, 9664),
        (5 * GIGABIT // 2, 8, 0),  # segments are not larger than that
        (GIGABIT, 0, 0),  # nodes send results too: nothing is left idle
    ],
)
def test_short_operations_have_smaller_segments_on_slow_links_to_servers(
    rate: int, servers: int, expected: int
) -> None:
    measured = Network((rate,) * 8, (rate,) * servers, 20e-6)
    assert limits_for(measured, 8, {}).least_segment == expected
    assert limits_for(measured, 8, {"segment": 65536}).least_segment == 0
    assert limits_for(measured, 8, {"segment": 65536, "least_segment": 4096}).least_segment == 4096
    assert limits_for(measured, 8, {"credit": 4096}).least_segment <= 4096


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 4), (4, 8), (8, 8), (64, 8)])
def test_ranks_that_send_beside_each_other_have_the_windows_of_as_many_nodes(nodes: int, ranks: int) -> None:
    found, each = limits_for(network(GIGABIT), nodes, {}, ranks), limits_for(network(GIGABIT), nodes * ranks, {})
    assert (found.rank_segment, found.rank_credit) == (each.segment, each.credit)
    assert (found.segment, found.credit) == (
        limits_for(network(GIGABIT), nodes, {}).segment,
        limits_for(network(GIGABIT), nodes, {}).credit,
    )


@given(networks, st.integers(2, 512), st.integers(2, 64))
def test_a_rank_has_no_larger_window_than_its_node(measured: Network, flows: int, ranks: int) -> None:
    found = limits_for(measured, flows, {}, ranks)
    assert 0 < found.rank_segment <= found.segment
    assert found.rank_segment <= found.rank_credit <= found.credit


@pytest.mark.parametrize("overrides", [{"segment": 65536}, {"credit": 65536}])
def test_windows_that_are_given_by_hand_are_those_of_every_rank(overrides: dict[str, int]) -> None:
    assert limits_for(network(GIGABIT), 4, overrides, 8).rank_segment == 0
    assert limits_for(None, 4, {}, 8).rank_segment == 0


def test_a_faster_network_has_more_in_flight() -> None:
    assert in_flight(network(GIGABIT)) < in_flight(network(10 * GIGABIT)) < in_flight(network(10 * GIGABIT, 1e-3))


@given(
    networks,
    st.fixed_dictionaries(
        {},
        optional={
            "segment": st.integers(1, 4096).map(lambda units: 64 * units),
            "credit": st.integers(262144, 2**32 - 1),
            "eager": st.integers(0, 2**32 - 1),
            "least_shard": st.integers(1, 2**32 - 1),
            "least_segment": st.integers(0, 64),
        },
    ),
)
def test_what_is_given_by_hand_stays(measured: Network, overrides: dict[str, int]) -> None:
    found = overrides_of(limits_for(measured, 8, overrides))
    assert {name: found[name] for name in overrides} == overrides


def test_all_limits_given_leave_nothing_to_find() -> None:
    smallest = Limits(segment=64, credit=64, eager=0, small=0, least_shard=1)
    assert limits_for(network(GIGABIT), 4, overrides_of(smallest)) == smallest


def test_a_small_credit_makes_segments_that_fit() -> None:
    found = limits_for(network(GIGABIT), 4, {"credit": 1000})
    assert (found.segment, found.credit, found.small) == (960, 1000, 960)


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="credit=64"):
        limits_for(None, 4, {"segment": 128, "credit": 64})
    with pytest.raises(ConfigurationError, match="sgement"):
        overrides_of({"sgement": 128})
