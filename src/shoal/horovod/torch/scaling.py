"""Scaling before and after a sum, and averages, as Horovod has them.

An average is the sum times postscale_factor / size. Integers are scaled in float64 and cut toward zero; so an average of
integers is a sum, which wraps, that is scaled so. 16-bit tensors are scaled in float32.
"""

import torch

from shoal.horovod.common.exceptions import HorovodInternalError
from shoal.horovod.common.operators import SHOALS_NAMES, ReduceOp
from shoal.job.groups import Group


def operator_for(op: ReduceOp, dtype: torch.dtype) -> str:
    """Shoal's operator that tensors of that dtype are combined by."""
    if op is not ReduceOp.Average:
        return SHOALS_NAMES[op]
    return "mean" if dtype.is_floating_point else "sum"


def factor_after(op: ReduceOp, dtype: torch.dtype, group: Group, postscale_factor: float) -> float:
    """What the result of that operator is multiplied by."""
    is_sum = op is ReduceOp.Average and not dtype.is_floating_point
    return postscale_factor / group.size if is_sum else postscale_factor


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
    if factor == 1.0:
        return tensor
    if tensor.dtype in (torch.float32, torch.float64):
        tensor.detach().mul_(factor)
    else:
        tensor.detach().copy_(scaled(tensor, factor))
    return tensor
