"""Where the gradients of a model lie: one arena a dtype and device, each in the order in which its gradients arrive.

An arena is cut into balanced fusion buffers (layout). There are no arrays here: sizes and offsets are bytes, and
gradients and buffers have indices.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.gradients.layout import ArenaLayout, Extent, Item, lay_out


class Kind(NamedTuple):
    """What the gradients of an arena have in common. ``place``: the number of their device among those of the model."""

    place: int
    dtype: str


class Window(NamedTuple):
    """A fusion buffer: ``extent`` of the arena of this kind. ``gradients``: those that it holds bytes of."""

    label: str
    kind: Kind
    extent: Extent
    gradients: tuple[int, ...]


class Arrangement:
    """``items`` and ``kinds``: by gradient. ``order``: the gradients as they shall lie. ``buffer_bytes``: the size of a
    buffer.

    ``orders``, ``layouts``: by arena, the gradients in it and where they lie. ``windows``: the buffers of all arenas.
    ``extents``, ``touched``: by gradient, its place in its arena, and the windows that hold bytes of it.
    """

    def __init__(self, items: Sequence[Item], kinds: Sequence[Kind], order: Sequence[int], buffer_bytes: int) -> None:
        self._items = items
        self._kinds = kinds
        self._buffer_bytes = buffer_bytes
        self.orders = self._by_kind(order)
        self.layouts = {kind: self._layout(indices) for kind, indices in self.orders.items()}
        self.windows: list[Window] = []
        self.extents = [Extent(0, 0)] * len(items)
        self.touched: list[tuple[int, ...]] = [()] * len(items)
        for kind, indices in self.orders.items():
            self._add(kind, indices)

    def reordered(self, order: Sequence[int]) -> "Arrangement":
        """The same gradients in another order."""
        return Arrangement(self._items, self._kinds, order, self._buffer_bytes)

    @property
    def order(self) -> list[int]:
        """The gradients in the order in which they lie, one arena after the other."""
        return [index for indices in self.orders.values() for index in indices]

    def changes_buffers(self, order: Sequence[int]) -> bool:
        """Whether a gradient would touch other buffers of its arena than now if they lay in this order."""
        for kind, indices in self._by_kind(order).items():
            now = dict(zip(self.orders[kind], self.layouts[kind].touched, strict=True))
            then = dict(zip(indices, self._layout(indices).touched, strict=True))
            if now != then:
                return True
        return False

    def permuted_since(self, before: "Arrangement") -> Iterator[tuple[Kind, Sequence[int]]]:
        """The gradients in the smallest groups that have only changed places among each other, in the order of now."""
        for kind, after in self.orders.items():
            begin, apart = 0, set[int]()
            for end, pair in enumerate(zip(before.orders[kind], after, strict=True), start=1):
                for index in pair:
                    apart ^= {index}
                if not apart:
                    yield kind, after[begin:end]
                    begin = end

    def _by_kind(self, order: Sequence[int]) -> dict[Kind, list[int]]:
        orders: dict[Kind, list[int]] = {}
        for index in order:
            orders.setdefault(self._kinds[index], []).append(index)
        return orders

    def _layout(self, indices: Sequence[int]) -> ArenaLayout:
        return lay_out([self._items[index] for index in indices], self._buffer_bytes)

    def _add(self, kind: Kind, indices: Sequence[int]) -> None:
        layout, first = self.layouts[kind], len(self.windows)
        for index, extent, touched in zip(indices, layout.extents, layout.touched, strict=True):
            self.extents[index] = extent
            self.touched[index] = tuple(first + buffer for buffer in touched)
        prefix = f"place{kind.place}." if kind.place else ""
        for number, (extent, needed) in enumerate(zip(layout.buffers, layout.needed, strict=True)):
            gradients = tuple(indices[item] for item in needed)
            self.windows.append(Window(f"{prefix}{kind.dtype}.buffer{number}", kind, extent, gradients))
