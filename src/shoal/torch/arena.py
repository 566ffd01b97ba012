"""Gradient arenas: all gradients of a dtype and a device in one flat memory, each ``param.grad`` a tensor on a slot of it.

What the backward pass wrote is what the network reads, and results land where the optimizer reads. A gradient is copied
at most once, in ``place``: where the optimizer has set it to None, PyTorch hands over a fresh tensor. An arena of an
accelerator has a mirror in memory of the host, which is what the network reads and writes. See docs/decisions/arena.md.

An arena has no values of its own to keep: its memory counts only where a ``param.grad`` lies in its own slot, and from the time
a buffer is handed to an operation until that is done. Before a pass writes, ``prepare`` sees to it that nobody else holds
a tensor on a slot. Some gradients are apart: their slots only carry them, and the result goes back to the tensor that
``param.grad`` is. Those are the ones that the program has put there itself or holds, and those of parameters that
several wrappers have.
"""

import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from shoal.errors import ShoalError
from shoal.gradients.layout import ArenaLayout, Item, lay_out
from shoal.job import runtime
from shoal.torch import accelerators
from shoal.torch.accelerators import Accelerator
from shoal.torch.devices import places_of
from shoal.torch.slots import Slot

PAGE = 4096

NamedParameter = tuple[str, torch.nn.Parameter]
_Reference = weakref.ref[torch.Tensor]

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


