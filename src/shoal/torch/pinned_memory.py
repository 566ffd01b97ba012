"""Memory of the host that an accelerator reads and writes by itself.

It cannot be swapped out, and the host's memory may be smaller than the device's. So that of operations is limited, used
again, and let go of when nobody has used it for a while. That of arenas is as large as they are (arena_memory.py).
"""

import logging
import mmap
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shoal import _native
from shoal.torch.accelerators import Accelerator

_log = logging.getLogger("shoal")

# What all operations have at once, and what is kept for later ones: that of 40 of PyTorch's buckets.
LIMIT = 1 << 30

# After so long without use a block is let go of, in seconds: what a program needed at its beginning, perhaps.
IDLE = 60.0

# How often a caller that waits for memory looks whether copies are done, in seconds.
_LOOKS_EVERY = 0.001

# How long who wants memory let go of waits for the copies in it, in seconds.
_MOMENT = 0.2

_PAGE = 4096

# Where pinning has failed, first address → the one after the last.
_not_pinned: dict[int, int] = {}


def allocate(device: Accelerator, size: int) -> torch.Tensor:
    """``size`` bytes of zeros, pinned as long as they live."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    pin(device, memory)
    return torch.from_numpy(memory)


def pin(device: Accelerator, memory: NDArray[np.uint8]) -> None:
    """Memory that is there already is pinned as long as it lives. Where that cannot be, copies are slower.

    Whoever asks the device for copies keeps the memory until they are done.
    """
    address = memory.ctypes.data
    if _pinned(device, memory):
        weakref.finalize(memory, _unpin, device.native, address, False).atexit = False
    else:
        _not_pinned[address] = address + memory.nbytes
        weakref.finalize(memory, _not_pinned.pop, address, None).atexit = False


def is_pinned(host: torch.Tensor) -> bool:
    """Of memory that was to be pinned: whether it is."""
    begin = host.data_ptr()
    return not any(first <= begin < end for first, end in list(_not_pinned.items()))


def _pinned(device: Accelerator, memory: NDArray[np.uint8]) -> bool:
    try:
        device.native.pin(memory.ctypes.data, memory.nbytes)
    except RuntimeError as error:
        _log.warning(
            "%d bytes of the host's memory cannot be pinned: copies between them and the device are slower (%s)",
            memory.nbytes,
            error,
        )
        return False
    return True


def _unpin(native: _native.CudaDevice, address: int, waits: bool) -> None:
    """``waits``: for the copies that are on their way."""
    with suppress(RuntimeError):  # in a forked child, or where the device has failed
        native.unpin(address, waits)


class Block:
    """``memory``: bytes that are pinned."""

    def __init__(self, device: Accelerator, size: int) -> None:
        self.is_pinned = False
        self.device = device
        array: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        self.is_pinned = _pinned(device, array)
        self.memory = torch.from_numpy(array)

    def has(self, host: torch.Tensor) -> bool:
        """Whether that lies in it."""
        begin = self.memory.data_ptr()
        return begin <= host.data_ptr() < begin + self.memory.nbytes

    def end(self) -> None:
        """Nothing uses it, nor will."""
        self._unpin(waits=False)

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends():  # else the names of modules are gone, and soon all memory
            self._unpin(waits=True)

    def _unpin(self, waits: bool) -> None:
        was_pinned, self.is_pinned = self.is_pinned, False
        if was_pinned:
            _unpin(self.device.native, self.memory.data_ptr(), waits)


class _Returned(NamedTuple):
    """``passage``: of the operation that has used the blocks, and ``hosts``, which are kept for that long."""

    blocks: list[Block]
    hosts: list[torch.Tensor]
    passage: _native.Passage

    @property
    def is_free(self) -> bool:
        try:
            return self.passage.is_over()
        except RuntimeError:
            return False  # the device has failed: nobody knows what it will still write to


class PinnedMemory:
    """That of operations, by blocks of a few sizes. One that needs more than the limit has it alone.

    ``idle``: seconds after which a block that nobody uses is let go of, when somebody needs memory or gives it back.
    """

    def __init__(self, limit: int = LIMIT, idle: float = IDLE) -> None:
        self.idle = idle
        self._limit = limit
        self._lock = threading.Lock()
        # Without the lock: an operation that came to nothing may end wherever memory is asked for.
        self._returned: deque[_Returned] = deque()
        self._held = 0  # bytes of operations
        self._kept = 0  # bytes that are free
        # With the times since when, the latest last.
        self._free: dict[tuple[Accelerator, int], list[tuple[float, Block]]] = {}
        self._next_look = 0.0

    def take(self, device: Accelerator, size: int, own: int, waits: bool) -> Block:
        """At least ``size`` bytes of any content.

        ``own``: what the operation has already: it gets more in any case, since others may be waiting for that.
        ``waits``: until others have given enough back. Not to be done in a callback: on another rank the earlier
        operations may be waiting for what it calls.
        """
        rounded = _rounded(size)
        while True:
            with self._lock:
                self._sweep()
                if not waits or own or self._held == 0 or self._held + rounded <= self._limit:
                    return self._taken(device, rounded)
            time.sleep(_LOOKS_EVERY)

    def give_back(self, blocks: list[Block], hosts: list[torch.Tensor], passage: _native.Passage) -> None:
        """Once the device has done what it was asked for in that passage, others have the blocks.

        ``hosts``: other pinned memory that the passage has used.
        """
        self._returned.append(_Returned(blocks, hosts, passage))
        # Gradients of arenas take no memory here, so nobody else would look. Not where this thread looks already.
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def let_go(self) -> None:
        """Of everything that is not in use, or will not be in a moment, when copies are done."""
        until = time.monotonic() + _MOMENT
        while self._held and time.monotonic() < until:
            with self._lock:
                self._sweep()
            time.sleep(_LOOKS_EVERY)
        with self._lock:
            self._let_go(time.monotonic())

    def _taken(self, device: Accelerator, size: int) -> Block:
        free = self._free.get((device, size))
        if free:
            _, block = free.pop()
            self._kept -= size
        else:
            block = Block(device, size)
        self._held += size
        return block

    def _sweep(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self.idle / 10
            self._let_go(now - self.idle)
        for _ in range(len(self._returned)):
            returned = self._returned.popleft()
            if not returned.is_free:
                self._returned.append(returned)
                continue
            for block in returned.blocks:
                size = block.memory.nbytes
                self._held -= size
                if self._kept + size > self._limit:
                    block.end()
                    continue
                self._kept += size
                self._free.setdefault((block.device, size), []).append((now, block))

    def _let_go(self, until: float) -> None:
        """Of what has been free since then, or longer."""
        for key, blocks in list(self._free.items()):
            while blocks and blocks[0][0] <= until:
                _, block = blocks.pop(0)
                self._kept -= block.memory.nbytes
                block.end()
            if not blocks:
                del self._free[key]


def _rounded(size: int) -> int:
    """Up to a page, or a 32nd of a power of two: a few sizes are used again and again, and a 16th at most is too much."""
    step = max(_PAGE, (1 << max(0, size - 1).bit_length()) // 32)
    return max(1, -(-size // step)) * step


OF_OPERATIONS = PinnedMemory()
"""What all groups share."""
