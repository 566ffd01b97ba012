"""Which congestion control a connection uses: the machine's, but reno where that is bbr and the other end is near.

Shoal's own windows bound the bytes in flight, so TCP has only to deal with losses. bbr deals with rates. It takes the rate of
a flow that waits for answers for the network's, and in short or crowded queues that goes wrong
(docs/decisions/congestion.md). On long paths, where losses have other reasons than full queues, bbr is right. While a job
has to compete for its share, its links use the machine's own (native/drivers/tcp/congestion.h).

Where the kernel refuses, nothing changes.
"""

import contextlib
import socket

_UNSUITED = b"bbr"
_INSTEAD = b"reno"  # every kernel has it, and lets everyone use it

# Seconds of round trip from which the other end is far away, and not only behind a queue.
_FAR = 0.02

_NAME_BYTES = 16
_RTT_OFFSET = 68  # tcpi_rtt of struct tcp_info, in microseconds (linux/tcp.h)


def prepare(link: socket.socket) -> None:
    """For a socket that is about to connect or to listen; what a listener accepts has the same."""
    with contextlib.suppress(OSError):
        if in_use(link) == _UNSUITED:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _INSTEAD)


def settle(link: socket.socket) -> None:
    """For a connection that is established, from a socket that was prepared."""
    with contextlib.suppress(OSError):
        if in_use(link) == _INSTEAD and round_trip(link) >= _FAR:
            with socket.socket(link.family, socket.SOCK_STREAM) as fresh:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, in_use(fresh))


def in_use(link: socket.socket) -> bytes:
    """Raises OSError."""
    name = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    return name.partition(b"\0")[0]


def round_trip(link: socket.socket) -> float:
    """Seconds, as TCP takes it to be now. Raises OSError."""
    information = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_OFFSET + 4)
    return int.from_bytes(information[_RTT_OFFSET : _RTT_OFFSET + 4], "little") / 1e6
