"""Staging: how the tensors of an operation come from an accelerator into memory of the host, and back.

    the program's stream    the work that makes the tensors, then the event "given"
    the way out             follows "given"; copies into pinned memory; then the event "out"
    a thread of the host    waits for "out"; hands the operation to the network
    the way back            when the operation is done: copies the results into the tensors; then the event "back"
    who waits               the stream that is current there follows "back"

So the program's streams wait for copies of results alone, and only where the program waits for the operation; the device
as a whole is waited for by nobody. Both ways are streams of a group's own, of which a device copies in both directions at once.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from shoal.torch.accelerators import Accelerator, Event, Stream

# How much pinned memory the operations of a group have at once: that of 40 of PyTorch's buckets. The host's memory may be
# smaller than the device's, and what is pinned cannot be swapped out.
LIMIT = 1 << 30


class Ways(NamedTuple):
    """The streams on which a group's tensors leave a device, and come back."""

    out: Stream
    back: Stream


class Room:
    """How much pinned memory operations may have together. One that needs more than the limit has it alone."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()

    def take(self, size: int, own: int, waits: bool) -> None:
        """``own``: what the operation has already. ``waits``: until others have given enough back."""
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: self._held <= own or self._held + size <= self._limit)
            self._held += size

    def give(self, size: int) -> None:
        with self._changed:
            self._held -= size
            self._changed.notify_all()


class Transfer:
    """The tensors of one operation on their ways. Made when the operation is called, in the program's stream.

    ``waits``: whether the caller waits while the operations before it have all of ``room``.
    """

    def __init__(self, device: Accelerator, ways: Ways, room: Room, waits: bool) -> None:
        self._device = device
        self._ways = ways
        self._room = room
        self._waits = waits
        self._held = 0
        self._out: Event = None
        self._back: Event = None
        given = device.event()
        with device.inside(ways.out):
            device.follow(given)

    # --- Out: in the thread that calls the operation, but for waiting ---

    def follow_streams(self, streams: Iterable[Stream]) -> None:
        """What goes out from now on has been made in these too."""
        for stream in streams:
            with self._device.inside(stream):
                made = self._device.event()
            with self._device.inside(self._ways.out):
                self._device.follow(made)

    def memory(self, size: int) -> torch.Tensor:
        """So many bytes of pinned memory, of any content. May wait for other operations."""
        self._room.take(size, self._held, self._waits)
        self._held += size
        return self._device.pinned(size)

    def mirror(self, tensor: torch.Tensor, read: bool) -> torch.Tensor:
        """Pinned memory with the shape and dtype of the tensor, row by row. ``read``: its elements will be there at "out"."""
        host = self.memory(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        if read:
            self.bring(host, tensor)
        return host

    def bring(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        """``host``, pinned memory, will have the elements of the tensor at "out"."""
        with self._device.inside(self._ways.out):
            self._device.keep(tensor)
            self._device.copy(host, tensor)

    def sent(self) -> None:
        """Nothing more goes out."""
        with self._device.inside(self._ways.out):
            self._out = self._device.event()

    def wait_until_out(self) -> None:
        self._device.wait(self._out)

    # --- Back: in whichever thread finds that the operation is done ---

    @contextmanager
    def returning(self) -> Iterator[None]:
        """Inside, results are taken back; afterwards they can be followed."""
        with self.way_back():
            try:
                yield
            finally:
                self._back = self._device.event()

    def take_back(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """The tensor will have the elements of ``host`` at "back"."""
        self._device.keep(tensor)
        self._device.copy(tensor, host)

    def way_back(self) -> AbstractContextManager[Any]:
        """What this thread asks of the device comes after "back", and keeps no stream of the program's waiting."""
        return self._device.inside(self._ways.back)

    def follow(self) -> None:
        """What comes into the current stream from now on is done after "back"."""
        if self._back is not None:
            self._device.follow(self._back)

    def close(self) -> None:
        """The operation needs its pinned memory no more. May be called again."""
        held, self._held = self._held, 0
        if held:
            self._room.give(held)

    def __del__(self) -> None:
        """Of an operation that came to nothing: what is wrong with its arguments was found before it was submitted."""
        self.close()
