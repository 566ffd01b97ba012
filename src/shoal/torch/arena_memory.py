"""The memory of arenas: of the host, shared with the ranks of its machine where they share any, and of accelerators."""

import torch

from shoal.job import runtime
from shoal.torch import pinned_memory
from shoal.torch.accelerators import Accelerator

PAGE = 4096


def allocate(
    size: int, on_wire: int, parameter: torch.Tensor, device: Accelerator | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``size`` bytes of zeros where the parameter is, and ``on_wire`` bytes of the host, pinned for an accelerator.

    The latter are None where the former are the host's and as many. What the network reads and writes lies in the
    memory that the ranks of a machine share, where they do.
    """
    shared = runtime.allocate(on_wire, for_device=device is not None) if on_wire > 0 else None
    if device is None:
        travels = _pages(on_wire) if shared is None else torch.from_numpy(shared)
        return (travels, None) if on_wire == size else (_pages(size), travels)
    memory = torch.zeros(size, dtype=torch.uint8, device=parameter.device)
    if shared is None:
        return memory, pinned_memory.allocate(device, on_wire)
    pinned_memory.pin(device, shared)
    return memory, torch.from_numpy(shared)


def _pages(size: int) -> torch.Tensor:
    """``size`` bytes of zeros that begin at a page."""
    memory = torch.zeros(size + PAGE, dtype=torch.uint8, device="cpu")
    begin = -memory.data_ptr() % PAGE
    return memory[begin : begin + size]
