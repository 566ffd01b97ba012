"""The control connection between the conductor and one process that takes part: JSON, a line a message.

It carries commands and times, never what is measured, and everyone waits in it without using the processor.
"""

import contextlib
import json
import socket
from typing import Any

LINE_LIMIT = 1024 * 1024

Message = dict[str, Any]


class ChannelClosed(ConnectionError):
    """The other side has closed the connection, or died."""


class ChannelTimeout(TimeoutError):
    """Nothing came in the time that was given."""


class Channel:
    """One end of a control connection; owns the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""
        self.closed = False
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def local_host(self) -> str:
        """The address of this end; empty for a Unix socket."""
        return "" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    def send(self, message: Message) -> None:
        """Raises ChannelClosed."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ChannelClosed(f"the control connection is broken: {error}") from None

    def receive(self, seconds: float | None = None) -> Message:
        """The next message. Raises ChannelClosed, ChannelTimeout after ``seconds``, ValueError for what is no message."""
        self._socket.settimeout(seconds)
        while b"\n" not in self._rest:
            if len(self._rest) > LINE_LIMIT:
                raise ValueError("a control message is too long")
            self._rest += self._read()
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"a control message is a JSON object, not {type(message).__name__}")  # noqa: TRY004
        return message

    def close(self) -> None:
        """The other end hears of it, and this one's own watchers too."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(64 * 1024)
        except TimeoutError:
            raise ChannelTimeout("no answer on the control connection") from None
        except OSError as error:
            raise ChannelClosed(f"the control connection is broken: {error}") from None
        if not data:
            raise ChannelClosed("the control connection was closed")
        return data


def connect(address: str) -> Channel:
    """``address``: ``host:port``, or the path of a Unix socket. Raises OSError."""
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            connection.connect(address)
            stack.pop_all()
        return Channel(connection)
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=60)
    return Channel(connection)
