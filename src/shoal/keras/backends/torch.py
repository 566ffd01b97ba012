"""On PyTorch: all gradients are in flight together, in their own memory; those of an accelerator go through the host's."""

from collections.abc import Sequence
from typing import Any

import torch

from shoal.job.groups import Group
from shoal.ops import collectives


def average(gradients: Sequence[Any], names: Sequence[str], op: str, group: Group | None) -> list[Any]:
    travelling = [_on_host(each) for each in gradients]
    handles = [
        collectives.allreduce_async_(each, op, name, group) for each, name in zip(travelling, names, strict=True)
    ]
    for handle in handles:
        handle.wait()
    return [
        averaged if averaged.device == each.device else averaged.to(each.device)
        for each, averaged in zip(gradients, travelling, strict=True)
    ]


def _on_host(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.detach()
    if dense.is_sparse:
        dense = dense.to_dense()
    return dense if dense.device.type == "cpu" else dense.cpu()
