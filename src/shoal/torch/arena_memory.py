"""The memory of arenas: of the host, shared with the ranks of its machine where they share any, and of accelerators."""

import torch

from shoal.job import runtime
from shoal.torch import pinned_memory
from shoal.torch.accelerators import Accelerator

PAGE = 4096


def allocate(
    size: int, parameter: torch.Tensor, device: Accelerator | None, mirrored: int | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``size`` bytes of zeros where the parameter is, and for an accelerator as many, pinned, of the host.

    What is the host's lies in the memory that the ranks of a machine share, where they do.
    ``mirrored``: how many are pinned, other than all; they are not shared, since ranks of other machines have their like.
    """
    if device is not None and mirrored is not None:
        memory = torch.zeros(size, dtype=torch.uint8, device=parameter.device)
        return memory, pinned_memory.allocate(device, mirrored)
    shared = runtime.allocate(size) if size > 0 else None
    if device is None:
        return _pages(size) if shared is None else torch.from_numpy(shared), None
    memory = torch.zeros(size, dtype=torch.uint8, device=parameter.device)
    if shared is None:
        return memory, pinned_memory.allocate(device, size)
    pinned_memory.pin(device, shared)
    return memory, torch.from_numpy(shared)


def _pages(size: int) -> torch.Tensor:
    """``size`` bytes of zeros that begin at a page."""
    memory = torch.zeros(size + PAGE, dtype=torch.uint8, device="cpu")
    begin = -memory.data_ptr() % PAGE
    return memory[begin : begin + size]
