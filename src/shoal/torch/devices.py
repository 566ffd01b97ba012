"""The devices on which a module lies, and to which its inputs are moved."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from shoal.errors import ConfigurationError
from shoal.torch import accelerators

_MOVABLE: tuple[type[Any], ...] = (torch.Tensor, PackedSequence)


def places_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor, the number of its device among theirs: the same on ranks whose devices have other names.

    Raises TypeError for a device that Shoal does not know.
    """
    devices = [accelerators.of([tensor]) for tensor in tensors]
    numbers = {device: number for number, device in enumerate(dict.fromkeys(devices))}
    return [numbers[device] for device in devices]


def of_inputs(
    device_ids: Sequence[Any] | None, output_device: Any, module: Iterable[torch.device]
) -> torch.device | None:
    """PyTorch's arguments ``device_ids`` and ``output_device``: where inputs are moved to; None if they stay where they are.

    ``module``: the devices of its parameters. Raises ConfigurationError if anything else is named than the only one, a
    CUDA device.
    """
    named = [*(device_ids or ()), *(() if output_device is None else (output_device,))]
    if not named:
        return None
    devices = set(module)
    only = next(iter(devices))
    if len(devices) > 1 or only.type != "cuda" or any(_cuda_device(each) != only for each in named):
        raise ConfigurationError(
            f"device_ids={device_ids!r} and output_device={output_device!r} of DistributedDataParallel may name the one CUDA device of "
            f"a module, and this one is on {', '.join(sorted(map(str, devices)))}: leave them out, or move the module first"
        )
    return only if device_ids else None


def moved(device: torch.device, arguments: Any) -> Any:
    """``arguments`` with the tensors in them on the device, however nested in tuples, lists and dictionaries."""

    def move(each: Any) -> Any:
        return each.to(device) if isinstance(each, _MOVABLE) else each

    return tree_map(move, arguments, is_leaf=lambda each: isinstance(each, PackedSequence))


def _cuda_device(named: Any) -> torch.device:
    """What PyTorch means by a number, a name or a device."""
    device = torch.device("cuda", named) if isinstance(named, int) else torch.device(named)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
