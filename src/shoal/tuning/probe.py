"""What one connection between two hosts measures: how many bytes per second arrive, either way, and the round trip.

The caller sends for a fixed time and then ends its direction; so does the other side, if it was asked to. Each counts what
arrives in the later part of that time: an idle link lets a burst through first, and TCP starts slowly. At last the other
side says what it has counted, in the last bytes of its direction. docs/protocol/format.md, Measuring.

Python's threads with plain sockets and large buffers: they move a few GB/s. What is in flight is bounded, so that a switch
with a shallow queue need not drop anything.
"""

import asyncio
import contextlib
import errno
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shoal.config.addresses import Address
from shoal.net import messages, sockets
from shoal.net.handshake import Client, HandshakeRefused
from shoal.net.messages import Fields, Message, MessageError

_log = logging.getLogger("shoal")

_T = TypeVar("_T")

# Seconds of sending, and how many of them pass before arriving bytes count.
SECONDS = 0.12
_WARM_UP = 0.3 * SECONDS

# Seconds that the rest may take: bytes under way, the other side's answer.
_GRACE = 1.5

# To connect.
_CONNECT = 1.0

# For the caller to begin, once its connection has been let in.
_PATIENCE = 30.0

# Most bytes of one measurement, from anyone: 0.12 s at more than 400 Gbit/s.
_MOST_BYTES = 8 * 1024**3

_CHUNK = 256 * 1024
_payload = bytes(_CHUNK)

# In flight at most: the larger of what shallow queues hold and what a link of 25 Gbit/s holds.
_SHALLOW = 192 * 1024
_FAST = 3.2e9
_UNSENT = 128 * 1024

# counted bytes, microseconds in which they came, percent of its time that the thread was busy
_COUNT = struct.Struct("<QQQ")

# tcpi_min_rtt of struct tcp_info, in microseconds (linux/tcp.h).
_MIN_RTT_OFFSET = 148
_INFO_BYTES = _MIN_RTT_OFFSET + 4
_NOTSENT_LOWAT = 25  # TCP_NOTSENT_LOWAT

# What a peer may say that it has measured: bytes per second, and microseconds.
_FASTEST = 2**48
_LONGEST_ROUND_TRIP = 10**8


@dataclass(frozen=True)
class ProbeResult:
    """Bytes per second that the caller ``sent`` and that it ``received``, 0 where nothing was counted.

    ``round_trip``: microseconds, 0 if it is not known. ``busy``: percent of its time in which the busier side's thread ran
    or waited for a processor, not for the link.
    """

    sent: int
    received: int
    round_trip: int
    busy: int

    def as_fields(self) -> Fields:
        return {"sent": self.sent, "received": self.received, "round_trip": self.round_trip, "busy": self.busy}

    @staticmethod
    def parse(message: Message) -> "ProbeResult":
        """Raises MessageError."""
        return ProbeResult(
            message.integer("sent", 0, _FASTEST),
            message.integer("received", 0, _FASTEST),
            message.integer("round_trip", 0, _LONGEST_ROUND_TRIP),
            message.integer("busy", 0, 100),
        )


NOTHING = ProbeResult(0, 0, 0, 0)


