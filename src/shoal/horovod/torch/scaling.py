"""Scaling before and after a sum, and averages, as Horovod has them.

An average is the sum times postscale_factor / size. Integers are scaled in float64 and cut toward zero; so an average of
integers is a sum, which wraps, that is scaled so. 16-bit tensors are scaled in float32.
"""

from typing import NamedTuple

import torch

from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.horovod.common.operators import SHOALS_NAMES, ReduceOp
from shoal.horovod.common.process_sets import ProcessSet


class Scaled(NamedTuple):
    """A reduction: ``op`` is Shoal's name; the tensor is multiplied by ``before`` and the result by ``after``."""

    op: str
    before: float
    after: float


def reduction(
    op: ReduceOp, dtype: torch.dtype, process_set: ProcessSet, prescale_factor: float, postscale_factor: float
) -> Scaled:
    """How Shoal reduces tensors of that dtype so."""
    if op is not ReduceOp.Average:
        return Scaled(SHOALS_NAMES[op], prescale_factor, postscale_factor)
    if dtype.is_floating_point:
        return Scaled("mean", prescale_factor, postscale_factor)
    return Scaled("sum", prescale_factor, postscale_factor / process_set.group.size)


def scatterable(op: ReduceOp) -> ReduceOp:
    """``op``, if a reduce-scatter of Horovod's has it. Raises HorovodInternalError, as Horovod does, for another."""
    if op not in (ReduceOp.Average, ReduceOp.Sum):
        raise HorovodInternalError(
            f"a reducescatter is Average or Sum, got hvd.{op.name}: use hvd.allreduce for others"
        )
    return op


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times the factor: itself if that is 1, else a new one, detached."""
    if factor == 1.0:
        return tensor
    tensor = tensor.detach()
    if tensor.is_floating_point():
        wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        return (wide * factor).to(tensor.dtype)
    return (tensor.double() * factor).to(tensor.dtype)


def scale_(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The same in place."""
    if factor != 1.0:
        tensor.detach().copy_(scaled(tensor, factor))
    return tensor
