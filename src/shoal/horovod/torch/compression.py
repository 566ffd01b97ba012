"""Compression of what travels: floating-point tensors in 16 bits. ``hvd.Compression.fp16`` and, here alone, ``bf16``.

What was made smaller is made as it was by ``decompress``, which gets the dtype from ``compress``.
"""

from typing import Any

import torch

from shoal.horovod.common.compression import Compressor, NoneCompressor


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
