"""Tensors as the flat arrays that Shoal communicates: all elements in row order, in a dtype that it has.

As with gloo, ranks have to agree on the number and the dtype of the elements, not on shapes or strides.
"""

from collections.abc import Sequence

import torch

from shoal.arrays import DTYPES
from shoal.errors import Mismatch

_KNOWN = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))


class Flat:
    """``elements``: one dimension, in the tensor's own memory if that is contiguous, else in a copy.

    Complex numbers are pairs of real ones; what Shoal has no dtype for is bytes, which can be moved but not summed.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach()
        self._whole = self._tensor.resolve_conj().resolve_neg().contiguous()
        self.elements = _known(self._whole).view(-1)

    def finish(self) -> None:
        """After ``elements`` were written to: the tensor has them."""
        if self._whole.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(self._whole)


def apart(given: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``given``, or a copy of it where it shares memory with ``result``. Both of one dimension."""
    begin, other = given.data_ptr(), result.data_ptr()
    shared = begin < other + result.nbytes and other < begin + given.nbytes
    return given.clone() if shared else given


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all, one after the other. Raises ValueError if they are not of one dtype."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"the tensors must have one dtype, got {', '.join(str(tensor.dtype) for tensor in tensors)}")
    return torch.cat([Flat(tensor).elements for tensor in tensors])


def divide(elements: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Fills the tensors with what ``joined`` would have made."""
    begin = 0
    for tensor in tensors:
        flat = Flat(tensor)
        end = begin + flat.elements.numel()
        flat.elements.copy_(elements[begin:end])
        flat.finish()
        begin = end


def fill(tensors: Sequence[torch.Tensor], data: memoryview, blocks: Sequence[int]) -> None:
    """Fills one tensor with what came from each member. ``blocks``: how many bytes that is.

    Raises Mismatch if a member has sent more or less than its tensor holds.
    """
    expected = [Flat(tensor).elements.nbytes for tensor in tensors]
    if list(blocks) != expected:
        raise Mismatch(
            f"the members sent {list(blocks)} bytes, one number for each, but the tensors to be filled have {expected}"
        )
    if sum(expected):
        received = torch.frombuffer(data, dtype=torch.uint8)
        for tensor, part in zip(tensors, torch.split(received, expected), strict=True):
            flat = Flat(tensor)
            flat.elements.view(torch.uint8).copy_(part)
            flat.finish()


def _known(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex() and tensor.dtype != torch.complex32:
        return torch.view_as_real(tensor)
    # A tensor without dimensions has none that could become longer.
    return tensor if tensor.dtype in _KNOWN else tensor.reshape(-1).view(torch.uint8)
