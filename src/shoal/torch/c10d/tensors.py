"""Tensors as the flat arrays that Shoal communicates: all elements in row order, in a dtype that it has.

As with gloo, ranks have to agree on the number and the dtype of the elements, not on shapes or strides.

``transfer``: that of the operation, for tensors of an accelerator. Their elements are in pinned memory then, where they arrive
later; what is written there by the time that the operation is done is taken back.
"""

from collections.abc import Sequence

import torch

from shoal.errors import Mismatch
from shoal.ops.operations import Plan
from shoal.ops.storages import put, require_whole
from shoal.torch.known_dtypes import count, in_known_dtype
from shoal.torch.staging import Transfer


class Flat:
    """``elements``: one dimension, in the tensor's own memory if that is contiguous, else in a copy.

    Complex numbers are pairs of real ones; what Shoal has no dtype for is bytes, which can be moved but not summed.
    ``read``: False if the operation does not need the elements that the tensor of an accelerator has before it.
    ``is_apart``: whether ``elements`` are in memory of their own.
    """

    def __init__(self, tensor: torch.Tensor, transfer: Transfer | None = None, read: bool = True) -> None:
        if tensor.layout != torch.strided:
            raise TypeError(
                f"a tensor with layout {tensor.layout}: only dense ones are supported here: pass tensor.to_dense()"
            )
        self._tensor = tensor.detach()
        self._transfer = transfer
        if transfer is None:
            lazy = self._tensor.is_conj() or self._tensor.is_neg()
            self._whole = (self._tensor.resolve_conj().resolve_neg() if lazy else self._tensor).contiguous()
        else:
            self._whole = transfer.mirror(self._tensor, read)
        self.is_apart = self._whole is not self._tensor
        # Faster than view(-1).
        self.elements = in_known_dtype(self._whole).flatten()

    def filled_by(self, plan: Plan) -> Plan:
        """``plan``, which writes to ``elements`` and to nothing else; the tensor has them afterwards."""
        if self._transfer is not None:
            self._transfer.returns(once(self._tensor, self._whole))
            return plan
        return plan.then(self.finish) if self.is_apart else plan

    def left_by(self, plan: Plan) -> Plan:
        """``plan``, which has no result for this tensor, nor for any other."""
        if self._transfer is not None:
            self._transfer.returns()
        return plan

    def finish(self) -> None:
        """After ``elements`` were written to: the tensor has them."""
        if self._transfer is not None:
            self._transfer.take_back(*once(self._tensor, self._whole))
        elif self.is_apart:
            require_whole(self._tensor)
            put(*once(self._tensor, self._whole))


def apart(given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``given``, or a copy of it where it shares memory with ``result``. Both of one dimension."""
    begin, other = given.data_ptr(), result.data_ptr()
    shared = begin < other + result.nbytes and other < begin + given.nbytes
    return given.clone() if shared else given


def joined(tensors: Sequence[torch.Tensor], transfer: Transfer | None = None) -> torch.Tensor:
    """The elements of all, one after the other. Raises ValueError if they are not of one dtype."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"the tensors must have one dtype, got {', '.join(str(tensor.dtype) for tensor in tensors)}")
    if transfer is None:
        return torch.cat([Flat(tensor).elements for tensor in tensors])
    memory = transfer.memory(sum(tensor.nbytes for tensor in tensors)).view(tensors[0].dtype)
    parts = torch.split(memory, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        transfer.bring(part.view(tensor.shape), tensor.detach())
    return in_known_dtype(memory).view(-1)


def divided_by(
    plan: Plan, elements: torch.Tensor, tensors: Sequence[torch.Tensor], transfer: Transfer | None = None
) -> Plan:
    """``plan``, which writes to ``elements``; the tensors have them afterwards, as ``joined`` has put them together."""
    parts = torch.split(elements, [count(tensor) for tensor in tensors])
    if transfer is not None:
        places = [once(tensor.detach(), _shaped(part, tensor)) for tensor, part in zip(tensors, parts, strict=True)]
        transfer.returns(*places)
        return plan

    def finish() -> None:
        for tensor, part in zip(tensors, parts, strict=True):
            require_whole(tensor)
            flat = Flat(tensor)
            put(flat.elements, part)
            flat.finish()

    return plan.then(finish)


def _shaped(elements: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return elements.view(tensor.dtype).view(tensor.shape)


def fill(flats: Sequence[Flat], data: memoryview, blocks: Sequence[int]) -> None:
    """Fills one tensor with what came from each member. ``blocks``: how many bytes that is.

    Raises Mismatch if a member has sent more or less than its tensor holds.
    """
    expected = [flat.elements.nbytes for flat in flats]
    if list(blocks) != expected:
        raise Mismatch(
            f"the members sent {list(blocks)} bytes, one number for each, but the tensors to be filled have {expected}"
        )
    if sum(expected):
        received = torch.frombuffer(data, dtype=torch.uint8)
        for flat, part in zip(flats, torch.split(received, expected), strict=True):
            require_whole(flat.elements)
            put(flat.elements.view(torch.uint8), part)
            flat.finish()


def once(tensor: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both without the repetitions of what has been expanded, whose elements have one place and are not to be written twice."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor, whole = tensor.narrow(dimension, 0, 1), whole.narrow(dimension, 0, 1)
    return tensor, whole
