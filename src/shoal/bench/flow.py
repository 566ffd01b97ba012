"""What a link gives: one TCP flow between two hosts, payload bytes per second once it runs steadily."""

import contextlib
import socket
import time

# The beginning does not count: slow start, and the burst that a shaper lets through.
SKIPPED_SECONDS = 0.3
MEASURED_SECONDS = 1.2
_CHUNK = 256 * 1024
_WAIT = 30.0


def listen(host: str) -> socket.socket:
    """Where the receiver waits, on any free port of ``host``."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    listener.listen(1)
    listener.settimeout(_WAIT)
    return listener


def receive(listener: socket.socket) -> float:
    """Bytes per second of the flow that arrives, without its beginning. Raises OSError, TimeoutError."""
    with listener:
        connection, _ = listener.accept()
    buffer = bytearray(_CHUNK)
    with connection:
        connection.settimeout(_WAIT)
        began = _receive_for(connection, buffer, SKIPPED_SECONDS)[1]
        count, ended = _receive_for(connection, buffer, MEASURED_SECONDS)
    if count == 0:
        raise ConnectionError("the flow that measures the link ended before it ran steadily")
    return count / (ended - began)


def send(host: str, port: int) -> None:
    """Sends until the receiver has measured and closes. Raises OSError if it cannot connect."""
    data = bytes(_CHUNK)
    with socket.create_connection((host, port), timeout=_WAIT) as connection:
        deadline = time.monotonic() + SKIPPED_SECONDS + MEASURED_SECONDS + _WAIT
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                connection.sendall(data)


def _receive_for(connection: socket.socket, buffer: bytearray, seconds: float) -> tuple[int, float]:
    """Bytes until ``seconds`` had passed, and when the last of them came."""
    count, now = 0, time.monotonic()
    end = now + seconds
    while now < end:
        got = connection.recv_into(buffer)
        now = time.monotonic()
        if got == 0:
            raise ConnectionError("the flow that measures the link was cut off")
        count += got
    return count, now
