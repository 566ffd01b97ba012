"""A slot: where the gradient of one parameter lies in its arena, and whether anybody holds a tensor on that memory.

What an arena hands out as ``param.grad`` is the program's: it may be given other memory (``.data =``, ``set_()``), swapped with
another gradient, or kept when the parameter has long been given a new one. So the arena keeps a tensor of its own on each
slot, and every tensor that it hands out has a storage of its own, whose end it notices.
"""

import weakref

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]


class Slot:
    """``memory``: the gradient's part of the arena, in the parameter's shape. No program ever sees this tensor."""

    __slots__ = ("_next", "_source", "begin", "memory", "strides")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.begin = memory.data_ptr() if memory.numel() else 0
        """The address of its first byte; 0 if it has none."""
        self.strides = memory.stride()
        self._source: weakref.ref[torch.Tensor] | None = None
        self._next: torch.Tensor | None = None

    def make_next(self) -> None:
        """Makes what ``hand_out`` will give. In the midst of a backward pass, where all caches are cold, that takes many times as long."""
        if self._next is None and not self.is_held:
            self._next = self._made()

    def hand_out(self) -> torch.Tensor:
        """A tensor on this memory, which is nobody's view."""
        made, self._next = self._next, None
        return self._made() if made is None else made

    def _made(self) -> torch.Tensor:
        # A storage made from DLPack ends with the last tensor, view or NumPy array on it, and only then lets go of its source.
        source = self._source() if self._source is not None else None
        if source is None:
            source = self.memory.detach()
            self._source = weakref.ref(source)
        handed = from_dlpack(to_dlpack(source))
        if handed.stride() != self.strides:
            # DLPack knows no strides of dimensions that have one element.
            handed.as_strided_(source.shape, self.strides)
        return handed

    @property
    def is_held(self) -> bool:
        """Whether anybody holds a tensor that was handed out, or a view of one."""
        return self._next is None and self._source is not None and self._source() is not None

    def is_under(self, gradient: torch.Tensor) -> bool:
        """Whether the gradient is all of this memory, in the same shape."""
        memory = self.memory
        return (
            gradient.data_ptr() == self.begin
            and gradient.layout is torch.strided
            and gradient.dtype is memory.dtype
            and gradient.shape == memory.shape
            and gradient.stride() == self.strides
        )
