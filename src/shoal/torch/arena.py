"""Gradient arenas: all gradients of a dtype and a device in one flat memory, each ``param.grad`` a view into it.

What the backward pass wrote is what the network reads, and results land where the optimizer reads. A gradient is copied
at most once, in ``place``: where the optimizer has set it to None, PyTorch hands over a fresh tensor. An arena of an
accelerator has a mirror in memory of the host, which is what the network reads and writes. See docs/decisions/arena.md.

An arena has no values of its own to keep: its memory counts only where a ``param.grad`` is its view, and from the time a
buffer is handed to an operation until that is done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from shoal import runtime
from shoal.layout import ArenaLayout, Item, lay_out
from shoal.torch import accelerators
from shoal.torch.accelerators import Accelerator
from shoal.torch.devices import places_of

PAGE = 4096

NamedParameter = tuple[str, torch.nn.Parameter]

# What is summed for each dtype of gradients: complex ones as their real and imaginary parts.
WIRE_DTYPES = {
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


@dataclass(frozen=True)
class Buffer:
    """A balanced fusion buffer: a window on an arena, in the dtype that is summed.

    ``gradients``: the indices of the parameters whose gradients it holds bytes of. ``host``: the same window on the mirror;
    None where ``memory`` is the host's itself.
    """

    label: str
    memory: torch.Tensor
    gradients: tuple[int, ...]
    host: torch.Tensor | None


class Kind(NamedTuple):
    """What the gradients of an arena have in common. ``place``: the number of their device among those of the parameters."""

    place: int
    dtype: torch.dtype


class GradientArenas:
    """The arenas of a list of parameters, one a dtype and device.

    ``parameters``: in the order of registration; they are known by their index in it. ``order``: these indices in the
    order in which the gradients lie. ``buffer_bytes``: the size of a buffer.

    Raises TypeError for a dtype or a device that has no arena.
    """

    def __init__(self, parameters: Sequence[NamedParameter], order: Sequence[int], buffer_bytes: int) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._devices = [accelerators.of([parameter]) for parameter in self._parameters]
        places = places_of(self._parameters)
        self._kinds = [Kind(place, each.dtype) for place, each in zip(places, self._parameters, strict=True)]
        self._buffer_bytes = buffer_bytes
        self._memory: dict[Kind, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._lay_out(order)

    def reorder(self, order: Sequence[int]) -> None:
        """From now on the gradients lie in this order, with the values that they have.

        There is no second arena for that: gradients that have changed places among each other are copied together and put back,
        and between the order of registration and that of arrival these are mostly the few of a layer.
        """
        before, places = self._orders, self._views
        self._lay_out(order)
        for kind, after in self._orders.items():
            for moved in _permuted(before[kind], after):
                self._move(moved, places)

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return sum(buffer.memory.nbytes for buffer in self.buffers)

    @property
    def order(self) -> list[int]:
        """The gradients in the order in which they lie, one arena after the other."""
        return [index for indices in self._orders.values() for index in indices]

    def changes_buffers(self, order: Sequence[int]) -> bool:
        """Whether a gradient would touch other buffers of its arena than now if they lay in this order."""
        for kind, indices in self._by_kind(order).items():
            now = dict(zip(self._orders[kind], self._layouts[kind].touched, strict=True))
            then = dict(zip(indices, self._layout(indices).touched, strict=True))
            if now != then:
                return True
        return False

    def device(self, index: int) -> Accelerator | None:
        """That of a gradient; None for the CPU."""
        return self._devices[index]

    def device_number(self, index: int) -> int:
        """The number of a gradient's device among those of all."""
        return self._kinds[index].place

    def view(self, index: int) -> torch.Tensor:
        """The place of a gradient: of the parameter's shape, and of its strides where those are dense."""
        return self._views[index]

    def place(self, index: int) -> None:
        """Makes ``param.grad``, if there is one, the view with the same values."""
        parameter, view = self._parameters[index], self._views[index]
        gradient = parameter.grad
        if gradient is None or gradient is view:
            return
        if not _same_memory(gradient, view):
            view.copy_(gradient.detach())
        parameter.grad = view

    def contribute_unused(self, index: int) -> torch.Tensor | None:
        """Puts what a parameter that got no gradient now has (zero for None) into its place, and leaves ``param.grad``.

        Returns a copy where ``param.grad`` is that place, since the result will overwrite it.
        """
        gradient, view = self._parameters[index].grad, self._views[index]
        if gradient is None:
            view.zero_()
        elif _same_memory(gradient, view):
            return view.clone()
        else:
            view.copy_(gradient.detach())
        return None

    def settle_unused(self, index: int, saved: torch.Tensor | None, used_elsewhere: bool) -> None:
        """After the average: takes the result if a rank had a gradient, otherwise leaves ``param.grad`` as it was."""
        if used_elsewhere:
            self._parameters[index].grad = self._views[index]
        elif saved is not None:
            self._views[index].copy_(saved)

    def take_over(self) -> None:
        """Places every gradient that there is, whatever arena it was in before."""
        for index in self._views:
            self.place(index)

    def _lay_out(self, order: Sequence[int]) -> None:
        self._views: dict[int, torch.Tensor] = {}
        self._orders = self._by_kind(order)
        self._layouts: dict[Kind, ArenaLayout] = {}
        self.buffers: list[Buffer] = []
        self.touched: list[tuple[int, ...]] = [()] * len(self._parameters)
        for kind, indices in self._orders.items():
            self._add_arena(kind, indices)

    def _by_kind(self, order: Sequence[int]) -> dict[Kind, list[int]]:
        orders: dict[Kind, list[int]] = {}
        for index in order:
            orders.setdefault(self._kinds[index], []).append(index)
        return orders

    def _layout(self, indices: Sequence[int]) -> ArenaLayout:
        parameters = [(self._names[index], self._parameters[index]) for index in indices]
        return lay_out([Item(name, each.numel(), each.dtype.itemsize) for name, each in parameters], self._buffer_bytes)

    def _add_arena(self, kind: Kind, indices: Sequence[int]) -> None:
        dtype = kind.dtype
        wire = _wire_dtype(dtype, self._names[indices[0]])
        layout = self._layouts[kind] = self._layout(indices)
        if kind not in self._memory:
            self._memory[kind] = _memory(layout.size, self._parameters[indices[0]], self._devices[indices[0]])
        memory, mirror = self._memory[kind]
        elements = memory.view(dtype)
        first_buffer = len(self.buffers)
        for index, extent, touched in zip(indices, layout.extents, layout.touched, strict=True):
            place = elements[extent.begin // dtype.itemsize : extent.end // dtype.itemsize]
            self._views[index] = _like(place, self._parameters[index])
            self.touched[index] = tuple(first_buffer + buffer for buffer in touched)
        name = str(dtype).removeprefix("torch.")
        prefix = f"place{kind.place}." if kind.place else ""
        for number, (extent, needed) in enumerate(zip(layout.buffers, layout.needed, strict=True)):
            bytes_of_it = slice(extent.begin, extent.end)
            window = memory[bytes_of_it].view(wire)
            host = None if mirror is None else mirror[bytes_of_it].view(wire)
            gradients = tuple(indices[item] for item in needed)
            self.buffers.append(Buffer(f"{prefix}{name}.buffer{number}", window, gradients, host))

    def _move(self, moved: Sequence[int], places: dict[int, torch.Tensor]) -> None:
        """Gradients that together fill the same memory as before. ``places``: where they were."""
        saved: dict[int, torch.Tensor] = {}
        for index in moved:
            gradient = self._parameters[index].grad
            if len(moved) > 1 and gradient is not None and _same_memory(gradient, places[index]):
                saved[index] = gradient.detach().clone()
        for index in moved:
            if index in saved:
                self._parameters[index].grad = self._views[index].copy_(saved[index])
            else:
                self.place(index)


def gradient_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The strides of the parameter's gradient in its arena: the parameter's own if they are dense, else row by row."""
    if _is_dense(parameter):
        return tuple(parameter.stride())
    return tuple(torch.empty(parameter.shape, device="meta").stride())


def _permuted(before: Sequence[int], after: Sequence[int]) -> Iterator[Sequence[int]]:
    """``after``, cut wherever both orders have had the same indices so far."""
    begin, apart = 0, set[int]()
    for end, pair in enumerate(zip(before, after, strict=True), start=1):
        for index in pair:
            apart ^= {index}
        if not apart:
            yield after[begin:end]
            begin = end


def _like(place: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    return place.as_strided(parameter.shape, gradient_strides(parameter))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _same_memory(gradient: torch.Tensor, view: torch.Tensor) -> bool:
    if gradient.layout != torch.strided:
        return False
    return (gradient.data_ptr(), gradient.dtype, gradient.shape, gradient.stride()) == (
        view.data_ptr(),
        view.dtype,
        view.shape,
        view.stride(),
    )


def _memory(size: int, parameter: torch.Tensor, device: Accelerator | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``size`` bytes of zeros where the parameter is, and for an accelerator as many, pinned, of the host.

    What is the host's lies in the memory that the ranks of a machine share, where they do.
    """
    shared = runtime.allocate(size) if size > 0 else None
    if device is None:
        return _pages(size) if shared is None else torch.from_numpy(shared), None
    memory = torch.zeros(size, dtype=torch.uint8, device=parameter.device)
    if shared is None:
        return memory, device.pinned(size)
    device.pin(shared)
    return memory, torch.from_numpy(shared)


def _pages(size: int) -> torch.Tensor:
    """``size`` bytes of zeros that begin at a page."""
    memory = torch.zeros(size + PAGE, dtype=torch.uint8)
    begin = -memory.data_ptr() % PAGE
    return memory[begin : begin + size]


def _wire_dtype(dtype: torch.dtype, name: str) -> torch.dtype:
    if dtype not in WIRE_DTYPES:
        known = ", ".join(str(known).removeprefix("torch.") for known in WIRE_DTYPES)
        raise TypeError(f"parameter {name} has dtype {dtype}, whose gradients cannot be averaged: use one of {known}")
    return WIRE_DTYPES[dtype]
