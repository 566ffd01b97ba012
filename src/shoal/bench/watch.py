"""What the conductor sees of the machine around a turn: other processes' processor time, the machine's, the links'.

Counters are read before and after a turn, outside of what is timed.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/stat: user nice system idle iowait irq softirq steal.
_IDLE = (3, 4)
_COUNTED = 8
FOREIGN_SECONDS = 0.5


@dataclass(frozen=True)
class Links:
    """Totals of all links at one moment: bytes sent, headers included, and packets dropped by shapers (None where there are none)."""

    sent_bytes: int
    drops: int | None


@dataclass(frozen=True)
class Sight:
    """One look. None for what cannot be seen from here."""

    server_cpu: float | None
    busy: float | None
    sent_bytes: int | None
    drops: int | None


class Watch:
    """Looks at the dedicated servers ``pids`` (None: they are elsewhere), at this machine, and at what ``links`` says.

    ``others`` may be set to what gives the speeds of other flows (bytes per second) between two moments (nanoseconds).
    """

    others: Callable[[int, int], Sequence[float]] | None = None

    def __init__(
        self, pids: Iterable[int] | None = None, *, machine: bool = False, links: Callable[[], Links] | None = None
    ) -> None:
        self._pids = None if pids is None else list(pids)
        self._machine = machine
        self._links = links

    def look(self) -> Sight:
        links = self._links() if self._links is not None else None
        return Sight(
            server_cpu=None if self._pids is None else sum(map(process_cpu, self._pids)),
            busy=machine_busy() if self._machine else None,
            sent_bytes=links.sent_bytes if links is not None else None,
            drops=links.drops if links is not None else None,
        )


def process_cpu(pid: int) -> float:
    """Seconds of processor time of all living threads of a process. Raises OSError if it is gone."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def machine_busy() -> float:
    """Seconds that all processors together have worked since the start of the machine."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : 1 + _COUNTED]]
    return sum(number for index, number in enumerate(numbers) if index not in _IDLE) / _TICKS


def foreign_load() -> float:
    """Processors that something else keeps busy, while this program does nothing for FOREIGN_SECONDS."""
    before, began = machine_busy(), time.monotonic()
    time.sleep(FOREIGN_SECONDS)
    return (machine_busy() - before) / (time.monotonic() - began)


def loopback_links() -> Links:
    """What has crossed this network namespace's loopback interface."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == "lo":
            return Links(int(numbers.split()[8]), None)
    raise OSError("this machine has no loopback interface")
