"""What a caller holds of operations that were started: PyTorch's ``Work``."""

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from shoal.errors import ShoalError
from shoal.job import unheard
from shoal.ops import callbacks
from shoal.ops.submissions import AnyHandle, StagedHandle
from shoal.torch import versions
from shoal.torch.c10d import call_sites
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.c10d.futures import OperationFuture
from shoal.torch.compiled import untraced_class

# PyTorch's way to say that no timeout was given.
NO_TIMEOUT = timedelta(0)

# Who is handed a Work in C++ keeps only half of it: the other, these methods, goes when Python lets go, and waiting would
# never end. (DistributedDataParallel does that with uneven inputs.) So a Work that Python lets go of without having
# waited is kept, until so many others have been.
_KEPT = 64
# Since PyTorch 2.7 only DistributedDataParallel does that, and asks for one number. So of an operation that is done,
# results are kept only if they have at most so many bytes together. Programs let go of gigabytes without waiting.
_FEW_BYTES = 4096
# Before, that is so for every Work that a functional collective has: then many more are kept, but not their results.
_KEPT_BARE = 0 if versions.has("works are held") else 16384
# The device's work would then wait, all of it, from the moment that somebody asks for a future.
_STREAMS_SHARE_A_QUEUE = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"

# Whole, or without results. Of the others, those that may not be done yet, in the order in which they were let go of.
_kept: deque["OperationWork"] = deque()
_in_flight: deque["OperationWork"] = deque()
_kept_bare: deque["OperationWork"] = deque(maxlen=_KEPT_BARE)
_keeping = threading.RLock()  # a Work may be let go of while another is being kept


@untraced_class
class OperationWork(Work):
    """``handles``: of the operations, done when all are. ``results``: the tensors that hold the results then."""

    _waited = True

    def __init__(
        self,
        handles: Sequence[AnyHandle],
        results: list[torch.Tensor],
        call_site: CallSite,
        timeout: timedelta = NO_TIMEOUT,
    ) -> None:
        super().__init__()
        # Nothing tells of the end of an operation that nobody waits for, so the next one looks.
        if _in_flight:
            _look_at_those_in_flight()
        self._timeout = timeout
        self._handles = handles
        self._results = results
        self._call_site = call_site
        self._lock = threading.Lock()
        self._waited = False
        self._future: OperationFuture | None = None
        self._completes = False

    @classmethod
    def of_all(cls, works: Sequence["OperationWork"]) -> "OperationWork":
        """Done when all are. It is waited for instead of them."""
        for work in works:
            work._waited = True
        handles = [handle for work in works for handle in work._handles]
        return cls(
            handles, [tensor for work in works for tensor in work._results], works[-1]._call_site, works[-1]._timeout
        )

    @property
    def timeout(self) -> timedelta:
        """Without progress, before the operation fails."""
        return self._timeout

    def _get_sequence_number(self) -> int:
        """Which operation of its process group, or of its callback, it is; the same on every rank."""
        return self._call_site.number

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns True when the results are there. Raises what made an operation fail, and Timeout.

        Tensors of an accelerator: leaves it to the current stream to wait until the results are there. What goes wrong is raised
        by a later call, or when the process group is destroyed. With a ``timeout``, or SHOAL_CUDA_WAIT=host, the host waits for
        the network, and hears of it.
        Without a ``timeout`` that of the operation, or else of the process group, is the limit.
        """
        self._waited = True
        if unheard.failed and call_sites.current() is None:
            unheard.raise_first()
        try:
            self._wait(timeout.total_seconds() if timeout > NO_TIMEOUT else None)
        finally:
            # As with PyTorch's own, who has waited for the operation finds its future done.
            if self._future is not None and self.is_completed():
                self._future.join()
        return True

    def _wait(self, seconds: float | None) -> None:
        for handle in self._handles:
            if not (seconds is None and isinstance(handle, StagedHandle) and handle.wait_in_stream()):
                handle.wait(seconds)

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """What made it fail, once it is completed."""
        if self.is_completed():
            try:
                self._waited = True
                self._wait(None)
            except Exception as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def source_rank(self) -> int:
        raise RuntimeError("only an operation that receives from any rank has a source rank")

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future of the results. Its callbacks run on threads of Shoal's own, and may call and await operations.

        It is done at once if the operation is: callers in C++ rely on that after ``wait``. And if a stream is to wait for the
        operation: then callbacks run at once, in the order of their streams.
        """
        self._waited = True
        with self._lock:
            if self._future is None:
                devices = [tensor.device for tensor in self._results if not tensor.is_cpu]
                complete = weakref.WeakMethod(self._complete)
                early = self._early()
                future = OperationFuture(self._call_site, devices, () if early else self._handles, complete)
                if early:
                    self._completes = True
                    with ExitStack() as after_results:
                        for handle in early:
                            after_results.enter_context(handle.way_back())
                        future.set_result(self._results)
                elif not self.is_completed():
                    self._handles[-1].call_when_done(self._complete)
                self._future = future
        if self.is_completed():
            self._complete()
        return self._future

    def _early(self) -> list[StagedHandle]:
        """The operations, if streams wait for all of them. None otherwise."""
        staged = [handle for handle in self._handles if isinstance(handle, StagedHandle)]
        if _STREAMS_SHARE_A_QUEUE or len(staged) < len(self._handles):
            return []
        come = [handle.returns_early() for handle in staged]  # of all, also where one has ended already
        return staged if all(come) else []

    def let_go_of_results(self) -> None:
        """The operations are done. From now on whoever waits for this hears that their results are gone.

        Not if somebody has its future, or is about to: the results come by that.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._future is None:
                gone: Any = _Gone(self._call_site)
                self._handles, self._results = [gone], []
        finally:
            self._lock.release()

    @property
    def _has_few_bytes(self) -> bool:
        return sum(tensor.numel() * tensor.itemsize for tensor in self._results) <= _FEW_BYTES

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._waited and not ends():  # else the names of modules are gone
            self._waited = True
            _keep(self)

    def _complete(self) -> None:
        """Sets the future, unless another thread has or is about to: then waits for that."""
        with self._lock:
            future = self._future
            completes, self._completes = not self._completes, True
        assert future is not None, "whoever asks to be called has made the future"
        if not completes:
            future.await_result()
            return
        try:
            self._wait(None)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(self._results)


class _Gone:
    """Stands for operations whose results are gone, for those who know a ``Handle``."""

    def __init__(self, call_site: CallSite) -> None:
        self._call_site = call_site

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        raise ShoalError(
            f"the results of operation {self._call_site} are gone, since Python let go of its Work before anybody had "
            "waited for it: keep the Work until then"
        )

    def call_when_done(self, callback: Callable[[], None]) -> None:
        callbacks.call_soon(callback)


def _keep(work: OperationWork) -> None:
    _add(work, _kept if _KEPT_BARE or work._has_few_bytes else _in_flight)
    _look_at_those_in_flight()


def _add(work: OperationWork, kept: deque[OperationWork]) -> None:
    with _keeping:
        kept.append(work)
        while len(kept) > _KEPT:
            oldest = kept.popleft()
            if _KEPT_BARE:
                oldest._results = []
                _kept_bare.append(oldest)


def _look_at_those_in_flight() -> None:
    """The first ones, as far as they are done, are kept without their results."""
    while True:
        # Taken out while it is asked: it wants locks of its own, whose holder may be about to keep another Work.
        with _keeping:
            if not _in_flight:
                return
            work = _in_flight.popleft()
        if not work.is_completed():
            with _keeping:
                _in_flight.appendleft(work)
            return
        work.let_go_of_results()
        _add(work, _kept)
