"""What staging needs of an accelerator: the core's view of it, and what PyTorch alone can do in its streams.

The work in a stream is done in its order; that of two streams in any, unless one follows the other. Each thread has a
current stream, in which PyTorch puts what the thread asks of the device. Streams are numbers, as
``torch.cuda.Stream.cuda_stream``.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

from shoal import _native

Stream = int

# Of PyTorch's devices, those whose tensors are taken.
DEVICE_TYPES = ("cpu", "cuda")


class Accelerator(Protocol):
    """One device."""

    @property
    def native(self) -> _native.CudaDevice:
        """The core's."""

    def passage(self, ways: _native.Ways) -> _native.Passage:
        """A new operation's way through the device."""

    @property
    def current(self) -> Stream:
        """This thread's current stream."""

    def inside(self, stream: Stream) -> AbstractContextManager[None]:
        """This thread's current stream is that one."""

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Whoever lets go of the tensor, its memory gets no other use before that stream has done what is in it now."""

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """A copy in the current stream: of tensors of the device, or of one and memory of the host that is pinned."""

    def run(self, work: Callable[[], None]) -> None:
        """What ``work`` asks of the device, on tensors of it alone, comes into the current stream."""


class Cuda:
    """A CUDA device of PyTorch's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.native = _native.CudaDevice(_library(), device.index)

    def passage(self, ways: _native.Ways) -> _native.Passage:
        return _native.Passage(ways)

    @property
    def current(self) -> Stream:
        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        return stream

    @contextmanager
    def inside(self, stream: Stream) -> Iterator[None]:
        # The device first. A thread of Shoal's has device 0 for the current one; leaving a stream would make that so
        # again, and give the process a context on it.
        with torch.cuda.device(self._device), torch.cuda.stream(self._external(stream)):
            yield

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(self._external(stream))

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        # Where the program's tensors are those of inference mode, they may be written to in that mode alone.
        with torch.inference_mode():
            destination.copy_(source, non_blocking=True)

    def run(self, work: Callable[[], None]) -> None:
        with torch.inference_mode():
            work()

    def _external(self, stream: Stream) -> torch.cuda.Stream:
        return torch.cuda.ExternalStream(stream, self._device)  # type: ignore[no-untyped-call]


def of(tensors: Sequence[torch.Tensor]) -> Accelerator | None:
    """The device of the tensors, None if they are on the CPU, or if there are none.

    Raises ValueError if they are on several devices, TypeError if it is one that Shoal does not know, RuntimeError if
    the device cannot be used.
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


def _library() -> str:
    """The driver library of CUDA, or of ROCm in builds of PyTorch for that, which bring their own."""
    if torch.version.hip is None:
        return "libcuda.so.1"
    loaded = re.search(r"\S*/libamdhip64\.so\S*", Path("/proc/self/maps").read_text())
    return loaded[0] if loaded else "libamdhip64.so"
