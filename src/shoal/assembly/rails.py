"""Rails: the networks over which the lanes of a job are spread, one for each interface of SHOAL_INTERFACE.

Lane i runs over rail i mod their number, with both ends in that network. docs/decisions/interfaces.md.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.config.addresses import Address
from shoal.net.messages import Fields, Message, MessageError

# More interfaces than a machine has for one job.
MOST_RAILS = 8

_LONGEST_PREFIX = 128

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class RailEnd(NamedTuple):
    """Where a rank listens on one rail. ``name``: the interface's on its machine. ``prefix``: the length of its network's."""

    name: str
    address: Address
    prefix: int

    @property
    def network(self) -> IpNetwork:
        return ipaddress.ip_network((self.address.host, self.prefix), strict=False)

    def as_fields(self) -> Fields:
        return {"name": self.name, "address": self.address, "prefix": self.prefix}


@dataclass(frozen=True)
class RailPlaces:
    """Where everyone is on one rail: by rank the interface's name and the address, by dedicated server the address.

    ``names``: empty where there is only one rail, which has no interface of its own: whatever leads to a peer is used.
    """

    names: tuple[str, ...]
    addresses: tuple[Address, ...]
    servers: tuple[Address, ...]


@dataclass(frozen=True)
class Rail:
    """A rail as the coordinator decided. ``weights``: by server, of each of its lanes on this rail."""

    places: RailPlaces
    weights: tuple[int, ...]

    def as_fields(self) -> Fields:
        return {
            "names": self.places.names,
            "addresses": [{"address": address} for address in self.places.addresses],
            "servers": [{"address": address} for address in self.places.servers],
            "weights": self.weights,
        }


def parse_rail(message: Message, ranks: int, servers: int, most_weight: int) -> Rail:
    """``servers``: the dedicated ones. Raises MessageError."""
    places = RailPlaces(
        tuple(message.texts("names", count=ranks)),
        addresses_of(message, "addresses", ranks),
        addresses_of(message, "servers", servers),
    )
    return Rail(places, tuple(message.integers("weights", 0, most_weight, count=ranks + servers)))


def addresses_of(message: Message, name: str, count: int | None = None) -> tuple[Address, ...]:
    """Raises MessageError."""
    return tuple(Address(*entry.address("address")) for entry in message.messages(name, count))


def parse_ends(message: Message) -> tuple[RailEnd, ...]:
    """``rails`` of ``join``: none, or several. Raises MessageError."""
    ends = []
    for entry in message.messages("rails"):
        end = RailEnd(
            entry.text("name"), Address(*entry.address("address")), entry.integer("prefix", 0, _LONGEST_PREFIX)
        )
        try:
            end.network  # noqa: B018 (whether there is one)
        except ValueError as error:
            raise MessageError(
                f"message '{message.kind}': the field 'rails' has an address without network: {error}"
            ) from None
        ends.append(end)
    if len(ends) == 1 or len(ends) > MOST_RAILS:
        raise MessageError(
            f"message '{message.kind}': the field 'rails' has {len(ends)} entries, not 0 or 2 to {MOST_RAILS}"
        )
    return tuple(ends)


def lanes_over(rails: int, lanes: int, most: int) -> int:
    """The lanes of a job that asks for so many: as many on every rail, at most ``most`` in all."""
    return min(-(-lanes // rails), most // rails) * rails


def in_order_of(networks: Sequence[IpNetwork], hosts: Sequence[str]) -> list[int] | None:
    """By network, the place of the host that is in it. A host in none of them takes the place that is left at its own.

    None if some network has no host.
    """
    order: list[int | None] = [
        place if place < len(hosts) and is_in(hosts[place], network) else None for place, network in enumerate(networks)
    ]
    for place, network in enumerate(networks):
        if order[place] is None:
            order[place] = next((at for at, host in enumerate(hosts) if at not in order and is_in(host, network)), None)
    if len(hosts) == len(networks):
        left = [at for at in range(len(hosts)) if at not in order]
        order = [left.pop(0) if at is None else at for at in order]
    return None if None in order else [at for at in order if at is not None]


def is_in(host: str, network: IpNetwork) -> bool:
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False
