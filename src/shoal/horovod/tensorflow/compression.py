"""Compression of what travels: floating-point tensors in 16 bits. ``hvd.Compression.fp16`` and, here alone, ``bf16``.

What was made smaller is made as it was by ``decompress``, which gets the dtype from ``compress``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf


class Compressor:
    """How tensors are made smaller before they travel. Programs may bring their own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What travels of the tensor, and what ``decompress`` is to be given."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was, of what has travelled."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class _In16Bits(Compressor):
    """Floating-point tensors travel in ``dtype``, others as they are."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (tf.cast(tensor, cls.dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class FP16Compressor(_In16Bits):
    """float16 on the way. Values beyond 65504 become infinite."""

    dtype = tf.float16


class BF16Compressor(_In16Bits):
    """bfloat16 on the way: float32's range with 8 bits of precision."""

    dtype = tf.bfloat16


class Compression:
    """The compressors, as the argument ``compression`` takes them."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def compressed(compression: Any, tensors: Sequence[Any], operation: Callable[[list[Any]], Iterable[Any]]) -> list[Any]:
    """What ``operation``, given what travels of each tensor, returns for each, as it was."""
    travelling, contexts = [], []
    for tensor in tensors:
        smaller, context = compression.compress(tensor)
        travelling.append(smaller)
        contexts.append(context)
    return [
        compression.decompress(each, context) for each, context in zip(operation(travelling), contexts, strict=True)
    ]
