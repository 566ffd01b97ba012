"""One TCP connection between two hosts of a lab, for test_lab.py: run as ``receive PORT`` or ``send HOST PORT BYTES``.

The receiver says ``ready`` when it listens; both say when (CLOCK_MONOTONIC, one machine) and how many bytes: the sender
before it connects, the receiver when the last byte has come.
"""

import socket
import sys
import time

SECONDS = 30.0


def receive(port: int) -> None:
    with socket.create_server(("", port)) as listener:
        print("ready", flush=True)
        listener.settimeout(SECONDS)
        connection, _ = listener.accept()
        total = 0
        buffer = bytearray(1 << 20)
        with connection:
            connection.settimeout(SECONDS)
            while count := connection.recv_into(buffer):
                total += count
    print(time.monotonic(), total, flush=True)


def send(host: str, port: int, total: int) -> None:
    started = time.monotonic()
    with socket.create_connection((host, port), timeout=SECONDS) as connection:
        print("ready", flush=True)
        connection.sendall(bytes(total))
    print(started, total, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
