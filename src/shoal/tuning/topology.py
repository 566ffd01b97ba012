"""Which ranks are one node: those that can share memory.

Hostnames do not tell: containers and namespaces share one, or each machine of a fleet has the same. What two ranks need is
one kernel and one network namespace, since memory is handed over a socket that has its name there. A machine's ranks
are cut into several nodes where a launcher says so: with each local rank 0 a node begins (``shoal run --nodes``).
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.tuning.measured import Network

# The most ranks that can share memory (native/drivers/shm/memory.h).
MOST_RANKS = 64


def machine() -> str:
    """Names this kernel and this process's network namespace. A name of its own where they cannot be found out."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = os.fsencode(Path("/proc/self/ns/net").readlink())
    except OSError:
        return os.urandom(16).hex()
    return hashlib.sha256(boot + namespace).hexdigest()[:32]


def processors(ranks_here: int) -> int:
    """Of this rank: those that it may use, or its part of all where it may use all, as the other ranks of its machine may."""
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else max(1, usable // ranks_here)


def leaders_of(places: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """By rank: the first rank of its node, which speaks for it. ``places``: machine and local rank, by rank.

    Every rank is a node of its own if any node would have more than MOST_RANKS.
    """
    latest: dict[str, int] = {}
    leaders: list[int] = []
    for rank, (name, local_rank) in enumerate(places):
        if local_rank == 0 or name not in latest:
            latest[name] = rank
        leaders.append(latest[name])
    if largest_node(leaders) > MOST_RANKS:
        return tuple(range(len(places)))
    return tuple(leaders)


def largest_node(leaders: Sequence[int]) -> int:
    """The ranks of the node that has most."""
    return max(leaders.count(leader) for leader in set(leaders))


def by_node(network: Network | None, leaders: Sequence[int]) -> Network | None:
    """The same links with one rate for each node, in the order of the leaders: its ranks share one."""
    if network is None:
        return None
    rates = [
        sum(rate for rate, leader in zip(network.node_rates, leaders, strict=True) if leader == node)
        for node in sorted(set(leaders))
    ]
    return replace(network, node_rates=tuple(rates))