class _Loan(NamedTuple):
    """``values``: of a slot that is lent to the pass. ``taken``: the tensor on it that a hook has taken from ``param.grad``."""

    values: torch.Tensor
    taken: torch.Tensor | None
    version: int

    @property
    def is_written(self) -> bool:
        return self.taken is not None and self.taken._version != self.version


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
        self._kinds = [Kind(place, gradient_dtype(each)) for place, each in zip(places, self._parameters, strict=True)]
        self._buffer_bytes = buffer_bytes
        self._memory: dict[Kind, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._shared: frozenset[int] = frozenset()
        self._strayed: set[int] = set()
        self._apart: set[int] = set()
        self._frozen: frozenset[int] = frozenset()
        self._before: dict[int, _Reference] = {}
        self._lent: dict[int, _Loan] = {}
        self._results: dict[int, torch.Tensor] = {}
        self._slots: list[Slot] = []
        self._references_alone = _references_alone()
        self._lay_out(order)

    def reorder(self, order: Sequence[int]) -> None:
        """From now on the gradients lie in this order, with the values that they have.

        There is no second arena for that, unless the program holds a gradient that would move under its hands: gradients that have
        changed places among each other are copied together and put back, and between the order of registration and that of
        arrival these are mostly the few of a layer. A gradient that the program holds stays where it is, outside of the new arena.
        """
        before, slots = self._orders, self._slots
        inside = self._taken(range(len(slots)))
        held = {index for index, slot in enumerate(slots) if slot.is_held}
        renewed = {self._kinds[index] for index in held}
        try:
            self._lay_out(order, renewed)
        except BaseException:
            held.update(inside)
            raise
        finally:
            for index in held & inside.keys():
                self._parameters[index].grad = _given_back(slots[index], inside.pop(index))
        for kind, after in self._orders.items():
            for moved in _permuted(before[kind], after):
                values = {index: slots[index].memory for index in moved if index in inside}
                if len(moved) > 1 and kind not in renewed:
                    values = {index: memory.clone() for index, memory in values.items()}
                for index, value in values.items():
                    slot = self._slots[index]
                    if value.data_ptr() != slot.begin:
                        slot.memory.copy_(value)
                    self._parameters[index].grad = slot.hand_out()

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

    def slot(self, index: int) -> torch.Tensor:
        """The memory of a gradient in its arena: of the parameter's shape, and of its strides where those are dense."""
        return self._slots[index].memory

    @property
    def frozen(self) -> frozenset[int]:
        """The parameters that get no gradients for the time being. Their slots are holes: whatever is there is sent."""
        return self._frozen

    def freeze(self, frozen: frozenset[int]) -> None:
        """``frozen``: all that are, from now on. Their gradients stay as they are; the next pass moves them out of the arena."""
        self._frozen = frozen

    def keep_apart(self, shared: frozenset[int]) -> None:
        """``shared``: all parameters that another wrapper has too, from now on."""
        self._shared = shared

    def prepare(self) -> None:
        """Before a pass writes into the arenas: says what is apart in this pass.

        Whatever the program still holds of the arenas is left to it, and new memory takes over. That happens once for each
        gradient, which is apart ever after.
        """
        self.give_back()
        self._results.clear()
        strayed = self._moved_out(self._strayed | self._shared | self._frozen)
        outside = set(strayed)
        left = {self._kinds[index] for index in strayed}
        absent: list[int] = []
        for index, (parameter, slot) in enumerate(zip(self._parameters, self._slots, strict=True)):
            gradient = parameter.grad
            begin = 0
            if gradient is not None and gradient.layout == torch.strided:
                begin = gradient.data_ptr()
                if begin == slot.begin and gradient.stride() == slot.strides:
                    self._before[index] = weakref.ref(gradient)
                    continue
                outside.add(index)
            absent.append(index)
            trespassed = self._kind_at(begin) if begin else None
            if slot.is_held or trespassed is not None:
                strayed.add(index)
                left.update({self._kinds[index], *(() if trespassed is None else (trespassed,))})
                outside.update(other for other, each in enumerate(self._slots) if begin and each.begin == begin)
        if left:
            # A gradient of which the program has a view stays in the memory that is left.
            inside = self._taken(index for index, kind in enumerate(self._kinds) if kind in left)
            outside.update(index for index in inside if self._slots[index].is_held)
            for index, reference in inside.items():
                self._parameters[index].grad = _given_back(self._slots[index], reference)
            self._lay_out(self.order, left)
            self._strayed |= strayed
        self._apart = outside | self._strayed | self._shared
        for index in absent:
            if index not in self._apart and index not in self._frozen:
                self._slots[index].make_next()

    def place(self, index: int) -> torch.Tensor | None:
        """Puts the values of ``param.grad``, zero for None, into its slot, and ``param.grad`` there, unless that is apart.

        Returns what now is in the slot as ``param.grad``, None if nothing is. Raises ShoalError for a gradient that does not fit there.
        """
        # What this costs it costs for each parameter, on every rank, with caches that are cold after the gradient before.
        parameter, slot = self._parameters[index], self._slots[index]
        gradient = parameter.grad
        if gradient is not None and gradient.data_ptr() == slot.begin and slot.is_under(gradient):
            return None if index in self._apart else gradient
        self._fill(index, gradient)
        if gradient is None:
            return None
        del gradient
        if _references(parameter) > self._references_alone:
            # Hooks of the program have it, which look there for the result.
            self._apart.add(index)
        if index in self._apart:
            return None
        handed = parameter.grad = slot.hand_out()
        return handed

    def _fill(self, index: int, gradient: torch.Tensor | None) -> None:
        """Copies a gradient that lies elsewhere into its slot, or one that a hook has turned about where it lies. Zero for None.

        A hook may have taken what was ``param.grad`` in this slot. The program has it back as it was when the pass is over.
        """
        slot = self._slots[index]
        memory = slot.memory
        if slot.is_held and index not in self._lent and (gradient is None or gradient.data_ptr() != slot.begin):
            before = self._before.get(index)
            taken = None if before is None else before()
            self._lent[index] = _Loan(memory.clone(), taken, 0 if taken is None else taken._version)
            self._apart.add(index)
        if gradient is None:
            memory.zero_()
            return
        if gradient.shape != memory.shape or gradient.dtype is not memory.dtype or gradient.device != memory.device:
            raise ShoalError(
                f"the gradient of {self._names[index]} is {_description(gradient)}, and {_description(memory)} is averaged on "
                "every rank: convert it in a hook of the parameter, or set the parameter's grad_dtype before it is wrapped"
            )
        values = gradient.detach() if gradient.requires_grad else gradient
        for lent, loan in self._lent.items():
            offset = values.data_ptr() - self._slots[lent].begin
            if lent != index and 0 <= offset < loan.values.nbytes and values.dtype is loan.values.dtype:
                # A hook has made it the gradient of this parameter.
                values = loan.values.as_strided(values.shape, values.stride(), offset // values.itemsize)
        memory.copy_(values.clone() if values.data_ptr() == slot.begin else values)

    def settle(self, index: int) -> None:
        """After the average: ``param.grad`` is what the slot holds."""
        parameter, slot = self._parameters[index], self._slots[index]
        gradient = parameter.grad
        if index not in self._apart:
            if gradient is None or not slot.is_under(gradient):
                parameter.grad = gradient = None
                # A later hook may have taken what was there.
                parameter.grad = slot.memory.clone() if slot.is_held else slot.hand_out()
            return
        result = self._results.pop(index, None)
        if gradient is None or (gradient.shape, gradient.dtype) != (slot.memory.shape, slot.memory.dtype):
            parameter.grad = slot.memory.clone() if result is None else result
        else:
            gradient.detach().copy_(slot.memory if result is None else result)

    def end_pass(self) -> None:
        """No hook takes anything any more, and nothing refers to gradients that the program may swap (torch.utils.swap_tensors)."""
        self._before.clear()

    def written_while_lent(self) -> list[int]:
        """Before ``give_back``: whose slots the program has written to although they were lent."""
        return [index for index, loan in self._lent.items() if loan.is_written]

    def give_back(self) -> None:
        """After the average, before it is settled, when nothing reads or writes the arenas: lent slots have their values again."""
        for index in list(self._lent):
            self._give_back(index, self._lent[index].values)
            del self._lent[index]

    def _give_back(self, index: int, values: torch.Tensor) -> None:
        memory = self._slots[index].memory
        self._results[index] = memory.clone()
        memory.copy_(values)

    def is_in_slot(self, index: int, gradient: torch.Tensor) -> bool:
        """Whether this is a tensor on the parameter's slot."""
        return gradient.data_ptr() == self._slots[index].begin

    def placed(self, index: int) -> torch.Tensor | None:
        """``param.grad`` if that is in its slot. Its ``_version`` changes whenever a program writes to it."""
        gradient = self._parameters[index].grad
        if gradient is None or index in self._apart or gradient.data_ptr() != self._slots[index].begin:
            return None
        return gradient

    def contribute_unused(self, index: int) -> torch.Tensor | None:
        """Puts what a parameter that got no gradient now has (zero for None) into its slot, and leaves ``param.grad``.

        Returns a copy where ``param.grad`` is that slot, since the result will overwrite it.
        """
        gradient, slot = self._parameters[index].grad, self._slots[index]
        if gradient is not None and slot.is_under(gradient):
            return slot.memory.clone()
        self._fill(index, gradient)
        return None

    def settle_unused(self, index: int, saved: torch.Tensor | None, used_elsewhere: bool) -> None:
        """After the average: takes the result if a rank had a gradient, otherwise leaves ``param.grad`` as it was."""
        if used_elsewhere:
            if saved is not None and not self._is_inside(index) and self._slots[index].is_held:
                # A hook has taken it in the midst of the pass.
                self._give_back(index, saved)
                self._apart.add(index)
            self.settle(index)
        elif saved is not None:
            self._slots[index].memory.copy_(saved)

    def take_over(self, before: "GradientArenas | None") -> None:
        """Places the gradients that lie in these other arenas, which are used no more, unless the program holds them."""
        if before is None:
            return
        numbers = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        before.give_back()
        taken = before._taken(range(len(before._slots)))
        held = {index for index in taken if before._slots[index].is_held}
        try:
            for index in taken.keys() - held:
                parameter, memory = before._parameters[index], before._slots[index].memory
                if id(parameter) in numbers and gradient_dtype(parameter) == memory.dtype:
                    now = self._slots[numbers[id(parameter)]]
                    now.memory.copy_(memory)
                    parameter.grad = now.hand_out()
                else:
                    parameter.grad = memory.clone()
        finally:
            before._put_back(taken)

    def _is_inside(self, index: int) -> bool:
        gradient = self._parameters[index].grad
        return gradient is not None and self._slots[index].begin != 0 and self._slots[index].is_under(gradient)

    def _taken(self, indices: Iterable[int]) -> dict[int, _Reference]:
        """The gradients of these that lie in their slots, and that are None now: whoever still holds a slot is the program."""
        taken: dict[int, _Reference] = {}
        for index in indices:
            if self._is_inside(index):
                taken[index] = weakref.ref(self._parameters[index].grad)  # type: ignore[arg-type]
                self._parameters[index].grad = None
        return taken

    def _moved_out(self, indices: Iterable[int]) -> set[int]:
        """Gradients of these that lie in their slots are tensors of their own from now on, but for those that the program holds.

        Returns the latter, which stay where they are.
        """
        taken = self._taken(indices)
        held = {index for index in taken if self._slots[index].is_held}
        try:
            for index in taken.keys() - held:
                self._parameters[index].grad = self._slots[index].memory.clone()
        finally:
            self._put_back(taken)
        return held

    def _put_back(self, taken: Mapping[int, _Reference]) -> None:
        """Those of them that nothing has taken the place of."""
        for index, reference in taken.items():
            if self._parameters[index].grad is None:
                self._parameters[index].grad = _given_back(self._slots[index], reference)

    def _kind_at(self, address: int) -> Kind | None:
        """The arena that has this address."""
        for kind, (memory, _) in self._memory.items():
            begin = memory.data_ptr()
            if begin <= address < begin + memory.nbytes:
                return kind
        return None

    def _lay_out(self, order: Sequence[int], renewed: Collection[Kind] = ()) -> None:
        """``renewed``: the arenas that get new memory. If there is none, everything stays as it is."""
        orders = self._by_kind(order)
        layouts = {kind: self._layout(indices) for kind, indices in orders.items()}
        memory: dict[Kind, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for kind, indices in orders.items():
            if kind in self._memory and kind not in renewed:
                memory[kind] = self._memory[kind]
            else:
                memory[kind] = _memory(layouts[kind].size, self._parameters[indices[0]], self._devices[indices[0]])
        self._orders, self._layouts, self._memory = orders, layouts, memory
        slots: dict[int, Slot] = {}
        self.buffers: list[Buffer] = []
        self.touched: list[tuple[int, ...]] = [()] * len(self._parameters)
        for kind, indices in orders.items():
            self._add_arena(kind, indices, slots)
        self._slots = [slots[index] for index in range(len(self._parameters))]

    def _by_kind(self, order: Sequence[int]) -> dict[Kind, list[int]]:
        orders: dict[Kind, list[int]] = {}
        for index in order:
            orders.setdefault(self._kinds[index], []).append(index)
        return orders

    def _layout(self, indices: Sequence[int]) -> ArenaLayout:
        parameters = [(self._names[index], self._parameters[index]) for index in indices]
        items = [Item(name, each.numel(), gradient_dtype(each).itemsize) for name, each in parameters]
        return lay_out(items, self._buffer_bytes)

    def _add_arena(self, kind: Kind, indices: Sequence[int], slots: dict[int, Slot]) -> None:
        dtype = kind.dtype
        wire = _wire_dtype(dtype, self._names[indices[0]])
        layout = self._layouts[kind]
        memory, mirror = self._memory[kind]
        elements = memory.view(dtype)
        first_buffer = len(self.buffers)
        for index, extent, touched in zip(indices, layout.extents, layout.touched, strict=True):
            part = elements[extent.begin // dtype.itemsize : extent.end // dtype.itemsize]
            slots[index] = self._slot_of(index, _like(part, self._parameters[index]))
            self.touched[index] = tuple(first_buffer + buffer for buffer in touched)
        name = str(dtype).removeprefix("torch.")
        prefix = f"place{kind.place}." if kind.place else ""
        for number, (extent, needed) in enumerate(zip(layout.buffers, layout.needed, strict=True)):
            bytes_of_it = slice(extent.begin, extent.end)
            window = memory[bytes_of_it].view(wire)
            host = None if mirror is None else mirror[bytes_of_it].view(wire)
            gradients = tuple(indices[item] for item in needed)
            self.buffers.append(Buffer(f"{prefix}{name}.buffer{number}", window, gradients, host))

    def _slot_of(self, index: int, memory: torch.Tensor) -> Slot:
        """The one that there was, which knows who holds it, if it is this memory."""
        before = self._slots[index] if self._slots else None
        return before if before is not None and before.is_under(memory) else Slot(memory)


def _given_back(slot: Slot, gradient: _Reference) -> torch.Tensor:
    """The gradient if somebody has it, else another tensor on its slot."""
    given = gradient()
    return slot.hand_out() if given is None else given


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """The dtype of the parameter's gradient: its own, unless the program has given it another (``grad_dtype``)."""
    dtype: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if dtype is None else dtype


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


def _like(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    return part.as_strided(parameter.shape, gradient_strides(parameter))


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


def _references(parameter: torch.nn.Parameter) -> int:
    """How many there are to its gradient from Python. No variable has it here: who traces the program keeps those."""
    return sys.getrefcount(parameter.grad)


@cache
def _references_alone() -> int:
    """To a gradient that nobody in Python has."""
    parameter = torch.nn.Parameter(torch.zeros(1, device="cpu"))
    parameter.grad = torch.zeros(1, device="cpu")
    return _references(parameter)


def _description(gradient: torch.Tensor) -> str:
    return f"{str(gradient.dtype).removeprefix('torch.')} {list(gradient.shape)} on {gradient.device}"


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
    memory = torch.zeros(size + PAGE, dtype=torch.uint8, device="cpu")
    begin = -memory.data_ptr() % PAGE
    return memory[begin : begin + size]


def _wire_dtype(dtype: torch.dtype, name: str) -> torch.dtype:
    if dtype not in WIRE_DTYPES:
        known = ", ".join(str(known).removeprefix("torch.") for known in WIRE_DTYPES)
        raise TypeError(f"parameter {name} has dtype {dtype}, whose gradients cannot be averaged: use one of {known}")
    return WIRE_DTYPES[dtype]
