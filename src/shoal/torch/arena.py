"""Gradient arenas: all gradients of a dtype and a device in one memory, each ``param.grad`` a tensor on a slot of it.

What the backward pass wrote is what the network reads, and results land where the optimizer reads. A gradient is copied
at most once, in ``place``: where the optimizer has set it to None, PyTorch hands over a fresh tensor. An arena of an
accelerator, and one whose gradients travel in fewer bits, has a mirror in memory of the host, which is what the network
reads and writes. See docs/decisions/arena.md.

An arena has no values of its own to keep: its memory counts only where a ``param.grad`` lies in its own slot, and from
the time a buffer is handed to an operation until that is done. Before a pass writes, ``prepare`` sees to it that nobody
else holds a tensor on a slot. Some gradients are apart: their slots only carry them, and the result goes back to the
tensor that ``param.grad`` is. Those are the ones that the program has put there itself or holds, and those of
parameters that several wrappers have.
"""

import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from shoal.errors import ShoalError
from shoal.gradients.arrangement import Arrangement, Kind, Window
from shoal.gradients.layout import Extent, Item, aligned
from shoal.torch import accelerators, arena_memory
from shoal.torch.accelerators import Accelerator
from shoal.torch.devices import places_of
from shoal.torch.gradient_format import describe, gradient_dtype, gradient_strides, name_of, summed_as
from shoal.torch.loans import Loans
from shoal.torch.narrowing import AS_THEY_ARE, WireFormat
from shoal.torch.slots import Slot

NamedParameter = tuple[str, torch.nn.Parameter]
_Reference = weakref.ref[torch.Tensor]


@dataclass(frozen=True)
class Buffer:
    """A balanced fusion buffer: a slice of an arena, in the dtype that is summed.

    ``gradients``: the indices of the parameters whose gradients it holds bytes of. ``own``: the part that this rank
    averages: all, or its slice. ``mirror``: the same in memory of the host, in the dtype that travels; None where
    ``own`` itself travels.
    """

    label: str
    memory: torch.Tensor
    gradients: tuple[int, ...]
    own: torch.Tensor
    mirror: torch.Tensor | None


