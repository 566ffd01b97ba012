"""On PyTorch: all gradients are in flight together, in their own memory; those of an accelerator go through the host's.

PyTorch gives some gradients the same memory, such as those of the terms of a sum, and elements of one gradient too: these are
copied, as each would be averaged in it while another is.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from shoal.job.groups import Group
from shoal.keras.backends import absent
from shoal.ops import collectives


def average(
    gradients: Sequence[Any], names: Sequence[str], op: str, group: Group | None, sparse_as_dense: bool = False
) -> list[Any]:
    there = [index for index, each in enumerate(gradients) if each is not None]
    travelling = dict(zip(there, _apart([_on_host(gradients[index]) for index in there]), strict=True))
    handles = [
        collectives.allreduce_async_(travelling[index], op, name, group) if index in travelling else absent(name, group)
        for index, name in enumerate(names)
    ]
    for handle in handles:
        handle.wait()
    averaged = list(gradients)
    for index, result in travelling.items():
        device = gradients[index].device
        averaged[index] = result if result.device == device else result.to(device)
    return averaged


def _on_host(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.detach()
    if dense.is_sparse:
        dense = dense.to_dense()
    return dense if dense.device.type == "cpu" else dense.cpu()


def _apart(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each in memory that it shares with no other, and no element of it with another one."""
    storages = [each.untyped_storage().data_ptr() for each in gradients]
    users = Counter(storages)
    return [
        each.clone(memory_format=torch.contiguous_format) if users[storage] > 1 or _overlaps_itself(each) else each
        for each, storage in zip(gradients, storages, strict=True)
    ]


def _overlaps_itself(gradient: torch.Tensor) -> bool:
    """Whether two elements may have one address, as where it is expanded."""
    beyond = 1  # From one element of the inner dimensions on, the addresses that they do not reach.
    for stride, size in sorted(zip(gradient.stride(), gradient.shape, strict=True)):
        if size > 1:
            if stride < beyond:
                return True
            beyond += (size - 1) * stride
    return False
