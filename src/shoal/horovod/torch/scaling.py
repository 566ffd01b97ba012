"""Scaling before and after a sum, as Horovod has it: integers in float64, cut toward zero, and 16-bit tensors in float32."""

import torch


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
