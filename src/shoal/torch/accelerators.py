"""What staging needs of an accelerator: streams, events, copies that nobody waits for, and memory of the host that it reaches.

The work in a stream is done in its order; that of two streams in any, unless one follows an event of the other. Each thread
has a current stream, in which PyTorch puts what the thread asks of the device.
"""

import logging
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

_log = logging.getLogger("shoal")

Stream = Any
Event = Any

# Of PyTorch's devices, those whose tensors are taken.
DEVICE_TYPES = ("cpu", "cuda")


class Accelerator(Protocol):
    """One device. Nothing here waits for it but ``wait``."""

    def stream(self) -> Stream:
        """A new stream."""

    def inside(self, stream: Stream) -> AbstractContextManager[Any]:
        """This thread's current stream is that one."""

    @property
    def current(self) -> Stream:
        """This thread's current stream; the same one is equal to itself."""

    def event(self) -> Event:
        """Passes when everything that is in the current stream now has been done."""

    def follow(self, event: Event) -> None:
        """What comes into the current stream from now on is done after the event."""

    def wait(self, event: Event) -> None:
        """This thread waits for the event. Raises RuntimeError if the device has failed."""

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """A copy in the current stream, between a tensor of the device and memory of the host that is pinned."""

    def pinned(self, size: int) -> torch.Tensor:
        """That many bytes of the host's memory, which the device reads and writes by itself.

        They may be let go of while copies are on their way.
        """

    def pin(self, memory: NDArray[np.uint8]) -> None:
        """Memory of the host that is there already is pinned as long as it lives. Where that cannot be, copies are slower."""

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

    @property
    def current(self) -> Stream:
        return torch.cuda.current_stream(self._device)

    def event(self) -> Event:
        # A thread that waits for it sleeps.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self.current)
        return event

    def follow(self, event: Event) -> None:
        self.current.wait_event(event)

    def wait(self, event: Event) -> None:
        event.synchronize()

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        # Where the program's tensors are those of inference mode, they may be written to in that mode alone.
        with torch.inference_mode():
            destination.copy_(source, non_blocking=True)

    def pinned(self, size: int) -> torch.Tensor:
        # PyTorch keeps what is let go of, once the copies are done, for the next who asks.
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def pin(self, memory: NDArray[np.uint8]) -> None:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = memory.ctypes.data
        with torch.cuda.device(self._device):
            error = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
            if error == 0:
                weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False
                return
            _log.warning(
                "%d bytes of the host's memory cannot be pinned for %s (CUDA error %d): copies between them are slower",
                memory.nbytes,
                self._device,
                error,
            )
            # CUDA keeps the error for who asks next, and PyTorch would take it for that of its next kernel.
            with suppress(RuntimeError):
                torch.ones(1, device=self._device)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.current)


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
    if device.type not in DEVICE_TYPES:
        raise TypeError(f"the tensor is on {device}; Shoal takes tensors on the CPU and on CUDA devices: pass x.cpu()")
    return _cuda(device)


@cache
def _cuda(device: torch.device) -> Cuda:
    return Cuda(device)
