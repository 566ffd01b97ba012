"""The third phase of the rendezvous: who is in the job and who averages how much, until all are connected."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shoal.assembly.control_links import ControlLinks, Joining, Member
from shoal.assembly.rails import Rail, RailPlaces, lanes_over
from shoal.assembly.terms import MOST_LANES, Welcome, rank_on
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError
from shoal.net import messages
from shoal.tuning.channels import lanes_and_channels
from shoal.tuning.limits import limits_for
from shoal.tuning.measured import Network
from shoal.tuning.rails import fastest, filled, rail_weights, rate_over, together
from shoal.tuning.shares import rate_of, server_places
from shoal.tuning.topology import by_node, largest_node, leaders_of

_log = logging.getLogger("shoal")


def welcome_of(
    members: list[Member],
    settings: Settings,
    overrides: Mapping[str, int],
    incarnation: bytes,
    network: Network | None,
) -> Welcome:
    """``overrides``: limits that do not follow from ``network``, by name."""
    hosts = [member.host for member in members]
    leaders = _leaders(members, settings.algorithm)
    nodes = by_node(network, leaders)
    servers = server_places(hosts, settings.servers, settings.colocated, nodes, leaders)
    lanes, channels = lanes_and_channels(settings.sockets, [member.threads for member in members], nodes)
    if settings.algorithm == "ring":
        lanes, channels = settings.sockets or 1, 1  # each rank has one connection to the next
    averaging = [servers[rank] for rank in [*sorted(set(leaders)), *range(len(hosts), len(servers))]]
    return Welcome(
        incarnation=incarnation,
        hosts=tuple(hosts),
        addresses=tuple(member.address for member in members),
        servers=tuple(servers),
        lanes=lanes,
        channels=channels,
        limits=limits_for(nodes, len(set(leaders)) * lanes, overrides, largest_node(leaders)),
        peer_timeout=settings.peer_timeout,
        algorithm=settings.algorithm,
        network=network,
        rate=0 if nodes is None or "credit" in overrides else round(rate_of(averaging, nodes)),
        leaders=leaders,
        standby=settings.colocated != "never" and all(server.weight == 0 for server in servers[: len(hosts)]),
    )


def welcome_over_rails(
    members: list[Member],
    settings: Settings,
    overrides: Mapping[str, int],
    incarnation: bytes,
    networks: Sequence[Network | None],
    rails: Sequence[RailPlaces],
) -> Welcome:
    """The same where lanes are spread over several networks. ``networks``: what was measured of each."""
    measured = filled(networks)
    whole = None if measured is None else together(measured)
    welcome = welcome_of(members, settings, overrides, incarnation, whole)
    leaders = sorted(set(welcome.leaders))
    # Each channel has lanes on every network: none is lost with one of them.
    wanted = settings.sockets or welcome.channels * len(rails)
    lanes = lanes_over(len(rails), wanted, MOST_LANES)
    nodes = [by_node(network, welcome.leaders) for network in measured or ()]
    known = [network for network in nodes if network is not None]
    split = rail_weights(known, settings.colocated) if known else None
    weights = [_by_server(welcome, leaders, of_rail) for of_rail in split] if split else [_own(welcome)] * len(rails)
    servers = tuple(
        replace(server, weight=max(of_rail[index] for of_rail in weights))
        for index, server in enumerate(welcome.servers)
    )
    flows = len(leaders) * lanes // len(rails)
    return replace(
        welcome,
        addresses=rails[0].addresses,
        servers=servers,
        lanes=lanes,
        channels=min(welcome.channels, lanes // len(rails)),
        limits=limits_for(fastest(known) if known else None, flows, overrides, largest_node(welcome.leaders)),
        rate=round(rate_over(split, known)) if split and welcome.rate else 0,
        rails=tuple(Rail(places, tuple(of_rail)) for places, of_rail in zip(rails, weights, strict=True)),
        standby=settings.colocated != "never" and all(server.weight == 0 for server in servers[: len(members)]),
    )


def _own(welcome: Welcome) -> list[int]:
    return [server.weight for server in welcome.servers]


def _by_server(welcome: Welcome, leaders: Sequence[int], weights: Sequence[int]) -> list[int]:
    """``weights``: of the nodes' servers, then of the dedicated ones. A node's is its leader's."""
    of_leader = dict(zip(leaders, weights, strict=False))
    ranks = range(len(welcome.hosts))
    return [*(of_leader.get(rank, 0) for rank in ranks), *weights[len(leaders) :]]


async def connect(
    links: ControlLinks,
    welcome: Welcome,
    networks: Sequence[Network | None],
    limit: float,
    one_too_many: Callable[[Joining], object],
) -> bool:
    """Says ``welcome`` to all, and waits until they are connected to the servers. ``networks``: what was measured.

    Returns whether the ranks of each node share memory.
    """
    members = links.in_order()
    packed = messages.pack("welcome", welcome.as_fields())
    for member in members:
        await links.send(member, packed)
    _say_what_was_found(welcome, networks)
    everyone = range(len(members))
    heard = await links.hear_all("connected", everyone, limit, "to connect to the servers", one_too_many)
    ids = [heard[rank].texts("server_ids", count=len(welcome.servers)) for rank in everyone]
    _compare_ids(ids, members, welcome)
    return all(heard[rank].flag("inside") for rank in everyone)


def _leaders(members: list[Member], algorithm: str) -> tuple[int, ...]:
    if algorithm != "server":
        return tuple(range(len(members)))
    return leaders_of([(member.machine, member.local_rank) for member in members])


def _compare_ids(ids: list[list[str]], members: list[Member], welcome: Welcome) -> None:
    """All ranks must have met the same server under each address, and no server twice. "" is a server not asked."""
    first_met: dict[str, int] = {}
    for index, server in enumerate(welcome.servers):
        met = {found[index]: member for member, found in zip(members, ids, strict=True) if found[index]}
        if len(met) > 1:
            one, other = list(met.values())[:2]
            raise ConfigurationError(
                f"{one} and {other} reach different servers as {server}: give it a name or address that means the same "
                "everywhere in SHOAL_SERVERS"
            )
        for identity in met:
            if identity in first_met:
                raise ConfigurationError(
                    f"{welcome.servers[first_met[identity]]} and {server} are the same server: name it once in SHOAL_SERVERS"
                )
            first_met[identity] = index


def _say_what_was_found(welcome: Welcome, networks: Sequence[Network | None]) -> None:
    if welcome.network is None:
        return
    ranks = [rank_on(rank, host) for rank, host in enumerate(welcome.hosts)]
    servers = [str(server.address) for server in welcome.servers if server.address is not None]
    _log.info(
        "links: %s; round trip %.0f us; %d lanes of each server on %d threads; segment %d, credit %d bytes; weights %s",
        "; ".join(_of_rails(welcome, ranks, networks) or [welcome.network.describe(ranks, servers)]),
        1e6 * welcome.network.round_trip,
        welcome.lanes,
        welcome.channels,
        welcome.limits.segment,
        welcome.limits.credit,
        "; ".join(" ".join(map(str, rail.weights)) for rail in welcome.rails)
        or " ".join(str(server.weight) for server in welcome.servers),
    )


def _of_rails(welcome: Welcome, ranks: list[str], networks: Sequence[Network | None]) -> list[str]:
    """What was measured of each, behind the name of its interface on rank 0."""
    found = []
    for rail, network in zip(welcome.rails, networks, strict=False):
        servers = [str(address) for address in rail.places.servers]
        what = "not measured" if network is None else network.describe(ranks, servers)
        found.append(f"{rail.places.names[0]} {what}")
    return found
