"""The memory of arenas: of the host, shared with the ranks of its machine where they share any, and of accelerators."""

import torch

from shoal.job import runtime
from shoal.torch import pinned_memory
from shoal.torch.accelerators import Accelerator

PAGE = 4096


def allocate(size: int, parameter: torch.Tensor, device: Accelerator | None, travels: bool) -> torch.Tensor:
    """``size`` bytes of zeros where the parameter is. ``travels``: the network reads and writes them."""
    if device is not None:
        return torch.zeros(size, dtype=torch.uint8, device=parameter.device)
    return _shared_or_pages(size) if travels else _pages(size)


def mirror(size: int, device: Accelerator | None, is_shared: bool) -> torch.Tensor:
    """``size`` bytes of zeros of the host, which the network reads and writes; pinned for an accelerator.

    ``is_shared``: the ranks of a machine have the like, and sum it there.
    """
    if device is None:
        return _shared_or_pages(size) if is_shared else _pages(size)
    shared = runtime.allocate(size, for_device=True) if is_shared and size > 0 else None
    if shared is None:
        return pinned_memory.allocate(device, size)
    pinned_memory.pin(device, shared)
    return torch.from_numpy(shared)


def _shared_or_pages(size: int) -> torch.Tensor:
    shared = runtime.allocate(size) if size > 0 else None
    return _pages(size) if shared is None else torch.from_numpy(shared)


def _pages(size: int) -> torch.Tensor:
    """``size`` bytes of zeros that begin at a page."""
    memory = torch.zeros(size + PAGE, dtype=torch.uint8, device="cpu")
    begin = -memory.data_ptr() % PAGE
    return memory[begin : begin + size]
