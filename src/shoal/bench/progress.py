"""Progress on a stream while a benchmark runs: one line that changes on a terminal, a line for every size elsewhere."""

import os
import time
from typing import TextIO

from shoal.bench.sizes import show_bytes

# A terminal's line is written so often, at most: the machine is being measured.
_PAUSE = 0.2
_CLEAR = "\r\x1b[K"


class Progress:
    """Callable as ``progress(contestant, size, turn, rounds)``; ``say`` is for everything else."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._moves = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._last_write = 0.0
        self._last_size = -1

    def say(self, text: str) -> None:
        if not self._quiet:
            self._write(f"{_CLEAR}{text} ..." if self._moves else f"shoal bench: {text}\n")

    def __call__(self, contestant: str, size: int, turn: int, rounds: int) -> None:
        if self._quiet:
            return
        if not self._moves:
            if size != self._last_size:
                self._write(f"shoal bench: {show_bytes(size)}\n")
            self._last_size = size
        elif time.monotonic() - self._last_write >= _PAUSE:
            at = f"round {turn} of {rounds}" if turn else "rehearsal"
            self._write(f"{_CLEAR}{show_bytes(size)}: {at}, {contestant}")

    def end(self) -> None:
        """Clears the line."""
        if self._moves and not self._quiet:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
        self._last_write = time.monotonic()
