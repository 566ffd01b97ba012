"""Futures of operations.

A ``torch.futures.Future`` differs in three ways from what is needed: an exception set on it is a result to callers in C++,
``then`` may run its callback in the middle of the program, on whichever thread, and what ``then`` returns cannot be
told where its own callbacks belong. So ``then`` is done here, in Python, on such futures only.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from shoal.ops import callbacks
from shoal.ops.submissions import AnyHandle
from shoal.torch.c10d import call_sites
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.compiled import untraced_class


@untraced_class
class OperationFuture(torch.futures.Future[Any]):
    """``call_site``: of the operation, or of the callback, whose result this is.

    ``devices``: those, but for the CPU, that tensors of the result are on. Whoever waits for the future, or is called by it, has
    a current stream on each that goes on after what was in the current stream where the result was set. ``handles``: the
    operations whose end comes before the result.
    ``complete``: gives what sets the result once they are done, or None if it was set. For when the interpreter ends: then no callback does.
    """

    def __init__(
        self,
        call_site: CallSite,
        devices: Sequence[torch.device] = (),
        handles: Sequence[AnyHandle] = (),
        complete: Callable[[], Callable[[], None] | None] = lambda: None,
    ) -> None:
        super().__init__(devices=list(devices))
        self._call_site = call_site
        self._devices = devices
        self._handles = handles
        self._completed_by = complete

    def wait(self) -> Any:
        # There it is known to wait for them, should they never be done.
        for handle in self._handles:
            with suppress(Exception):
                handle.wait()
        self._complete()
        return super().wait()

    def join(self) -> None:
        """Waits until the result or the error is set, which is about to be: the operations are done."""
        self._complete()
        self.await_result()

    def await_result(self) -> None:
        """As ``join``, where another thread sets it."""
        with suppress(Exception):
            super().wait()

    def _complete(self) -> None:
        complete = self._completed_by() if callbacks.are_over() else None
        if complete is not None:
            complete()

    def then(self, callback: Callable[[Any], Any]) -> "OperationFuture":
        """What ``callback(self)`` returns, or raises, once this is done."""
        call_site = self._call_site.callback()
        following = OperationFuture(call_site, self._devices, self._handles, self._completed_by)

        def follow(_: Any) -> None:
            try:
                with call_sites.inside(call_site):
                    value = callback(self)
            except Exception as error:
                following.set_exception(error)
            else:
                following.set_result(value)

        super().add_done_callback(follow)
        return following

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        call_site = self._call_site.callback()

        def follow(_: Any) -> None:
            with call_sites.inside(call_site):
                callback(self)

        super().add_done_callback(follow)

    def set_exception(self, result: Exception) -> None:
        """``wait`` and ``value`` raise it, and so do C++ callers that look for tensors."""
        self._set_unwrap_func(_raise)
        self.set_result(Failure(result))


class Failure:
    """What stands in a future for the result of an operation that failed.

    PyTorch's C++ code, such as the reducer of DistributedDataParallel, looks for tensors in a value by pickling it, or
    converts it to a tensor and says that it could not convert ``str(value)``.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error.with_traceback(None)

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


def _raise(value: Any) -> None:
    raise value.error.with_traceback(None)
