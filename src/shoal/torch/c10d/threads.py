"""Threads for calls that may take any time, as many as there are such calls at once."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

_log = logging.getLogger("shoal")

# How long a thread looks for more to do before it ends, in seconds.
_LINGERS = 2.0


class Threads:
    """Daemon threads: nothing waits for them at the end of the interpreter."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._busy = 0

    def run(self, call: Callable[[], None]) -> None:
        """On a thread at once, whatever the others do. What it raises is logged. Raises RuntimeError if the system has no thread for it."""
        with self._changed:
            if self._idle <= len(self._calls):
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
                self._idle += 1
            self._calls.append(call)
            self._changed.notify()

    @property
    def are_busy(self) -> bool:
        with self._changed:
            return self._busy > 0 or bool(self._calls)

    def join(self, seconds: float) -> bool:
        """Waits until nothing runs here but the caller. Whether that was so in time."""
        until = time.monotonic() + seconds
        while self.are_busy and time.monotonic() < until:
            time.sleep(0.002)
        return not self.are_busy

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: bool(self._calls), _LINGERS):
                    self._idle -= 1
                    return
                call = self._calls.popleft()
                self._idle -= 1
                self._busy += 1
            try:
                call()
            except Exception:
                _log.exception("a thread of Shoal's failed")
            del call
            with self._changed:
                self._busy -= 1
                self._idle += 1
