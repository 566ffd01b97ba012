"""What the coordinator decided, as it goes to the ranks (``welcome``) and from them to the servers (``job``).

docs/protocol/format.md, Messages. At a server the first ``job`` message of an incarnation makes the job, and every later
one must be equal.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from shoal.assembly.rails import MOST_RAILS, Rail, parse_rail
from shoal.config.addresses import Address
from shoal.config.launchers import MOST_RANKS
from shoal.config.settings import ALGORITHMS, LONGEST_PEER_TIMEOUT, Limits
from shoal.errors import ConfigurationError
from shoal.net.messages import Fields, Message, MessageError
from shoal.tuning.measured import Network
from shoal.tuning.shares import LARGEST_WEIGHT, ServerPlace

# Lanes are one byte in HELLO; settings allow fewer.
MOST_LANES = 64
MOST_SERVERS = 2 * MOST_RANKS * MOST_LANES
_MOST_WEIGHT = max(2 * MOST_RANKS, LARGEST_WEIGHT)
_LARGEST_UNSIGNED = 2**32 - 1
_LARGEST_RATE = 2**48

_owner = os.urandom(16)


def owner() -> bytes:
    """16 bytes that name this process to servers. A forked child has its own."""
    return _owner


def _draw_owner() -> None:
    global _owner
    _owner = os.urandom(16)


os.register_at_fork(after_in_child=_draw_owner)


@dataclass(frozen=True)
class JobTerms:
    """What a server must know of a job. ``weights`` by server index, lanes included; ``hosts`` by rank; ``peer_timeout`` in
    seconds: a server has the patience of each job on that job's links. ``leaders``: by rank, the first rank of its node;
    empty where every rank is a node of its own. ``lanes`` of each server, spread over ``networks`` and divided
    among ``channels``."""

    weights: tuple[int, ...]
    hosts: tuple[str, ...]
    limits: Limits
    peer_timeout: int
    algorithm: str = "server"
    leaders: tuple[int, ...] = ()
    lanes: int = 1
    networks: int = 1
    channels: int = 1

    @property
    def size(self) -> int:
        return len(self.hosts)

    def channel_of(self, index: int) -> int:
        """Of the lane with this server index, as JobConfig::channel_of."""
        return index % self.lanes // self.networks % self.channels

    def job_fields(self, owner: bytes, index: int, attempt: int = 0) -> Fields:
        """The message ``job`` to the server with this index. ``attempt``: 0 at the start, then it counts the times that this
        server was lost and tried again."""
        return {
            "owner": owner.hex(),
            "size": self.size,
            "index": index,
            "attempt": attempt,
            "weights": self.weights,
            "hosts": self.hosts,
            "leaders": self.leaders,
            "algorithm": self.algorithm,
            "lanes": self.lanes,
            "networks": self.networks,
            "channels": self.channels,
            **_limits_fields(self.limits),
            "peer_timeout": self.peer_timeout,
        }

    def difference(self, other: "JobTerms") -> str:
        """The name of a field in which two differ, "" if they are equal."""
        if self.limits != other.limits:
            return next(f.name for f in fields(Limits) if getattr(self.limits, f.name) != getattr(other.limits, f.name))
        names = ("weights", "hosts", "leaders", "peer_timeout", "algorithm", "lanes", "networks", "channels")
        return next((name for name in names if getattr(self, name) != getattr(other, name)), "")


@dataclass(frozen=True)
class JobRequest:
    """A ``job`` message that was checked."""

    owner: bytes
    index: int
    attempt: int
    terms: JobTerms


def parse_job(message: Message) -> JobRequest:
    """Raises MessageError naming a field that is missing or out of range."""
    if message.kind != "job":
        raise MessageError(f"the message '{message.kind}' came where 'job' was expected")
    size = message.integer("size", 1, MOST_RANKS)
    weights = tuple(message.integers("weights", 0, _MOST_WEIGHT))
    if not any(weights) or len(weights) > MOST_SERVERS:
        raise MessageError("message 'job': the field 'weights' has no server above zero, or too many servers")
    index = message.integer("index", 0, len(weights) - 1)
    hosts = tuple(message.texts("hosts", count=size))
    terms = JobTerms(
        weights,
        hosts,
        _parse_limits(message),
        _parse_peer_timeout(message),
        _parse_algorithm(message),
        _parse_leaders(message, size) if message.integers("leaders", 0, size - 1) else (),
        *_parse_lanes(message),
    )
    averaging = {terms.channel_of(index) for index, weight in enumerate(weights) if weight > 0}
    if terms.algorithm == "ring" and (terms.channels > 1 or terms.leaders):
        raise MessageError("message 'job': the ring has one channel, and each rank is a node of its own")
    if len(weights) % terms.lanes or len(averaging) < terms.channels:
        raise MessageError("message 'job': the fields 'lanes', 'networks' and 'channels' do not fit to its servers")
    attempt = message.integer("attempt", 0, _LARGEST_UNSIGNED)
    return JobRequest(message.identity("owner"), index, attempt, terms)


@dataclass(frozen=True)
class Welcome:
    """Everything that the coordinator decided. ``addresses``: where each rank listens, by rank. ``peer_timeout`` in seconds."""

    incarnation: bytes
    hosts: tuple[str, ...]
    addresses: tuple[Address, ...]
    # By rank: the first rank of its node.
    leaders: tuple[int, ...]
    servers: tuple[ServerPlace, ...]
    lanes: int
    limits: Limits
    peer_timeout: int
    algorithm: str = "server"
    # Threads of each rank among which its lanes are divided: JobConfig::channel_of.
    channels: int = 1
    # None if nothing was measured.
    network: Network | None = None
    # Bytes a second of an all-reduce that the measured links allow. 0: unknown, or windows are to stay as they are.
    rate: int = 0
    # Co-located servers without a share have links too, and average when no dedicated one is left.
    standby: bool = False
    # None where lanes are not spread over several networks, else at least two, of which ``lanes`` is a multiple.
    rails: tuple[Rail, ...] = ()

    @property
    def networks(self) -> int:
        """Over which lanes are spread."""
        return len(self.rails) or 1

    @property
    def controls(self) -> int:
        """Control links of a rank: one on each network in each channel. Where there are several networks, the first link, by
        which the job came together, is one more: it runs wherever the ranks meet, which may be on any network or on none.
        """
        return self.channels if not self.rails else 1 + self.networks * self.channels

    def control_channel(self, number: int) -> int:
        """Of the control link with this number."""
        return number if not self.rails else max(0, number - 1) // self.networks

    def control_rail(self, number: int) -> Rail | None:
        """Over which that link runs; None for the first, and where there is one network."""
        return self.rails[(number - 1) % self.networks] if self.rails and number else None

    def is_linked(self, server: ServerPlace) -> bool:
        """Whether every worker has a link to it from the start: it has a share, or may get one when others are lost."""
        return server.weight > 0 or server.rank is None or self.standby

    def node_of(self, rank: int) -> list[int]:
        """All ranks of its node, ascending."""
        return [other for other, leader in enumerate(self.leaders) if leader == self.leaders[rank]]

    @property
    def shares_memory(self) -> bool:
        """Whether ranks are to share memory with others of their node: some node has several."""
        return len(set(self.leaders)) < len(self.leaders)

    @property
    def terms(self) -> JobTerms:
        weights = tuple(self._weight_of(index) for index in range(len(self.servers) * self.lanes))
        return JobTerms(
            weights,
            self.hosts,
            self.limits,
            self.peer_timeout,
            self.algorithm,
            self.leaders if self.shares_memory else (),
            self.lanes,
            self.networks,
            self.channels,
        )

    def server_names(self) -> list[str]:
        """By server index, lanes included: for messages, and to know the lanes of a server, which have one name.

        Its lanes on each rail have one of their own, since an interface is lost apart from the others.
        """
        return [self._name_of(index) for index in range(len(self.servers) * self.lanes)]

    def server_ranks(self) -> list[int]:
        """By server index, lanes included: the rank whose process holds it, or -1."""
        ranks = [-1 if server.rank is None else server.rank for server in self.servers]
        return [rank for rank in ranks for _ in range(self.lanes)]

    def where(self, index: int) -> Address:
        """Where the server with this index listens, lanes included."""
        server = self.servers[index // self.lanes]
        if (rail := self._rail_of(index)) is not None:
            return (rail.places.addresses + rail.places.servers)[index // self.lanes]
        return self.addresses[server.rank] if server.rank is not None else _present(server.address)

    def sources(self, index: int, rank: int) -> list[str] | None:
        """This rank's addresses from which that server is called; None: any that SHOAL_INTERFACE allows."""
        rail = self._rail_of(index)
        return None if rail is None else [rail.places.addresses[rank].host]

    def way(self, index: int, rank: int) -> str:
        """Over which of its interfaces this rank calls that server, for messages; "" if there is one network."""
        rail = self._rail_of(index)
        return "" if rail is None else f" from {rail.places.addresses[rank].host} ({rail.places.names[rank]})"

    def ways_to(self, rank: int, own: int) -> list[tuple[Address, list[str] | None]]:
        """Where that rank listens on each network, with this rank's address to come from; None: any that is allowed."""
        first: list[tuple[Address, list[str] | None]] = [(self.addresses[rank], None)]
        further = [rail.places.addresses for rail in self.rails if rail.places.addresses[rank] != self.addresses[rank]]
        return [*first, *((addresses[rank], [addresses[own].host]) for addresses in further)]

    def lanes_with(self, index: int) -> list[int]:
        """The indices of a server's lanes that run over the same network as this one, in the same channel."""
        lane = index % self.lanes
        row, network = divmod(lane, self.networks)
        step = self.networks * self.channels
        first = row % self.channels * self.networks + network
        return [index - lane + other for other in range(first, self.lanes, step)]

    def _rail_of(self, index: int) -> Rail | None:
        return self.rails[index % self.lanes % len(self.rails)] if self.rails else None

    def _weight_of(self, index: int) -> int:
        rail, server = self._rail_of(index), index // self.lanes
        return self.servers[server].weight if rail is None else rail.weights[server]

    def _name_of(self, index: int) -> str:
        rail, server = self._rail_of(index), self.servers[index // self.lanes]
        if rail is None:
            return str(server)
        if server.rank is None:
            return f"{self.where(index)} ({rail.places.names[0]})"
        return f"{server.host} (rank {server.rank}, {rail.places.names[server.rank]})"

    def as_fields(self) -> Fields:
        return {
            "incarnation": self.incarnation.hex(),
            "nodes": [
                {"host": host, "address": address} for host, address in zip(self.hosts, self.addresses, strict=True)
            ],
            "servers": [
                {"host": server.host, "address": server.address, "rank": server.rank, "weight": server.weight}
                for server in self.servers
            ],
            "lanes": self.lanes,
            "networks": self.networks,
            "channels": self.channels,
            "algorithm": self.algorithm,
            "network": None if self.network is None else _network_fields(self.network),
            "rate": self.rate,
            "leaders": self.leaders,
            "standby": self.standby,
            "rails": [rail.as_fields() for rail in self.rails],
            **_limits_fields(self.limits),
            "peer_timeout": self.peer_timeout,
        }


def parse_welcome(message: Message, size: int) -> Welcome:
    """Raises MessageError naming a field that is missing or out of range."""
    if message.kind != "welcome":
        raise MessageError(f"the message '{message.kind}' came where 'welcome' was expected")
    nodes = message.messages("nodes", count=size)
    servers = tuple(_parse_server(server, size) for server in message.messages("servers"))
    lanes, networks, channels = _parse_lanes(message)
    return Welcome(
        incarnation=message.identity("incarnation"),
        hosts=tuple(node.text("host") for node in nodes),
        addresses=tuple(Address(*node.address("address")) for node in nodes),
        servers=servers,
        lanes=lanes,
        channels=channels,
        limits=_parse_limits(message),
        peer_timeout=_parse_peer_timeout(message),
        algorithm=_parse_algorithm(message),
        network=None if message.is_null("network") else _parse_network(message.message("network"), size, servers),
        rate=message.integer("rate", 0, _LARGEST_RATE),
        leaders=_parse_leaders(message, size),
        standby=message.flag("standby"),
        rails=_parse_rails(message, size, servers, networks),
    )


def _parse_lanes(message: Message) -> tuple[int, int, int]:
    """Lanes, networks and channels."""
    lanes = message.integer("lanes", 1, MOST_LANES)
    networks = message.integer("networks", 1, min(lanes, MOST_RAILS))
    if lanes % networks:
        raise MessageError(f"message '{message.kind}': {lanes} lanes cannot be spread over {networks} networks")
    return lanes, networks, message.integer("channels", 1, lanes // networks)


def _parse_rails(message: Message, size: int, servers: Sequence[ServerPlace], networks: int) -> tuple[Rail, ...]:
    dedicated = sum(server.rank is None for server in servers)
    rails = tuple(parse_rail(rail, size, dedicated, _MOST_WEIGHT) for rail in message.messages("rails"))
    if len(rails) != (networks if networks > 1 else 0):
        raise MessageError(f"message '{message.kind}': {networks} networks and {len(rails)} rails do not fit")
    if not rails:
        return ()
    if not any(weight for rail in rails for weight in rail.weights):
        raise MessageError(f"message '{message.kind}': no server has a weight on any rail")
    if [server.rank for server in servers] != [*range(size), *[None] * dedicated]:
        raise MessageError(f"message '{message.kind}': there are rails, and the servers are not in their order")
    return rails


def _parse_leaders(message: Message, size: int) -> tuple[int, ...]:
    leaders = tuple(message.integers("leaders", 0, size - 1, count=size))
    if any(leaders[leader] != leader for leader in leaders):
        raise MessageError(
            f"message '{message.kind}': the field 'leaders' names a rank that is not the first of its node"
        )
    return leaders


def _parse_server(server: Message, size: int) -> ServerPlace:
    rank = None if server.is_null("rank") else server.integer("rank", 0, size - 1)
    address = None if server.is_null("address") else Address(*server.address("address"))
    if (rank is None) == (address is None):
        raise MessageError(f"{server.kind} has both a rank and an address, or neither")
    return ServerPlace(server.text("host"), server.integer("weight", 0, _MOST_WEIGHT), rank, address)


def _network_fields(network: Network) -> Fields:
    return {
        "node_rates": network.node_rates,
        "server_rates": network.server_rates,
        "round_trip": round(network.round_trip * 1e6),
    }


def _parse_network(message: Message, size: int, servers: Sequence[ServerPlace]) -> Network:
    dedicated = sum(server.address is not None for server in servers)
    return Network(
        tuple(message.integers("node_rates", 1, _LARGEST_RATE, count=size)),
        tuple(message.integers("server_rates", 1, _LARGEST_RATE, count=dedicated)),
        message.integer("round_trip", 0, _LARGEST_UNSIGNED) / 1e6,
    )


def _limits_fields(limits: Limits) -> Fields:
    return {entry.name: getattr(limits, entry.name) for entry in fields(limits)}


def _parse_limits(message: Message) -> Limits:
    values = {entry.name: message.integer(entry.name, 0, _LARGEST_UNSIGNED) for entry in fields(Limits)}
    try:
        return Limits(**values)
    except ConfigurationError as error:
        raise MessageError(f"message '{message.kind}': {error}") from None


def _parse_peer_timeout(message: Message) -> int:
    return message.integer("peer_timeout", 1, LONGEST_PEER_TIMEOUT)


def _parse_algorithm(message: Message) -> str:
    algorithm = message.text("algorithm")
    if algorithm not in ALGORITHMS:
        raise MessageError(f"message '{message.kind}': the field 'algorithm' is {algorithm!r}, not one of {ALGORITHMS}")
    return algorithm


def _present(address: Address | None) -> Address:
    assert address is not None, "a dedicated server has an address"
    return address


def rank_on(rank: int, host: str) -> str:
    """How a rank on that host is called in messages: "rank 3 (host)", as by the native core."""
    return f"rank {rank} ({host})"


def rank_name(rank: int, hosts: Sequence[str]) -> str:
    """The same. ``hosts``: the host of each rank, by rank."""
    return rank_on(rank, hosts[rank])
