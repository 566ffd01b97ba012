"""Arenas of several kinds, each in the order of arrival, and what changes where they get another order."""

import pytest

from shoal.gradients.arrangement import Arrangement, Kind
from shoal.gradients.layout import Item

SINGLE, DOUBLE, ELSEWHERE = Kind(0, "float32"), Kind(0, "float64"), Kind(1, "float32")
KINDS = [SINGLE, DOUBLE, SINGLE, ELSEWHERE, SINGLE]
ITEMS = [Item(f"p{index}", 16, 8 if kind is DOUBLE else 4) for index, kind in enumerate(KINDS)]
ORDER = [4, 3, 1, 2, 0]


@pytest.fixture
def arrangement() -> Arrangement:
    return Arrangement(ITEMS, KINDS, ORDER, 128)


def test_each_kind_has_an_arena_in_the_order(arrangement: Arrangement) -> None:
    assert arrangement.orders == {SINGLE: [4, 2, 0], ELSEWHERE: [3], DOUBLE: [1]}
    assert arrangement.order == [4, 2, 0, 3, 1]
    assert [tuple(extent) for extent in arrangement.extents] == [(128, 192), (0, 128), (64, 128), (0, 64), (0, 64)]


def test_windows_have_labels_of_their_own_and_cover_the_arenas(arrangement: Arrangement) -> None:
    labels = [window.label for window in arrangement.windows]
    assert labels == ["float32.buffer0", "float32.buffer1", "place1.float32.buffer0", "float64.buffer0"]
    assert [window.gradients for window in arrangement.windows] == [(4, 2), (0,), (3,), (1,)]
    assert arrangement.touched == [(1,), (3,), (0,), (2,), (0,)]
    for kind, layout in arrangement.layouts.items():
        assert sum(window.extent.size for window in arrangement.windows if window.kind == kind) == layout.size


def test_an_order_changes_buffers_or_not(arrangement: Arrangement) -> None:
    assert not arrangement.changes_buffers([1, 2, 3, 4, 0]), (
        "within the same buffer, and kinds have arenas of their own"
    )
    assert arrangement.changes_buffers([0, 1, 2, 3, 4])


def test_what_has_only_changed_places_among_each_other_is_found(arrangement: Arrangement) -> None:
    assert list(arrangement.reordered([2, 4, 0, 3, 1]).permuted_since(arrangement)) == [
        (SINGLE, [2, 4]),
        (SINGLE, [0]),
        (ELSEWHERE, [3]),
        (DOUBLE, [1]),
    ]
