"""How many lanes a job has, and among how many threads of each process they are divided: docs/decisions/channels.md.

One thread moves about 17 Gbit/s in both directions at once (docs/decisions/engines.md). A link that carries more than
a thread should has several, as far as the processors of every rank allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.tuning.measured import Network

# Bytes a second of a link for which one thread is enough. The rest of what it can do is for servers in its process.
_ONE_THREAD = 1.5e9

# Half of a rank's processors are the program's.
_PROCESSORS_A_THREAD = 2

MOST_CHANNELS = 8


@dataclass(frozen=True)
class Threads:
    """What a rank says of its threads. ``asked``: SHOAL_THREADS, 0 if it is not set; ``processors``: its own."""

    asked: int
    processors: int


def lanes_and_channels(sockets: int | None, ranks: Sequence[Threads], network: Network | None) -> tuple[int, int]:
    """``sockets``: SHOAL_SOCKETS; None: as many lanes as channels. ``ranks``: what each says; the least counts. Who sets both
    gets what was asked for, whatever the links and processors.

    ``network``: one rate a node; None where nothing was measured.
    """
    asked = min((rank.asked for rank in ranks if rank.asked > 0), default=0)
    wanted = 1 if network is None else -int(-network.rate // _ONE_THREAD)
    possible = min(rank.processors for rank in ranks) // _PROCESSORS_A_THREAD
    found = max(1, min(wanted, possible, MOST_CHANNELS))
    if sockets is None:
        channels = min(found, asked or found)
        return channels, channels
    return sockets, min(sockets, asked or found)