async def connect(client: Callable[[], Client], address: Address, sources: Sequence[str]) -> socket.socket | None:
    """A connection to measure. None if there is none: a server may be about to start, but only joining waits for long.

    ``client``: makes one of role MEASURE. ``sources``: numeric addresses to come from.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + _CONNECT
    while True:
        try:
            return await sockets.connect_as(client(), address, sources, _CONNECT)
        except (OSError, HandshakeRefused) as error:
            starts = isinstance(error, OSError) and any(
                isinstance(cause, ConnectionRefusedError) for cause in sockets.causes(error)
            )
            if not starts or clock() >= deadline:
                _log.debug("no connection to %s to measure the link: %s", address, error)
                return None
        await asyncio.sleep(_CONNECT / 10)


async def call(link: socket.socket, both: bool) -> ProbeResult:
    """The caller's side, on an authenticated connection. ``both``: the other side is to send as well. Closes the link.

    What goes wrong is no error: nothing was measured.
    """
    try:
        await sockets.send(link, messages.pack("flow", {"both": both}))
        return await _in_thread(link, _measure_as_caller)
    except OSError as error:
        _log.debug("the link to %s could not be measured: %s", sockets.peer_name(link), error)
        return NOTHING
    finally:
        link.close()


async def answer(link: socket.socket, addresses: Sequence[Address] = ()) -> None:
    """The other side. Raises OSError and MessageError. Closes the link.

    ``addresses``: of a dedicated server, which says them to whoever asks ``where`` it can be measured.
    """
    try:
        message = await asyncio.wait_for(sockets.receive_message(link), _PATIENCE)
        if addresses and message.kind == "where":
            fields = {"addresses": [{"address": address} for address in addresses]}
            return await sockets.send(link, messages.pack("addresses", fields))
        both = asks_for_both(message)
        await _in_thread(link, lambda own: _measure_as_called(own, both))
    finally:
        link.close()


def asks_for_both(message: Message) -> bool:
    """What ``flow`` says. Raises MessageError."""
    if message.kind != "flow":
        raise MessageError(f"the message '{message.kind}' came where 'flow' was expected")
    return message.flag("both")


def _measure_as_caller(link: socket.socket) -> ProbeResult:
    flow = _Flow(link, sends=True)
    flow.run(end=True)
    if len(flow.tail) < _COUNT.size:
        raise sockets.Closed(errno.ECONNRESET, "the other side did not say what it has counted")
    arrived_there, took_there, busy_there = _COUNT.unpack(flow.tail)
    return ProbeResult(
        sent=_rate(arrived_there, took_there),
        received=_rate(*flow.counted()),
        round_trip=smallest_round_trip(link),
        busy=min(100, max(busy_there, flow.busy())),
    )


def _measure_as_called(link: socket.socket, both: bool) -> None:
    flow = _Flow(link, sends=both)
    flow.run(end=False)
    flow.send_rest(_COUNT.pack(*flow.counted(), flow.busy()))


def _rate(count: int, microseconds: int) -> int:
    return count * 1_000_000 // microseconds if microseconds else 0


class _Flow:
    """One connection, full of bytes in one or both directions until both have ended."""

    def __init__(self, link: socket.socket, *, sends: bool) -> None:
        self._link = link
        self._began = time.monotonic()
        self._busy_before = _busy_seconds()
        self._busy = 0
        self._sending_until = self._began + (SECONDS if sends else 0.0)
        self._deadline = self._began + SECONDS + _GRACE
        self._buffer = bytearray(_CHUNK)
        # What has arrived: since when, until the warm-up was over, until the time was over; (seconds, bytes).
        self._first: float | None = None
        self._warm = (0.0, 0)
        self._last = (0.0, 0)
        self._total = 0
        self.tail = b""
        _bound_what_is_in_flight(link)

    def run(self, *, end: bool) -> None:
        """Sends and receives until both sides have sent all they wanted. ``end``: say so, by ending our direction.

        Raises OSError, TimeoutError included.
        """
        sending, receiving = self._sending_until > self._began, True
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        while sending or receiving:
            wanted = (select.POLLOUT if sending else 0) | (select.POLLIN if receiving else 0)
            poll.modify(self._link, wanted)
            ready = poll.poll(1000 * self._time_left(sending))
            events = ready[0][1] if ready else 0
            if sending and time.monotonic() >= self._sending_until:
                sending = False
                if end:
                    self._link.shutdown(socket.SHUT_WR)
            elif sending and events & select.POLLOUT:
                self._send()
            if receiving and events & ~select.POLLOUT:
                receiving = self._receive()
            self._note_busy()

    def send_rest(self, data: bytes) -> None:
        """Raises OSError."""
        self._link.settimeout(max(0.01, self._deadline - time.monotonic()))
        self._link.sendall(data)

    def counted(self) -> tuple[int, int]:
        """Bytes, and the microseconds in which they came."""
        (began, before), (ended, after) = self._warm, self._last
        return (after - before, round(1e6 * (ended - began))) if ended > began else (0, 0)

    def busy(self) -> int:
        """Percent of the time of sending in which this thread ran, or waited for a processor instead of the link."""
        return self._busy

    def _time_left(self, sending: bool) -> float:
        now = time.monotonic()
        if now >= self._deadline:
            raise TimeoutError(errno.ETIMEDOUT, "the other side did not come to an end")
        return max(0.0, (self._sending_until if sending else self._deadline) - now)

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._link.send(_payload)

    def _receive(self) -> bool:
        """False at the end of the other side's direction."""
        try:
            count = self._link.recv_into(self._buffer)
        except BlockingIOError:
            return True
        if count == 0:
            return False
        self._total += count
        if self._total > _MOST_BYTES:
            raise OSError(errno.EMSGSIZE, "the other side sends more than anyone needs to measure")
        self._note(time.monotonic())
        self.tail = (self.tail + self._buffer[max(0, count - _COUNT.size) : count])[-_COUNT.size :]
        return True

    def _note(self, now: float) -> None:
        if self._first is None:
            self._first = now
        if now < self._first + _WARM_UP or not self._warm[1]:
            self._warm = (now, self._total)
        if now <= self._first + SECONDS:
            self._last = (now, self._total)

    def _note_busy(self) -> None:
        """Once, when the time is over."""
        if not self._busy and time.monotonic() >= self._began + SECONDS:
            share = (_busy_seconds() - self._busy_before) / (time.monotonic() - self._began)
            self._busy = max(1, round(100 * share))


def _busy_seconds() -> float:
    """Of this thread: what it ran, and waited for a processor."""
    try:
        ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return time.thread_time()


def _bound_what_is_in_flight(link: socket.socket) -> None:
    window = max(_SHALLOW, round(_FAST * smallest_round_trip(link) / 1e6))
    with contextlib.suppress(OSError):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)
        link.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _UNSENT)


def smallest_round_trip(link: socket.socket) -> int:
    """Microseconds, as TCP has seen it; 0 if it does not say."""
    try:
        information = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return 0
    if len(information) < _INFO_BYTES:
        return 0
    found = int.from_bytes(information[_MIN_RTT_OFFSET:_INFO_BYTES], "little")
    return 0 if found == 2**32 - 1 else found


async def _in_thread(link: socket.socket, work: Callable[[socket.socket], _T]) -> _T:
    """Runs this with a descriptor of its own for the connection, which is cut off when the caller is cancelled."""
    own = sockets.watched(link.dup())
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def finish(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work(own)
        except BaseException as raised:
            error = raised
        own.close()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="shoal-measure", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
        raise
