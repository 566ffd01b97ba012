"""When the gradients' order in the arenas is renewed."""

from collections.abc import Callable
from itertools import pairwise

from shoal.gradients.arrival_order import FIRST_INTERVAL, ArrivalOrder

AS_REGISTERED = [2, 1, 0]
ARRIVES, OTHER, THIRD = [1, 2, 0], [0, 1, 2], [0, 2, 1]


def orders(passes: int, arrivals_of: Callable[[int], list[int]]) -> list[tuple[int, list[int]]]:
    """After which passes the order was another one, and which: as a rank whose word counts would have it."""
    watch, now, changes = ArrivalOrder(), AS_REGISTERED, []
    for number in range(passes):
        due = watch.is_due
        watch.passed(arrivals_of(number))
        if due:
            wanted = watch.settled_on(now)
            watch.looked(wanted != now)
            if wanted != now:
                now = wanted
                changes.append((number, wanted))
    return changes


def test_the_first_pass_tells_the_order() -> None:
    assert orders(1000, lambda _: ARRIVES) == [(0, ARRIVES)]


def test_what_did_not_arrive_keeps_its_place_behind_what_did() -> None:
    assert orders(1, lambda _: [0]) == [(0, [0, 2, 1])]


def test_a_gradient_that_arrives_twice_counts_once() -> None:
    assert orders(1, lambda _: [1, 2, 1, 0]) == [(0, ARRIVES)]


def test_another_order_is_taken_over_when_it_has_lasted() -> None:
    late = FIRST_INTERVAL // 2 + 1
    assert orders(1000, lambda number: ARRIVES if number < late else OTHER) == [
        (0, ARRIVES),
        (FIRST_INTERVAL, OTHER),
    ]


def test_an_order_that_has_not_lasted_waits_for_the_next_look() -> None:
    late = FIRST_INTERVAL // 2 + 2
    assert orders(1000, lambda number: ARRIVES if number < late else OTHER) == [
        (0, ARRIVES),
        (2 * FIRST_INTERVAL, OTHER),
    ]


def test_orders_that_come_and_go_are_not_followed() -> None:
    assert orders(10_000, lambda number: (ARRIVES, OTHER, THIRD)[number % 3]) == [(0, ARRIVES)]
    assert orders(10_000, lambda number: (ARRIVES, OTHER, THIRD)[number // 40 % 3]) == [(0, ARRIVES)]


def test_orders_that_last_and_change_are_followed_less_and_less_often() -> None:
    changes = orders(100 * FIRST_INTERVAL, lambda number: (ARRIVES, OTHER)[number // FIRST_INTERVAL % 2])
    distances = [after[0] - before[0] for before, after in pairwise(changes)]
    assert len(changes) <= 8
    assert distances == sorted(distances)


def test_passes_on_ranks_that_only_take_part_say_nothing_about_the_order() -> None:
    assert orders(1000, lambda number: ARRIVES if number % 2 else []) == [(FIRST_INTERVAL, ARRIVES)]


def test_whether_the_order_is_due_depends_on_the_passes_alone() -> None:
    one, other = ArrivalOrder(), ArrivalOrder()
    for number in range(500):
        assert one.is_due == other.is_due
        due = one.is_due
        one.passed(ARRIVES)
        other.passed([] if number % 3 else OTHER)
        if due:
            one.looked(renewed=True)
            other.looked(renewed=True)
        if number == 250:
            one.restart()
            other.restart()
