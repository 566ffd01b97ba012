"""An accelerator that is not there: tensors of the CPU count as its own.

The core's driver for CUDA runs on a stand-in for CUDA's library (native/tests/cuda_stand_in.h), each of whose streams is
a thread. What is put in a stream is done later, in that stream's order and no other's, copies after a pause, and memory
of the host holds garbage until its copy has been done. So whoever reads or writes without having waited for what it
should finds it out.
"""

import ctypes
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from shoal import _native
from shoal.torch import accelerators

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "native/tests/cuda_stand_in.cpp"

_Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def library_path() -> str:
    """Where the stand-in is. Built if the native tests were not, or are older."""
    for folder in (ROOT / "build/native", ROOT / "build/cuda_stand_in"):
        built = folder / "libcuda_stand_in.so"
        if built.exists() and built.stat().st_mtime >= SOURCE.stat().st_mtime:
            return str(built)
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder, "made.so")
        command = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", str(made)]
        subprocess.run(command, check=True)
        made.rename(built)  # other ranks may have done the same
    return str(built)


class StandIn:
    """What a program asks of the library, beside Shoal."""

    def __init__(self) -> None:
        self.path = library_path()
        self.library = ctypes.CDLL(self.path)
        self._find = self.library.cuGetProcAddress_v2
        self._kernels: dict[int, Any] = {}
        self._numbers = 0
        self._done: list[Any] = []
        self._lock = threading.Lock()
        context = ctypes.c_void_p()
        assert self._function("cuDevicePrimaryCtxRetain")(ctypes.byref(context), 0) == 0
        self._context = context

    def configure(self, shortest: float, longest: float, one_queue: bool = False, seed: int = 1) -> None:
        """Pauses, in seconds."""
        self.library.shoal_stand_in_configure(
            ctypes.c_uint64(seed), ctypes.c_uint(int(shortest * 1e6)), ctypes.c_uint(int(longest * 1e6)), int(one_queue)
        )

    def count(self, function: str) -> int:
        counted = self.library.shoal_stand_in_calls
        counted.restype = ctypes.c_uint64
        return int(counted(function.encode()))

    def fail(self, function: str, result: int = 700) -> None:
        self.library.shoal_stand_in_fail(function.encode(), result)

    def capture(self, stream: int, captures: bool) -> None:
        self.library.shoal_stand_in_capture(ctypes.c_void_p(stream), int(captures))

    def registered_bytes(self) -> int:
        asked = self.library.shoal_stand_in_registered_bytes
        asked.restype = ctypes.c_uint64
        return int(asked())

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self._call("cuStreamCreateWithPriority", ctypes.byref(made), 0, 0)
        assert made.value is not None
        return made.value

    def launch(self, stream: int, kernel: Callable[[], object]) -> None:
        with self._lock:
            self._numbers += 1
            number = self._numbers

        to_do = [kernel]

        def run(_: object) -> None:
            try:
                to_do.pop()()  # tensors in it are kept no longer
            finally:
                # Not at once: it is this function.
                self._done.append(self._kernels.pop(number))

        self._kernels[number] = _Kernel(run)
        self._call("cuLaunchHostFunc", ctypes.c_void_p(stream), self._kernels[number], None)

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def _function(self, name: str) -> Any:
        found = ctypes.c_void_p()
        assert self._find(name.encode(), ctypes.byref(found), 12000, ctypes.c_uint64(0), None) == 0, name
        return ctypes.CFUNCTYPE(ctypes.c_int)(found.value or 0)

    def _call(self, name: str, *arguments: Any) -> None:
        popped = ctypes.c_void_p()
        assert self._function("cuCtxPushCurrent")(self._context) == 0
        try:
            result = self._function(name)(*arguments)
        finally:
            self._function("cuCtxPopCurrent")(ctypes.byref(popped))
        if result != 0:
            raise RuntimeError(f"{name} has failed: {result}")


@cache
def stand_in() -> StandIn:
    return StandIn()


class EagerPassage:
    """Who follows the results waits for them: what the program does to tensors is done at once, not in a stream."""

    def __init__(self, ways: _native.Ways) -> None:
        self._passage = _native.Passage(ways)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._passage, name)

    def end_return(self) -> None:
        """Also where only PyTorch would follow, as it does after a future of tensors that it knows to be on a device."""
        self._passage.end_return()
        self._passage.wait_until_over()

    def follow_back(self, _: int) -> None:
        self._passage.wait_until_over()


class SimulatedDevice:
    """``pause``: before each copy, in seconds. ``eager``: what the program does to tensors is not in a stream but done
    at once, as PyTorch does it on the CPU.
    """

    def __init__(self, pause: float = 0.002, eager: bool = False, one_queue: bool = False) -> None:
        self.library = stand_in()
        self.library.configure(pause, pause, one_queue)
        self.native = _native.CudaDevice(self.library.path, 0)
        self.eager = eager
        self.program = self.library.stream()
        self._own_copies = 0
        self._copies_before = self._copies_of_library()
        self._kept: list[torch.Tensor] = []
        self._here = threading.local()

    # --- As Shoal sees it ---

    def passage(self, ways: _native.Ways) -> Any:
        return EagerPassage(ways) if self.eager else _native.Passage(ways)

    @property
    def current(self) -> int:
        stream: int = getattr(self._here, "stream", self.program)
        return stream

    @contextmanager
    def inside(self, stream: int) -> Iterator[None]:
        before = self.current
        self._here.stream = stream
        try:
            yield
        finally:
            self._here.stream = before

    def keep(self, tensor: torch.Tensor, stream: int) -> None:
        self._kept.append(tensor)

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        def work() -> None:
            with torch.inference_mode():
                destination.copy_(source)

        self._own_copies += 1
        self.library.launch(self.current, work)

    def run(self, work: Callable[[], None]) -> None:
        def inferred() -> None:
            with torch.inference_mode():
                work()

        if self.eager:
            inferred()
        else:
            self.library.launch(self.current, inferred)

    # --- For programs ---

    def stream(self) -> int:
        return self.library.stream()

    def slow_down(self, pause: float) -> None:
        """From now on each copy comes after so long."""
        self.library.configure(pause, pause)

    def launch(self, kernel: Callable[[], object]) -> None:
        """The program's own work, into the current stream."""
        self.library.launch(self.current, kernel)

    def synchronize(self) -> None:
        """Waits for the current stream."""
        self.library.synchronize(self.current)

    @property
    def copies(self) -> int:
        """How many there were, both ways."""
        return self._own_copies + self._copies_of_library() - self._copies_before

    def takes(self, owned: Callable[[torch.Tensor], bool] = lambda _: True) -> None:
        """From now on, Shoal finds the tensors of this process on this device; ``owned``: only some of them."""

        def of(tensors: Sequence[torch.Tensor]) -> accelerators.Accelerator | None:
            return self if any(owned(tensor) for tensor in tensors) else None

        accelerators.of = of

    def _copies_of_library(self) -> int:
        return self.library.count("cuMemcpyDtoHAsync") + self.library.count("cuMemcpyHtoDAsync")
