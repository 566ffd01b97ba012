"""Which networks a job has, on rank 0: the ranks have said where they are on each, dedicated servers are asked.

Rank 0's interfaces, in their order, are the rails. Whose address is in the network of one is on that rail; addresses in none
(behind a router) count in the order in which they were said.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

from shoal.assembly.control_links import Member
from shoal.assembly.rails import IpNetwork, RailPlaces, addresses_of, in_order_of, is_in
from shoal.assembly.server_links import again_until, all_or_none
from shoal.config.addresses import Address
from shoal.errors import ConfigurationError
from shoal.net import messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, refusal_error
from shoal.net.messages import MessageError


async def find_rails(
    members: Sequence[Member],
    servers: Sequence[Address],
    client: Callable[[], Client],
    sources: Sequence[str],
    deadlines: Deadlines,
) -> list[RailPlaces]:
    """One rail, without names, where SHOAL_INTERFACE does not name several. ``client``: makes one of role MEASURE.

    Raises ConfigurationError for a server that is not there, or lacks one of the networks.
    """
    if not members[0].rails:
        return [RailPlaces((), tuple(member.address for member in members), tuple(servers))]
    networks = [end.network for end in members[0].rails]
    ends = [_in_order(member, networks) for member in members]
    told = await all_or_none([_ask(address, client, sources, deadlines) for address in servers])
    found = [
        _matched(address, addresses, members[0], networks) for address, addresses in zip(servers, told, strict=True)
    ]
    return [
        RailPlaces(
            tuple(members[rank].rails[order[rail]].name for rank, order in enumerate(ends)),
            tuple(members[rank].rails[order[rail]].address for rank, order in enumerate(ends)),
            tuple(addresses[rail] for addresses in found),
        )
        for rail in range(len(networks))
    ]


def _in_order(member: Member, networks: Sequence[IpNetwork]) -> list[int]:
    order = in_order_of(networks, [end.address.host for end in member.rails])
    assert order is not None, "every rank has as many rails as rank 0"
    return order


def _matched(
    server: Address, told: Sequence[Address], zero: Member, networks: Sequence[IpNetwork]
) -> tuple[Address, ...]:
    order = in_order_of(networks, [address.host for address in told])
    if order is None:
        without = [end for end in zero.rails if not any(is_in(address.host, end.network) for address in told)]
        listens = ", ".join(map(str, told))
        missing = " and ".join(f"{end.network} ({end.name} on {zero})" for end in without)
        raise ConfigurationError(
            f"the server {server} listens at {listens}, and SHOAL_INTERFACE names {missing} as well: start it with "
            "SHOAL_INTERFACE, which names its interface in each network, or name only networks in which it is"
        )
    return tuple(told[place] for place in order)


async def _ask(
    address: Address, client: Callable[[], Client], sources: Sequence[str], deadlines: Deadlines
) -> tuple[Address, ...]:
    """The addresses at which a dedicated server listens."""

    async def attempt() -> tuple[socket.socket, bytes]:
        return await sockets.connect_as(client(), address, sources, deadlines.answer), b""

    asked = f"rank 0 asked the server {address} for its addresses"
    try:
        link, _ = await again_until(deadlines.server, attempt)
    except HandshakeRefused as error:
        raise refusal_error(error, asked) from None
    except OSError as error:
        raise ConfigurationError(
            f"rank 0 cannot reach the server {address} ({sockets.why(error)}): start it there with `shoal server`, or correct "
            "SHOAL_SERVERS"
        ) from None
    try:
        await sockets.send(link, messages.pack("where", {}))
        said = await asyncio.wait_for(sockets.receive_message(link), deadlines.answer)
        if said.kind != "addresses":
            raise MessageError(f"it said '{said.kind}'")
        return addresses_of(said, "addresses")
    except (OSError, asyncio.TimeoutError, MessageError) as error:
        raise ConfigurationError(f"{asked}, which did not say them ({error}): see its output") from None
    finally:
        link.close()
