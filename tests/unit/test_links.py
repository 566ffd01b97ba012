"""Sockets while a job comes together: what is cancelled loses nobody."""

import asyncio
import socket

from shoal import links

PATIENCE = 10.0


def test_a_caller_that_comes_as_accepting_is_cancelled_is_the_next_ones() -> None:
    async def scenario(listener: socket.socket) -> None:
        waiting = asyncio.create_task(links.accept(listener))
        await asyncio.sleep(0)
        stop, stopped = socket.socketpair()
        with stop, stopped, socket.create_connection(listener.getsockname(), timeout=PATIENCE) as caller:
            # Both can be read when the loop looks next, the listener first.
            asyncio.get_running_loop().add_reader(stopped, waiting.cancel)
            stop.send(b"\0")
            await asyncio.wait({waiting})
            asyncio.get_running_loop().remove_reader(stopped)
            assert waiting.cancelled()
            with await asyncio.wait_for(links.accept(listener), PATIENCE) as link:
                link.sendall(b"hello")
                assert caller.recv(5) == b"hello"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        asyncio.run(scenario(listener))
