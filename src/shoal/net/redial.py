"""Calls a rank that counts as alive. A rank that is stopped, or whose interpreter is busy, is late, not lost.

A stopped process can be connected to, since its kernel answers. So a caller that is connected knows that the host is there,
probes its kernel again and again, and waits for the process without a limit. The operation that waits has its own limit, and
other ranks say if the rank is lost.
"""

import asyncio
from collections.abc import Sequence

from shoal.config.addresses import Address
from shoal.net import sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client
from shoal.net.sockets import Reached

_PAUSE = 0.1


async def reach_rank(
    client: Client, address: Address, sources: Sequence[str], silence: float, deadlines: Deadlines
) -> Reached:
    """``silence``: seconds after which a host whose kernel does not answer counts as gone.

    Raises HandshakeRefused, and OSError: nobody listens there, the host is gone, or what listens ends every connection without
    a word.
    """
    clock = asyncio.get_running_loop().time
    ended_since: float | None = None
    while True:
        began = clock()
        try:
            return await sockets.reach(client, address, sources, silence, waits=True)
        except OSError as error:
            if not sockets.says_nothing(error):
                raise
            # One that was late itself has dropped us when it went on: our time as a stranger was over.
            if clock() - began >= deadlines.stranger:
                ended_since = None
            else:
                ended_since = began if ended_since is None else ended_since
                if clock() - ended_since >= deadlines.peer:
                    raise
        await asyncio.sleep(_PAUSE)
