"""Slots that are lent to a pass: a hook has taken the tensor on one, which then carries another gradient.

What was taken keeps its values for the program: they are copied aside, and lie in the slot again when the pass is over.
What was averaged there meanwhile is kept as the result. So a loan begins before the slot is filled, and ends before it
is settled.
"""

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from shoal.torch.slots import Slot


class _Loan(NamedTuple):
    """``values``: of a slot that is lent to the pass. ``taken``: the tensor on it that a hook has taken from
    ``param.grad``.
    """

    values: torch.Tensor
    taken: torch.Tensor | None
    version: int

    @property
    def is_written(self) -> bool:
        return self.taken is not None and self.taken._version != self.version


class Loans:
    """Gradients are known by their index. Nothing reads or writes the slots when loans end."""

    def __init__(self) -> None:
        self.in_slots: dict[int, weakref.ref[torch.Tensor]] = {}
        """What was ``param.grad`` before the pass, where that was in its slot."""
        self.lent: dict[int, _Loan] = {}
        """By gradient, what is lent now."""
        self._results: dict[int, torch.Tensor] = {}

    def begin_pass(self) -> None:
        self._results.clear()

    def end_pass(self) -> None:
        """No hook takes anything any more, and nothing refers to gradients that the program may swap
        (torch.utils.swap_tensors).
        """
        self.in_slots.clear()

    def lend(self, index: int, slot: Slot) -> None:
        """A hook has taken what was ``param.grad`` in this slot, which will be filled."""
        before = self.in_slots.get(index)
        taken = None if before is None else before()
        self.lent[index] = _Loan(slot.memory.clone(), taken, 0 if taken is None else taken._version)

    def values_of(self, index: int, gradient: torch.Tensor, slots: Sequence[Slot]) -> torch.Tensor:
        """The values of a gradient. A hook may have made what lies in a lent slot the gradient of this other
        parameter.
        """
        for lent, loan in self.lent.items():
            offset = gradient.data_ptr() - slots[lent].begin
            if lent != index and 0 <= offset < loan.values.nbytes and gradient.dtype is loan.values.dtype:
                gradient = loan.values.as_strided(gradient.shape, gradient.stride(), offset // gradient.itemsize)
        return gradient

    def written(self) -> list[int]:
        """Whose slots the program has written to although they were lent."""
        return [index for index, loan in self.lent.items() if loan.is_written]

    def end(self, slots: Sequence[Slot]) -> None:
        """Lent slots have their values again."""
        for index in list(self.lent):
            self.keep_result(index, slots[index], self.lent[index].values)
            del self.lent[index]

    def keep_result(self, index: int, slot: Slot, values: torch.Tensor) -> None:
        """What is in the slot is the result. The slot has these values again."""
        self._results[index] = slot.memory.clone()
        slot.memory.copy_(values)

    def take_result(self, index: int) -> torch.Tensor | None:
        """What was averaged in a slot that was lent."""
        return self._results.pop(index, None)
