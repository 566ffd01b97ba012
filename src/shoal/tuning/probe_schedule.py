"""Who measures whom before a job begins, and what follows from it: nothing here talks to anyone.

Ranks and servers at one address share one link, so what is measured is machines, each through one of its ranks or servers.
In a round every machine sends to one other and receives from one other. Nodes do so in two rounds, among themselves, in
shifts; then each dedicated server with a node, both ways at once, and again with another node. A machine's rate is its
best: whoever it was measured with may have been the slower one. Those that still seem slow are measured once more, with
one that is not. Where the processors could not fill the links, all that is known is that no link is slow.
docs/protocol/lifecycle.md, Joining.
"""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.config.addresses import Address
from shoal.tuning.measured import NOISE, Network, without_noise
from shoal.tuning.probe import ProbeResult

# Percent of the time: a thread that had more to do did not measure the link but itself. A shaped link left it 65 and more
# to sleep, one without a limit 40 and less, on 2 cores for 4 to 16 hosts.
_BUSY = 60

_log = logging.getLogger("shoal")


@dataclass
class Machine:
    """``ranks`` and ``servers`` (dedicated, by place in the list) share its link. The first rank calls, or is called."""

    address: Address
    ranks: list[int]
    servers: list[int]
    # The best of each direction until now, and the best of either that the link bounded and not a processor, in bytes
    # per second.
    up: int = 0
    down: int = 0
    bounded: int = 0

    @property
    def rate(self) -> int:
        """Of the slower direction; 0 if it is not known."""
        return min(self.up, self.down)

    @property
    def is_bounded(self) -> bool:
        """Whether ``rate`` is the link's, and not only as fast as a processor could measure."""
        return self.bounded >= (1 - NOISE) * self.rate

    @property
    def sharers(self) -> int:
        return len(self.ranks) + len(self.servers)


@dataclass(frozen=True)
class Pair:
    """Two machines that measure the link between them. ``both``: the one that is called sends as well."""

    caller: Machine
    called: Machine
    both: bool

    @property
    def rank(self) -> int:
        """The rank that calls."""
        return self.caller.ranks[0]


Round = list[Pair]


class ProbeSchedule:
    """The measurements of one job. ``addresses``: where each rank listens, by rank. ``servers``: the dedicated ones."""

    def __init__(self, addresses: Sequence[Address], servers: Sequence[Address]) -> None:
        self._ranks, self._servers = len(addresses), len(servers)
        machines: dict[str, Machine] = {}
        for rank, address in enumerate(addresses):
            machines.setdefault(address.host, Machine(address, [], [])).ranks.append(rank)
        for index, address in enumerate(servers):
            machines.setdefault(address.host, Machine(address, [], [])).servers.append(index)
        self._machines = list(machines.values())
        # The most that one machine sent to another, in bytes per second.
        self._fastest = 0
        self._round_trip: int | None = None

    def first_rounds(self) -> list[Round]:
        """None if all ranks are at one address."""
        nodes = [machine for machine in self._machines if machine.ranks]
        servers = [machine for machine in self._machines if not machine.ranks]
        count = len(nodes)
        if count < 2:
            return []
        far = max(1, count // 2)
        shifts = sorted({1, 2 if count == 3 else far})
        rounds = [[Pair(node, nodes[(i + shift) % count], False) for i, node in enumerate(nodes)] for shift in shifts]
        for first in range(0, len(servers), count):
            batch = servers[first : first + count]
            rounds += [
                [Pair(nodes[(i + shift) % count], server, True) for i, server in enumerate(batch)] for shift in (0, far)
            ]
        return rounds

    def second_look(self) -> list[Round]:
        """A round for those that seem slow, each with one that does not; for few of them, so that the others are quiet."""
        known = sorted((machine for machine in self._machines if machine.rate), key=self._link_rate)
        enough = (1 - NOISE) * max(map(self._link_rate, known), default=0.0)
        fast = [machine for machine in reversed(known) if self._link_rate(machine) >= enough]
        pairs: Round = []
        for slow in known[: len(known) - len(fast)][: max(1, len(known) // 4)]:
            # A dedicated server calls nobody.
            partner = next((machine for machine in fast if slow.ranks or machine.ranks), None)
            if partner is not None:
                fast.remove(partner)
                pairs.append(Pair(slow, partner, True) if slow.ranks else Pair(partner, slow, True))
        return [pairs] if pairs else []

    def note(self, pair: Pair, measured: ProbeResult) -> None:
        """What the caller of this pair has found."""
        _log.debug("%s to %s: %s", pair.caller.address, pair.called.address, measured)
        self._note(pair.caller, pair.called, measured.sent, measured.busy)
        self._note(pair.called, pair.caller, measured.received, measured.busy)
        if measured.round_trip:
            self._round_trip = min(measured.round_trip, self._round_trip or measured.round_trip)

    def _note(self, sender: Machine, receiver: Machine, rate: int, busy: int) -> None:
        sender.up, receiver.down = max(sender.up, rate), max(receiver.down, rate)
        self._fastest = max(self._fastest, rate)
        if busy <= _BUSY:
            sender.bounded, receiver.bounded = max(sender.bounded, rate), max(receiver.bounded, rate)

    def _link_rate(self, machine: Machine) -> int:
        """One whose link no processor could fill counts as fast as the fastest that was seen."""
        return machine.rate if machine.is_bounded else self._fastest

    def unknown(self) -> list[str]:
        """The addresses of machines about which nothing was found out."""
        return [str(machine.address) for machine in self._machines if not machine.rate]

    def network(self) -> Network | None:
        """None if nothing was found out at all. A machine that is not known counts as one like most others."""
        known = [self._link_rate(machine) for machine in self._machines if machine.rate]
        if not known:
            return None
        usual = statistics.median(known)
        nodes, servers = [usual] * self._ranks, [usual] * self._servers
        for machine in self._machines:
            each = (self._link_rate(machine) if machine.rate else usual) / machine.sharers
            for rank in machine.ranks:
                nodes[rank] = each
            for server in machine.servers:
                servers[server] = each
        rates = [max(1, round(rate)) for rate in without_noise([*nodes, *servers])]
        return Network(tuple(rates[: self._ranks]), tuple(rates[self._ranks :]), (self._round_trip or 0) / 1e6)
