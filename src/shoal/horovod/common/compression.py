"""Compression of what travels, for every framework, whose module ``compression`` has its own 16-bit compressors besides."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any


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
