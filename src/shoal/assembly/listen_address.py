"""The addresses at which a rank listens for the others: one on each network of SHOAL_INTERFACE, never all.

Without SHOAL_INTERFACE it is the address that the rank uses toward rank 0. Rank 0's own is the one at which the others have reached it. If rank 0's
name means the loopback on its own machine only, its neighbours there use the address that leads to other machines.
"""

import socket
from collections import Counter
from typing import NamedTuple

from shoal.assembly.meeting_point import MeetingPoint
from shoal.assembly.rendezvous import Rendezvous
from shoal.config.addresses import default_source, is_loopback, is_unix
from shoal.net import sockets


class OwnInterface(NamedTuple):
    """``name``: of the interface; "" where none was asked for. ``prefix``: the length of the network's."""

    name: str
    host: str
    prefix: int


def own_interfaces(meeting_point: MeetingPoint, toward: str, one_machine: bool) -> list[OwnInterface]:
    """Where to listen: on every interface of SHOAL_INTERFACE, in its order, else at ``toward``, the address toward the others.

    The order is the same whichever interface led to rank 0: it decides where addresses are in no network of rank 0's. A job of
    one machine has one network, its loopback.
    """
    found = []
    if not (one_machine or is_unix(toward) or is_loopback(toward)):
        for interface in meeting_point.interfaces:
            own = next((one for one in interface.addresses if str(one.ip) == toward), None)
            address = own or interface.address_like(toward)
            found.append(OwnInterface(interface.name, str(address.ip), address.network.prefixlen))
    return found if any(one.host == toward for one in found) else [OwnInterface("", toward, 0)]


def address_toward_others(meeting_point: MeetingPoint, control: socket.socket) -> str:
    """Of every rank but the first. ``control``: its link to rank 0."""
    if is_unix(meeting_point.address.host):
        return meeting_point.address.host
    used = sockets.local_address(control).host
    return _toward_other_machines(meeting_point, used) if is_loopback(used) and meeting_point.is_by_name else used


async def address_of_rank_zero(meeting_point: MeetingPoint, rendezvous: Rendezvous) -> str:
    """Waits for the other ranks where rank 0 is met at several addresses. Raises what went wrong before they came."""
    if is_unix(meeting_point.address.host):
        return meeting_point.address.host
    if len(meeting_point.listeners) == 1 and not meeting_point.everywhere:
        met_at = sockets.local_address(meeting_point.listeners[0]).host
        return met_at if is_loopback(met_at) or not meeting_point.sources else meeting_point.sources[0]
    return _most_useful(meeting_point, await rendezvous.reached_at())


def _most_useful(meeting_point: MeetingPoint, reached: list[str]) -> str:
    """``reached``: the addresses at which others came. Who could come by IPv6 has tried that first, so IPv4 is everyone's."""
    far = [host for host in reached if not is_loopback(host)]
    if not far:
        return _toward_other_machines(meeting_point, reached[0])
    if meeting_point.sources:
        return meeting_point.sources[0]
    common = [host for host in far if ":" not in host] or far
    return Counter(common).most_common(1)[0][0]


def _toward_other_machines(meeting_point: MeetingPoint, loopback: str) -> str:
    if not meeting_point.leaves_machine:
        return loopback
    return meeting_point.sources[0] if meeting_point.sources else default_source() or loopback
