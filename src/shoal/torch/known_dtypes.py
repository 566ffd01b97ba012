"""Tensors in a dtype that Shoal has: complex numbers are pairs of real ones, and what it has no dtype for is bytes."""

import torch

from shoal.ops.arrays import DTYPES

# The dtypes of PyTorch that Shoal has, with their numbers in docs/protocol/format.md.
NUMBERS = {getattr(torch, name): number for name, number in DTYPES.items() if hasattr(torch, name)}


def in_known_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the tensor, whatever its strides. Bytes can be moved but not summed; pairs and bytes are a last
    dimension.
    """
    if tensor.dtype in NUMBERS:
        return tensor
    if tensor.is_complex() and tensor.dtype != torch.complex32:
        return torch.view_as_real(tensor)
    return tensor.unsqueeze(-1).view(torch.uint8)


def count(tensor: torch.Tensor) -> int:
    """How many elements the tensor has in that dtype."""
    if tensor.is_complex() and tensor.dtype != torch.complex32:
        return 2 * tensor.numel()
    return tensor.numel() if tensor.dtype in NUMBERS else tensor.nbytes
