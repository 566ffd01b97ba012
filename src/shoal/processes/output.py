"""The output of many processes merged into one: whole lines, each with the name of the process that wrote it."""

import asyncio
import os
import queue
import re
import threading
from collections.abc import Callable, Iterable
from typing import IO, TypeVar

LINE_LIMIT = 64 * 1024
# How long what a process has left behind may live on, to clean up after it, and its output be waited for.
LINGER_SECONDS = 2.0
_READ_BYTES = 64 * 1024
_LINE_END = re.compile(rb"\r?\n|\r(?=[^\n])")  # a "\r" at the very end of what has come waits for what follows
_COLOURS = (36, 33, 32, 35, 34, 31)  # of a terminal: cyan, yellow, green, magenta, blue, red

T = TypeVar("T")


class LineSplitter:
    """Cuts a stream of bytes into lines without their ends.

    A carriage return ends a line too, so that a progress bar is seen while it moves; a line longer than LINE_LIMIT is
    cut, so that memory is bounded.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete with ``data``."""
        text = self._rest + data
        lines = []
        start = 0
        for end in _LINE_END.finditer(text):
            line = text[start : end.start()]
            # A bar begins with "\r": the nothing before it is not a line.
            if line or end.group() != b"\r":
                lines.append(line)
            start = end.end()
        while len(text) - start > LINE_LIMIT:
            lines.append(text[start : start + LINE_LIMIT])
            start += LINE_LIMIT
        self._rest = text[start:]
        return lines

    def flush(self) -> list[bytes]:
        """What is left at the end of the stream."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return [rest] if rest else []


class Output:
    """One of this process's own streams, written by a thread, so that a reader who stands still stops only writers.

    ``broken`` is called, in the event loop, when nobody will read any more. Colour is for terminals, unless NO_COLOR
    is set.
    """

    def __init__(self, descriptor: int, *, colour: bool) -> None:
        self.broken: Callable[[], None] = lambda: None
        self._descriptor = descriptor
        self._colour = colour
        self._is_broken = False
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.AbstractEventLoop, asyncio.Future[bool]]] = (
            queue.SimpleQueue()
        )
        # A daemon: it may be stuck in a write when the program ends.
        threading.Thread(target=self._write_all, name=f"shoal-output-{descriptor}", daemon=True).start()

    async def write(self, lines: Iterable[bytes], prefix: bytes = b"") -> None:
        """Writes lines, each with prefix and end; they are not torn. Returns when they are written."""
        data = b"".join(prefix + line + b"\n" for line in lines)
        if not data or self._is_broken:
            return
        loop = asyncio.get_running_loop()
        written: asyncio.Future[bool] = loop.create_future()
        self._queue.put((data, loop, written))
        if not await written and not self._is_broken:
            self._is_broken = True
            self.broken()

    def prefix(self, name: str, number: int) -> bytes:
        """``[name] ``, on a terminal in the colour that belongs to ``number``."""
        if not self._colour:
            return f"[{name}] ".encode()
        return f"\x1b[{_COLOURS[number % len(_COLOURS)]}m[{name}]\x1b[0m ".encode()

    def _write_all(self) -> None:
        while True:
            data, loop, written = self._queue.get()
            intact = self._write(memoryview(data))
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, written, intact)

    def _write(self, data: memoryview) -> bool:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            return False
        return True


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def for_terminal(descriptor: int) -> Output:
    """The output to a descriptor of this process, in colour where that is a terminal."""
    return Output(descriptor, colour=os.isatty(descriptor) and not os.environ.get("NO_COLOR"))


async def copy_lines(source: IO[bytes], output: Output, prefix: bytes, abandoned: asyncio.Future[None]) -> None:
    """Copies what comes from the pipe ``source`` to ``output``, line by line, until it ends, and closes it.

    Once ``abandoned`` is done, because the process that wrote there is gone, the end is also that nothing has come for
    LINGER_SECONDS: a stranger may hold the pipe open for ever.
    """
    splitter = LineSplitter()
    with source:
        while data := await _read(source.fileno(), abandoned):
            await output.write(splitter.feed(data), prefix)
    await output.write(splitter.flush(), prefix)


async def _read(descriptor: int, abandoned: asyncio.Future[None]) -> bytes:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _settle, readable, None)
    try:
        await asyncio.wait({readable, abandoned}, return_when=asyncio.FIRST_COMPLETED)
        if not readable.done():
            await asyncio.wait({readable}, timeout=LINGER_SECONDS)
        return os.read(descriptor, _READ_BYTES) if readable.done() else b""
    finally:
        loop.remove_reader(descriptor)
