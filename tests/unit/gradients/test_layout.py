"""The promises of shoal.gradients.layout and of the core's shards, for any sizes; and Table III of the Herring paper."""

import runpy
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import _native
from shoal.gradients.layout import ALIGNMENT, MIB, Extent, Item, balanced_buffers, fusion_bytes, lay_out

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "papers" / "herring_table3_balance.py"

elements = st.lists(st.integers(0, 5000), max_size=40)
itemsizes = st.sampled_from([1, 2, 4, 8, 16])
buffer_sizes = st.integers(500, 40_000)
some_weights = st.lists(st.integers(0, 1000), min_size=1, max_size=200).filter(any)
one_heavy_weight = st.builds(
    lambda heavy, others: [heavy, *([1] * others), 0], st.integers(1, 300_000_000), st.integers(1, 70)
)


def covers(extents: tuple[Extent, ...], total: int) -> bool:
    """Whether the extents follow one another from 0 to ``total``: no byte lost, none doubled."""
    bounds = [0, *(extent.end for extent in extents)]
    return [extent.begin for extent in extents] == bounds[:-1] and bounds[-1] == total


def shards(total: int, weights: list[int]) -> tuple[Extent, ...]:
    """The shard of each server in a buffer of ``total`` bytes."""
    return tuple(Extent(*shard) for shard in _native.shards(total, weights))


def items_of(counts: list[int], itemsize: int) -> list[Item]:
    return [Item(f"parameter{index}", count, itemsize) for index, count in enumerate(counts)]


@given(st.floats(0, 300), st.integers(1, 10**10))
def test_buffers_are_equal_but_the_last_and_lose_nothing(count: float, size: int) -> None:
    total = int(count * size)
    buffers = balanced_buffers(total, size)
    assert covers(buffers, total)
    assert len({buffer.size for buffer in buffers[:-1]}) <= 1
    assert all(0 < buffers[-1].size <= buffer.size for buffer in buffers)
    assert all(buffer.begin % ALIGNMENT == 0 for buffer in buffers)
    assert all(buffer.size <= -(-size // ALIGNMENT) * ALIGNMENT for buffer in buffers)


@given(st.integers(0, 10**12), st.one_of(some_weights, one_heavy_weight))
def test_shards_lose_nothing_and_follow_the_weights(total: int, weights: list[int]) -> None:
    parts = shards(total, weights)
    assert covers(parts, total)
    by_weight: dict[int, list[int]] = {}
    for part, weight in zip(parts, weights, strict=True):
        by_weight.setdefault(weight, []).append(part.size)
    assert all(max(sizes) - min(sizes) <= ALIGNMENT for sizes in by_weight.values())
    assert all(size == 0 for size in by_weight.get(0, []))
    assert all(part.begin % ALIGNMENT == 0 for part in parts if part.size)


@given(elements, itemsizes, buffer_sizes, st.integers(1, 70))
def test_every_byte_of_every_gradient_is_in_one_shard_of_one_buffer(
    counts: list[int], itemsize: int, buffer_bytes: int, servers: int
) -> None:
    layout = lay_out(items_of(counts, itemsize), buffer_bytes)
    pieces = [
        Extent(buffer.begin + shard.begin, buffer.begin + shard.end)
        for buffer in layout.buffers
        for shard in shards(buffer.size, [1] * servers)
        if shard.size
    ]
    assert covers(tuple(pieces), layout.size)
    assert [extent.size for extent in layout.extents] == [count * itemsize for count in counts]
    end = 0
    for extent in layout.extents:
        assert extent.begin == -(-end // ALIGNMENT) * ALIGNMENT, "each begins where a kernel wants it, and none too far"
        end = extent.end
    assert layout.size == sum(-(-extent.size // ALIGNMENT) * ALIGNMENT for extent in layout.extents), "in any order"


@given(elements, itemsizes, buffer_sizes)
def test_a_buffer_needs_the_gradients_that_touch_it(counts: list[int], itemsize: int, buffer_bytes: int) -> None:
    layout = lay_out(items_of(counts, itemsize), buffer_bytes)
    for item, extent in enumerate(layout.extents):
        for index, buffer in enumerate(layout.buffers):
            overlaps = max(extent.begin, buffer.begin) < min(extent.end, buffer.end)
            assert (index in layout.touched[item]) == overlaps == (item in layout.needed[index])


@pytest.mark.parametrize(
    ("total", "servers", "expected"),
    [
        (0, 1, 1 * MIB),
        (4 * MIB, 3, 1 * MIB),
        (100 * MIB, 3, 100 * MIB // 8),
        (1000 * MIB, 3, 25 * MIB),
        (100 * MIB, 512, 32 * MIB),
    ],
)
def test_fusion_size_is_an_eighth_of_the_model_within_bounds(total: int, servers: int, expected: int) -> None:
    assert fusion_bytes(total, servers) == expected


@given(st.integers(0, 10**12), st.integers(1, 16_384))
def test_fusion_size_is_aligned_and_gives_each_server_a_segment(total: int, servers: int) -> None:
    size = fusion_bytes(total, servers)
    assert size % ALIGNMENT == 0
    assert size >= servers * 64 * 1024


@pytest.mark.parametrize("item", [Item("odd", 1, 3), Item("none", 1, 0), Item("negative", -1, 4)])
def test_items_that_cannot_be_laid_out_are_refused_by_name(item: Item) -> None:
    with pytest.raises(ValueError, match=item.name):
        lay_out([item], 64)


def test_weights_without_a_share_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one weight"):
        shards(100, [0, 0])


def test_table_iii_of_the_herring_paper() -> None:
    rows = runpy.run_path(str(BENCHMARK))["table"]()
    assert [row.nodes for row in rows] == [8, 16, 32, 64]
    assert [round(row.whole_variables) for row in rows] == [477, 954, 1908, 3816]
    assert [round(row.balanced, 2) for row in rows] == [84.65] * 4
    assert all(before < after for before, after in pairwise(row.whole_variables for row in rows))
