"""The third phase of the rendezvous: who is in the job and who averages how much, until all are connected."""

import logging
from collections.abc import Callable, Mapping

from shoal.assembly.control_links import ControlLinks, Joining, Member
from shoal.assembly.terms import Welcome, rank_on
from shoal.config.settings import Settings
from shoal.errors import ConfigurationError
from shoal.net import messages
from shoal.tuning.channels import lanes_and_channels
from shoal.tuning.limits import limits_for
from shoal.tuning.measured import Network
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


async def connect(
    links: ControlLinks, welcome: Welcome, limit: float, one_too_many: Callable[[Joining], object]
) -> bool:
    """Says ``welcome`` to all, and waits until they are connected to the servers.

    Returns whether the ranks of each node share memory.
    """
    members = links.in_order()
    packed = messages.pack("welcome", welcome.as_fields())
    for member in members:
        await links.send(member, packed)
    _say_what_was_found(welcome)
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


def _say_what_was_found(welcome: Welcome) -> None:
    if welcome.network is None:
        return
    ranks = [rank_on(rank, host) for rank, host in enumerate(welcome.hosts)]
    servers = [str(server.address) for server in welcome.servers if server.address is not None]
    _log.info(
        "links: %s; round trip %.0f us; %d lanes of each server on %d threads; segment %d, credit %d bytes; weights %s",
        welcome.network.describe(ranks, servers),
        1e6 * welcome.network.round_trip,
        welcome.lanes,
        welcome.channels,
        welcome.limits.segment,
        welcome.limits.credit,
        " ".join(str(server.weight) for server in welcome.servers),
    )
