"""Compression of what travels: floating-point tensors in 16 bits. ``hvd.Compression.fp16`` and, here alone, ``bf16``.

What was made smaller is made as it was by ``decompress``, which gets the dtype from ``compress``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


class Compressor:
    """How tensors are made smaller before they travel. Programs may bring their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What travels of the tensor, and what ``decompress`` is to be given."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as it was, of what has travelled."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _In16Bits(Compressor):
    """Floating-point tensors travel in ``dtype``, others as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.to(cls.dtype) if tensor.is_floating_point() else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class FP16Compressor(_In16Bits):
    """float16 on the way. Values beyond 65504 become infinite."""

    dtype = torch.float16


class BF16Compressor(_In16Bits):
    """bfloat16 on the way: float32's range with 8 bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The compressors, as the argument ``compression`` takes them."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def compressed(
    compression: Any, tensors: Sequence[torch.Tensor], operation: Callable[..., Iterable[torch.Tensor]]
) -> list[torch.Tensor]:
    """What ``operation``, called with what travels of each tensor, returns for each, as it was."""
    travelling, contexts = [], []
    for tensor in tensors:
        smaller, context = compression.compress(tensor)
        travelling.append(smaller)
        contexts.append(context)
    return [
        compression.decompress(each, context) for each, context in zip(operation(*travelling), contexts, strict=True)
    ]
