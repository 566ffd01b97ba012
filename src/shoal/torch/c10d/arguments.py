"""The arguments of PyTorch's collectives, in whichever of their forms they come."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]


def options_of(
    kind: type[Any], given: Any, *, op: Any = None, root: Any = None, timeout: timedelta | None = None
) -> Any:
    """PyTorch's options; callers may give what is in them as arguments of their own, the operator or the root first."""
    if isinstance(given, kind):
        return given
    options = kind()
    if isinstance(given, timedelta):
        timeout = given
    elif isinstance(given, int):
        root = given
    elif given is not None:
        op = given
    if op is not None:
        options.reduceOp = op
    if root is not None:
        options.rootRank = root
    if timeout is not None:
        options.timeout = timeout
    return options


def as_list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def single(entries: Any) -> Any:
    if len(entries) != 1:
        raise ValueError(f"one tensor for each rank is communicated, got a list of {len(entries)}")
    return entries[0]


def split_sizes(elements: torch.Tensor, tensor: torch.Tensor, rows: Sequence[int], members: int) -> list[int]:
    """How many elements go to each member, or come from it, where the caller has said how many rows do."""
    if not rows:
        if tensor.dim() and tensor.shape[0] % members:
            raise ValueError(f"the first dimension, {tensor.shape[0]}, cannot be cut into {members} equal parts")
        return [elements.numel() // members] * members
    if len(rows) != members or sum(rows) != tensor.shape[0]:
        raise ValueError(
            f"the split sizes {list(rows)} are not {members} parts of the first dimension, {tensor.shape[0]}"
        )
    each = elements.numel() // tensor.shape[0] if tensor.shape[0] else 0
    return [count * each for count in rows]
