"""An asyncio loop in a thread of its own, so that joining and serving need no loop of the application's.

In a forked child the thread does not exist and the loop is dead; its descriptors are closed there.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import selectors
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

# For a coroutine to clean up after it was cancelled, and for the thread to end, in seconds.
_CLEANUP = 5.0

_running: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


class LoopThread:
    """Runs coroutines in a daemon thread until ``stop``. Raises RuntimeError if the system has no thread for it."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        # For names of hosts: the only thing here that would stop the loop.
        self._resolver = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="shoal-resolve")
        self._loop.set_default_executor(self._resolver)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _running.add(self)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread
            _running.discard(self)
            self._loop.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Its result. An interruption, such as KeyboardInterrupt, cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                self._wait_until_idle()
            raise

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs it without waiting for it. What it raises goes to the loop's exception handler."""
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(coroutine))

    def stop(self) -> None:
        """Cancels what still runs and ends the thread. May be called again, but not from the thread itself."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLEANUP)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._cancel_all()
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()
            _running.discard(self)

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CLEANUP))

    def _wait_until_idle(self) -> None:
        """For the sockets of a cancelled coroutine to be closed, before whoever interrupted it goes on."""

        async def others() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if tasks:
                await asyncio.wait(tasks, timeout=_CLEANUP)

        waiting = asyncio.run_coroutine_threadsafe(others(), self._loop)
        concurrent.futures.wait([waiting], timeout=_CLEANUP)

    def _forget_in_child(self) -> None:
        # Closes the epoll descriptor without touching the set of sockets that it shares with the parent.
        self._selector.close()


def _forget_all_in_child() -> None:
    for thread in list(_running):
        thread._forget_in_child()


os.register_at_fork(after_in_child=_forget_all_in_child)
