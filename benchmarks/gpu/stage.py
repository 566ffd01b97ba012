"""What the stages of a run on a GPU share: whether it is a rehearsal, what they found, and the device.

A stage prints what it does. Its figures go to the file that run.py names, at once, so that those of a stage that is
cut off are there; ``say`` is a line for the summary. In a rehearsal the device is simulated
(tests/jobs/simulated_device.py): tensors of the CPU count as its own, and Shoal's driver for CUDA runs on a stand-in
for CUDA's library.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REHEARSAL = "GPU_RUN_REHEARSAL"
RECORD = "GPU_RUN_RECORD"
WORK = "GPU_RUN_WORK"

# Where the simulated device is.
sys.path.append(str(ROOT / "tests/jobs"))


def rehearses() -> bool:
    return os.environ.get(REHEARSAL) == "1"


def work_folder() -> Path:
    """For what is not kept."""
    folder = Path(os.environ.get(WORK, ROOT / "build/gpu/work"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Record:
    """What this stage has found: ``lines`` for the summary, and data by name."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._data: dict[str, Any] = {}

    def say(self, line: str) -> None:
        print(f"result: {line}", flush=True)
        self._lines.append(line)
        self._write()

    def keep(self, name: str, value: Any) -> None:
        """``value``: whatever JSON can carry."""
        self._data[name] = value
        self._write()

    def _write(self) -> None:
        path = os.environ.get(RECORD)
        if path is not None:
            whole = Path(path + ".new")
            whole.write_text(json.dumps({"lines": self._lines, "data": self._data}))
            whole.replace(path)


class Device:
    """The GPU, or one that is simulated. ``accelerator``: as Shoal sees it. ``place``: as PyTorch calls it."""

    def __init__(self, pause: float = 0.0002) -> None:
        """``pause``: of a simulated one, before each copy, in seconds."""
        import torch

        from shoal.torch import accelerators

        self._torch = torch
        self.is_real = not rehearses()
        self.accelerator: Any
        if self.is_real:
            self.place = torch.device("cuda", 0)
            torch.cuda.set_device(self.place)
            self.accelerator = accelerators.of([torch.empty(1, device=self.place)])
            self._cycles = 1000.0 * torch.cuda.get_device_properties(0).clock_rate if _has_clock(torch) else 1.7e9
        else:
            from simulated_device import SimulatedDevice

            self.place = torch.device("cpu")
            self.accelerator = SimulatedDevice(pause=pause, eager=True)
            self.accelerator.takes()

    @property
    def name(self) -> str:
        return self._torch.cuda.get_device_name(0) if self.is_real else "a simulated device"

    def synchronize(self) -> None:
        """Waits for everything that any stream was asked for."""
        if self.is_real:
            self._torch.cuda.synchronize()
        else:
            self.accelerator.library.library.shoal_stand_in_synchronize()

    def be_late(self, seconds: float) -> None:
        """The current stream goes on after so long; a simulated device's program waits itself."""
        if self.is_real:
            self._torch.cuda._sleep(int(seconds * self._cycles))  # type: ignore[no-untyped-call]
        else:
            time.sleep(seconds)

    def streams(self, count: int) -> list[Any]:
        make: Any = self._torch.cuda.Stream if self.is_real else lambda: None
        return [make() for _ in range(count)]

    @contextmanager
    def inside(self, stream: Any) -> Iterator[None]:
        """What comes is asked of that stream, after what the current one has been asked for until now."""
        if stream is None:
            yield
            return
        stream.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(stream):
            yield

    def uses(self, tensor: Any, stream: Any) -> None:
        """That stream, too: PyTorch's allocator gives its memory to nobody before."""
        if stream is not None:
            tensor.record_stream(stream)

    def join(self, streams: list[Any], tensors: list[Any]) -> None:
        """What the current stream is asked for from now on comes after what those have been asked for until now, and
        may use the tensors."""
        if not self.is_real:
            return
        current = self._torch.cuda.current_stream()
        for stream in streams:
            current.wait_stream(stream)
        for tensor in tensors:
            tensor.record_stream(current)


def _has_clock(torch: Any) -> bool:
    return hasattr(torch.cuda.get_device_properties(0), "clock_rate")
