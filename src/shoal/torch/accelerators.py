"""What staging needs of an accelerator: streams, events, copies that nobody waits for, and memory of the host that it reaches.

The work in a stream is done in its order; that of two streams in any, unless one follows an event of the other. Each thread
has a current stream, in which PyTorch puts what the thread asks of the device.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol

import torch

Stream = Any
Event = Any


class Accelerator(Protocol):
    """One device. Nothing here waits for it but ``wait``."""

    def stream(self) -> Stream:
        """A new stream."""

    def inside(self, stream: Stream) -> AbstractContextManager[Any]:
        """This thread's current stream is that one."""

    def event(self) -> Event:
        """Passes when everything that is in the current stream now has been done."""

    def follow(self, event: Event) -> None:
        """What comes into the current stream from now on is done after the event."""

    def wait(self, event: Event) -> None:
        """This thread waits for the event. Raises RuntimeError if the device has failed."""

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """A copy in the current stream, between a tensor of the device and ``pinned`` memory."""

    def pinned(self, size: int) -> torch.Tensor:
        """That many bytes of the host's memory, which the device reads and writes by itself.

        They may be let go of while copies are on their way.
        """

    def keep(self, tensor: torch.Tensor) -> None:
        """Whoever lets go of the tensor, its memory gets no other use before the current stream has done what is in it now."""


class Cuda:
    """A CUDA device of PyTorch's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def inside(self, stream: Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def event(self) -> Event:
        # A thread that waits for it sleeps.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def follow(self, event: Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def wait(self, event: Event) -> None:
        event.synchronize()

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        # Where the program's tensors are those of inference mode, they may be written to in that mode alone.
        with torch.inference_mode():
            destination.copy_(source, non_blocking=True)

    def pinned(self, size: int) -> torch.Tensor:
        # PyTorch keeps what is let go of, once the copies are done, for the next who asks.
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(torch.cuda.current_stream(self._device))


def of(tensors: Sequence[torch.Tensor]) -> Accelerator | None:
    """The device of the tensors, None if they are on the CPU, or if there are none.

    Raises ValueError if they are on several devices, TypeError if it is one that Shoal does not know.
    """
    for tensor in tensors:
        if not tensor.is_cpu:
            return _the_only(tensors)
    return None


def _the_only(tensors: Sequence[torch.Tensor]) -> Accelerator:
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(
            f"the tensors of an operation must be on one device, got {', '.join(sorted(map(str, devices)))}"
        )
    (device,) = devices
    if device.type != "cuda":
        raise TypeError(f"the tensor is on {device}; Shoal takes tensors on the CPU and on CUDA devices: pass x.cpu()")
    return _cuda(device)


@cache
def _cuda(device: torch.device) -> Cuda:
    return Cuda(device)
