"""Reaching a host that has several addresses: every one is called, each with a time of its own, and the error tells of all."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from shoal.config.addresses import Address, Resolved
from shoal.net import sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, HandshakeRefused, Refusal, Role, Server
from shoal.net.redial import reach_rank

SECRET = b"the secret of the links' tests"
LIMIT = 20.0
HOST = Address("head", 1)

Serve = Callable[[socket.socket], Awaitable[None]]


def client(secret: bytes = SECRET) -> Client:
    return Client(secret, Role.CONTROL, 3)


@contextlib.contextmanager
def hole() -> Iterator[Resolved]:
    """An address that answers nothing: the queue of its listener is full, so the kernel drops who calls."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield Resolved(socket.AF_INET, listener.getsockname())


def closed() -> Resolved:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Resolved(socket.AF_INET, listener.getsockname())


async def answers(link: socket.socket) -> None:
    server = Server([SECRET], b"the right server", [Role.CONTROL])
    with contextlib.suppress(OSError, HandshakeRefused):
        await sockets.authenticate_server(link, server)
        await sockets.receive_exactly(link, 1)


async def says_nothing(link: socket.socket) -> None:
    await asyncio.sleep(LIMIT)


async def ends(link: socket.socket) -> None:
    pass


async def is_a_browser(link: socket.socket) -> None:
    await sockets.send(link, b"HTTP/1.1 400 Bad Request\r\n" + b" " * 200)


@contextlib.asynccontextmanager
async def serving(*serves: Serve):  # type: ignore[no-untyped-def]
    """An address of this machine. ``serves``: what it does with each connection in turn, the last one with all others."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    tasks: list[asyncio.Task[None]] = []
    links_: list[socket.socket] = []

    async def one(serve: Serve, link: socket.socket) -> None:
        with link:
            await serve(link)

    async def all_of_them() -> None:
        count = 0
        while True:
            link, _ = await asyncio.get_running_loop().sock_accept(listener)
            links_.append(link)
            tasks.append(asyncio.create_task(one(serves[min(count, len(serves) - 1)], sockets.watched(link))))
            count += 1

    tasks.append(asyncio.create_task(all_of_them()))
    try:
        yield Resolved(socket.AF_INET, listener.getsockname())
    finally:
        await sockets.cancelled(*tasks)
        for link in links_:
            link.close()
        listener.close()


def resolving(monkeypatch: pytest.MonkeyPatch, *found: Resolved) -> None:
    """HOST stands for these, as a name server may say: what is called is real."""

    async def resolve_host(address: Address) -> list[Resolved]:
        return list(found)

    monkeypatch.setattr(sockets, "resolve_host", resolve_host)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(), LIMIT)

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    asyncio.run(limited())
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_the_second_address_is_called_while_the_first_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(says_nothing) as silent, serving(answers) as good:
            with hole() as filtered:
                resolving(monkeypatch, filtered, silent, closed(), good)
                began = time.monotonic()
                reached = await sockets.reach(client(), HOST, [], LIMIT)
                assert reached.client.server_id == b"the right server"
                assert reached.link.getpeername() == good.sockaddr
                assert time.monotonic() - began < 3
                reached.link.close()

    run(scenario)


def test_an_address_where_something_else_answers_keeps_nobody_from_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with serving(is_a_browser) as other, serving(answers) as good:
            resolving(monkeypatch, other, good)
            (await sockets.connect_as(client(), HOST, [], 5.0)).close()

    run(scenario)


def test_the_error_tells_of_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        refused = closed()
        async with serving(says_nothing) as silent, serving(is_a_browser) as other:
            with hole() as filtered:
                resolving(monkeypatch, filtered, silent, refused, other)
                with pytest.raises(sockets.Unreached) as caught:
                    await sockets.connect_as(client(), HOST, [], 1.0)
        said = sockets.why(caught.value)
        for resolved, what in (
            (filtered, "no answer for 1 s"),
            (silent, "it accepts connections but says nothing for 1 s"),
            (refused, "Connection refused"),
            (other, "what answers there is not Shoal: another program has this port"),
        ):
            assert f"{sockets.named(resolved)}: {what}" in said

    run(scenario)


def test_a_refusal_by_one_of_ours_counts_when_no_other_address_takes_us(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(answers) as good:
            resolving(monkeypatch, closed(), good)
            with pytest.raises(
                HandshakeRefused, match=r"Connection refused; 127.0.0.1:\d+: its secret is not ours"
            ) as caught:
                await sockets.connect_as(client(b"the secret of somebody else"), HOST, [], 5.0)
        assert caught.value.refusal == Refusal.WRONG_SECRET

    run(scenario)


def test_a_call_that_is_given_up_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(says_nothing) as silent, serving(says_nothing) as other:
            resolving(monkeypatch, silent, other)
            calling = asyncio.create_task(sockets.connect_as(client(), HOST, [], LIMIT))
            await asyncio.sleep(0.6)
            await sockets.cancelled(calling)

    run(scenario)


def test_a_rank_that_is_late_is_waited_for() -> None:
    """It drops us when it goes on, since we have been a stranger for too long, and then takes us."""

    async def late(link: socket.socket) -> None:
        await asyncio.sleep(1.0)

    async def scenario() -> None:
        async with serving(late, ends, answers) as (_, sockaddr):
            deadlines = Deadlines(stranger=0.5, peer=0.5)
            reached = await reach_rank(client(), Address(*sockaddr), [], 0.3, deadlines)
            reached.link.close()

    run(scenario)


def test_what_ends_every_connection_without_a_word_is_no_late_rank() -> None:
    async def scenario() -> None:
        async with serving(ends) as (_, sockaddr):
            with pytest.raises((sockets.Closed, ConnectionResetError, BrokenPipeError)):
                await reach_rank(client(), Address(*sockaddr), [], 5.0, Deadlines(stranger=0.5, peer=0.6))

    run(scenario)
