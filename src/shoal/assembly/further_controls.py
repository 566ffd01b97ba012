"""The control links of a rank beside the first one, by which the job came together: one on each network in each channel.

In a channel they carry the same, so that the cut of one network loses no rank (docs/decisions/interfaces.md); each channel
has its own (docs/decisions/channels.md). A rank calls rank 0's listener. HELLO has the job's incarnation and, as its lane, the
link's number: 1 + channel · networks + network, where there are several networks; else the channel. The first link, number 0, is
in channel 0.
"""

import socket

from shoal.assembly.meeting_point import MeetingPoint
from shoal.assembly.terms import Welcome, rank_on
from shoal.config.settings import Settings
from shoal.errors import PeerLost
from shoal.net import sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role, refusal_error
from shoal.net.redial import reach_rank


async def connect_controls(
    welcome: Welcome, settings: Settings, meeting_point: MeetingPoint, deadlines: Deadlines
) -> dict[int, socket.socket]:
    """This rank's, by number; none on rank 0. Raises ShoalError for one that cannot be had."""
    links: dict[int, socket.socket] = {}
    try:
        for number in range(1, welcome.controls if settings.rank > 0 else 1):
            client = Client(
                meeting_point.secret,
                Role.CONTROL,
                settings.rank,
                lane=number,
                incarnation=welcome.incarnation,
                encrypts=settings.encrypts,
            )
            address, sources = welcome.addresses[0], meeting_point.sources
            way = f"{address}"
            if (rail := welcome.control_rail(number)) is not None:
                places = rail.places
                address, sources = places.addresses[0], [places.addresses[settings.rank].host]
                way = f"{address} from {sources[0]} ({places.names[settings.rank]})"
            called = f"{rank_on(settings.rank, socket.gethostname())} called rank 0 at {way}"
            try:
                links[number] = (await reach_rank(client, address, sources, deadlines.answer, deadlines)).link
            except HandshakeRefused as error:
                raise refusal_error(error, called) from None
            except OSError as error:
                raise PeerLost(
                    f"{called}: {sockets.why(error)}; see whether SHOAL_INTERFACE names interfaces of the same networks "
                    "everywhere, and whether a firewall is between them (SHOAL_PORT_RANGE says which ports are used)",
                    0,
                    welcome.hosts[0],
                ) from None
    except BaseException:
        close_controls(links)
        raise
    return links


def expected_controls(welcome: Welcome, rank: int) -> list[tuple[int, int]]:
    """(number, rank) of those that are to call this rank."""
    others = range(1, len(welcome.hosts)) if rank == 0 else ()
    return [(number, other) for number in range(1, welcome.controls) for other in others]


def is_expected(welcome: Welcome, number: int, rank: int) -> bool:
    """Whether that rank is to call rank 0 for this link."""
    return 1 <= number < welcome.controls and 1 <= rank < len(welcome.hosts)


def close_controls(links: dict[int, socket.socket]) -> None:
    for link in links.values():
        link.close()
