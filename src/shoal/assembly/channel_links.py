"""The control links of a job's further channels: docs/decisions/channels.md.

By the first channel's the job comes together. Each of the others has one of its own from every rank to rank 0, which
listens for it where workers reach the server in its process.
"""

import socket
from collections.abc import Sequence

from shoal.assembly.terms import Welcome, rank_name
from shoal.errors import PeerLost
from shoal.net import sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Role, refusal_error
from shoal.net.redial import reach_rank


async def connect(
    welcome: Welcome, rank: int, secret: bytes, sources: Sequence[str], deadlines: Deadlines, *, encrypts: bool
) -> dict[int, socket.socket]:
    """This rank's, by channel; none on rank 0. Raises ShoalError."""
    links: dict[int, socket.socket] = {}
    try:
        for channel in range(1, welcome.channels if rank > 0 else 1):
            client = Client(
                secret, Role.CONTROL, rank, lane=channel, incarnation=welcome.incarnation, encrypts=encrypts
            )
            reached = await reach_rank(client, welcome.addresses[0], sources, deadlines.answer, deadlines)
            links[channel] = reached.link
    except (OSError, HandshakeRefused) as error:
        close(links)
        called = f"{rank_name(rank, welcome.hosts)} called {rank_name(0, welcome.hosts)} for another channel"
        if isinstance(error, HandshakeRefused):
            raise refusal_error(error, called) from None
        raise PeerLost(
            f"{called} at {welcome.addresses[0]}, and did not reach it ({sockets.why(error)}): see whether it runs, and whether a "
            "firewall is between them (SHOAL_PORT_RANGE says which ports are used)",
            0,
            welcome.hosts[0],
        ) from None
    except BaseException:
        close(links)
        raise
    return links


def close(links: dict[int, socket.socket]) -> None:
    for link in links.values():
        link.close()
