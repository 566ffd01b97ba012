"""What of a module takes part: its parameters and buffers, but for those that the module's owner has taken out.

PyTorch's DistributedDataParallel leaves out the names in ``module._ddp_params_and_buffers_to_ignore``; so does ours.
"""

import sys
from collections.abc import Iterable, Iterator
from types import FrameType

import torch
from torch.nn.utils import stateless

from shoal.errors import ConfigurationError
from shoal.torch.accelerators import DEVICE_TYPES
from shoal.torch.arena import NamedParameter
from shoal.torch.devices import places_of
from shoal.torch.gradient_format import gradient_dtype, gradient_strides

_FUNCTIONAL_CALL = stateless._functional_call.__code__


def parameters(module: torch.nn.Module) -> Iterator[NamedParameter]:
    """With their names, in the order of registration."""
    ignored = _ignored(module)
    return (each for each in module.named_parameters() if each[0] not in ignored)


def buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    ignored = _ignored(module)
    return (each for each in module.named_buffers() if each[0] not in ignored)


def trainable(module: torch.nn.Module) -> list[NamedParameter]:
    """The parameters whose gradients are averaged."""
    return [(name, parameter) for name, parameter in parameters(module) if parameter.requires_grad]


def ignore(module: torch.nn.Module, names: Iterable[str]) -> None:
    """Takes parameters and buffers out, by their names in ``module``, which is to be wrapped later."""
    module._ddp_params_and_buffers_to_ignore = list(names)  # type: ignore[assignment]


def check(module: torch.nn.Module, broadcasts: bool) -> None:
    """Raises what the wrapper says of a module that it cannot wrap. ``broadcasts``: whether its buffers are to be those of one rank."""
    if not trainable(module):
        raise ValueError("no parameter of the module requires a gradient: there is nothing to average")
    for name, parameter in parameters(module):
        if hasattr(parameter, "_in_backward_optimizers"):
            raise ConfigurationError(
                f"{name} has an optimizer that steps inside the backward pass, before its gradient is averaged: step after "
                'backward(), or use PyTorch\'s own DistributedDataParallel on the backend "shoal"'
            )
    for name, buffer in buffers(module):
        if broadcasts and buffer.layout != torch.strided:
            raise TypeError(
                f"{name} is sparse and cannot be broadcast: pass broadcast_buffers=False, and each rank keeps its own"
            )
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.SyncBatchNorm) and not torch.distributed.is_initialized():
            raise ConfigurationError(
                f"{name or 'the module'} is a SyncBatchNorm, which takes each rank's own statistics where there is no process group "
                'of torch.distributed: call torch.distributed.init_process_group("shoal") first'
            )
    check_tensors(module)


def check_tensors(module: torch.nn.Module) -> None:
    """Raises what the wrapper says of a parameter or buffer that it cannot take."""
    for name, tensor in [*parameters(module), *buffers(module)]:
        if torch.nn.parameter.is_lazy(tensor):
            raise TypeError(f"{name} has no shape yet: run the module once before you wrap it")
        if hasattr(tensor, "__tensor_flatten__"):
            raise TypeError(
                f"{name} is a {type(tensor).__name__}, which is made of other tensors, and only parameters with memory of their own "
                'are averaged: use PyTorch\'s fully_shard, or its own DistributedDataParallel, on the backend "shoal"'
            )
        if tensor.is_inference() and tensor.requires_grad:
            raise TypeError(
                f"{name} was made in inference mode and never has a gradient: make the module outside of it"
            )
        if tensor.device.type not in DEVICE_TYPES:
            known = " and ".join(DEVICE_TYPES)
            raise ConfigurationError(
                f"{name} is on {tensor.device}, and modules are averaged on {known} devices: call module.cpu()"
            )


def are_lent(parameters: Iterable[NamedParameter]) -> bool:
    """Whether tensors that are no parameters stand in for parameters, as inside ``torch.func.functional_call``."""
    return any(not isinstance(tensor, torch.nn.Parameter) for _, tensor in parameters)


def are_stand_ins(parameters: Iterable[NamedParameter]) -> bool:
    """Whether some of these parameters are of a ``functional_call`` that this thread is in, not the module's own.

    PyTorch puts them where a program puts new ones, and says so nowhere but in its stack, which takes microseconds to look through.
    """
    given: set[int] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _FUNCTIONAL_CALL:
            given.update(id(tensor) for tensor in frame.f_locals.get("parameters_and_buffers", {}).values())
        frame = frame.f_back
    return bool(given) and any(id(tensor) in given for _, tensor in parameters)


def describe(name: str, tensor: torch.Tensor, place: int) -> str:
    """A parameter or buffer in one line: all that ranks must agree on. ``place``: the number of its device in the module."""
    strides = gradient_strides(tensor)
    order = "" if tensor.is_contiguous() else f" strides {list(strides)}"
    gradient = gradient_dtype(tensor)
    if tensor.requires_grad and gradient != tensor.dtype:
        order += f" with gradients of {str(gradient).removeprefix('torch.')}"
    device = f" on device {place} of the module" if place else ""
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{order}{device}"


def describe_all(module: torch.nn.Module, with_buffers: bool) -> list[str]:
    """The module in lines that all ranks must agree on."""
    everything: list[tuple[str, str, torch.Tensor]] = [("parameter", *each) for each in parameters(module)]
    if with_buffers:
        everything += [("buffer", *each) for each in buffers(module)]
    places = places_of([tensor for _, _, tensor in everything])
    return [
        f"{kind} {describe(name, tensor, place)}{' frozen' if kind == 'parameter' and not tensor.requires_grad else ''}"
        for (kind, name, tensor), place in zip(everything, places, strict=True)
    ]


def _ignored(module: torch.nn.Module) -> frozenset[str]:
    return frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
