"""Where gradients lie: arenas and balanced fusion buffers, as numbers only.

An arena holds its items (the gradients of one dtype) one after the other, in the order given. It is cut into buffers
without regard to items. Promises:

  * Items begin at multiples of ``ALIGNMENT`` bytes: kernels of accelerators that read four elements at once want 16. What
    lies between them is averaged with them, and is nobody's.
  * The buffers cover the arena, each byte once. All have the same size but the last, which may be smaller.
  * They begin at multiples of ``ALIGNMENT`` bytes: a cache line, and a whole number of elements of every dtype.

How many servers share a buffer, and which bytes each has, is the core's to say (native/protocol/sharding.h).

Nothing here knows an array or a framework. All sizes and offsets are bytes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

ALIGNMENT = 64

MIB = 1024 * 1024

# What a buffer should not fall below or exceed, and into how many a model is cut in between (``fusion_bytes``).
SMALLEST_FUSION = 1 * MIB
LARGEST_FUSION = 25 * MIB
BUFFERS_PER_MODEL = 8
SMALLEST_SHARD = 64 * 1024


class Extent(NamedTuple):
    """Bytes ``begin`` to ``end``, the latter excluded."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


class Item(NamedTuple):
    """One gradient: what it is called, how many elements it has and how many bytes each of them takes."""

    name: str
    elements: int
    itemsize: int

    @property
    def size(self) -> int:
        return self.elements * self.itemsize


@dataclass(frozen=True)
class ArenaLayout:
    """Where each item lies in its arena, and which buffers it touches.

    ``extents``: by item. ``buffers``: the windows on the arena, in order. ``touched``: by item, the indices of the
    buffers that hold some of its bytes; an item without elements touches none. ``needed``: by buffer, the indices of
    the items that it holds bytes of.
    """

    items: tuple[Item, ...]
    extents: tuple[Extent, ...]
    buffers: tuple[Extent, ...]
    touched: tuple[range, ...]
    needed: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Bytes of the whole arena, in whatever order its items are."""
        return self.buffers[-1].end if self.buffers else 0


def lay_out(items: Sequence[Item], buffer_bytes: int) -> ArenaLayout:
    """The arena of ``items`` in that order, in buffers of at most ``buffer_bytes`` (rounded up to the alignment).

    Raises ValueError for a negative number of elements, an item size that the alignment is not a multiple of, or
    buffers without a byte.
    """
    for item in items:
        if item.elements < 0 or item.itemsize < 1 or ALIGNMENT % item.itemsize:
            raise ValueError(f"{item.name}: {item.elements} elements of {item.itemsize} bytes cannot be laid out")
    begins = list(accumulate((aligned(item.size) for item in items), initial=0))
    extents = tuple(Extent(begin, begin + item.size) for item, begin in zip(items, begins, strict=False))
    buffers = balanced_buffers(begins[-1], buffer_bytes)
    touched = tuple(_touched(extent, buffers) for extent in extents)
    needed: list[list[int]] = [[] for _ in buffers]
    for index, touches in enumerate(touched):
        for buffer in touches:
            needed[buffer].append(index)
    return ArenaLayout(tuple(items), extents, buffers, touched, tuple(map(tuple, needed)))


def balanced_buffers(total: int, buffer_bytes: int) -> tuple[Extent, ...]:
    """``total`` bytes in as few buffers of at most ``buffer_bytes`` as it takes, all equal but the last.

    ``buffer_bytes`` is rounded up to the alignment. The bytes are spread over the buffers, so that the last is smaller
    than the others by less than one alignment unit a buffer.
    """
    if total < 0 or buffer_bytes < 1:
        raise ValueError(f"{total} bytes cannot be cut into buffers of {buffer_bytes} bytes")
    if total == 0:
        return ()
    count = -(-total // aligned(buffer_bytes))
    size = aligned(-(-total // count))
    return tuple(Extent(begin, min(begin + size, total)) for begin in range(0, total, size))


def fusion_bytes(total: int, servers: int) -> int:
    """The size of a buffer for ``total`` bytes of gradients and so many servers, where nobody has set one.

    An eighth of the model: the last buffer cannot overlap with the backward pass, so it should be a small part of it.
    But at least 1 MiB, below which the cost per operation shows, at most 25 MiB, above which a buffer only waits longer
    for its last gradient, and in any case 64 KiB a server, so that no shard is too small to be worth its frames.
    """
    if servers < 1:
        raise ValueError(f"there is always a server, got {servers}")
    size = max(SMALLEST_FUSION, min(total // BUFFERS_PER_MODEL, LARGEST_FUSION))
    return aligned(max(size, servers * SMALLEST_SHARD))


def _touched(extent: Extent, buffers: Sequence[Extent]) -> range:
    if extent.size == 0:
        return range(0)
    first = bisect_right(buffers, extent.begin, key=_begin) - 1
    last = bisect_right(buffers, extent.end - 1, key=_begin) - 1
    return range(first, last + 1)


def _begin(extent: Extent) -> int:
    return extent.begin


def aligned(size: int) -> int:
    """Rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
