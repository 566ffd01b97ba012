"""Somebody else's traffic: one bulk TCP flow from every host to the next, so one on every link in each direction.

Each host runs ``python -m shoal.bench.background ARGUMENTS``, which sends as fast as TCP lets it, throws away what it receives,
and notes every few milliseconds how much that was, in a file that the conductor maps: so the flow's speed is known for exactly
the time that an operation took, and nobody is asked anything while it is measured.
"""

import contextlib
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.bench.teams import Troupe, base_environment
from shoal.errors import ConfigurationError

_MFD_NOEXEC_SEAL = 8  # Python has no name for it

_WAIT = 30.0
_CHUNK = 1024 * 1024
# A file: the number of notes, then the notes, each the time (ns) and the bytes received until then.
COUNT = struct.Struct("=q")
NOTE = struct.Struct("=qq")
_NOTE_NANOSECONDS = 5_000_000
_MOST_NOTES = 200_000  # 3 MB of a sparse file; older ones are overwritten after more than a quarter of an hour


class Background:
    """The flows of a place, running. They end with it."""

    def __init__(self, troupe: Troupe, congestion_control: str) -> None:
        """Returns when every flow has begun. Raises BenchError, ConfigurationError for a congestion control that is not there."""
        place = troupe.place
        count = place.nodes + place.servers
        port = place.free_ports(0, 1)
        paths = [troupe.folder / f"background-{host}" for host in range(count)]
        for host, path in enumerate(paths):
            following = (host + 1) % count
            arguments = {
                "own": [place.address(host), port],
                "next": [place.address(following), port],
                "congestion_control": congestion_control,
                "notes": str(path),
            }
            command = [sys.executable, "-m", "shoal.bench.background", json.dumps(arguments)]
            troupe.start(host, f"background {host}", command, base_environment())
        self._notes = [Notes(path, troupe.alive) for path in paths]

    def rates(self, begin: int, end: int) -> list[float]:
        """Payload bytes per second of every flow between two moments of the monotonic clock, in nanoseconds."""
        return [notes.rate(begin, end) for notes in self._notes]


class Notes:
    """The notes of one flow, as the conductor reads them."""

    def __init__(self, path: Path, alive: Callable[[], None]) -> None:
        deadline = time.monotonic() + _WAIT
        while not _has_begun(path):
            alive()
            if time.monotonic() > deadline:
                raise ConfigurationError(f"a flow in the background has not begun in {_WAIT:g} s")
            time.sleep(0.05)
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def rate(self, begin: int, end: int) -> float:
        notes = self._read()
        return (_bytes_at(notes, end) - _bytes_at(notes, begin)) / (end - begin) * 1e9

    def _read(self) -> list[tuple[int, int]]:
        """In their order. The next one to be written may be the oldest: it is left out."""
        (count,) = COUNT.unpack_from(self._map)
        numbers = range(max(0, count - _MOST_NOTES + 1), count)
        return [NOTE.unpack_from(self._map, _offset(number)) for number in numbers]


def _has_begun(path: Path) -> bool:
    """Whether it has two notes. At first the file is not there, and then empty."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        head = file.read(COUNT.size)
    return len(head) == COUNT.size and COUNT.unpack(head)[0] >= 2


def _offset(number: int) -> int:
    return COUNT.size + number % _MOST_NOTES * NOTE.size


def _bytes_at(notes: Sequence[tuple[int, int]], moment: int) -> float:
    """Received until a moment: on the line between two notes, or beyond the last on that of the last two."""
    after = min(max(1, bisect_right(notes, (moment, -1))), len(notes) - 1)
    (earlier, few), (later, many) = notes[after - 1], notes[after]
    return few + (many - few) * (moment - earlier) / (later - earlier)


def main(text: str) -> None:
    arguments = json.loads(text)
    listener = socket.create_server(tuple(arguments["own"]))
    listener.settimeout(_WAIT)
    sender = _connect(tuple(arguments["next"]), arguments["congestion_control"])
    receiver, _ = listener.accept()
    threading.Thread(target=_send, args=(sender,), daemon=True).start()
    _receive(receiver, Path(arguments["notes"]))


def _connect(address: tuple[str, int], congestion_control: str) -> socket.socket:
    deadline = time.monotonic() + _WAIT
    while True:
        connection = socket.socket()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        try:
            connection.connect(address)
            return connection
        except ConnectionRefusedError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _send(connection: socket.socket) -> None:
    """From a file in memory: the sender costs as little as it can."""
    with os.fdopen(_file_in_memory(), "w+b") as file:
        file.truncate(_CHUNK)
        while os.sendfile(connection.fileno(), file.fileno(), 0, _CHUNK):
            pass


def _file_in_memory() -> int:
    """One that cannot be executed, as some machines demand (vm.memfd_noexec); Linux before 6.3 does not know the flag."""
    with contextlib.suppress(OSError):
        return os.memfd_create("background", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    return os.memfd_create("background")


def _receive(connection: socket.socket, path: Path) -> None:
    """Until the other end closes. The kernel throws the bytes away where they are (MSG_TRUNC)."""
    buffer = bytearray(_CHUNK)
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    with path.open("w+b") as file:
        file.truncate(COUNT.size + _MOST_NOTES * NOTE.size)
        notes = mmap.mmap(file.fileno(), 0)
    count, received, due = 0, 0, 0
    while True:
        poll.poll(_NOTE_NANOSECONDS // 1_000_000)
        now = time.monotonic_ns()
        if now >= due:
            NOTE.pack_into(notes, _offset(count), now, received)
            count += 1
            COUNT.pack_into(notes, 0, count)
            due = now + _NOTE_NANOSECONDS
        try:
            got = connection.recv_into(buffer, _CHUNK, socket.MSG_TRUNC | socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        if got == 0:
            return
        received += got


if __name__ == "__main__":
    main(sys.argv[1])