class GradientArenas:
    """The arenas of a list of parameters, one a dtype and device.

    ``parameters``: in the order of registration; they are known by their index in it. ``order``: these indices in the
    order in which the gradients lie. ``buffer_bytes``: the size of a buffer. ``wire``: how gradients travel. ``own``: of
    so many elements of a buffer, those that this rank averages; None where that is all of them.

    Raises TypeError for a dtype or a device that has no arena.
    """

    def __init__(
        self,
        parameters: Sequence[NamedParameter],
        order: Sequence[int],
        buffer_bytes: int,
        wire: WireFormat = AS_THEY_ARE,
        own: Callable[[int], Extent] | None = None,
    ) -> None:
        self._wire = wire
        self._own = own
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._devices = [accelerators.of([parameter]) for parameter in self._parameters]
        self.has_devices = any(device is not None for device in self._devices)
        """Whether a gradient is on an accelerator."""
        places = places_of(self._parameters)
        self._dtypes = [gradient_dtype(parameter) for parameter in self._parameters]
        self._summed_as = [summed_as(dtype, name) for dtype, name in zip(self._dtypes, self._names, strict=True)]
        self._kinds = [Kind(place, name_of(dtype)) for place, dtype in zip(places, self._dtypes, strict=True)]
        items = [
            Item(name, parameter.numel(), dtype.itemsize)
            for (name, parameter), dtype in zip(parameters, self._dtypes, strict=True)
        ]
        self._memory: dict[Kind, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._shared: frozenset[int] = frozenset()
        self._strayed: set[int] = set()
        self._apart: set[int] = set()
        self._frozen: frozenset[int] = frozenset()
        self._loans = Loans()
        self._slots: list[Slot] = []
        self._references_alone = _references_alone()
        self._lay_out(Arrangement(items, self._kinds, order, buffer_bytes))

    def reorder(self, order: Sequence[int]) -> None:
        """From now on the gradients lie in this order, with the values that they have.

        There is no second arena for that, unless the program holds a gradient that would move under its hands:
        gradients that have changed places among each other are copied together and put back, and between the order of
        registration and that of arrival these are mostly the few of a layer. A gradient that the program holds stays
        where it is, outside of the new arena.
        """
        before, slots = self.arrangement, self._slots
        inside = self._taken(range(len(slots)))
        held = {index for index, slot in enumerate(slots) if slot.is_held}
        renewed = {self._kinds[index] for index in held}
        try:
            self._lay_out(before.reordered(order), renewed)
        except BaseException:
            held.update(inside)
            raise
        finally:
            for index in held & inside.keys():
                self._parameters[index].grad = _given_back(slots[index], inside.pop(index))
        for kind, moved in self.arrangement.permuted_since(before):
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
        return self.arrangement.order

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
        """``frozen``: all that are, from now on. Their gradients stay as they are; the next pass moves them out of the
        arena.
        """
        self._frozen = frozen

    def keep_apart(self, shared: frozenset[int]) -> None:
        """``shared``: all parameters that another wrapper has too, from now on."""
        self._shared = shared

    def prepare(self) -> None:
        """Before a pass writes into the arenas: says what is apart in this pass.

        Whatever the program still holds of the arenas is left to it, and new memory takes over. That happens once for
        each gradient, which is apart ever after.
        """
        self.give_back()
        self._loans.begin_pass()
        strayed = self._moved_out(self._strayed | self._shared | self._frozen)
        outside = set(strayed)
        left = {self._kinds[index] for index in strayed}
        absent: list[int] = []
        in_slots = self._loans.in_slots
        for index, (parameter, slot) in enumerate(zip(self._parameters, self._slots, strict=True)):
            gradient = parameter.grad
            begin = 0
            if gradient is not None and gradient.layout == torch.strided:
                begin = gradient.data_ptr()
                if begin == slot.begin and gradient.stride() == slot.strides:
                    in_slots[index] = weakref.ref(gradient)
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
            self._lay_out(self.arrangement, left)
            self._strayed |= strayed
        self._apart = outside | self._strayed | self._shared
        for index in absent:
            if index not in self._apart and index not in self._frozen:
                self._slots[index].make_next()

    def place(self, index: int) -> torch.Tensor | None:
        """Puts the values of ``param.grad``, zero for None, into its slot, and ``param.grad`` there, unless that is
        apart.

        Returns what now is in the slot as ``param.grad``, None if nothing is. Raises ShoalError for a gradient that
        does not fit there.
        """
        # What this costs it costs for each parameter, on every rank, with caches that are cold after the gradient
        # before.
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
        """Copies a gradient that lies elsewhere into its slot, or one that a hook has turned about where it lies. Zero
        for None.

        A hook may have taken what was ``param.grad`` in this slot. The program has it back as it was when the pass is
        over.
        """
        slot = self._slots[index]
        memory = slot.memory
        if slot.is_held and index not in self._loans.lent and (gradient is None or gradient.data_ptr() != slot.begin):
            self._loans.lend(index, slot)
            self._apart.add(index)
        if gradient is None:
            memory.zero_()
            return
        if gradient.shape != memory.shape or gradient.dtype is not memory.dtype or gradient.device != memory.device:
            raise ShoalError(
                f"the gradient of {self._names[index]} is {describe(gradient)}, and {describe(memory)} is averaged on "
                "every rank: convert it in a hook of the parameter, or set the parameter's grad_dtype before it is wrapped"
            )
        values = gradient.detach() if gradient.requires_grad else gradient
        if self._loans.lent:
            values = self._loans.values_of(index, values, self._slots)
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
        result = self._loans.take_result(index)
        if gradient is None or (gradient.shape, gradient.dtype) != (slot.memory.shape, slot.memory.dtype):
            parameter.grad = slot.memory.clone() if result is None else result
        else:
            gradient.detach().copy_(slot.memory if result is None else result)

    def end_pass(self) -> None:
        """No hook takes anything any more, and nothing refers to gradients that the program may swap
        (torch.utils.swap_tensors).
        """
        self._loans.end_pass()

    def written_while_lent(self) -> list[int]:
        """Before ``give_back``: whose slots the program has written to although they were lent."""
        return self._loans.written()

    def give_back(self) -> None:
        """After the average, before it is settled, when nothing reads or writes the arenas: lent slots have their
        values again.
        """
        self._loans.end(self._slots)

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
                self._loans.keep_result(index, self._slots[index], saved)
                self._apart.add(index)
            self.settle(index)
        elif saved is not None:
            self._slots[index].memory.copy_(saved)
            device = self._devices[index]
            if device is not None:
                device.keep(saved, device.current)  # which was made in another stream, perhaps

    def take_over(self, before: "GradientArenas | None") -> None:
        """Places the gradients that lie in these other arenas, which are used no more, unless the program holds
        them.
        """
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
        """The gradients of these that lie in their slots, and that are None now: whoever still holds a slot is the
        program.
        """
        taken: dict[int, _Reference] = {}
        for index in indices:
            if self._is_inside(index):
                taken[index] = weakref.ref(self._parameters[index].grad)  # type: ignore[arg-type]
                self._parameters[index].grad = None
        return taken

    def _moved_out(self, indices: Iterable[int]) -> set[int]:
        """Gradients of these that lie in their slots are tensors of their own from now on, but for those that the
        program holds.

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

    def _lay_out(self, arrangement: Arrangement, renewed: Collection[Kind] = ()) -> None:
        """``renewed``: the arenas that get new memory.

        If there is none, or this is interrupted, everything stays as it is: nothing is taken over before all is made.
        """
        memory: dict[Kind, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for kind, indices in arrangement.orders.items():
            parameter, device = self._parameters[indices[0]], self._devices[indices[0]]
            travels, size = not self._is_mirrored(indices[0]), arrangement.layouts[kind].size
            before, mirror = self._memory.get(kind, (None, None)) if kind not in renewed else (None, None)
            assert before is None or size <= before.nbytes, "no order takes more than another"
            gradients = arena_memory.allocate(size, parameter, device, travels) if before is None else before
            memory[kind] = gradients, None if travels else self._mirror_for(arrangement, kind, mirror)
        begins = dict.fromkeys(memory, 0)
        buffers = [self._buffer_at(window, *memory[window.kind], begins) for window in arrangement.windows]
        places = [
            self._place_of(index, arrangement.extents[index], memory[kind][0]) for index, kind in enumerate(self._kinds)
        ]
        slots = [self._slot_of(index, place) for index, place in enumerate(places)]
        self.arrangement, self._memory, self.touched = arrangement, memory, arrangement.touched
        self.buffers, self._slots = buffers, slots

    def _place_of(self, index: int, extent: Extent, memory: torch.Tensor) -> torch.Tensor:
        """Of a gradient in its arena's memory, in the shape of its parameter."""
        dtype, parameter = self._dtypes[index], self._parameters[index]
        elements = memory.view(dtype)
        part = elements[extent.begin // dtype.itemsize : extent.end // dtype.itemsize]
        return part.as_strided(parameter.shape, gradient_strides(parameter))

    def _buffer_at(
        self, window: Window, memory: torch.Tensor, mirror: torch.Tensor | None, begins: dict[Kind, int]
    ) -> Buffer:
        """``begins``: by arena, where on its mirror the next buffer's own part is."""
        summed_as = self._summed_as[window.gradients[0]]
        elements = memory[slice(*window.extent)].view(summed_as)
        own = elements if self._own is None else elements[slice(*self._own(elements.numel()))]
        if mirror is not None:
            travels_as = self._wire.travels_as(summed_as)
            begin, size = begins[window.kind], own.numel() * travels_as.itemsize
            begins[window.kind] += aligned(size)
            mirror = mirror[begin : begin + size].view(travels_as)
        return Buffer(window.label, elements, window.gradients, own, mirror)

    def _mirror_for(self, arrangement: Arrangement, kind: Kind, before: torch.Tensor | None) -> torch.Tensor:
        """``before``: the one that there was, which stays if it is large enough: a slice may be larger by a few elements."""
        first = arrangement.orders[kind][0]
        summed_as = self._summed_as[first]
        counts = [window.extent.size // summed_as.itemsize for window in arrangement.windows if window.kind == kind]
        own = counts if self._own is None else [self._own(count).size for count in counts]
        size = sum(aligned(count * self._wire.travels_as(summed_as).itemsize) for count in own)
        if before is not None and size <= before.nbytes:
            return before
        return arena_memory.mirror(size, self._devices[first], is_shared=self._own is None)

    def _is_mirrored(self, gradient: int) -> bool:
        """Whether other memory than its arena's travels."""
        summed_as = self._summed_as[gradient]
        return self._devices[gradient] is not None or self._wire.travels_as(summed_as) != summed_as

    def _slot_of(self, index: int, memory: torch.Tensor) -> Slot:
        """The one that there was, which knows who holds it, if it is this memory."""
        before = self._slots[index] if self._slots else None
        return before if before is not None and before.is_under(memory) else Slot(memory)


def _given_back(slot: Slot, gradient: _Reference) -> torch.Tensor:
    """The gradient if somebody has it, else another tensor on its slot."""
    given = gradient()
    return slot.hand_out() if given is None else given


def _references(parameter: torch.nn.Parameter) -> int:
    """How many there are to its gradient from Python. No variable has it here: who traces the program keeps those."""
    return sys.getrefcount(parameter.grad)


@cache
def _references_alone() -> int:
    """To a gradient that nobody in Python has."""
    parameter = torch.nn.Parameter(torch.zeros(1, device="cpu"))
    parameter.grad = torch.zeros(1, device="cpu")
    return _references(parameter)
