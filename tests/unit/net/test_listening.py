"""Listening while a job comes together: at every address of a name, what is cancelled loses nobody, and descriptors run out."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator

import pytest

from shoal.config.addresses import Address, Resolved
from shoal.errors import ConfigurationError
from shoal.net import listening, sockets

PATIENCE = 10.0


def test_a_caller_that_comes_as_accepting_is_cancelled_is_the_next_ones() -> None:
    async def scenario(listener: socket.socket) -> None:
        waiting = asyncio.create_task(listening.accept(listener))
        await asyncio.sleep(0)
        stop, stopped = socket.socketpair()
        with stop, stopped, socket.create_connection(listener.getsockname(), timeout=PATIENCE) as caller:
            # Both can be read when the loop looks next, the listener first.
            asyncio.get_running_loop().add_reader(stopped, waiting.cancel)
            stop.send(b"\0")
            await asyncio.wait({waiting})
            asyncio.get_running_loop().remove_reader(stopped)
            assert waiting.cancelled()
            with await asyncio.wait_for(listening.accept(listener), PATIENCE) as link:
                link.sendall(b"hello")
                assert caller.recv(5) == b"hello"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        asyncio.run(scenario(listener))


def resolving(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    """Every name stands for these addresses, as a name server or /etc/hosts may say."""
    found = [Resolved(socket.AF_INET6 if ":" in host else socket.AF_INET, host) for host in hosts]

    def resolve(address: Address) -> list[Resolved]:
        return [
            Resolved(family, (host, address.port, 0, 0) if ":" in host else (host, address.port))
            for family, host in found
        ]

    monkeypatch.setattr(listening, "resolve", resolve)


def addresses_of(listeners: list[socket.socket]) -> list[tuple[str, int]]:
    found = [listener.getsockname()[:2] for listener in listeners]
    listening.close_all(listeners)
    return found


def test_a_name_is_listened_at_at_every_address_that_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["192.0.2.7", "::1", "2001:db8::7", "127.0.0.2"])
    (first, port), second = addresses_of(listening.listen(Address("head", 0)))
    assert (first, second) == ("::1", ("127.0.0.2", port))


def test_a_name_without_an_address_of_this_machine_cannot_be_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["192.0.2.7", "192.0.2.8"])
    with pytest.raises(OSError, match="assign requested address"):
        listening.listen(Address("head", 0))


def test_a_port_of_a_range_that_is_kept_for_others_is_not_taken() -> None:
    with listening.listen_in_range("127.0.0.1", None) as any_free:
        port = any_free.getsockname()[1]
    with listening.listen_in_range("127.0.0.1", (port, port), 29500) as listener:
        assert listener.getsockname()[1] == port
    with pytest.raises(ConfigurationError, match=rf"taken on 127\.0\.0\.1, or kept .*\(MASTER_PORT={port}\); widen it"):
        listening.listen_in_range("127.0.0.1", (port, port), port)


def test_a_port_that_is_taken_at_one_of_the_addresses_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        resolving(monkeypatch, ["127.0.0.3", "127.0.0.2"])
        with pytest.raises(OSError, match="in use"):
            listening.listen(Address("head", port))
        with socket.create_server(("127.0.0.3", port)):
            pass  # what it had bound before is free again


@contextlib.contextmanager
def room_for(descriptors_more: int) -> Iterator[None]:
    """This process may open so many more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + descriptors_more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_a_descriptor_a_stranger_makes_room_and_else_the_caller_is_let_go_and_that_is_said() -> None:
    dropped: list[str] = []
    exhausted: list[OSError] = []
    arrived: list[socket.socket] = []

    async def handle(link: socket.socket, proven: Callable[[], None]) -> None:
        arrived.append(link)
        await sockets.readable(link)
        proven()
        await asyncio.sleep(PATIENCE)

    async def until(condition: Callable[[], bool]) -> None:
        async def look() -> None:
            while not condition():
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), PATIENCE)

    async def scenario(listener: socket.socket, callers: list[socket.socket]) -> None:
        acceptor = listening.Acceptor(
            [listener], handle, lambda name, why: dropped.append(str(why)), 100, exhausted.append
        )
        running = asyncio.create_task(acceptor.run())
        await asyncio.sleep(0)
        with room_for(2):
            for place, caller in enumerate(callers[:2], 1):
                caller.connect(listener.getsockname())
                await until(lambda place=place: len(arrived) == place)  # type: ignore[misc]
            callers[2].connect(listener.getsockname())
            await until(lambda: len(arrived) == 3)
            assert ["had not said who it is" in why for why in dropped] == [True]
            assert callers[0].recv(1) == b""
            assert not exhausted
            for caller in callers[1:3]:
                caller.send(b"\0")
            await asyncio.sleep(0.05)
            callers[3].connect(listener.getsockname())
            await until(lambda: bool(exhausted))
            assert callers[3].recv(1) == b""
            assert "no descriptors left: it may have" in sockets.why(exhausted[0])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        callers = [stack.enter_context(socket.socket()) for _ in range(4)]
        for caller in callers:
            caller.settimeout(PATIENCE)
        asyncio.run(scenario(listener, callers))
