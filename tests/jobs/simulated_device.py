"""An accelerator that is not there: tensors of the CPU count as its own, and each of its streams is a thread.

What is put in a stream is done later, in that stream's order and no other's, copies after a pause. Pinned memory begins
with garbage. So whoever reads or writes without having waited for what it should finds it out.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.torch import accelerators

GARBAGE = 0xA5


class Stream:
    """What ``add`` is given is done in order, by a thread."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def add(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def _serve(self) -> None:
        while True:
            self._work.get()()


class SimulatedDevice:
    """``eager``: what the program does to tensors is not in a stream but done at once, as PyTorch does it on the CPU.

    Following an event outside of this class's own streams then means to wait for it.
    """

    def __init__(self, pause: float = 0.002, eager: bool = False) -> None:
        self.pause = pause
        self.eager = eager
        self.copies = 0
        self.program = Stream()
        self._here = threading.local()

    @property
    def current(self) -> Stream:
        stream: Stream = getattr(self._here, "stream", self.program)
        return stream

    def stream(self) -> Stream:
        return Stream()

    @contextmanager
    def inside(self, stream: Stream) -> Iterator[None]:
        before = self.current
        self._here.stream = stream
        try:
            yield
        finally:
            self._here.stream = before

    def event(self) -> threading.Event:
        event = threading.Event()
        self.current.add(event.set)
        return event

    def follow(self, event: threading.Event) -> None:
        if self.eager:
            event.wait()
        else:
            self.current.add(event.wait)

    def wait(self, event: threading.Event) -> None:
        event.wait()

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        def work() -> None:
            time.sleep(self.pause)
            with torch.inference_mode():
                destination.copy_(source)

        self.copies += 1
        self.current.add(work)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.full((size,), GARBAGE, dtype=torch.uint8)

    def pin(self, memory: NDArray[np.uint8]) -> None:
        memory.fill(GARBAGE)

    def keep(self, tensor: torch.Tensor) -> None:
        """The copies hold their tensors."""

    # --- For programs ---

    def launch(self, kernel: Callable[[], object]) -> None:
        """The program's own work, into the current stream."""
        self.current.add(kernel)

    def synchronize(self) -> None:
        self.event().wait()

    def takes(self, owned: Callable[[torch.Tensor], bool] = lambda _: True) -> None:
        """From now on, Shoal finds the tensors of this process on this device; ``owned``: only some of them."""

        def of(tensors: Sequence[torch.Tensor]) -> accelerators.Accelerator | None:
            return self if any(owned(tensor) for tensor in tensors) else None

        accelerators.of = of
