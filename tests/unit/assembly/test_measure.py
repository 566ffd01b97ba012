"""Measuring while a job comes together: rounds that are given up, and what is said too late."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from shoal.assembly.control_links import Clock, ControlLinks, Member
from shoal.assembly.measure import measure
from shoal.assembly.measured_calls import follow_calls
from shoal.assembly.rails import RailPlaces
from shoal.config.addresses import Address
from shoal.net import messages, sockets
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, Role
from shoal.net.messages import Message
from shoal.tuning.channels import Threads
from shoal.tuning.measured import Network

LIMIT = 20.0
FOUND = {"sent": 1000, "received": 0, "round_trip": 50, "busy": 10}


def within_limit(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT))


def pair() -> tuple[socket.socket, socket.socket]:
    one, other = (sockets.watched(end) for end in socket.socketpair())
    return one, other


def rail(network: int) -> RailPlaces:
    hosts = [f"10.98.{network}.{rank + 1}" for rank in range(2)]
    return RailPlaces(("eth", "eth"), tuple(Address(host, 7000) for host in hosts), ())


class Rank:
    """One that says what the test wants. ``link``: its end of the control link."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link

    async def hears(self, kind: str) -> Message:
        message = await sockets.receive_message(self.link)
        assert message.kind == kind
        return message

    async def says(self, kind: str, number: int, **fields: int) -> None:
        await sockets.send(self.link, messages.pack(kind, {"round": number, **fields}))


class FirstGivenUp(ControlLinks):
    """Whose first wait is short, and no other."""

    waits = 0

    def clock(self, limit: float, *more: Any) -> Clock:
        self.waits += 1
        return super().clock(0.2 if self.waits == 1 else LIMIT, *more)


async def measured_by(rails: int, ranks: Callable[[Rank, Rank], Awaitable[None]]) -> list[Network | None]:
    links = FirstGivenUp(Deadlines())
    ends = []
    for rank, host in enumerate("ab"):
        ours, theirs = pair()
        ends.append(Rank(theirs))
        links.add(Member(rank, host, Address(f"10.98.0.{rank + 1}", 7000), host, 0, Threads(0, 4), (), ours))
    try:
        found, _ = await asyncio.gather(
            measure(links, [rail(network) for network in range(rails)], bytes(16), lambda joining: None),
            ranks(*ends),
        )
    finally:
        await links.stop()
        for end in [*(member.link for member in links.members.values()), *(rank.link for rank in ends)]:
            end.close()
    return found


def test_what_is_said_of_a_round_that_was_given_up_is_not_taken_for_the_next() -> None:
    async def ranks(zero: Rank, one: Rank) -> None:
        for rank in (zero, one):
            await rank.hears("measure")
        first = [await rank.hears("call") for rank in (zero, one)]
        assert [call.integer("round", 0, 9) for call in first] == [0, 0]
        await zero.hears("call")  # rank 1 was too late
        await one.hears("call")
        await one.says("prepared", 0)
        await zero.says("prepared", 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(zero.hears("begin"), 0.1)
        await one.says("measured", 0, **dict.fromkeys(FOUND, 7))
        await one.says("prepared", 1)
        for rank in (zero, one):
            await rank.hears("begin")
        await zero.says("measured", 1, **FOUND)
        await one.says("measured", 0, **dict.fromkeys(FOUND, 7))
        await one.says("measured", 1, **FOUND)

    async def run() -> None:
        first, second = await measured_by(2, ranks)
        assert first is None
        assert second is not None
        assert second.node_rates == (1000, 1000)

    within_limit(run())


def test_a_rank_goes_on_with_a_call_that_comes_where_its_round_should_begin() -> None:
    async def run() -> None:
        zero, link = pair()
        nobody = socket.create_server(("127.0.0.1", 0))
        address = nobody.getsockname()
        nobody.close()
        rank_zero = Rank(zero)

        async def hear(*kinds: str) -> Message:
            message = await sockets.receive_message(link)
            assert message.kind in kinds
            return message

        async def tell(data: bytes) -> None:
            await sockets.send(link, data)

        def client() -> Client:
            return Client(b"a secret of the job", Role.MEASURE, 1, incarnation=bytes(16))

        async def call(number: int) -> None:
            fields = {"round": number, "address": address, "both": False, "source": None}
            await sockets.send(zero, messages.pack("call", fields))
            assert (await rank_zero.hears("prepared")).integer("round", 0, 9) == number

        async def say() -> None:
            await call(0)
            await call(1)  # the round before was given up
            await rank_zero.says("begin", 1)
            assert (await rank_zero.hears("measured")).integer("round", 0, 9) == 1
            await call(2)
            await sockets.send(zero, messages.pack("welcome", {}))

        with contextlib.closing(zero), contextlib.closing(link):
            welcome, _ = await asyncio.gather(follow_calls(hear, tell, client, []), say())
        assert welcome.kind == "welcome"

    within_limit(run())
