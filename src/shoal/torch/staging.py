"""Staging: how the tensors of an operation come from an accelerator into memory of the host, and back.

    the program's stream    the work that makes the tensors
    the way out             follows it; copies into pinned memory; then opens the operation's gate
    the core                hands the operation to the network when the gate is open
    the way back            when the operation is done: copies the results into the tensors
    who waits               the stream that is current there follows the way back

Where the host waits for the operation, it asks for the copies back when that is done. Where a stream is to wait, the
copies are asked for before, and the way back waits for the gate to be passed. In no other case does a stream wait for
anything but copies, and the device as a whole is waited for by nobody. Both ways are streams of the device's own for
Shoal, of which it copies in both directions at once (native/drivers/cuda).
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from shoal import _native
from shoal.torch import pinned_memory
from shoal.torch.accelerators import Accelerator, Stream
from shoal.torch.narrowing import Narrow
from shoal.torch.pinned_memory import Block, PinnedMemory

_Copy = tuple[int, int, int]


class Transfer:
    """The tensors of one operation on their ways. Made when the operation is called, in the program's stream.

    ``waits``: whether the caller waits while the operations before it have all of the ``memory``. ``in_stream``: whether
    a stream is to wait for it, if that can be. Raises RuntimeError if the current stream is captured for a CUDA graph,
    of which no operation can be a part.
    """

    def __init__(
        self, device: Accelerator, ways: _native.Ways, memory: PinnedMemory, waits: bool, in_stream: bool = False
    ) -> None:
        self._device = device
        self._ways = ways
        self._pinned = memory
        self._waits = waits
        self._in_stream = in_stream and device.native.streams_can_wait
        self._results: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self._blocks: list[Block] = []
        self._hosts: list[torch.Tensor] = []  # that are not in the blocks
        self._return_failure: Exception | None = None
        self._copies: list[_Copy] = []
        self._passage = device.passage(ways)
        self._lock = threading.Lock()
        self._passage.follow([device.current])

    # --- Out: in the thread that calls the operation ---

    def follow_streams(self, streams: Iterable[Stream]) -> None:
        """What goes out from now on has been made in these too."""
        self._passage.follow(list(streams))

    def memory(self, size: int) -> torch.Tensor:
        """So many bytes of pinned memory, of any content. May wait for other operations."""
        own = sum(block.memory.nbytes for block in self._blocks)
        block = self._pinned.take(self._device, size, own, self._waits)
        self._blocks.append(block)
        return block.memory[:size]

    def mirror(self, tensor: torch.Tensor, read: bool) -> torch.Tensor:
        """Pinned memory with the shape and dtype of the tensor, row by row.

        ``read``: its elements will be there when the gate opens.
        """
        host = self.memory(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        if read:
            self.bring(host, tensor)
        return host

    def bring(self, host: torch.Tensor, tensor: torch.Tensor, narrow: Narrow | None = None) -> None:
        """``host``, pinned memory, will have the elements of the tensor when the gate opens.

        If it has another dtype, ``narrow`` makes it of them on the device.
        """
        out = self._ways.out
        self._keep(host)
        self._device.keep(tensor, out)
        if host.dtype != tensor.dtype:
            assert narrow is not None, "no other operation changes the dtype"
            with self._device.inside(out):
                there = torch.empty_like(host, device=tensor.device)
                self._device.run(lambda: narrow(tensor, there))
                self._device.copy(host, there)
            return
        if _is_plain(tensor):
            self._copies.append((host.data_ptr(), tensor.data_ptr(), tensor.nbytes))
            return
        with self._device.inside(out):
            # What is only marked as conjugated or negated is made so on the device: on the host that would be done before
            # the copy is.
            self._device.copy(host, tensor.resolve_conj().resolve_neg())

    def depart(self) -> _native.Gate:
        """Nothing more goes out."""
        return self._passage.depart(self._copies)

    # --- Back: in whichever thread finds that the operation is done ---

    def returns(self, *results: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Each tensor gets the elements of its pinned memory, whatever comes: nothing has to be done with them before.

        To be said before the operation is submitted, of all of its results.
        """
        self._results = list(results)
        for _, host in results:
            self._keep(host)

    @contextmanager
    def returning(self) -> Iterator[None]:
        """Inside, results are taken back, but for those that ``returns`` has told of; afterwards all can be followed."""
        with self._lock:
            if self._return_failure is not None:
                raise self._return_failure
            if self._passage.has_returned():
                yield
                return
            with self._way_back(False):
                yield
                self._take_all_back()

    def return_early(self) -> bool:
        """Asks the device to take the results back when they are there. False: no stream is to wait for them, or can."""
        with self._lock:
            if self._return_failure is not None:
                raise self._return_failure
            if not self._in_stream or self._results is None or not self._comes_back_by_itself():
                return False
            if not self._passage.has_returned():
                with self._way_back(True):
                    self._take_all_back()
            return True

    @contextmanager
    def _way_back(self, waits: bool) -> Iterator[None]:
        self._copies = []
        self._passage.begin_return(waits)
        try:
            yield
            self._passage.take_back(self._copies)
        except Exception as failure:
            self._return_failure = failure
            raise
        finally:
            # In any case: the memory is free when what was asked for until here is done.
            self._passage.end_return()

    def _comes_back_by_itself(self) -> bool:
        """Whether the device reads the results when it comes to them: copies of other memory begin at once, on the host."""
        if not all(block.is_pinned for block in self._blocks):
            return False
        return all(host.is_contiguous() and pinned_memory.is_pinned(host) for _, host in self._results or ())

    def _keep(self, host: torch.Tensor) -> None:
        if not any(block.has(host) for block in self._blocks):
            self._hosts.append(host)

    def _take_all_back(self) -> None:
        for tensor, host in self._results or ():
            self.take_back(tensor, host)

    def take_back(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """The tensor will have the elements of ``host`` for who follows."""
        back = self._ways.back
        self._device.keep(tensor, back)
        if host.dtype != tensor.dtype:
            with self._device.inside(back):
                # Else they would be widened on the host, which would wait for it.
                there = torch.empty_like(host, device=tensor.device)
                self._device.copy(there, host)
                self._device.copy(tensor, there)
            return
        if _is_plain(tensor) and host.is_contiguous():
            self._copies.append((host.data_ptr(), tensor.data_ptr(), tensor.nbytes))
            return
        with self._device.inside(back):
            self._device.copy(tensor, host)

    def way_back(self) -> AbstractContextManager[None]:
        """What this thread asks of the device comes after the results, and keeps no stream of the program's waiting."""
        return self._device.inside(self._ways.back)

    def follow(self) -> None:
        """What comes into the current stream from now on finds the results."""
        if self._passage.has_returned():
            self._passage.follow_back(self._device.current)

    def close(self) -> None:
        """The operation needs its pinned memory no more. May be called again."""
        blocks, self._blocks = self._blocks, []
        hosts, self._hosts = self._hosts, []
        if blocks or hosts:
            self._pinned.give_back(blocks, hosts, self._passage)

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """Of an operation that came to nothing: what is wrong with its arguments was found before it was submitted."""
        if not ends():  # else the names of modules are gone, and soon all memory
            self.close()


class Transfers:
    """The transfers of a group's operations. ``memory``: what they have together with those of other groups.

    ``in_stream``: whether streams are to wait for them, where they can.
    """

    def __init__(self, in_stream: bool, memory: PinnedMemory = pinned_memory.OF_OPERATIONS) -> None:
        self._in_stream = in_stream
        self._memory = memory
        self._ways: dict[Accelerator, _native.Ways] = {}

    def begin(self, device: Accelerator, waits: bool = True, in_stream: bool | None = None) -> Transfer:
        """For an operation on tensors of that device, before it is submitted. ``in_stream``: other than of all.

        ``waits``: whether its caller waits while earlier operations have all of the memory. Not to be done in a callback:
        on another rank the earlier ones may be waiting for what it calls.
        """
        _native.note_call()
        ways = self._ways.get(device)
        if ways is None:
            ways = self._ways[device] = _native.Ways(device.native)
        return Transfer(device, ways, self._memory, waits, self._in_stream if in_stream is None else in_stream)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is its elements, row by row."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
