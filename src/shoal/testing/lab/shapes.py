"""What a link is like, and how rates and sizes are written.

Words are those of tc(8): ``400mbit``, ``1gbit``, ``256kb``; a kb is 1024 bytes there, a kbit 1000 bits.
"""

import math
import re
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * 1024
MIN_OFFLOAD = 4 * KIB
MAX_OFFLOAD = 64 * KIB  # Linux' own, unless one asks for more

_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)
_RATE_UNITS = {  # bits per second; "bps" is bytes per second, as tc has it
    "": 1,
    **{f"{prefix}bit": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ibit": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)},
    **{f"{prefix}bps": 8 * 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ibps": 8 * 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)},
}
_SIZE_UNITS = {  # bytes
    "": 1,
    "b": 1,
    **{unit: KIB**power for power, prefix in enumerate(("k", "m", "g"), start=1) for unit in (prefix, f"{prefix}b")},
}


@dataclass(frozen=True)
class LinkShape:
    """The link between a host and the switch.

    ``rate``: bits per second that the host can send, and also receive unless ``receive_rate`` says otherwise; None is
    as fast as the machine can. Counted are Ethernet frames with their 14 bytes of header, so that TCP with a MTU of
    1500 carries 1448 of 1514 bytes. ``queue``: bytes that wait at each end of the link before more are dropped;
    ``send_queue`` is for the host's end, where it differs. ``burst``: bytes that a link which was idle lets through at
    once. ``congestion_control``: that of the host's new TCP connections; None is the machine's. ``offload``: bytes that
    the host's TCP hands to the link in one piece, which is then queued or dropped as one; None is a quarter of the
    smaller queue, within 8 and 64 KiB. ``slow_start_after_idle``: Linux' setting of that name: connections that sent
    nothing for a while start slowly, unless their congestion control is bbr. Raises ValueError for what cannot be.
    """

    rate: float | None = None
    receive_rate: float | None = None
    queue: int = 4 * MIB
    burst: int = 128 * KIB
    congestion_control: str | None = None
    send_queue: int | None = None
    offload: int | None = None
    slow_start_after_idle: bool = True

    def __post_init__(self) -> None:
        for name, rate in (("rate", self.rate), ("receive_rate", self.receive_rate)):
            # tc counts in whole bytes per second, and takes 0 for no rate at all.
            if rate is not None and not (math.isfinite(rate) and rate >= 8):
                raise ValueError(f"{name} is at least 8 bits per second, or None for no limit, not {rate}")
        for name, size in (("queue", self.queue), ("burst", self.burst), ("send_queue", self.sending_queue)):
            if not 1 <= size < 1 << 32:
                raise ValueError(f"{name} is a number of bytes from 1 to 4 GiB, not {size}")
        if not MIN_OFFLOAD <= self.largest_piece <= MAX_OFFLOAD:
            raise ValueError(f"offload is a number of bytes from {MIN_OFFLOAD} to {MAX_OFFLOAD}, not {self.offload}")
        if self.congestion_control is not None and not re.fullmatch(r"[\w-]{1,15}", self.congestion_control):
            raise ValueError(f"{self.congestion_control!r} cannot be the name of a congestion control")

    @property
    def sending(self) -> float | None:
        """Bits per second from the host to the switch."""
        return self.rate

    @property
    def receiving(self) -> float | None:
        """Bits per second from the switch to the host."""
        return self.rate if self.receive_rate is None else self.receive_rate

    @property
    def sending_queue(self) -> int:
        """Bytes that wait at the host's end."""
        return self.queue if self.send_queue is None else self.send_queue

    @property
    def largest_piece(self) -> int:
        """Bytes that the host's TCP hands to the link at once."""
        if self.offload is not None:
            return self.offload
        if self.rate is None and self.receive_rate is None:
            return MAX_OFFLOAD
        # A switch drops frames. Whole pieces that hardly fit into a queue are dropped one after the other instead: one
        # bbr flow got 1.5 % of its link where queue and pieces were 64 KiB, and 99.9 % with pieces of 16 KiB.
        return min(MAX_OFFLOAD, max(2 * MIN_OFFLOAD, min(self.queue, self.sending_queue) // 4))


def parse_rate(text: str) -> float:
    """Bits per second: ``parse_rate("400mbit") == 400e6``, ``parse_rate("50mbps") == 400e6``. Raises ValueError."""
    return _parse(text, _RATE_UNITS, "rate", "400mbit, 1gbit, 2.5gbit")


def parse_size(text: str) -> int:
    """Bytes: ``parse_size("256kb") == 262144``. Raises ValueError."""
    return round(_parse(text, _SIZE_UNITS, "size", "65536, 256kb, 4mb"))


def _parse(text: str, units: dict[str, int], kind: str, examples: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not a {kind}: write it as tc does, for example {examples}")
    return float(match[1]) * units[match[2].lower()]
