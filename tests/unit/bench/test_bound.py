"""The benchmark's bound: design's formula for equal links, the split that Shoal itself would choose for others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.bench import allreduce_factor, bound, server_factor
from shoal.tuning.shares import least_time

MEGABYTES = 1e6
RATE = 50 * MEGABYTES
SIZE = 25 * MEGABYTES

rates = st.floats(0.1, 1.0).map(lambda share: share * RATE)


@pytest.mark.parametrize("nodes", range(2, 17))
def test_equal_links_give_the_formula(nodes: int) -> None:
    for servers in range(nodes + 3):
        expected = server_factor(nodes, servers) * SIZE / RATE
        assert bound(SIZE, [RATE] * nodes, [RATE] * servers) == pytest.approx(expected)


def test_a_server_for_every_node_halves_what_an_allreduce_needs() -> None:
    assert server_factor(8, 8) == 1.0
    assert server_factor(8, 20) == 1.0
    assert allreduce_factor(8) == 2 * 7 / 8
    assert server_factor(1, 1) == 0.0


@given(st.lists(rates, min_size=2, max_size=9), st.lists(rates, max_size=9))
def test_unequal_links_give_the_time_of_the_best_split(nodes: list[float], servers: list[float]) -> None:
    assert bound(SIZE, nodes, servers) == pytest.approx(SIZE * least_time(nodes, servers))


@given(st.lists(rates, min_size=3, max_size=9), st.lists(rates, max_size=9), st.floats(0, SIZE / 100))
def test_in_the_least_time_the_links_carry_all_shares(nodes: list[float], servers: list[float], burst: float) -> None:
    n, seconds = len(nodes), bound(SIZE, nodes, servers, burst)
    carried = [rate * seconds + burst for rate in nodes]
    assert min(carried) >= SIZE * (1 - 1e-9)
    near = sum((bytes_ / SIZE - 1) / (n - 2) for bytes_ in carried)
    far = sum((rate * seconds + burst) / (n * SIZE) for rate in servers)
    assert near + far >= 1 - 1e-9
    if min(carried) > SIZE * (1 + 1e-9):
        assert near + far == pytest.approx(1)


def test_a_burst_costs_nothing_on_every_link() -> None:
    burst = 131072
    assert bound(SIZE, [RATE] * 8, [RATE] * 8, burst) == pytest.approx((SIZE - burst) / RATE)
    assert bound(SIZE, [RATE] * 8, [], burst) == pytest.approx((allreduce_factor(8) * SIZE - burst) / RATE)
    assert bound(1000, [RATE] * 8, [RATE] * 8, burst) == 0


def test_a_slow_node_cannot_be_faster_than_its_own_gradients() -> None:
    assert bound(SIZE, [RATE] * 7 + [RATE / 10], [RATE] * 8) == pytest.approx(10 * SIZE / RATE)
