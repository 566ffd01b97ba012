"""The order of turns: no contestant gains by its place or by who was before it."""

import itertools
from collections import Counter

import pytest

from shoal.bench.orders import balanced_orders


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 17])
def test_everyone_is_equally_often_in_each_place_and_after_each_other(count: int) -> None:
    names = [f"contestant {number}" for number in range(count)]
    period = count if count % 2 == 0 else 2 * count
    orders = list(itertools.islice(balanced_orders(names), 2 * period))
    assert orders[:period] == orders[period:]
    del orders[period:]
    assert all(sorted(order) == sorted(names) for order in orders)
    places = Counter((place, name) for order in orders for place, name in enumerate(order))
    assert set(places.values()) == {period // count}
    assert len(places) == count * count
    neighbours = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(neighbours) == count * (count - 1)
    assert len(set(neighbours.values())) <= 1


def test_rounds_in_a_row_start_with_different_contestants() -> None:
    assert [order[0] for order in itertools.islice(balanced_orders("abcd"), 4)] == list("abcd")
