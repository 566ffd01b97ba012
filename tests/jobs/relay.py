"""A TCP relay between ranks and a server, which keeps what passes and may change it: somebody in between."""

import contextlib
import itertools
import socket
import threading
from types import TracebackType


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class Relay:
    """Listens at ``host`` and ``port``, or any, and carries every connection to ``server``, a host:port.

    ``others``: more of them, each of which gets the next connection in turn, as behind a balancer of load. ``flip_after``: of each connection's bytes from the server, the one after so many has a bit changed. ``seen`` is all that
    has passed, either way, of all connections.
    """

    def __init__(
        self, server: str, *others: str, flip_after: int | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._servers = itertools.cycle([_split(each) for each in (server, *others)])
        self._flip_after = flip_after
        self._listener = socket.create_server((host, port))
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.seen = bytearray()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> "Relay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(next(self._servers))
                except OSError:  # nobody is there yet
                    near.close()
                    continue
                self._ends += [near, far]
                for source, target, flip_after in ((near, far, None), (far, near, self._flip_after)):
                    thread = threading.Thread(target=self._carry, args=(source, target, flip_after), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, source: socket.socket, target: socket.socket, flip_after: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                if flip_after is not None and passed <= flip_after < passed + len(data):
                    data[flip_after - passed] ^= 0x10
                passed += len(data)
                with self._lock:
                    self.seen += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
