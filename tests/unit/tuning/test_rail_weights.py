"""Weights where lanes are spread over several networks."""

import pytest

from shoal.tuning.measured import Network
from shoal.tuning.rails import filled, rail_weights, rate_over, together
from shoal.tuning.shares import least_time

FAST = Network((400,) * 4, (400,) * 2, 1e-4)
SLOW = Network((200,) * 4, (200,) * 2, 2e-4)


def test_equal_rails_have_the_weights_of_one() -> None:
    assert rail_weights([FAST, FAST], "auto") == [[2, 2, 2, 2, 6, 6]] * 2
    assert rail_weights([FAST, FAST], "never") == [[0, 0, 0, 0, 1, 1]] * 2


@pytest.mark.parametrize("colocated", ["auto", "never", "always"])
def test_a_rail_of_half_the_rate_has_half_of_every_share(colocated: str) -> None:
    fast, slow = rail_weights([FAST, SLOW], colocated)
    assert slow == pytest.approx([weight / 2 for weight in fast], abs=1)
    alone = rail_weights([FAST, FAST], colocated)[0]
    assert [weight / max(fast) for weight in fast] == pytest.approx([one / max(alone) for one in alone], abs=1e-3)


def test_all_rails_together_average_what_each_would_alone() -> None:
    networks = [FAST, Network((200, 200, 100, 200), (50, 200), 1e-4)]
    expected = sum(1 / least_time(network.node_rates, network.server_rates) for network in networks)
    assert rate_over(rail_weights(networks, "auto"), networks) == pytest.approx(expected, rel=0.02)


def test_a_rail_that_is_not_worth_it_carries_nothing() -> None:
    slowest = Network((10,) * 4, (10,) * 2, 1e-4)
    assert rail_weights([FAST, slowest], "auto")[1] == [0] * 6


def test_one_node_has_no_network_to_share() -> None:
    networks = [Network((400,), (), 0.0), Network((200,), (), 0.0)]
    assert rail_weights(networks, "auto") == [[1], [1]]
    assert rate_over([[1], [1]], networks) == 0.0


def test_a_rail_that_was_not_measured_counts_as_the_slowest() -> None:
    assert filled([None, FAST, SLOW]) == [SLOW, FAST, SLOW]
    assert filled([None, None]) is None


def test_rails_together_have_the_sum_of_their_rates() -> None:
    assert together([FAST, SLOW]) == Network((600,) * 4, (600,) * 2, 1e-4)
